"""Entries of all shards of an index, merged in true order, with no more read than it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .client import Parameters, Table
from .items import Item

FEWEST = 8
"""Entries that a shard is asked for at first. Each time that was not enough it is asked for twice as many."""


class Entry(NamedTuple):
    place: str
    item: Item


class _Shard:
    """What one shard has shown and nobody has taken yet."""

    def __init__(self, table: Table, question: Parameters, attribute: str, chunk: int) -> None:
        self.entries: list[Entry] = []
        self.has_more = True
        self._table = table
        self._question = question
        self._attribute = attribute
        self._chunk = chunk

    async def read(self) -> None:
        items, start = await self._table.query({**self._question, "Limit": self._chunk})
        self.entries += [Entry(_place_in(item[self._attribute]), item) for item in items]
        self.has_more = start is not None
        self._question = {**self._question, "ExclusiveStartKey": start}
        self._chunk *= 2


class Merge:
    """An index, asked by one question for each of its shards, in the order of one attribute."""

    def __init__(
        self,
        table: Table,
        questions: Sequence[Parameters],
        attribute: str,
        *,
        limit: int,
        descending: bool = False,
    ) -> None:
        chunk = max(FEWEST, 2 * limit // len(questions))
        self._shards = [_Shard(table, question, attribute, chunk) for question in questions]
        self._descending = descending

    async def take(self, count: int) -> list[Entry]:
        """The next entries; fewer than asked for only at the end."""
        while True:
            shown = [entry for shard in self._shards for entry in shard.entries]
            shown.sort(key=lambda entry: entry.place, reverse=self._descending)
            last = shown[count - 1] if len(shown) >= count else None
            lacking = [shard for shard in self._shards if shard.has_more and self._may_precede(shard, last)]
            if not lacking:
                self._drop(shown[:count])
                return shown[:count]
            await asyncio.gather(*[shard.read() for shard in lacking])

    def _may_precede(self, shard: _Shard, last: Entry | None) -> bool:
        """Whether what this shard has not shown may come before that."""
        if last is None or not shard.entries:
            return True
        reached = shard.entries[-1].place
        return reached > last.place if self._descending else reached < last.place

    def _drop(self, taken: Sequence[Entry]) -> None:
        gone = {id(entry) for entry in taken}
        for shard in self._shards:
            shard.entries = [entry for entry in shard.entries if id(entry) not in gone]


def _place_in(value: Mapping[str, str]) -> str:
    """Numbers get all their digits, so that they sort as text."""
    return f"{int(value['N']):016}" if "N" in value else value["S"]
