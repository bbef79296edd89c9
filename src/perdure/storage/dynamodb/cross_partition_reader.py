"""Reads and purges records across all partitions, by merging the shards of a global index.

The global indexes may be out of date. Therefore `page` and `due` use an index only to find records. They read
the records from the table, and skip those whose sort keys have changed. `purge` deletes a record only if it
has expired according to the table.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..errors import OutcomeUnknown, StorageError
from ..page_builder import Page
from ..records_and_changes import Address, LanePosition, Micros, PageRequest, Purged, Record, Space, Tag
from ..shards import SHARD_COUNT
from .counters import decode_counter, subtract_expired
from .items import (
    TIMER_SHARD_COUNT,
    ExpiredRecord,
    Item,
    decode_expired,
    expiry_shard,
    item_key,
    sort_key,
    space_shard,
    tag_shard,
    timer_shard,
    timer_sort_key,
    total_key,
)
from .partition_reader import PartitionReader
from .purge import purge_expired
from .table_client import Parameters, Table
from .table_setup import ALL_EXPIRY, ALL_LISTING, ALL_LISTING_OF_TAG, ALL_TIMERS

MIN_READ_SIZE = 8
"""Minimum number of entries that the first read of a shard requests. The number doubles with each read."""
SCAN_SIZE = 1000
"""Number of index entries that `counts` reads in one step to find all expired records."""


class _Bound(NamedTuple):
    """A condition on the sort key of an index, and the values of its placeholders."""

    condition: str
    values: dict[str, dict[str, str]]


class IndexEntry(NamedTuple):
    sort_key: str
    item: Item


class ShardScan:
    """A scan of one shard of an index.

    `entries` contains the entries that have been read but not yet returned.
    """

    def __init__(self, table: Table, query: Parameters, attribute: str, chunk: int) -> None:
        self.entries: list[IndexEntry] = []
        self.has_more = True
        self._table = table
        self._query = query
        self._attribute = attribute
        self._chunk = chunk

    async def read(self) -> None:
        items, start = await self._table.read_some("query", {**self._query, "Limit": self._chunk})
        self.entries += [IndexEntry(_sort_key_of(item[self._attribute]), item) for item in items]
        self.has_more = start is not None
        self._query = {**self._query, "ExclusiveStartKey": start}
        self._chunk *= 2


class MergedScan:
    """A scan of all shards of an index, with one query per shard. The entries are sorted by `attribute`."""

    def __init__(
        self,
        table: Table,
        queries: Sequence[Parameters],
        attribute: str,
        *,
        limit: int,
        descending: bool = False,
    ) -> None:
        chunk = max(MIN_READ_SIZE, 2 * limit // len(queries))
        order = {"ScanIndexForward": not descending}
        self._shards = [ShardScan(table, {**query, **order}, attribute, chunk) for query in queries]
        self._descending = descending

    async def take(self, count: int) -> list[IndexEntry]:
        """Return the next `count` entries of all shards, or fewer at the end of the scan."""
        while True:
            entries = [entry for shard in self._shards for entry in shard.entries]
            entries.sort(key=lambda entry: entry.sort_key, reverse=self._descending)
            last = entries[count - 1] if len(entries) >= count else None
            unread = [shard for shard in self._shards if shard.has_more and self._may_precede(shard, last)]
            if not unread:
                self._discard(entries[:count])
                return entries[:count]
            await asyncio.gather(*[shard.read() for shard in unread])

    def _may_precede(self, shard: ShardScan, last: IndexEntry | None) -> bool:
        """Return whether `shard` may have unread entries that precede `last`."""
        if last is None or not shard.entries:
            return True
        reached = shard.entries[-1].sort_key
        return reached > last.sort_key if self._descending else reached < last.sort_key

    def _discard(self, taken: Sequence[IndexEntry]) -> None:
        discarded = {id(entry) for entry in taken}
        for shard in self._shards:
            shard.entries = [entry for entry in shard.entries if id(entry) not in discarded]


def _sort_key_of(value: Mapping[str, str]) -> str:
    """Return the value of an attribute as a string. Pad numbers with zeros, so that they sort numerically."""
    return f"{int(value['N']):016}" if "N" in value else value["S"]


class CrossPartitionReader:
    """Reads and purges records of all partitions. Passes the addresses of purged records to `on_commit`."""

    def __init__(
        self, table: Table, reader: PartitionReader, on_commit: Callable[[Iterable[Address]], None]
    ) -> None:
        self._table = table
        self._reader = reader
        self._on_commit = on_commit

    async def page(self, request: PageRequest, now: Micros) -> list[Record]:
        space, tag = request.space, request.tag
        bound: _Bound | None = None
        if request.after is not None:
            comparison = "<" if request.descending else ">"
            bound = _Bound(f"place {comparison} :after", {":after": {"S": sort_key(request.after)}})
        queries = [
            _shard_query(ALL_LISTING, "space_shard", space_shard(shard, space), bound)
            if tag is None
            else _shard_query(ALL_LISTING_OF_TAG, "tag_shard", tag_shard(shard, space, tag), bound)
            for shard in range(SHARD_COUNT)
        ]

        def is_current(record: Record, listed: str) -> bool:
            return sort_key(record.position) == listed and tag in (None, record.tag)

        scan = MergedScan(self._table, queries, "place", limit=request.limit, descending=request.descending)
        return await self._records(scan, request.limit, now, is_current)

    async def due(
        self, lane: str, after: LanePosition | None, until: Micros, limit: int, now: Micros
    ) -> list[Record]:
        if after is not None and after.wake_at > until:
            return []
        # Both bounds are inclusive, and no sort key equals either of them.
        first = "0" if after is None else timer_sort_key(after) + "\0"
        last = f"{until + 1:016}"
        values = {":first": {"S": first}, ":last": {"S": last}}
        bound = _Bound("timer_place BETWEEN :first AND :last", values)
        queries = [
            _shard_query(ALL_TIMERS, "timer_shard", timer_shard(shard, lane), bound)
            for shard in range(TIMER_SHARD_COUNT)
        ]

        def is_current(record: Record, listed: str) -> bool:
            return record.lane == lane and timer_sort_key(record.lane_position) == listed

        scan = MergedScan(self._table, queries, "timer_place", limit=limit)
        return await self._records(scan, limit, now, is_current)

    async def counts(self, space: Space, now: Micros) -> Mapping[Tag, int]:
        totals: Counter[Tag] = Counter()
        items = await self._table.get(total_key(space, shard) for shard in range(SHARD_COUNT))
        for item in items.values():
            totals.update(decode_counter(item).counts)
        scan = self._expired(now, SCAN_SIZE)
        expired: list[Tag] = []
        while entries := await scan.take(SCAN_SIZE):
            expired += [each.tag for each in _decode_entries(entries) if each.address.space == space]
        return subtract_expired(totals, expired)

    async def purge(self, until: Micros, limit: int) -> list[Purged]:
        scan = self._expired(until, limit)
        purged: list[ExpiredRecord] = []
        try:
            while len(purged) < limit and (entries := await scan.take(limit - len(purged))):
                async for batch in purge_expired(self._table, _decode_entries(entries), until):
                    purged += batch
                    self._on_commit(each.address for each in batch)
        except StorageError as error:
            if not purged:
                raise
            what = f"at least {len(purged)} records were purged before an error occurred"
            raise OutcomeUnknown(f"{self._table.location.display_name}: {what} ({error})") from error
        purged.sort(key=lambda each: (each.expires_at, each.address))
        return [Purged(*each.address, each.tag) for each in purged]

    def _expired(self, until: Micros, limit: int) -> MergedScan:
        bound = _Bound("expires_at <= :until", {":until": {"N": str(until)}})
        queries = [
            _shard_query(ALL_EXPIRY, "expiry_shard", expiry_shard(shard), bound)
            for shard in range(SHARD_COUNT)
        ]
        return MergedScan(self._table, queries, "expires_at", limit=limit)

    async def _records(
        self, scan: MergedScan, limit: int, now: Micros, is_current: Callable[[Record, str], bool]
    ) -> list[Record]:
        page = Page(limit)
        while not page.is_full and (entries := await scan.take(limit - len(page.records))):
            sort_keys = {item_key(entry.item): entry.sort_key for entry in entries}
            await self._reader.fill(page, sort_keys, is_current, now)
        return page.records


def _decode_entries(entries: Iterable[IndexEntry]) -> list[ExpiredRecord]:
    return [each for entry in entries if (each := decode_expired(entry.item)) is not None]


def _shard_query(index: str, name: str, shard: str, bound: _Bound | None) -> Parameters:
    expression, values = f"{name} = :shard", {":shard": {"S": shard}}
    if bound is not None:
        expression += f" AND {bound.condition}"
        values |= bound.values
    return {"IndexName": index, "KeyConditionExpression": expression, "ExpressionAttributeValues": values}
