"""Deletes expired records and the parts of their bodies, and subtracts these records from the counters."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import suppress
from functools import partial

from ..errors import StorageBusy, StorageError
from ..records_and_changes import Micros
from ..request_batcher import batched
from ..shards import shard_of
from .items import ExpiredRecord, Item, Key, decode_expired, part_keys
from .table_client import Table
from .transaction import Transaction

MAX_PURGED_PER_TRANSACTION = 30
"""Maximum number of records to purge in one transaction, which can have 100 items. A record may need 3."""
MAX_ATTEMPTS = 20
"""Maximum number of attempts to purge a batch of records that other clients keep changing."""


async def purge_expired(
    table: Table, expired: Iterable[ExpiredRecord], until: Micros
) -> AsyncGenerator[Sequence[ExpiredRecord]]:
    """Delete the records in `expired` whose stored expiry time is still `until` or earlier.

    Use several transactions, and yield the deleted records of each transaction. `expired` may contain a
    record twice, because a record whose expiry time has just changed can appear twice in an index.
    """
    unique = {each.address: each for each in expired}.values()
    neighbours = sorted(unique, key=lambda each: (shard_of(each.address.partition), each.address))
    for batch in batched(neighbours, MAX_PURGED_PER_TRANSACTION):
        purged = await _purge_batch(table, batch, until)
        yield purged
        parts = [key for each in purged for key in part_keys(each.body_id, each.body_parts)]
        await delete_body_parts(table, parts)


async def delete_body_parts(table: Table, keys: Sequence[Key]) -> None:
    """Delete body parts that no record refers to. If this fails, `maintain` deletes them later."""
    with suppress(StorageError):
        await table.delete(keys)


async def _purge_batch(
    table: Table, expired: Sequence[ExpiredRecord], until: Micros
) -> Sequence[ExpiredRecord]:
    """Delete the records in `expired` whose stored expiry time is still `until` or earlier.

    Use one transaction, and return the deleted records.
    """
    left = dict(enumerate(expired))

    def on_failure(index: int, item: Item | None) -> None:
        found = decode_expired(item) if item else None
        if found is not None and found.expires_at <= until:
            left[index] = found
        else:
            del left[index]

    for _ in range(MAX_ATTEMPTS):
        if not left:
            return ()
        transaction = Transaction(table)
        for index, each in left.items():
            transaction.purge(each, until, partial(on_failure, index))
        if await transaction.commit():
            return list(left.values())
    name = table.location.display_name
    raise StorageBusy(f"{name}: too many concurrent writes to expired records; try again later")
