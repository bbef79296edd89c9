"""The baseline: what one would write by hand with the bare driver, one statement per step of a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import islice, pairwise
from typing import Self

from perdure.storage import Record

from .synthetic_tasks import Lifecycle


class Baseline(ABC):
    """Four writes and a read, each acknowledged before the next is sent.

    It has no counters, quotas, notifications or expiry, but its writes are as durable as the store's.
    """

    def __init__(self, lifecycles: Iterator[Lifecycle]) -> None:
        self._lives = lifecycles
        self._ready: deque[Lifecycle] = deque()
        self._stack = AsyncExitStack()

    def prepare(self, number: int) -> None:
        """Prepare lifecycles, so that their creation is not measured."""
        self._ready.extend(islice(self._lives, number - len(self._ready)))

    async def run_lifecycle(self) -> None:
        lifecycle = self._ready.popleft()
        await self.insert(lifecycle[0])
        for before, after in pairwise(lifecycle):
            await self.update(before, after)
        assert await self.read(lifecycle[0]) == lifecycle[-1].body

    @abstractmethod
    async def open(self) -> None:
        """Connect, and create the tables. Push on the stack what must be closed."""

    @abstractmethod
    async def insert(self, record: Record) -> None: ...

    @abstractmethod
    async def update(self, before: Record, after: Record) -> None: ...

    @abstractmethod
    async def read(self, record: Record) -> str:
        """Return the stored body."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
