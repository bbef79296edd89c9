"""Verbs across partitions: every shard of an index is asked, and their answers are merged.

The indexes follow the table after a moment. So what they show is only where to look: the records are then
read from the table, and one that no longer stands where the index had it is passed over.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import OutcomeUnknown, StorageError
from ..page import Page
from ..record import Address, Micros, PageRequest, Purged, Record, Space, Tag
from ..shards import SHARD_COUNT
from .counters import living, stored_in
from .items import (
    TIMER_SHARDS,
    Item,
    Overdue,
    expiry_shard,
    key_of,
    overdue_in,
    place,
    space_shard,
    tag_shard,
    timer_place,
    timer_shard,
    total_key,
)
from .purge import earliest, remove
from .reader import Reader
from .schema import ALL_EXPIRY, ALL_LISTING, ALL_LISTING_OF_TAG, ALL_TIMERS
from .table import Parameters, Table

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


MANY = 1000
"""Entries that are taken at once where all are wanted."""


class Across:
    """The verbs that know no partition. `on_commit` is called for everything that was purged."""

    def __init__(self, table: Table, reader: Reader, on_commit: Callable[[Iterable[Address]], None]) -> None:
        self._table = table
        self._reader = reader
        self._on_commit = on_commit

    async def page(self, request: PageRequest, now: Micros) -> list[Record]:
        space, tag = request.space, request.tag
        questions = [
            _question(ALL_LISTING, "space_shard", space_shard(shard, space))
            if tag is None
            else _question(ALL_LISTING_OF_TAG, "tag_shard", tag_shard(shard, space, tag))
            for shard in range(SHARD_COUNT)
        ]
        if request.after is not None:
            sign = "<" if request.descending else ">"
            questions = [_bounded(each, f"place {sign}", {"S": place(request.after)}) for each in questions]
        questions = [{**each, "ScanIndexForward": not request.descending} for each in questions]

        def is_there(record: Record, at: str) -> bool:
            return place(record.position) == at and tag in (None, record.tag)

        merge = Merge(self._table, questions, "place", limit=request.limit, descending=request.descending)
        return await self._records(merge, request.limit, now, is_there)

    async def due(self, lane: str, until: Micros, limit: int, now: Micros) -> list[Record]:
        questions = [
            _bounded(
                _question(ALL_TIMERS, "timer_shard", timer_shard(shard, lane)),
                "timer_place <",
                {"S": f"{until + 1:016}"},
            )
            for shard in range(TIMER_SHARDS)
        ]

        def is_there(record: Record, at: str) -> bool:
            return record.lane == lane and timer_place(record) == at

        merge = Merge(self._table, questions, "timer_place", limit=limit)
        return await self._records(merge, limit, now, is_there)

    async def counts(self, space: Space, now: Micros) -> Mapping[Tag, int]:
        totals: Counter[Tag] = Counter()
        for item in (
            await self._table.get([total_key(space, shard) for shard in range(SHARD_COUNT)])
        ).values():
            totals.update(stored_in(item).counts)
        merge = self._expired(now, MANY)
        dead: list[Tag] = []
        while entries := await merge.take(MANY):
            dead += [each.tag for each in _overdue_in(entries) if each.address.space == space]
        return living(totals, dead)

    async def purge(self, until: Micros, limit: int) -> list[Purged]:
        merge = self._expired(until, limit)
        removed: list[Overdue] = []

        def note(gone: Sequence[Overdue]) -> None:
            removed.extend(gone)
            self._on_commit(each.address for each in gone)

        try:
            while len(removed) < limit and (entries := await merge.take(limit - len(removed))):
                await remove(self._table, _overdue_in(entries), until, note)
        except StorageError as error:
            if not removed:
                raise
            what = f"{len(removed)} records were purged before it failed"
            raise OutcomeUnknown(f"{self._table.location.name}: {what} ({error})") from error
        return [Purged(*each.address, each.tag) for each in sorted(removed, key=earliest)]

    def _expired(self, until: Micros, limit: int) -> Merge:
        questions = [
            _bounded(
                _question(ALL_EXPIRY, "expiry_shard", expiry_shard(shard)), "expires_at <=", {"N": str(until)}
            )
            for shard in range(SHARD_COUNT)
        ]
        return Merge(self._table, questions, "expires_at", limit=limit)

    async def _records(
        self, merge: Merge, limit: int, now: Micros, is_there: Callable[[Record, str], bool]
    ) -> list[Record]:
        page = Page(limit)
        while not page.is_full and (entries := await merge.take(limit - len(page.records))):
            places = {key_of(entry.item): entry.place for entry in entries}
            await self._reader.fill(page, places, is_there, now)
        return page.records


def _overdue_in(entries: Iterable[Entry]) -> list[Overdue]:
    return [each for entry in entries if (each := overdue_in(entry.item)) is not None]


def _question(index: str, name: str, shard: str) -> dict[str, Any]:
    return {
        "IndexName": index,
        "KeyConditionExpression": f"{name} = :shard",
        "ExpressionAttributeValues": {":shard": {"S": shard}},
    }


def _bounded(question: dict[str, Any], comparison: str, value: dict[str, str]) -> dict[str, Any]:
    return {
        **question,
        "KeyConditionExpression": f"{question['KeyConditionExpression']} AND {comparison} :bound",
        "ExpressionAttributeValues": {**question["ExpressionAttributeValues"], ":bound": value},
    }
