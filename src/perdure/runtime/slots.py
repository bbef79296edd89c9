"""Slots, which limit the concurrent runs of a worker: all of them, and those of each function."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager

from .function import Function


class Slots:
    """The slots of one worker. Belongs to one event loop."""

    def __init__(self, total: int, max_waits: int) -> None:
        self._total = total
        self._max_waits = max_waits
        self.waits = 0
        """The number of runs that wait for an answer, which need no slot."""
        self._taken: Counter[str] = Counter()
        self._all_taken = 0
        self._freed = asyncio.Event()
        self.on_free: Callable[[], None] = lambda: None
        """Called whenever a slot was released."""

    @property
    def can_wait(self) -> bool:
        """Whether one more run may wait for an answer."""
        return self.waits < self._max_waits

    def free(self, function: Function) -> int:
        """Return how many more runs of this function may start."""
        left = self._total - self._all_taken
        if function.concurrency is not None:
            left = min(left, function.concurrency - self._taken[function.name])
        return left

    def take(self, function: Function) -> Slot | None:
        """Return a slot, or None if none is free."""
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
        """Return once a slot was released after this was called."""
        self._freed.clear()
        await self._freed.wait()


class Slot:
    """The right to run one task at a time."""

    def __init__(self, slots: Slots, function: Function) -> None:
        self._slots = slots
        self._function = function
        self._is_taken = True
        self._waits = 0

    @property
    def is_taken(self) -> bool:
        """Whether its run uses it. A run that waits for an answer does not."""
        return self._is_taken

    @contextmanager
    def reserve_wait(self) -> Generator[bool]:
        """Reserve a place among the runs that may wait for an answer. Yield False if no place is free.

        A run needs only one place, even if it waits for several answers at once.
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

    def release(self) -> None:
        """Let another run use the slot. A repeated call changes nothing."""
        if self._is_taken:
            self._is_taken = False
            self._slots.count(self._function, -1)

    async def regain(self) -> None:
        """Take a slot again, as soon as one is free."""
        while not self._is_taken:
            if self._slots.free(self._function) < 1:
                await self._slots.freed()
            else:
                self._is_taken = True
                self._slots.count(self._function, 1)
