"""Open pages are told what has changed: one look at the storage for all of them, at most twice a second.

A page that nobody has open costs nothing, and many browsers on the same page cost one. Each is sent what
differs from what it was sent last, so one that is slow gets less often what others get, never late.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TypeAlias

import anyio

from ..storage import Space, Storage
from ..storage.errors import StorageClosed
from ..tasks.errors import NotFound
from .screens import Screen

log = logging.getLogger("perdure.web")

Draw: TypeAlias = Callable[[], Awaitable[Screen]]

APART = 0.5
"""Seconds between two looks, however much happens."""
AT_LEAST = 2.0
"""Seconds after which is looked even if no change was heard of: hearing is a hint."""
MOST_PAGES = 200
"""Open pages at once. One more is told to come back later."""


class View:
    """One page as several browsers see it."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.screen: Screen | None = None
        self.is_over = False
        self.browsers = 0
        self._changed = asyncio.Event()

    def show(self, screen: Screen | None) -> None:
        """None: what it showed is gone."""
        if screen is None:
            self.is_over = True
        elif self.screen is not None and screen.since(self.screen).is_empty:
            return
        else:
            self.screen = screen
        self._changed.set()
        self._changed = asyncio.Event()

    async def changes(self) -> AsyncGenerator[Screen]:
        """The whole screen, then what changes of it, until it is gone."""
        sent: Screen | None = None
        while True:
            changed = self._changed
            if self.screen is not None and self.screen is not sent:
                difference = self.screen.since(sent)
                sent = self.screen
                yield difference
            elif self.is_over:
                return
            else:
                await changed.wait()


class Live:
    """Use it within `running`."""

    def __init__(self, storage: Storage, spaces: Sequence[Space]) -> None:
        self._storage = storage
        self._spaces = spaces
        self._views: dict[str, View] = {}
        self._wanted = asyncio.Event()
        self.is_running = False

    @property
    def has_room(self) -> bool:
        return self.is_running and sum(view.browsers for view in self._views.values()) < MOST_PAGES

    async def changes(self, name: str, draw: Draw) -> AsyncGenerator[Screen]:
        """What a page of this name shows, drawn by the first who opened it."""
        view = self._views.setdefault(name, View(draw))
        view.browsers += 1
        self._wanted.set()
        try:
            async for change in view.changes():
                yield change
        finally:
            view.browsers -= 1
            if not view.browsers and self._views.get(name) is view:
                del self._views[name]

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        looking = asyncio.create_task(self._look_forever())
        self.is_running = True
        try:
            yield
        finally:
            self.is_running = False
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking
            for view in self._views.values():
                view.show(None)

    async def _look_forever(self) -> None:
        while True:
            await self._wanted.wait()
            try:
                await self._look_while_wanted()
            except StorageClosed:
                return
            except Exception:
                log.exception("the dashboard could not look for changes")
                await anyio.sleep(AT_LEAST)

    async def _look_while_wanted(self) -> None:
        async with AsyncExitStack() as stack:
            news = asyncio.Event()
            watching = await stack.enter_async_context(anyio.create_task_group())
            for space in self._spaces:
                watching.start_soon(self._listen, space, news)
            while self._views:
                news.clear()
                self._wanted.clear()
                await self._draw_all()
                await anyio.sleep(APART)
                with anyio.move_on_after(AT_LEAST - APART):
                    await self._any_of(news, self._wanted)
            watching.cancel_scope.cancel()

    async def _any_of(self, *events: asyncio.Event) -> None:
        waiting = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()

    async def _listen(self, space: Space, news: asyncio.Event) -> None:
        async with self._storage.watch(space) as watch:
            while True:
                await watch.changed()
                news.set()
                await anyio.sleep(APART / 2)

    async def _draw_all(self) -> None:
        for view in list(self._views.values()):
            try:
                view.show(await view.draw())
            except NotFound:
                view.show(None)
            except StorageClosed:
                raise
            except Exception:  # one page that cannot be drawn keeps the others from nothing
                log.exception("a page of the dashboard could not be drawn")
