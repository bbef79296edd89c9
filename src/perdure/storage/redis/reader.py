"""Reading records: by address, or by what an index says of them.

Entries come first, then the records that they name. A record that has moved in the meantime, is gone or has
expired is left out and the walk goes on, so an answer is short only at the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import cast

from ..damage import Damaged, checked
from ..page import MAX_PAGE_BYTES, Page
from ..record import Address, Micros, PageRequest, Record, Space, Tag
from ..shards import SHARDS, shard_of
from .index_scan import Shelf, Walk
from .router import Call, Router
from .schema import Keys, after, awake, decode, digits, listed, names_in, number_in, tag_prefix
from .scripts import COUNTS, RECORDS

MOST_AT_ONCE = 1000
"""Records that are asked for together, where many turn out to have expired."""


class Reader:
    def __init__(self, router: Router, keys: Keys) -> None:
        self._router = router
        self._keys = keys

    async def get(self, addresses: Sequence[Address], now: Micros) -> list[Record | None]:
        together = self._together(addresses)
        calls: list[Call] = [
            (shard, (b"MGET", *(self._keys.record(addresses[at]) for at in group)))
            for shard, group in together.items()
        ]
        values = cast("list[list[bytes | None]]", await self._router.read(calls))
        found: dict[int, Record | Damaged | None] = {}
        for group, answers in zip(together.values(), values, strict=True):
            found.update(
                (at, _live(addresses[at], value, now)) for at, value in zip(group, answers, strict=True)
            )
        return checked(found[at] for at in range(len(addresses)))

    async def _read_some(self, addresses: Sequence[Address], now: Micros) -> list[Record | Damaged | None]:
        """Return the first of these records, at least one, as many as have the bytes of a page."""
        together = self._together(addresses)
        calls = [
            (shard, RECORDS.call([self._keys.record(addresses[at]) for at in group], [MAX_PAGE_BYTES]))
            for shard, group in together.items()
        ]
        values = cast("list[list[bytes | None]]", await self._router.read(calls))
        found: dict[int, Record | Damaged | None] = {}
        for group, answers in zip(together.values(), values, strict=True):
            found.update(
                (at, _live(addresses[at], value, now)) for at, value in zip(group, answers, strict=False)
            )
        return [found[at] for at in takewhile(found.__contains__, range(len(addresses)))]

    def _together(self, addresses: Sequence[Address]) -> dict[int, list[int]]:
        """Return the places of those addresses that one call may ask for, by shard."""
        together: defaultdict[int, list[int]] = defaultdict(list)
        for at, address in enumerate(addresses):
            together[0 if self._router.is_one else shard_of(address.partition)].append(at)
        return together

    async def page(self, wanted: PageRequest, now: Micros) -> list[Record]:
        space, partition, tag = wanted.space, wanted.partition, wanted.tag
        stretch = listed(tag, descending=wanted.descending)
        if wanted.after is not None:
            stretch = stretch.after(after(wanted.after, partition, tag))
        prefix = len(tag_prefix(tag))
        shelves = [
            Shelf(shard, self._keys.listing(space, partition, shard, by_tag=tag is not None), stretch)
            for shard in _shards(partition)
        ]

        def address(entry: bytes) -> Address:
            key, *rest = names_in(entry, prefix)
            return Address(space, partition if partition is not None else rest[0], key)

        def is_there(record: Record, entry: bytes) -> bool:
            return record.order == number_in(entry, prefix) and tag in (None, record.tag)

        walk = Walk(self._router, shelves, descending=wanted.descending)
        return await self._follow(walk, address, is_there, wanted.limit, now)

    async def due(self, lane: str, until: Micros, limit: int, now: Micros) -> list[Record]:
        prefix = len(lane.encode()) + 1
        stretch = awake(lane, until)
        shelves = [Shelf(shard, self._keys.timers(shard), stretch) for shard in range(SHARDS)]

        def address(entry: bytes) -> Address:
            key, partition, space = names_in(entry, prefix)
            return Address(Space(space), partition, key)

        def is_there(record: Record, entry: bytes) -> bool:
            return record.lane == lane and record.wake_at == number_in(entry, prefix)

        return await self._follow(Walk(self._router, shelves), address, is_there, limit, now)

    async def counts(self, space: Space, partition: str | None, now: Micros) -> dict[Tag, int]:
        shards = _shards(partition)
        groups = [shards] if self._router.is_one else [(shard,) for shard in shards]
        calls = [
            (group[0], COUNTS.call(self._counted(space, partition, group), [digits(now + 1)]))
            for group in groups
        ]
        totals: dict[Tag, int] = {}
        for answer in cast("list[list[bytes | int]]", await self._router.read(calls)):
            for tag, number in zip(answer[::2], answer[1::2], strict=True):
                name = cast("bytes", tag).decode(errors="replace")  # that of a damaged record may be anything
                totals[name] = totals.get(name, 0) + cast("int", number)
        return totals

    def _counted(self, space: Space, partition: str | None, shards: Sequence[int]) -> list[bytes]:
        return [key for shard in shards for key in self._keys.counted(space, partition, shard)]

    async def _follow(
        self,
        walk: Walk,
        address: Callable[[bytes], Address],
        is_there: Callable[[Record, bytes], bool],
        limit: int,
        now: Micros,
    ) -> list[Record]:
        """The first records of a walk that are still where their entries say."""
        page = Page(limit)
        wanted = limit
        while not page.is_full:
            entries = [entry for _, entry in await walk.next(wanted)]
            is_end = len(entries) < wanted
            while entries and not page.is_full:
                records = await self._read_some([address(entry) for entry in entries], now)
                for record, entry in zip(records, entries, strict=False):
                    if not page.is_full and (not isinstance(record, Record) or is_there(record, entry)):
                        page.add(record)
                del entries[: len(records)]
            if is_end:
                break
            wanted = min(2 * wanted, MOST_AT_ONCE)
        return page.records


def _live(address: Address, value: bytes | None, now: Micros) -> Record | Damaged | None:
    record = None if value is None else decode(address, value)
    return None if isinstance(record, Record) and not record.is_live(now) else record


def _shards(partition: str | None) -> Sequence[int]:
    return range(SHARDS) if partition is None else (shard_of(partition),)
