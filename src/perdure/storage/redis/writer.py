"""Writes: one call of the write script for each commit, and for each batch of a purge.

Every key that the script can use is declared in its call; otherwise a slot that is being moved to another
node could leave a commit half written. All keys can be declared because they follow from the address alone:
tags, lanes and times are in the entries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from ..batcher import batched
from ..errors import OutcomeUnknown, StorageError, StorageFailed
from ..record import (
    Accepted,
    Address,
    Change,
    Committed,
    Delete,
    Guard,
    Insert,
    InsertIfAbsent,
    Micros,
    Purged,
    Refused,
    Replace,
    Space,
    check_server_decision,
    guard_delta,
)
from ..shards import SHARD_COUNT, shard_of
from .index_scan import MergedScan, ShardScan
from .router import Call, Router
from .schema import (
    Keys,
    decode_state,
    decode_tag,
    encode_number,
    encode_record,
    encode_state,
    entry_names,
    expired_range,
)
from .scripts import WRITE_SCRIPT, Argument

MAX_MESSAGE_BYTES = 1024
"""A longer notification is sent without addresses and only says that something has changed."""
MAX_PURGED_PER_CALL = 100
"""Maximum number of records that one call purges. More would block the server for too long."""


class Writer:
    """Commits and purges. Its notifications start with `client`, so that a client can ignore its own."""

    def __init__(self, router: Router, keys: Keys, client: bytes) -> None:
        self._router = router
        self._keys = keys
        self._client = client

    async def commit(
        self, changes: Sequence[Change], guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        call = _WriteCall(self._keys, changes[0].address.partition)
        for change in changes:
            call.add(change, _guard_delta(guard, change, now))
        (reply,) = await self._router.write([call.build(now, guard, self._client)])
        if isinstance(reply, Exception):
            raise reply
        was_written, guard_count, *states = cast("tuple[int, int, *tuple[bytes, ...]]", reply)
        found = [decode_state(change.address, state) for change, state in zip(changes, states, strict=True)]
        result = check_server_decision(
            changes, found, guard_count=guard_count or None, was_written=bool(was_written)
        )
        if isinstance(result, StorageFailed):
            raise result
        return result

    async def purge(
        self, until: Micros, limit: int, wake: Callable[[Iterable[Address]], None]
    ) -> list[Purged]:
        """Delete expired records and wake their watches. Records deleted before an error stay deleted."""
        purged: list[Purged] = []
        try:
            await self._purge(until, limit, purged)
        except StorageError as error:
            if not purged:
                raise
            reason = f"{len(purged)} records were purged, perhaps more ({error})"
            raise OutcomeUnknown(reason) from error
        finally:
            wake(each.address for each in purged)
        return purged

    async def _purge(self, until: Micros, limit: int, purged: list[Purged]) -> None:
        lex_range = expired_range(until)
        scans = [ShardScan(shard, self._keys.expiry_index(shard), lex_range) for shard in range(SHARD_COUNT)]
        scan = MergedScan(self._router, scans)
        while len(purged) < limit:
            count = limit - len(purged)
            found = [_entry_address(entry) for _, entry in await scan.take(count)]
            await self._delete_expired(found, until, purged)
            if len(found) < count:
                break

    async def _delete_expired(
        self, addresses: Sequence[Address], until: Micros, purged: list[Purged]
    ) -> None:
        """Delete those of these records that have expired, and append them to `purged` in this order."""
        batches = _batches(addresses)
        calls: list[Call] = []
        for batch in batches:
            call = _WriteCall(self._keys, batch[0].partition)
            for address in batch:
                call.add_purge(address)
            calls.append(call.build(until, None, self._client))
        tags: dict[Address, str] = {}
        errors: list[StorageError] = []
        for batch, reply in zip(batches, await self._router.write(calls), strict=True):
            if isinstance(reply, StorageError):
                errors.append(reply)
                continue
            states = cast("list[bytes]", reply)[2:]
            deleted = [(address, state) for address, state in zip(batch, states, strict=True) if state]
            tags.update((address, decode_tag(state)) for address, state in deleted)
        purged += [Purged(*address, tags[address]) for address in addresses if address in tags]
        if errors:
            raise errors[0]


class _WriteCall:
    """A call of the write script, built change by change. All changes are in one shard."""

    def __init__(self, keys: Keys, partition: str) -> None:
        self._keys = keys
        self._shard = shard_of(partition)
        self._partition = partition
        self._partitions: dict[tuple[Space, str], int] = {}
        self._addresses: list[Address] = []
        self._arguments: list[Argument] = []

    def add(self, change: Change, delta: int) -> None:
        match change:
            case Insert(record=record):
                self._add("insert", change.address, b"", delta, encode_record(record))
            case InsertIfAbsent(record=record):
                self._add("keep", change.address, b"", delta, encode_record(record))
            case Replace(before=before, after=after):
                self._add("replace", change.address, encode_state(before), delta, encode_record(after))
            case Delete(before=before):
                self._add("delete", change.address, encode_state(before), delta, b"")

    def add_purge(self, address: Address) -> None:
        self._add("purge", address, b"", 0, b"")

    def build(self, now: Micros, guard: Guard | None, client: bytes) -> Call:
        guarded: list[Argument] = [0, 0, 0]
        if guard is not None:
            number = self._partition_number(guard.space, self._partition)
            guarded = [number, guard.max_count, len(guard.tags), *guard.tags]
        names = [name for space, partition in self._partitions for name in (partition, space)]
        arguments = [
            encode_number(now),
            encode_number(now + 1),
            self._keys.channel,
            _message(client, self._addresses),
            len(self._partitions),
            *guarded,
            *names,
            *self._arguments,
        ]
        return self._shard, WRITE_SCRIPT.call(self._declared_keys(), arguments)

    def _add(self, kind: str, address: Address, expected: bytes, delta: int, value: bytes) -> None:
        number = self._partition_number(address.space, address.partition)
        self._addresses.append(address)
        self._arguments += (kind, number, address.key, expected, delta, value)

    def _partition_number(self, space: Space, partition: str) -> int:
        return self._partitions.setdefault((space, partition), len(self._partitions) + 1)

    def _declared_keys(self) -> list[bytes]:
        indexes = [key for each in self._partitions for key in self._keys.partition_indexes(*each)]
        records = map(self._keys.record_key, self._addresses)
        return [self._keys.timer_index(self._shard), self._keys.expiry_index(self._shard), *indexes, *records]


def _guard_delta(guard: Guard | None, change: Change, now: Micros) -> int:
    """Return by how much a change raises the guarded count, if the script accepts it."""
    return 0 if guard is None else guard_delta(guard, [change], [Accepted(1)], now)


def _message(client: bytes, addresses: Iterable[Address]) -> bytes:
    text = b"\0".join([client, *(name.encode() for address in addresses for name in address)])
    return text if len(text) <= MAX_MESSAGE_BYTES else client


def _entry_address(entry: bytes) -> Address:
    key, partition, space = entry_names(entry, 0)
    return Address(Space(space), partition, key)


def _batches(addresses: Iterable[Address]) -> list[Sequence[Address]]:
    """Group the addresses by shard, and split each group into batches for one call."""
    by_shard: defaultdict[int, list[Address]] = defaultdict(list)
    for address in addresses:
        by_shard[shard_of(address.partition)].append(address)
    return [batch for group in by_shard.values() for batch in batched(group, MAX_PURGED_PER_CALL)]
