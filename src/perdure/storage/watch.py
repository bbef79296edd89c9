"""Wake-ups inside one process, for engines that learn of their own commits there."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable

from .contract import Watch
from .errors import StorageClosed
from .record import Address, Space

_Scope = tuple[Space, str | None, str | None]


class Signals:
    """Who wants to be woken for what. Belongs to one event loop.

    `on_interest` is called when the first watch has come and when the last one has gone.
    """

    def __init__(self, on_interest: Callable[[], None] = lambda: None) -> None:
        self.closed = False
        self._on_interest = on_interest
        self._watches: defaultdict[_Scope, set[LocalWatch]] = defaultdict(set)

    def watch(self, scope: _Scope) -> LocalWatch:
        watch = LocalWatch(self, scope)
        is_first = not self._watches
        self._watches[scope].add(watch)
        if is_first:
            self._on_interest()
        return watch

    @property
    def is_watched(self) -> bool:
        return bool(self._watches)

    def drop(self, watch: LocalWatch) -> None:
        watches = self._watches.get(watch.scope)
        if watches is None:
            return
        watches.discard(watch)
        if not watches:
            del self._watches[watch.scope]
        if not self._watches:
            self._on_interest()

    def wake(self, addresses: Iterable[Address]) -> None:
        """Something changed at these addresses."""
        if not self._watches:
            return
        for space, partition, key in addresses:
            for scope in ((space, None, None), (space, partition, None), (space, partition, key)):
                for watch in self._watches.get(scope, ()):
                    watch.wake()

    def close(self) -> None:
        """Nothing will change any more."""
        self.closed = True
        self.wake_all()

    def wake_all(self) -> None:
        """Something changed somewhere."""
        for watches in self._watches.values():
            for watch in watches:
                watch.wake()


class LocalWatch(Watch):
    """A watch that is woken by `Signals`."""

    def __init__(self, signals: Signals, scope: _Scope) -> None:
        self.scope = scope
        self._closed = False
        self._signals = signals
        self._event = asyncio.Event()

    def wake(self) -> None:
        self._event.set()

    async def changed(self) -> None:
        if not self._is_closed:
            await self._event.wait()
            self._event.clear()
        if self._is_closed:
            raise StorageClosed("this watch, or its storage, was closed")

    async def close(self) -> None:
        self._closed = True
        self.wake()
        self._signals.drop(self)

    @property
    def _is_closed(self) -> bool:
        return self._closed or self._signals.closed
