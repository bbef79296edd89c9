"""Looking for damage: whether every record is in its indexes, and every entry of an index has its record.

There are no counters that could disagree: what is counted is the length of a stretch of an index. So the
indexes are compared with the records, batch by batch, each in one script: nothing can come in between.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from ..contract import About, Maintenance
from ..damage import Damaged
from ..errors import StorageCorrupt, StorageError
from ..record import Address, Space
from .index_scan import Shelf, Walk
from .node import Node
from .router import Call, Router
from .schema import NUL, Keys, Range, decode, names_in
from .scripts import MISSING, STALE, Word
from .topology import Layout

BATCH = 100
"""Records or entries that one call looks at, so that the server is soon free for others."""
READ_AT_ONCE = 16
"""Records that are read whole to see whether they are damaged; each may have 2 MiB."""
INDEXES = {
    b"o": "the listing of their partition",
    b"g": "the listing by tag of their partition",
    b"e": "the expiries by tag of their partition",
    b"O": "the listing over all partitions",
    b"G": "the listing by tag over all partitions",
    b"E": "the expiries by tag over all partitions",
    b"T": "the timers",
    b"X": "the expiries",
}
"""The eight kinds, in the order that the scripts know."""
_NAME_FIRST = b"geGET"
"""The kinds whose entries begin with a tag or a lane."""


class _Key(NamedTuple):
    """A key, taken apart."""

    shard: int
    kind: bytes
    names: list[str]
    whole: bytes


class Upkeep:
    """Walks over all keys of all nodes. Others may go on writing meanwhile."""

    def __init__(self, layout: Layout, router: Router, keys: Keys) -> None:
        self._layout = layout
        self._router = router
        self._keys = keys

    async def run(self, *, repair: bool) -> Maintenance:
        """Compare everything with everything, and set right what disagrees if asked to."""
        missing: Counter[bytes] = Counter()
        stale: Counter[bytes] = Counter()
        damaged: list[Damaged] = []
        for node in dict.fromkeys(await self._layout.places()):
            async for keys in self._scan(node):
                records = [key for key in keys if key.kind == b"R"]
                missing.update(await self._missing(records, repair=repair))
                damaged += await self._damaged(records)
                for key in keys:
                    if key.kind in INDEXES:
                        stale[key.kind] += await self._stale(key, repair=repair)
        return Maintenance(findings=(*_findings(missing, stale), *map(str, damaged)))

    async def about(self) -> About:
        """What the first node tells of itself, as far as this user may ask it."""
        node = (await self._layout.places())[0]
        info, told = await node.ask(("INFO", "server"), ("TIME",))
        if not (isinstance(info, bytes) and isinstance(told, list)):
            return About()
        seconds, micros = (int(part) for part in cast("list[bytes]", told))
        return About(server=_version_in(info), time=seconds * 1_000_000 + micros)

    async def _scan(self, node: Node) -> AsyncIterator[list[_Key]]:
        """All keys of a node, some at a time."""
        cursor = b"0"
        while True:
            (reply,) = await node.read([("SCAN", cursor, "MATCH", self._keys.pattern, "COUNT", 10 * BATCH)])
            if isinstance(reply, StorageError):
                raise reply
            cursor, found = cast("tuple[bytes, list[bytes]]", reply)
            yield [self._take_apart(key) for key in dict.fromkeys(found)]
            if cursor == b"0":
                return

    def _take_apart(self, key: bytes) -> _Key:
        shard, rest = self._keys.shard_in(key)
        return _Key(shard, rest[:1], rest[1:].decode().split("\0"), key)

    async def _missing(self, records: Sequence[_Key], *, repair: bool) -> Mapping[bytes, int]:
        """How many of these records each kind of index lacks."""
        of_shard: defaultdict[int, list[Address]] = defaultdict(list)
        for record in records:
            of_shard[record.shard].append(_address_of(record))
        calls = [
            self._missing_call(shard, group[start : start + BATCH], repair=repair)
            for shard, group in of_shard.items()
            for start in range(0, len(group), BATCH)
        ]
        total: Counter[bytes] = Counter()
        for answer in cast("list[list[int]]", await self._router.read(calls) if calls else []):
            total.update(dict(zip(INDEXES, answer, strict=True)))
        return total

    def _missing_call(self, shard: int, records: Sequence[Address], *, repair: bool) -> Call:
        scopes = {scope: at for at, scope in enumerate(dict.fromkeys(each[:2] for each in records), 1)}
        indexes = [key for space, partition in scopes for key in self._keys.scope(space, partition)]
        keys = [self._keys.timers(shard), self._keys.expiries(shard), *indexes]
        words: list[Word] = [int(repair), len(scopes)]
        words += [name for space, partition in scopes for name in (partition, space)]
        words += [word for each in records for word in (scopes[each[:2]], each.key)]
        return shard, MISSING.call([*keys, *map(self._keys.record, records)], words)

    async def _damaged(self, records: Sequence[_Key]) -> list[Damaged]:
        """Return those of these records that cannot be read."""
        damaged: list[Damaged] = []
        for start in range(0, len(records), READ_AT_ONCE):
            some = records[start : start + READ_AT_ONCE]
            values = await self._router.read([(each.shard, ("MGET", each.whole)) for each in some])
            for record, (value,) in zip(some, cast("list[list[bytes | None]]", values), strict=True):
                read = await self._of_what(record) if value is None else decode(_address_of(record), value)
                damaged += [read] if isinstance(read, Damaged) else []
        return damaged

    async def _of_what(self, record: _Key) -> Damaged | None:
        """Return what is wrong with a record that is not a string, unless it was only deleted meanwhile."""
        (kind,) = await self._router.read([(record.shard, ("TYPE", record.whole))])
        is_ours = kind in (b"none", b"string")
        return None if is_ours else Damaged(_address_of(record), "its key holds another type of value")

    async def _stale(self, index: _Key, *, repair: bool) -> int:
        """How many entries of this index belong to no record."""
        walk = Walk(self._router, [Shelf(index.shard, index.whole, Range(b"-", b"+"))])
        kind = list(INDEXES).index(index.kind) + 1
        total = 0
        while entries := [entry for _, entry in await walk.next(BATCH)]:
            places = [_place(index, entry) for entry in entries]
            words: list[Word] = [int(repair), kind]
            for entry, place in zip(entries, places, strict=True):
                words += [entry, place.key, place.partition, place.space]
            call = STALE.call([index.whole, *map(self._keys.record, places)], words)
            (number,) = await self._router.read([(index.shard, call)])
            total += cast("int", number)
        return total


def _address_of(record: _Key) -> Address:
    space, partition, key = record.names
    return Address(Space(space), partition, key)


def _place(index: _Key, entry: bytes) -> Address:
    """The record that an entry is about: what the entry does not say, the key of its index does."""
    try:
        prefix = entry.index(NUL) + 1 if index.kind in _NAME_FIRST else 0
        key, *rest = names_in(entry, prefix)
        partition, space = (rest + index.names[::-1])[:2] if index.kind not in b"TX" else rest
    except ValueError as error:
        raise StorageCorrupt(f"{index.whole!r} holds {entry!r}, which is no entry of ours") from error
    return Address(Space(space), partition, key)


def _findings(missing: Mapping[bytes, int], stale: Mapping[bytes, int]) -> Iterator[str]:
    for kind, name in INDEXES.items():
        if missing[kind]:
            yield f"{missing[kind]} records are not in {name}"
        if stale[kind]:
            yield f"{stale[kind]} entries in {name} belong to no record"


def _version_in(info: bytes) -> str:
    facts = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
    if "valkey_version" in facts:
        return f"Valkey {facts['valkey_version']}"
    return f"Redis {facts.get('redis_version', '')}".strip()
