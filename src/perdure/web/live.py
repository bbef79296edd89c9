"""Live updates: browsers receive the parts of an open page that have changed.

A page consists of named fragments of HTML. When a fragment changes, the server sends it to the browsers, and
a script replaces the element with the same id. Pages and updates use the same templates, and pages also work
without scripts.

Open pages are rendered again when the storage changes, at most twice a second, and once for all browsers that
show the same page. A page that no browser shows costs nothing. Each browser receives the changes since its
previous update, so a slow connection gets fewer updates, but never outdated ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio
import msgspec
from markupsafe import Markup
from starlette.exceptions import HTTPException

from ..runtime.background import run_in_background
from ..storage import Space, Storage
from ..storage.errors import StorageClosed, StorageError
from ..tasks.errors import TaskError
from .cache import COST_FACTOR

log = logging.getLogger("perdure.web")

MIN_POLL_SECONDS = 0.5
"""Minimum pause after a rendering, in seconds, no matter how many changes there are."""
MAX_POLL_SECONDS = 10.0
"""Maximum pause after a rendering, in seconds, no matter how long the rendering took."""
IDLE_POLL_SECONDS = 2.0
"""Number of seconds after which open pages are rendered again even if no change was notified, because a
notification may have been lost."""
MAX_OPEN_PAGES = 200


class PageFragments(msgspec.Struct, frozen=True):
    """The HTML fragments of a page."""

    fragments: Mapping[str, Markup]
    """The HTML of each fragment, by element id."""
    lists: Mapping[str, tuple[str, ...]] = {}
    """The ids of the fragments in each list, in order. The key is the id of the list element."""

    def diff(self, before: PageFragments | None) -> PageFragments:
        """Return only the fragments and lists that differ from an earlier version."""
        if before is None:
            return self
        return PageFragments(
            {name: html for name, html in self.fragments.items() if before.fragments.get(name) != html},
            {name: order for name, order in self.lists.items() if before.lists.get(name) != order},
        )

    def join(self, name: str) -> Markup:
        """Return the HTML of all fragments in a list."""
        return Markup("").join(self.fragments[each] for each in self.lists[name])

    def to_json(self) -> str:
        """Return the fragments as JSON for the script in the browser."""
        return json.dumps({"fragments": self.fragments, "lists": self.lists}, separators=(",", ":"))


def digest(text: str) -> str:
    """Return a short hash of a text, for element ids and for detecting fragments that have not changed."""
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


Render: TypeAlias = Callable[[], Awaitable[PageFragments]]


class LiveView:
    """An open page, shared by all browsers that show it."""

    def __init__(self, render: Render, page: PageFragments) -> None:
        self.render = render
        self.page = page
        self.is_closed = False
        self.subscribers = 0
        self._rendered_at = time.monotonic()
        self._changed = asyncio.Event()

    @property
    def is_fresh(self) -> bool:
        """Whether the page is up to date: a browser is showing it, or it was rendered a moment ago."""
        is_recent = time.monotonic() - self._rendered_at < MIN_POLL_SECONDS
        return not self.is_closed and (self.subscribers > 0 or is_recent)

    def publish(self, page: PageFragments | None) -> None:
        """Send a new version of the page to the browsers. If `page` is None, close the view."""
        if page is None:
            self.is_closed = True
        elif page == self.page:
            return
        else:
            self.page = page
        self._changed.set()
        self._changed = asyncio.Event()

    async def changes(self) -> AsyncGenerator[PageFragments]:
        """Yield the whole page, and then its changes until the view is closed."""
        sent: PageFragments | None = None
        while True:
            changed = self._changed
            if self.page is not sent:
                difference = self.page.diff(sent)
                sent = self.page
                yield difference
            elif self.is_closed:
                return
            else:
                await changed.wait()


class LiveUpdates:
    """While the context `running` is active, renders the open pages again when the storage changes."""

    def __init__(self, storage: Storage, spaces: Sequence[Space]) -> None:
        self._storage = storage
        self._spaces = spaces
        self._views: dict[str, LiveView] = {}
        self._wake = asyncio.Event()
        """An event that is set when a browser opens a page or the storage changes."""
        self._render_lock = asyncio.Lock()
        self._pending = 0
        """Number of requests for live updates whose pages are still being rendered."""
        self.is_running = False

    @property
    def has_capacity(self) -> bool:
        open_pages = sum(view.subscribers for view in self._views.values())
        return self.is_running and open_pages + self._pending < MAX_OPEN_PAGES

    async def view(self, name: str, render: Render) -> LiveView:
        """Return the view with this name.

        If there is no such view, or it is outdated, render the page and create a new view.
        """
        self._pending += 1
        try:
            async with self._render_lock:
                self._views = {each: view for each, view in self._views.items() if view.is_fresh}
                if name not in self._views:
                    self._views[name] = LiveView(render, await render())
                return self._views[name]
        finally:
            self._pending -= 1

    async def changes(self, name: str, view: LiveView) -> AsyncGenerator[PageFragments]:
        """Yield the whole page and then its changes, for one browser."""
        view = self._views.setdefault(name, view)
        view.subscribers += 1
        self._wake.set()
        try:
            async for change in view.changes():
                yield change
        finally:
            view.subscribers -= 1
            if not view.subscribers and self._views.get(name) is view:
                del self._views[name]

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        async with run_in_background(self._poll_forever()):
            self.is_running = True
            try:
                yield
            finally:
                self.is_running = False
                for view in self._views.values():
                    view.publish(None)

    async def _poll_forever(self) -> None:
        is_open = True
        while is_open:
            await self._wake.wait()
            try:
                await self._poll_while_subscribed()
            except* StorageClosed:
                is_open = False
            except* Exception:
                log.exception("cannot update the open pages of the dashboard; retrying")
                self._wake.set()  # there are still subscribers
                await anyio.sleep(IDLE_POLL_SECONDS)

    async def _poll_while_subscribed(self) -> None:
        async with anyio.create_task_group() as watchers:
            for space in self._spaces:
                watchers.start_soon(self._watch_space, space)
            while any(view.subscribers for view in self._views.values()):
                self._wake.clear()
                started = time.monotonic()
                await self._render_all()
                await anyio.sleep(pause_after(time.monotonic() - started))
                with anyio.move_on_after(IDLE_POLL_SECONDS - MIN_POLL_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            watchers.cancel_scope.cancel()

    async def _watch_space(self, space: Space) -> None:
        async with self._storage.watch(space) as watch:
            while True:
                await watch.changed()
                self._wake.set()
                await anyio.sleep(MIN_POLL_SECONDS / 2)

    async def _render_all(self) -> None:
        for view in [view for view in self._views.values() if view.subscribers]:
            try:
                view.publish(await view.render())
            except (TaskError, HTTPException):  # what the page shows no longer exists, or cannot be read
                view.publish(None)
            except StorageClosed:
                raise
            except StorageError as error:
                log.warning("cannot update an open page of the dashboard; retrying: %s", error)
            except Exception:  # one broken page must not stop the others
                log.exception("cannot update an open page of the dashboard; retrying")


def pause_after(duration: float) -> float:
    """Return the pause after a rendering: 30 times its duration, but at least 0.5 and at most 10 seconds."""
    return min(MAX_POLL_SECONDS, max(MIN_POLL_SECONDS, COST_FACTOR * duration))
