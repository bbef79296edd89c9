"""Maintenance: checks that every record is in its indexes and that every index entry refers to a record.

There are no counters to check, because `counts` counts index entries. One script call compares a whole batch
of records or entries, so no write can change them during the comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from ..contract import MaintenanceReport, StorageInfo
from ..damaged_record import Damaged
from ..errors import StorageCorrupt, StorageError
from ..records_and_changes import Address, Space
from ..request_batcher import batched
from ..shards import shard_of
from .node import Node, parse_info
from .router import Call, Router
from .scripts import MISSING_SCRIPT, STALE_SCRIPT, Argument
from .shard_merge import MergedScan, ShardScan
from .stored_layout import NUL, Keys, LexRange, batches_by_shard, decode_record, entry_names
from .topology import Topology

BATCH_SIZE = 100
"""Maximum number of records or entries in one script call. More would block the server for too long."""
MAX_RECORDS_PER_READ = 16
"""Maximum number of records that are read at once to find damaged ones. A record can have up to 2 MiB."""
INDEX_NAMES = {
    b"o": "the partition listings",
    b"g": "the partition listings by tag",
    b"e": "the partition expiry indexes by tag",
    b"O": "the global listings",
    b"G": "the global listings by tag",
    b"E": "the global expiry indexes by tag",
    b"T": "the timer index",
    b"X": "the expiry index",
}
"""Maps the letter of each index kind to its description. A global index contains the records of all
partitions. The scripts depend on the order of the letters.
"""
_PREFIXED_KINDS = b"geGET"
"""The letters of the index kinds in which each entry starts with a tag (label) or a lane (timer queue)."""


class _ParsedKey(NamedTuple):
    """A Redis key of this storage, split into its parts."""

    key: bytes
    shard: int
    kind: bytes
    names: list[str]

    @property
    def address(self) -> Address:
        """The address of the record that is stored under this key. Valid only if `kind` is `R`."""
        space, partition, key = self.names
        return Address(Space(space), partition, key)


async def maintain(topology: Topology, router: Router, keys: Keys, *, repair: bool) -> MaintenanceReport:
    """Compare the records with the indexes on all nodes. If `repair` is true, correct the indexes."""
    missing: Counter[bytes] = Counter()
    stale: Counter[bytes] = Counter()
    damaged: list[Damaged] = []
    for node in dict.fromkeys(await topology.nodes_by_shard()):
        async for parsed in _scan(node, keys):
            records = [each for each in parsed if each.kind == b"R"]
            missing.update(await _count_missing(router, keys, records, repair=repair))
            damaged += await _damaged(router, records)
            for each in parsed:
                if each.kind in INDEX_NAMES:
                    stale[each.kind] += await _count_stale(router, keys, each, repair=repair)
    return MaintenanceReport(findings=(*_findings(missing, stale), *map(str, damaged)))


async def server_info(topology: Topology) -> StorageInfo:
    """Return the version and clock time of the first node, or an empty StorageInfo if they are unknown."""
    node = (await topology.nodes_by_shard())[0]
    info, time = await node.send_now(("INFO", "server"), ("TIME",))
    if not (isinstance(info, bytes) and isinstance(time, list)):
        return StorageInfo()
    facts = parse_info(info)
    server = f"Redis {facts.get('redis_version', '')}".strip()
    if "valkey_version" in facts:
        server = f"Valkey {facts['valkey_version']}"
    seconds, micros = (int(part) for part in cast("list[bytes]", time))
    return StorageInfo(server=server, time=seconds * 1_000_000 + micros)


async def _scan(node: Node, keys: Keys) -> AsyncIterator[list[_ParsedKey]]:
    """Yield, in batches, the keys of this storage that are stored on `node`."""
    cursor = b"0"
    while True:
        command = ("SCAN", cursor, "MATCH", keys.scan_pattern, "COUNT", 10 * BATCH_SIZE)
        (reply,) = await node.send([command])
        if isinstance(reply, StorageError):
            raise reply
        cursor, found = cast("tuple[bytes, list[bytes]]", reply)
        yield [_ParsedKey(key, *keys.split_key(key)) for key in dict.fromkeys(found)]
        if cursor == b"0":
            return


async def _count_missing(
    router: Router, keys: Keys, records: Sequence[_ParsedKey], *, repair: bool
) -> Mapping[bytes, int]:
    """Count the missing entries in each kind of index. If `repair` is true, add them."""
    batches = batches_by_shard([record.address for record in records], BATCH_SIZE)
    calls = [_missing_call(keys, batch, repair=repair) for batch in batches]
    total: Counter[bytes] = Counter()
    for reply in cast("list[list[int]]", await router.read(calls) if calls else []):
        total.update(dict(zip(INDEX_NAMES, reply, strict=True)))
    return total


def _missing_call(keys: Keys, records: Sequence[Address], *, repair: bool) -> Call:
    numbers = {each: n for n, each in enumerate(dict.fromkeys(record[:2] for record in records), 1)}
    arguments: list[Argument] = [int(repair), len(numbers)]
    arguments += [name for space, partition in numbers for name in (partition, space)]
    arguments += [argument for record in records for argument in (numbers[record[:2]], record.key)]
    return shard_of(records[0].partition), MISSING_SCRIPT.call(keys.script_keys(numbers, records), arguments)


async def _damaged(router: Router, records: Sequence[_ParsedKey]) -> list[Damaged]:
    """Return a `Damaged` object for each record that cannot be decoded."""
    damaged: list[Damaged] = []
    for batch in batched(records, MAX_RECORDS_PER_READ):
        values = await router.read([(each.shard, ("MGET", each.key)) for each in batch])
        for record, (value,) in zip(batch, cast("list[list[bytes | None]]", values), strict=True):
            if value is None:
                decoded = await _wrong_type(router, record)
            else:
                decoded = decode_record(record.address, value)
            damaged += [decoded] if isinstance(decoded, Damaged) else []
    return damaged


async def _wrong_type(router: Router, record: _ParsedKey) -> Damaged | None:
    """Return a `Damaged` object if the value stored for `record` is not a string, and None otherwise."""
    (kind,) = await router.read([(record.shard, ("TYPE", record.key))])
    is_valid = kind in (b"none", b"string")
    return None if is_valid else Damaged(record.address, "its key has a value of the wrong type")


async def _count_stale(router: Router, keys: Keys, index: _ParsedKey, *, repair: bool) -> int:
    """Return the number of entries in `index` that have no matching record.

    If `repair` is true, remove them.
    """
    scan = MergedScan(router, [ShardScan(index.shard, index.key, LexRange(b"-", b"+"))])
    kind = list(INDEX_NAMES).index(index.kind) + 1
    total = 0
    while entries := await scan.take(BATCH_SIZE):
        addresses = [_entry_address(index, entry) for entry in entries]
        arguments: list[Argument] = [int(repair), kind]
        for entry, address in zip(entries, addresses, strict=True):
            arguments += [entry, address.key, address.partition, address.space]
        call = STALE_SCRIPT.call([index.key, *map(keys.record_key, addresses)], arguments)
        (number,) = await router.read([(index.shard, call)])
        total += cast("int", number)
    return total


def _entry_address(index: _ParsedKey, entry: bytes) -> Address:
    """Return the address of the record to which `entry` refers.

    If the entry does not contain the space or the partition, take these from the key of the index.
    """
    try:
        prefix = entry.index(NUL) + 1 if index.kind in _PREFIXED_KINDS else 0
        key, *rest = entry_names(entry, prefix)
        partition, space = (rest + index.names[::-1])[:2] if index.kind not in b"TX" else rest
    except ValueError as error:
        reason = f"the index {index.key!r} has an invalid entry: {entry!r}; remove it with ZREM"
        raise StorageCorrupt(reason) from error
    return Address(Space(space), partition, key)


def _findings(missing: Mapping[bytes, int], stale: Mapping[bytes, int]) -> Iterator[str]:
    for kind, name in INDEX_NAMES.items():
        if missing[kind]:
            yield f"{missing[kind]} records are missing from {name}"
        if stale[kind]:
            yield f"{stale[kind]} entries in {name} have no record"
