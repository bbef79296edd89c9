"""How much a worker does at once: so many runs altogether, and so many of one function."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager

from .function import Function


class Slots:
    """Belongs to one event loop."""

    def __init__(self, total: int, max_waits: int) -> None:
        self._total = total
        self._max_waits = max_waits
        self.waits = 0
        """Runs that wait for an answer in place, without a slot."""
        self._taken: Counter[str] = Counter()
        self._all_taken = 0
        self._freed = asyncio.Event()
        self.on_free: Callable[[], None] = lambda: None
        """Called whenever a slot was given back."""

    @property
    def can_wait(self) -> bool:
        """Whether one more run may wait for an answer in place."""
        return self.waits < self._max_waits

    def free(self, function: Function) -> int:
        """How many more runs of this function may begin."""
        left = self._total - self._all_taken
        if function.concurrency is not None:
            left = min(left, function.concurrency - self._taken[function.name])
        return left

    def take(self, function: Function) -> Slot | None:
        """A slot, if there is one."""
        if self.free(function) < 1:
            return None
        self.count(function, 1)
        return Slot(self, function)

    def count(self, function: Function, change: int) -> None:
        self._taken[function.name] += change
        self._all_taken += change
        if change < 0:
            self._freed.set()
            self.on_free()

    async def freed(self) -> None:
        """Return once a slot was given back after this was called."""
        self._freed.clear()
        await self._freed.wait()


class Slot:
    """One place among the running."""

    def __init__(self, slots: Slots, function: Function) -> None:
        self._slots = slots
        self._function = function
        self._is_taken = True
        self._waits = 0

    @property
    def is_taken(self) -> bool:
        """Not while its run waits for an answer."""
        return self._is_taken

    @contextmanager
    def reserve_wait(self) -> Generator[bool]:
        """Reserve a place among the runs that wait for an answer in place; yield whether there is one.

        A run that waits for several answers at once takes one place.
        """
        if not self._waits and not self._slots.can_wait:
            yield False
            return
        self._slots.waits += not self._waits
        self._waits += 1
        try:
            yield True
        finally:
            self._waits -= 1
            self._slots.waits -= not self._waits

    def give_back(self) -> None:
        """Let another run have it. Once is enough."""
        if self._is_taken:
            self._is_taken = False
            self._slots.count(self._function, -1)

    async def regain(self) -> None:
        """Take it again, as soon as there is one."""
        while not self._is_taken:
            if self._slots.free(self._function) < 1:
                await self._slots.freed()
            else:
                self._is_taken = True
                self._slots.count(self._function, 1)
