"""What one writes by hand who keeps a task with the bare driver: a statement for each step of its life."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import islice, pairwise
from typing import Self

from perdure.storage import Record

from .copies import Life


class Floor(ABC):
    """Four writes and a read, each acknowledged before the next is sent. It counts nothing, guards nothing,
    tells nobody and forgets nothing; but what it has written is as safe as what the store has.
    """

    def __init__(self, lives: Iterator[Life]) -> None:
        self._lives = lives
        self._ready: deque[Life] = deque()
        self._stack = AsyncExitStack()

    def prepare(self, number: int) -> None:
        """Have so many lives ready, so that nobody pays for them who is timed."""
        self._ready.extend(islice(self._lives, number - len(self._ready)))

    async def live(self) -> None:
        life = self._ready.popleft()
        await self.insert(life[0])
        for before, after in pairwise(life):
            await self.update(before, after)
        assert await self.read(life[0]) == life[-1].body

    @abstractmethod
    async def open(self) -> None:
        """Connect, and make the tables. What is to be closed goes on the stack."""

    @abstractmethod
    async def insert(self, record: Record) -> None: ...

    @abstractmethod
    async def update(self, before: Record, after: Record) -> None: ...

    @abstractmethod
    async def read(self, record: Record) -> str:
        """The body that stands there."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
