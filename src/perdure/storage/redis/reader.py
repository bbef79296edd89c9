"""Reading records: by address, or by what an index says of them.

Entries come first, then the records that they name. A record that has moved in the meantime, is gone or has
expired is left out and the walk goes on, so an answer is short only at the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import cast

from ..damage import Damaged, checked, is_intact
from ..record import Address, Micros, PageRequest, Record, Space, Tag
from ..shards import SHARDS, shard_of
from .keys import Keys, after, awake, digits, listed, names_in, number_in, tag_prefix
from .router import Router
from .scripts import COUNTS
from .stored import decode
from .walking import Shelf, Walk

MOST_AT_ONCE = 1000
"""Records that are asked for together, where many turn out to have expired."""


class Reader:
    def __init__(self, router: Router, keys: Keys) -> None:
        self._router = router
        self._keys = keys

    async def get(self, addresses: Sequence[Address], now: Micros) -> list[Record | None]:
        return checked(await self._read(addresses, now))

    async def _read(self, addresses: Sequence[Address], now: Micros) -> list[Record | Damaged | None]:
        together: defaultdict[int, list[int]] = defaultdict(list)
        for at, address in enumerate(addresses):
            together[0 if self._router.is_one else shard_of(address.partition)].append(at)
        calls = [
            (shard, (b"MGET", *(self._keys.record(addresses[at]) for at in group)))
            for shard, group in together.items()
        ]
        found: list[Record | Damaged | None] = [None] * len(addresses)
        values = cast("list[list[bytes | None]]", await self._router.read(calls))
        for group, answers in zip(together.values(), values, strict=True):
            for at, value in zip(group, answers, strict=True):
                record = None if value is None else decode(addresses[at], value)
                found[at] = record if not isinstance(record, Record) or record.is_live(now) else None
        return found

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
        found: list[Record] = []
        wanted = limit
        while len(found) < limit:
            entries = [entry for _, entry in await walk.next(wanted)]
            records = await self._read([address(entry) for entry in entries], now) if entries else []
            found += [
                record
                for record, entry in zip(records, entries, strict=True)
                if is_intact(record) and is_there(record, entry)
            ]
            if len(entries) < wanted:
                break
            wanted = min(2 * wanted, MOST_AT_ONCE)
        return found[:limit]


def _shards(partition: str | None) -> Sequence[int]:
    return range(SHARDS) if partition is None else (shard_of(partition),)
