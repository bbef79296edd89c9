"""Writes commits: as one conditional write if a single item changes, otherwise in a transaction.

Transactions are written by several queues. All commits to a partition use the same queue, which writes one
transaction at a time, so the transactions of one process do not write the same records at the same time.
Commits that arrive while a transaction is being written share the next transaction.

If a condition of a transaction fails, each commit is compared with the stored state, and is either refused or
tried again. If a transaction is cancelled because some items have conflicts, the commits that do not use
these items are written separately, so conflicts in one partition do not make commits to another partition
fail.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias
from uuid import uuid4

from ..errors import OutcomeUnknown, StorageBusy, StorageError, StorageUnavailable
from ..records_and_changes import Address, Change, Committed, Guard, Micros, Refused, Replace, record_after
from ..request_batcher import Batcher, copy_error
from ..shards import shard_of
from .count_limits import Guards, fits_limit, guarded_partition
from .items import MAX_INLINE_BODY_BYTES, Key, SpacePartition, encode_record, needs_split, record_key
from .purge import delete_body_parts
from .table_client import STATE_PROJECTION, ConditionFailed, Contended, Table, backoff
from .transaction import PendingCommit, Transaction, record_condition

QUEUE_COUNT = 16
"""Number of queues, which is also the maximum number of transactions that are written concurrently."""
MAX_TRANSACTION_ITEMS = 100
"""DynamoDB's limit on items per transaction. It also limits the total weight of a transaction's commits."""
BYTES_PER_WEIGHT = 40_000
"""Number of bytes that have a weight of 1: a hundredth of the 4 MB that DynamoDB allows in a transaction."""
MAX_ITEM_OVERHEAD_BYTES = 4_000
"""Maximum size of an item in bytes, not counting the record's body."""
MAX_ATTEMPTS = 20
"""Maximum number of attempts to write a commit whose records other clients keep changing."""

_BATCH_ERRORS = (OutcomeUnknown, StorageBusy, StorageUnavailable)
"""If a transaction raises one of these errors, all commits in it fail. After any other error, each commit is
tried again in a transaction of its own.
"""

_Result: TypeAlias = Committed | Refused | Exception
_Group: TypeAlias = list[PendingCommit]


class Writer:
    """Writes commits, and passes the addresses of changed records to `on_commit`.

    Use each instance in only one event loop.
    """

    def __init__(self, table: Table, on_commit: Callable[[Iterable[Address]], None]) -> None:
        self._table = table
        self._on_commit = on_commit
        self._guards = Guards(table, on_commit)
        self._queues = [
            Batcher(
                self._write, max_items=MAX_TRANSACTION_ITEMS, weight=_weight, max_weight=MAX_TRANSACTION_ITEMS
            )
            for _ in range(QUEUE_COUNT)
        ]

    async def commit(
        self, changes: Sequence[Change], guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        pending = PendingCommit(changes, guard, now)
        if len(changes) == 1 and (result := await self._replace_single(pending, changes[0])) is not None:
            return result
        return await self._queues[shard_of(pending.partition) % QUEUE_COUNT].submit(pending)

    async def close(self) -> None:
        for queue in self._queues:
            await queue.close()

    async def _replace_single(self, pending: PendingCommit, change: Change) -> Committed | Refused | None:
        """Write a commit as a single item. Return its result, or None if the commit needs a transaction.

        If a response is lost, the write is sent again. Its condition fails if the first attempt succeeded. A
        random token in the stored item then shows that this call has written the item.
        """
        if not isinstance(change, Replace) or change.before.tag != change.after.tag:
            return None
        if needs_split(change.before.body) or needs_split(change.after.body):
            return None
        token = {"S": uuid4().hex}
        item = encode_record(change.after, {"body": {"S": change.after.body}, "written_as": token})
        try:
            await self._table.put(item, record_condition(pending.stored[0], pending.now))
        except ConditionFailed as refused:
            stored = refused.reasons[0].get("Item") or {}
            if not refused.maybe_applied:
                pending.set_stored(0, stored)
                return pending.result_without_write()
            if stored.get("written_as") != token:
                name = self._table.location.display_name
                reason = "a write got no response, and the record has changed; read before writing again"
                raise OutcomeUnknown(f"{name}: {reason}") from refused
        return self._mark_committed(pending)

    async def _write(self, group: Sequence[PendingCommit]) -> list[_Result]:
        await self._load_stored(group)
        results: dict[PendingCommit, _Result] = {
            pending: result for pending in group if (result := pending.result_without_write()) is not None
        }
        waiting = deque([[pending for pending in group if pending not in results]])
        while waiting:
            batch, later = _select_compatible(waiting.popleft())
            if later:
                waiting.append(later)
            if not batch:
                continue
            try:
                waiting += await self._try_transaction(batch, results)
            except StorageError as error:
                if len(batch) > 1 and not isinstance(error, _BATCH_ERRORS):
                    waiting += [[pending] for pending in batch]
                else:
                    results.update((pending, copy_error(error)) for pending in batch)
        return [results[pending] for pending in group]

    async def _try_transaction(self, batch: _Group, results: dict[PendingCommit, _Result]) -> list[_Group]:
        """Write the commits in `batch` in one transaction, and add the known results to `results`.

        Return groups of commits that must be tried again.
        """
        transaction = Transaction(self._table)
        for pending in batch:
            pending.add_to(transaction)
        self._guards.add_conditions(transaction, batch)
        is_shared = len({pending.partition for pending in batch}) > 1
        try:
            is_written = await transaction.commit(is_shared=is_shared)
        except Contended as contended:
            return await self._separate(batch, transaction.named_by(contended.reasons))
        if is_written:
            results.update((pending, self._mark_committed(pending)) for pending in batch)
            obsolete = [key for pending in batch for key in pending.obsolete_parts()]
            await delete_body_parts(self._table, obsolete)
            return []
        again: _Group = []
        for pending in batch:
            result = pending.result_without_write() or self._attempts_exhausted(pending)
            if result is None and len(batch) == 1:
                result = await self._guards.purge_or_refuse(pending)
            if result is None:
                again.append(pending)
            else:
                results[pending] = result
        return _split_by_guard(again)

    async def _separate(self, batch: _Group, contended: set[Key]) -> list[_Group]:
        """Split the commits in `batch` into groups, which are tried again one after the other.

        `contended` contains the keys of the items that had conflicts. Commits that do not use these items
        form the first group. If all commits use such items, wait, and keep the commits together. After too
        many attempts, split the commits by partition.
        """
        conflicting = [pending for pending in batch if not contended.isdisjoint(pending.keys())]
        others = [pending for pending in batch if pending not in conflicting]
        if conflicting and others:
            return [others, conflicting]
        for pending in batch:
            pending.contended += 1
        attempts = max(pending.contended for pending in batch)
        if attempts < self._table.location.options.attempts:
            await backoff(attempts)
            return [batch]
        partitions: defaultdict[str, _Group] = defaultdict(list)
        for pending in batch:
            partitions[pending.partition].append(pending)
        return list(partitions.values())

    async def _load_stored(self, group: Sequence[PendingCommit]) -> None:
        """Find the body parts that the commits remove, by reading the stored records."""
        for pending in group:
            if pending.removes_split_body:
                keys = [record_key(address) for address in pending.addresses]
                found = await self._table.get(keys, STATE_PROJECTION)
                for index, key in enumerate(keys):
                    pending.set_stored(index, found.get(key))

    def _mark_committed(self, pending: PendingCommit) -> Committed:
        self._on_commit(pending.addresses)
        self._guards.update_cache(pending)
        return Committed(pending.accepted_results())

    def _attempts_exhausted(self, pending: PendingCommit) -> StorageBusy | None:
        pending.attempts += 1
        if pending.attempts < MAX_ATTEMPTS:
            return None
        name = self._table.location.display_name
        return StorageBusy(f"{name}: too many concurrent writes to the same records; try again later")


def _select_compatible(group: _Group) -> tuple[_Group, _Group]:
    """Return the commits that can share one transaction, and the other commits.

    In a transaction, each record can be changed only once, and each counter can have only one guard.
    """
    taken: set[Address] = set()
    guards: dict[SpacePartition | None, Guard | None] = {}
    batch: _Group = []
    later: _Group = []
    for pending in group:
        scope = guarded_partition(pending)
        is_same = scope is None or guards.get(scope, pending.guard) == pending.guard
        if is_same and taken.isdisjoint(pending.addresses):
            taken.update(pending.addresses)
            guards[scope] = pending.guard
            batch.append(pending)
        else:
            later.append(pending)
    return batch, later


def _split_by_guard(again: _Group) -> list[_Group]:
    """Divide commits into groups that are tried again.

    If all commits with the same guard together exceed its limit, each commit becomes a group of its own.
    """
    by_guard: defaultdict[SpacePartition | None, _Group] = defaultdict(list)
    for pending in again:
        by_guard[None if pending.refusing_counter is None else guarded_partition(pending)].append(pending)
    batch = by_guard.pop(None, [])
    single: list[_Group] = []
    for guarded in by_guard.values():
        if fits_limit(guarded):
            batch += guarded
        else:
            single += [[pending] for pending in guarded]
    return [batch, *single] if batch else single


def _weight(pending: PendingCommit) -> int:
    """Return how much of a transaction a commit uses, in hundredths.

    The result is the commit's share of the maximum number of items or of the maximum size, whichever share is
    larger.
    """
    afters = map(record_after, pending.changes)
    sizes = [len(after.body.encode()) for after in afters if after is not None]
    parts = sum(-(-size // MAX_INLINE_BODY_BYTES) for size in sizes if size > MAX_INLINE_BODY_BYTES)
    items = len(pending.changes) + parts + 2 * len({change.address.space for change in pending.changes}) + 1
    return max(items, (sum(sizes) + items * MAX_ITEM_OVERHEAD_BYTES) // BYTES_PER_WEIGHT + 1)
