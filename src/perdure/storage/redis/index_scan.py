"""Walking along indexes: of one shard, or of all of them in their common order.

With many shards each is first asked for its share of what is wanted, so that not every one sends all of it;
who turns out to have more of what comes next is asked for more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import cast

from ..shards import merged
from .router import Call, Router
from .schema import Range
from .scripts import RANGES


class Shelf:
    """An index, and how far it was read."""

    def __init__(self, shard: int, key: bytes, stretch: Range) -> None:
        self.shard = shard
        self.key = key
        self.rest = stretch
        self.ended = False
        self.entries: list[bytes] = []

    def call(self, limit: int) -> Call:
        rest = self.rest
        backwards = (b"REV",) if rest.descending else ()
        return self.shard, (
            b"ZRANGE",
            self.key,
            rest.first,
            rest.last,
            b"BYLEX",
            *backwards,
            b"LIMIT",
            0,
            limit,
        )

    def add(self, entries: list[bytes], limit: int) -> None:
        self.entries += entries
        self.ended = len(entries) < limit
        if entries:
            self.rest = self.rest.after(entries[-1])


class Walk:
    """One way along shelves that are in the same order."""

    def __init__(self, router: Router, shelves: Sequence[Shelf], *, descending: bool = False) -> None:
        self._router = router
        self._shelves = shelves
        self._descending = descending
        self._began = False

    async def next(self, count: int) -> list[tuple[int, bytes]]:
        """The next entries, each with its shard: so many, or fewer at the end."""
        found: list[tuple[int, bytes]] = []
        while len(found) < count:
            await self._fill(count)
            found += self._take(count - len(found))
            if all(shelf.ended and not shelf.entries for shelf in self._shelves):
                break
        return found

    async def _fill(self, count: int) -> None:
        """Let no shelf be empty that has more."""
        starved = [shelf for shelf in self._shelves if not shelf.entries and not shelf.ended]
        is_first = not self._began and len(self._shelves) > 1
        limit = min(count, count // 16 + 8) if is_first else count
        self._began = True
        if starved:
            for shelf, entries in zip(starved, await self._read(starved, limit), strict=True):
                shelf.add(entries, limit)

    async def _read(self, shelves: Sequence[Shelf], limit: int) -> list[list[bytes]]:
        if len(shelves) == 1 or not self._router.is_one:
            answers = await self._router.read([shelf.call(limit) for shelf in shelves])
            return cast("list[list[bytes]]", answers)
        bounds = [shelf.rest.first for shelf in shelves]
        words = [shelves[0].rest.last, limit, int(self._descending), *bounds]
        call = RANGES.call([shelf.key for shelf in shelves], words)
        (answer,) = await self._router.read([(shelves[0].shard, call)])
        return cast("list[list[bytes]]", answer)

    def _take(self, count: int) -> list[tuple[int, bytes]]:
        """What is certainly next: nothing beyond the last known entry of a shelf that has more."""
        edges = [shelf.entries[-1] for shelf in self._shelves if not shelf.ended]
        parts = [
            [(entry, shelf.shard) for entry in shelf.entries] for shelf in self._shelves if shelf.entries
        ]
        ahead = merged(parts, lambda each: each, count, descending=self._descending)
        if edges:
            edge = max(edges) if self._descending else min(edges)
            is_known: Callable[[tuple[bytes, int]], bool] = (
                (lambda each: each[0] >= edge) if self._descending else (lambda each: each[0] <= edge)
            )
            ahead = list(takewhile(is_known, ahead))
        taken = Counter(shard for _, shard in ahead)
        for shelf in self._shelves:
            del shelf.entries[: taken[shelf.shard]]
        return [(shard, entry) for entry, shard in ahead]
