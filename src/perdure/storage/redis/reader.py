"""Reads records by address or through an index, and counts them.

A listing first reads entries of an index, and then the records to which these entries refer. Records are
skipped if they have expired, were deleted, or no longer match their entry. The listing reads more entries
until the page is full or the index ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from typing import cast

from ..damaged_record import Damaged, checked
from ..page_builder import MAX_PAGE_BYTES, Page
from ..records_and_changes import Address, LanePosition, Micros, PageRequest, Record, Space, Tag
from ..shards import SHARD_COUNT, shard_of
from .router import Call, Router
from .scripts import COUNTS_SCRIPT, RECORDS_SCRIPT, Command
from .shard_merge import MergedScan, ShardScan
from .stored_layout import (
    Keys,
    decode_record,
    due_range,
    encode_number,
    entry_address,
    entry_names,
    entry_number,
    listing_range,
    position_entry,
    tag_prefix,
    timer_entry,
)

MAX_RECORDS_PER_READ = 1000
"""Maximum number of index entries that a listing reads in one step. Each step reads twice as many as the step
before it, up to this number.
"""


class Reader:
    def __init__(self, router: Router, keys: Keys) -> None:
        self._router = router
        self._keys = keys

    async def get(self, addresses: Sequence[Address], now: Micros) -> list[Record | None]:
        return checked(await self._read(addresses, now, lambda keys: (b"MGET", *keys)))

    async def _read(
        self, addresses: Sequence[Address], now: Micros, command: Callable[[list[bytes]], Command]
    ) -> list[Record | Damaged | None]:
        """Read records with one command per shard, or with a single command if one server has all shards.

        `command` builds a command from the keys of the records. To limit the size of a reply, the server may
        omit the last records. Return only the records before the first omitted record.
        """
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for index, address in enumerate(addresses):
            groups[0 if self._router.is_single_server else shard_of(address.partition)].append(index)
        calls = [
            (shard, command([self._keys.record_key(addresses[index]) for index in group]))
            for shard, group in groups.items()
        ]
        replies = cast("list[list[bytes | None]]", await self._router.read(calls))
        found: dict[int, Record | Damaged | None] = {}
        for group, values in zip(groups.values(), replies, strict=True):
            for index, value in zip(group, values, strict=False):
                found[index] = _live(addresses[index], value, now)
        return [found[index] for index in takewhile(found.__contains__, range(len(addresses)))]

    async def page(self, request: PageRequest, now: Micros) -> list[Record]:
        space, partition, tag = request.space, request.partition, request.tag
        lex_range = listing_range(tag, descending=request.descending)
        if request.after is not None:
            lex_range = lex_range.starting_after(position_entry(request.after, partition, tag))
        prefix = len(tag_prefix(tag))
        index = partial(self._keys.listing_index, space, partition, by_tag=tag is not None)
        scans = [ShardScan(shard, index(shard), lex_range) for shard in _shards(partition)]

        def address(entry: bytes) -> Address:
            key, *rest = entry_names(entry, prefix)
            return Address(space, partition if partition is not None else rest[0], key)

        def is_current(record: Record, entry: bytes) -> bool:
            return record.order == entry_number(entry, prefix) and tag in (None, record.tag)

        scan = MergedScan(self._router, scans, descending=request.descending)
        return await self._read_entries(scan, address, is_current, request.limit, now)

    async def due(
        self, lane: str, after: LanePosition | None, until: Micros, limit: int, now: Micros
    ) -> list[Record]:
        prefix = len(lane.encode()) + 1
        lex_range = due_range(lane, until)
        if after is not None:
            lex_range = lex_range.starting_after(timer_entry(lane, after))
        scans = [ShardScan(shard, self._keys.timer_index(shard), lex_range) for shard in range(SHARD_COUNT)]

        def is_current(record: Record, entry: bytes) -> bool:
            return record.lane == lane and record.wake_at == entry_number(entry, prefix)

        scan = MergedScan(self._router, scans)
        return await self._read_entries(
            scan, lambda entry: entry_address(entry, prefix), is_current, limit, now
        )

    async def counts(self, space: Space, partition: str | None, now: Micros) -> dict[Tag, int]:
        shards = _shards(partition)
        instant = encode_number(now + 1)
        groups = [shards] if self._router.is_single_server else [(shard,) for shard in shards]
        calls: list[Call] = []
        for group in groups:
            keys = [key for shard in group for key in self._keys.count_indexes(space, partition, shard)]
            calls.append((group[0], COUNTS_SCRIPT.call(keys, [instant])))
        totals: dict[Tag, int] = {}
        for reply in cast("list[list[bytes | int]]", await self._router.read(calls)):
            for tag, number in zip(reply[::2], reply[1::2], strict=True):
                # the tag of a damaged record may not be valid UTF-8
                name = cast("bytes", tag).decode(errors="replace")
                totals[name] = totals.get(name, 0) + cast("int", number)
        return totals

    async def _read_entries(
        self,
        scan: MergedScan,
        address: Callable[[bytes], Address],
        is_current: Callable[[Record, bytes], bool],
        limit: int,
        now: Micros,
    ) -> list[Record]:
        """Return up to `limit` of the records to which the index entries of `scan` refer.

        `address` returns the address of the record to which an entry refers. Skip a record if
        `is_current(record, entry)` is false.
        """
        page = Page(limit)
        count = limit
        while not page.is_full:
            entries = await scan.take(count)
            is_end = len(entries) < count
            while entries and not page.is_full:
                addresses = [address(entry) for entry in entries]
                records = await self._read(
                    addresses, now, lambda keys: RECORDS_SCRIPT.call(keys, [MAX_PAGE_BYTES])
                )
                for record, entry in zip(records, entries, strict=False):
                    if not page.is_full and (not isinstance(record, Record) or is_current(record, entry)):
                        page.add(record)
                del entries[: len(records)]
            if is_end:
                break
            count = min(2 * count, MAX_RECORDS_PER_READ)
        return page.records


def _live(address: Address, value: bytes | None, now: Micros) -> Record | Damaged | None:
    record = None if value is None else decode_record(address, value)
    return None if isinstance(record, Record) and not record.is_live(now) else record


def _shards(partition: str | None) -> Sequence[int]:
    return range(SHARD_COUNT) if partition is None else (shard_of(partition),)
