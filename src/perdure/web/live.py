"""Open pages are told what has changed: one look at the storage for all of them, at most twice a second.

A page that nobody has open costs nothing, and many browsers on the same page cost one. Each is sent what
differs from what it was sent last, so one that is slow gets less often what others get, never late.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TypeAlias

import anyio
import msgspec
from markupsafe import Markup
from starlette.exceptions import HTTPException

from ..storage import Space, Storage
from ..storage.errors import StorageClosed, StorageError
from ..tasks.errors import TaskError
from .cache import SHARE

log = logging.getLogger("perdure.web")

Draw: TypeAlias = "Callable[[], Awaitable[Screen]]"

APART = 0.5
"""Seconds between two looks, however much happens."""
LONGEST_APART = 10.0
"""However long a look takes."""
AT_LEAST = 2.0
"""Seconds after which is looked even if no change was heard of: hearing is a hint."""
MOST_PAGES = 200
"""Open pages at once. One more is told to come back later."""


class View:
    """One page as several browsers see it."""

    def __init__(self, draw: Draw, screen: Screen) -> None:
        self.draw = draw
        self.screen = screen
        self.is_over = False
        self.browsers = 0
        self._drawn_at = time.monotonic()
        self._changed = asyncio.Event()

    @property
    def is_fresh(self) -> bool:
        """Whether it is what a look would find: somebody has it open, or it was drawn just now."""
        return not self.is_over and (self.browsers > 0 or time.monotonic() - self._drawn_at < APART)

    def show(self, screen: Screen | None) -> None:
        """None: what it showed is gone."""
        if screen is None:
            self.is_over = True
        elif screen is self.screen or screen.since(self.screen).is_empty:
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
            if self.screen is not sent:
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
        self._drawing = asyncio.Lock()
        self._coming = 0
        """Who has asked for a page and is not shown it yet."""
        self.is_running = False

    @property
    def has_room(self) -> bool:
        looking = sum(view.browsers for view in self._views.values())
        return self.is_running and looking + self._coming < MOST_PAGES

    async def view(self, name: str, draw: Draw) -> View:
        """A page of this name, drawn by the first who opened it. Raises what keeps it from being drawn."""
        self._coming += 1
        try:
            async with self._drawing:
                return await self._view(name, draw)
        finally:
            self._coming -= 1

    async def _view(self, name: str, draw: Draw) -> View:
        self._views = {each: view for each, view in self._views.items() if view.is_fresh}
        if name not in self._views:
            self._views[name] = View(draw, await draw())
        return self._views[name]

    async def changes(self, name: str, view: View) -> AsyncGenerator[Screen]:
        """What a view shows, for one who looks at it."""
        view = self._views.setdefault(name, view)
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
        is_open = True
        while is_open:
            await self._wanted.wait()
            try:
                await self._look_while_wanted()
            except* StorageClosed:
                is_open = False
            except* Exception:
                log.exception("the dashboard could not look for changes")
                self._wanted.set()  # whoever looks is still there
                await anyio.sleep(AT_LEAST)

    async def _look_while_wanted(self) -> None:
        async with AsyncExitStack() as stack:
            news = asyncio.Event()
            watching = await stack.enter_async_context(anyio.create_task_group())
            for space in self._spaces:
                watching.start_soon(self._listen, space, news)
            while any(view.browsers for view in self._views.values()):
                news.clear()
                self._wanted.clear()
                began = time.monotonic()
                await self._draw_all()
                await anyio.sleep(rest_after(time.monotonic() - began))
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
        for view in [view for view in self._views.values() if view.browsers]:
            try:
                view.show(await view.draw())
            except (TaskError, HTTPException):  # it is gone, or not to be shown
                view.show(None)
            except StorageClosed:
                raise
            except StorageError as error:
                log.warning("a page of the dashboard could not be drawn: %s", error)
            except Exception:  # one page that cannot be drawn keeps the others from nothing
                log.exception("a page of the dashboard could not be drawn")


def rest_after(took: float) -> float:
    """So that looking takes a thirtieth of the time at most, however much is open."""
    return min(LONGEST_APART, max(APART, SHARE * took))


class Screen(msgspec.Struct, frozen=True):
    pieces: Mapping[str, Markup]
    """By the id of its element."""
    lists: Mapping[str, tuple[str, ...]] = {}
    """Elements whose children are pieces: which, and in what order."""

    def since(self, before: Screen | None) -> Screen:
        """What differs from an earlier screen."""
        if before is None:
            return self
        return Screen(
            {name: html for name, html in self.pieces.items() if before.pieces.get(name) != html},
            {name: order for name, order in self.lists.items() if before.lists.get(name) != order},
        )

    @property
    def is_empty(self) -> bool:
        return not self.pieces and not self.lists

    def in_list(self, name: str) -> Markup:
        """The pieces of a list, one after the other."""
        return Markup("").join(self.pieces[each] for each in self.lists[name])

    def as_json(self, form_key: Mapping[str, str]) -> str:
        """As the script takes it, with the forms made the browser's own."""
        pieces = {name: owned(html, form_key) for name, html in self.pieces.items()}
        return json.dumps({"pieces": pieces, "lists": self.lists}, separators=(",", ":"))


def digest_of(html: str) -> str:
    """By which the script knows that it has a piece already."""
    return hashlib.blake2b(html.encode(), digest_size=6).hexdigest()


def owned(html: str, form_key: Mapping[str, str]) -> str:
    """A piece is shared by all who look, the key of its form is not: a word of chance stood for it."""
    for word, key in form_key.items():
        html = html.replace(word, key)
    return html
