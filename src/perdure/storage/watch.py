"""Watches, which wake a waiting caller when records change, and the registry that contains them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Self, TypeAlias

from .errors import StorageClosed
from .records_and_changes import Address, Change, Delete, Insert, InsertIfAbsent, Replace, Space

_WatchScope: TypeAlias = tuple[Space, str | None, str | None]


class Watch:
    """A subscription to changes of a record, a partition or a space. Create it with `Storage.watch`."""

    def __init__(self, registry: WatchRegistry, scope: _WatchScope) -> None:
        self.scope = scope
        self.only_lanes = False
        """Whether to ignore this client's changes after which the record is in no lane (timer queue)."""
        self._closed = False
        self._registry = registry
        self._event = asyncio.Event()

    async def changed(self) -> None:
        """Wait for a change. Return at once if there has been a change since the previous call returned.

        Several changes may cause a single wake-up, and the caller may be woken even if nothing has changed.
        """
        if not self._is_closed:
            await self._event.wait()
            self._event.clear()
        if self._is_closed:
            raise StorageClosed("this watch or its storage is closed")

    def wake(self) -> None:
        self._event.set()

    async def close(self) -> None:
        self._closed = True
        self.wake()
        self._registry.remove(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def _is_closed(self) -> bool:
        return self._closed or self._registry.is_closed


class WatchRegistry:
    """The open watches of one engine. Use it in only one event loop.

    `on_watched_changed` is called when a watch is opened while no other is open, and when the last open watch
    is closed.
    """

    def __init__(self, on_watched_changed: Callable[[], None] = lambda: None) -> None:
        self.is_closed = False
        self._on_watched_changed = on_watched_changed
        self._watches: defaultdict[_WatchScope, set[Watch]] = defaultdict(set)

    def watch(self, scope: _WatchScope) -> Watch:
        watch = Watch(self, scope)
        is_first = not self._watches
        self._watches[scope].add(watch)
        if is_first:
            self._on_watched_changed()
        return watch

    @property
    def is_watched(self) -> bool:
        return bool(self._watches)

    def remove(self, watch: Watch) -> None:
        watches = self._watches.get(watch.scope)
        if watches is None:
            return
        watches.discard(watch)
        if not watches:
            del self._watches[watch.scope]
        if not self._watches:
            self._on_watched_changed()

    def wake(self, addresses: Iterable[Address]) -> None:
        """Wake the watches that cover at least one of these addresses."""
        if not self._watches:
            return
        for space, partition, key in addresses:
            for scope in ((space, None, None), (space, partition, None), (space, partition, key)):
                for watch in self._watches.get(scope, ()):
                    watch.wake()

    def wake_for(self, changes: Iterable[Change]) -> None:
        """Wake the watches that cover at least one of these changes, which this engine has committed."""
        if not self._watches:
            return
        for change in changes:
            space, partition, key = change.address
            in_lane = _lane_after(change) is not None
            for scope in ((space, None, None), (space, partition, None), (space, partition, key)):
                for watch in self._watches.get(scope, ()):
                    if in_lane or not watch.only_lanes:
                        watch.wake()

    def wake_all(self) -> None:
        for watches in self._watches.values():
            for watch in watches:
                watch.wake()

    def close(self) -> None:
        """Make every call to `changed` raise StorageClosed, including calls that are waiting."""
        self.is_closed = True
        self.wake_all()


def _lane_after(change: Change) -> str | None:
    """Return the lane that a record is in after a change, or None if it is in no lane or was deleted."""
    match change:
        case Insert(record=record) | InsertIfAbsent(record=record) | Replace(after=record):
            return record.lane
        case Delete():
            return None
