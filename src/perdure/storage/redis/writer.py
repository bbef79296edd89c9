"""Writes each commit, and each batch of a purge, with one call to the write script.

Each call declares all keys that the script can use. Otherwise, a commit could be partly written while the
slot of the keys is being moved to another node. All keys are known in advance, because a key contains only
parts of an address. Tags (labels), lanes (timer queues) and times are in the entries of the indexes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, cast

from ..errors import OutcomeUnknown, StorageError, StorageFailed
from ..records_and_changes import (
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
    check_server_decision,
    guard_delta,
)
from ..shards import SHARD_COUNT, shard_of
from .router import Call, Router
from .scripts import WRITE_SCRIPT, Argument
from .shard_merge import MergedScan, ShardScan
from .stored_layout import (
    Keys,
    batches_by_shard,
    decode_state,
    decode_tag,
    encode_number,
    encode_record,
    encode_state,
    entry_address,
    expired_range,
)

MAX_MESSAGE_BYTES = 1024
"""Maximum size of a notification in bytes. If the addresses do not fit, they are omitted, and all watches
wake.
"""
MAX_PURGED_PER_CALL = 100
"""Maximum number of records that one script call purges. More would block the server for too long."""


class Writer:
    """Writes commits, purges records, and notifies other clients. `client` identifies this client."""

    def __init__(self, router: Router, keys: Keys, client: bytes) -> None:
        self._router = router
        self._keys = keys
        self._client = client

    async def commit(
        self, changes: Sequence[Change], guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        writes = [_write_of(change, guard, now) for change in changes]
        (reply,) = await self._router.write([_write_call(self._keys, writes, guard, now, self._client)])
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
        """Delete expired records, and call `wake` with the addresses of all deleted records.

        An error does not undo earlier deletions.
        """
        lex_range = expired_range(until)
        scans = [ShardScan(shard, self._keys.expiry_index(shard), lex_range) for shard in range(SHARD_COUNT)]
        scan = MergedScan(self._router, scans)
        purged: list[Purged] = []
        is_end = False
        try:
            while len(purged) < limit and not is_end:
                count = limit - len(purged)
                found = [entry_address(entry, 0) for entry in await scan.take(count)]
                is_end = len(found) < count
                await self._delete_expired(found, until, purged)
        except StorageError as error:
            if not purged:
                raise
            reason = f"at least {len(purged)} records were purged before an error occurred ({error})"
            raise OutcomeUnknown(reason) from error
        finally:
            wake(each.address for each in purged)
        return purged

    async def _delete_expired(
        self, addresses: Sequence[Address], until: Micros, purged: list[Purged]
    ) -> None:
        """Delete the records at `addresses` that have expired, and append them to `purged`, in order."""
        batches = batches_by_shard(addresses, MAX_PURGED_PER_CALL)
        calls = [
            _write_call(self._keys, [_Write("purge", each) for each in batch], None, until, self._client)
            for batch in batches
        ]
        tags: dict[Address, str] = {}
        errors: list[StorageError] = []
        for batch, reply in zip(batches, await self._router.write(calls), strict=True):
            if isinstance(reply, StorageError):
                errors.append(reply)
                continue
            found = zip(batch, cast("list[bytes]", reply)[2:], strict=True)
            tags |= {address: decode_tag(state) for address, state in found if state}
        purged += [Purged(*address, tags[address]) for address in addresses if address in tags]
        if errors:
            raise errors[0]


class _Write(NamedTuple):
    """A change or a purge of one record, in the form that the write script expects."""

    kind: str
    address: Address
    expected: bytes = b""
    delta: int = 0
    value: bytes = b""


def _write_of(change: Change, guard: Guard | None, now: Micros) -> _Write:
    # The number that the change adds to the guarded count if the script accepts the change.
    delta = 0 if guard is None else guard_delta(guard, [change], [Accepted(1)], now)
    match change:
        case Insert(record=record):
            return _Write("insert", change.address, b"", delta, encode_record(record))
        case InsertIfAbsent(record=record):
            return _Write("keep", change.address, b"", delta, encode_record(record))
        case Replace(before=before, after=after):
            return _Write("replace", change.address, encode_state(before), delta, encode_record(after))
        case Delete(before=before):
            return _Write("delete", change.address, encode_state(before), delta)


def _write_call(
    keys: Keys, writes: Sequence[_Write], guard: Guard | None, now: Micros, client: bytes
) -> Call:
    """Return the call to the write script for `writes`. All records must be in the same shard."""
    addresses = [write.address for write in writes]
    partition = addresses[0].partition
    partitions = [address[:2] for address in addresses]
    if guard is not None:
        partitions.append((guard.space, partition))
    numbers = {each: number for number, each in enumerate(dict.fromkeys(partitions), 1)}
    guarded: list[Argument] = [0, 0, 0]
    if guard is not None:
        guarded = [numbers[guard.space, partition], guard.max_count, len(guard.tags), *guard.tags]
    arguments: list[Argument] = [
        encode_number(now),
        encode_number(now + 1),
        keys.channel,
        _message(client, addresses),
        len(numbers),
        *guarded,
        *(name for space, partition in numbers for name in (partition, space)),
    ]
    for kind, address, expected, delta, value in writes:
        arguments += (kind, numbers[address[:2]], address.key, expected, delta, value)
    return shard_of(partition), WRITE_SCRIPT.call(keys.script_keys(numbers, addresses), arguments)


def _message(client: bytes, addresses: Iterable[Address]) -> bytes:
    text = b"\0".join([client, *(name.encode() for address in addresses for name in address)])
    return text if len(text) <= MAX_MESSAGE_BYTES else client
