"""Enforces guards. A guard limits how many live records with certain tags a partition may contain.

The limit is enforced by a condition on the counter of the partition, an item that has a count for each tag. A
condition in DynamoDB cannot add numbers. Therefore the limit of a guard with several tags is split into one
limit for each tag, according to the last known counts. The limits of the tags never add up to more than the
limit of the guard. However, the limit of one tag may be too low for a commit that the guard should admit. The
condition then fails, DynamoDB returns the stored counts, and the next attempt splits the limit according to
these counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..records_and_changes import Address, Guard, Refused, Tag, tag_deltas
from .counters import StoredCounter, decode_counter, limit_condition, read_with_expired
from .items import Item, SpacePartition
from .purge import MAX_PURGED_PER_TRANSACTION, purge_expired
from .table_client import Table
from .transaction import PendingCommit, Transaction

MAX_CACHED_COUNTERS = 10_000
"""Maximum number of counters whose last known counts are cached. When the cache is full, it is cleared."""


class Guards:
    """Enforces guards by adding conditions to transactions.

    It caches the last known counts of each counter.
    """

    def __init__(self, table: Table, on_commit: Callable[[Iterable[Address]], None]) -> None:
        self._table = table
        self._on_commit = on_commit
        self._cache: dict[SpacePartition, Mapping[Tag, int]] = {}

    def add_conditions(self, transaction: Transaction, batch: Sequence[PendingCommit]) -> None:
        """Add conditions to `transaction` that enforce the guards of the commits in `batch`.

        If several guards apply to the same counter, they must be equal.
        """
        guarded: defaultdict[SpacePartition, list[PendingCommit]] = defaultdict(list)
        for pending in batch:
            pending.refusing_counter = None
            scope = guarded_partition(pending)
            if scope is not None:
                guarded[scope].append(pending)
        for scope, pendings in guarded.items():
            self._add_condition(transaction, scope, pendings, batch)

    def _add_condition(
        self,
        transaction: Transaction,
        scope: SpacePartition,
        guarded: Sequence[PendingCommit],
        batch: Sequence[PendingCommit],
    ) -> None:
        guard = guarded[0].guard
        if guard is None:
            return
        commits = [pending for pending in batch if pending.partition == scope[1]]
        room = guard.max_count - sum(max(0, pending.guard_delta(guard)) for pending in commits)
        limits = split_limit(room, self._cache.get(scope, {}), guard.tags)

        def on_failure(item: Item | None) -> None:
            stored = decode_counter(item)
            self._cache_counts(scope, stored.counts)
            for pending in guarded:
                pending.refusing_counter = stored

        transaction.require_counter(*scope, limit_condition(limits), on_failure)

    def update_cache(self, pending: PendingCommit) -> None:
        """Update the cached counts after `pending` has been written."""
        scope = guarded_partition(pending)
        if scope is None:
            return
        counts = dict(self._cache.get(scope, {}))
        for change, result in zip(pending.changes, pending.accepted_results(), strict=True):
            for space, tag, delta in tag_deltas(change, result):
                if space == scope[0]:
                    counts[tag] = max(0, counts.get(tag, 0) + delta)
        self._cache_counts(scope, counts)

    async def purge_or_refuse(self, pending: PendingCommit) -> Refused | None:
        """Return Refused if a commit exceeds its guard's limit, or None if the commit should be tried again.

        If the count includes expired records, purge some of them to make room, and return None.
        """
        guard, scope = pending.guard, guarded_partition(pending)
        if guard is None or scope is None or pending.refusing_counter is None or fits_limit([pending]):
            return None
        stored, expired = await read_with_expired(self._table, *scope, pending.now, pending.refusing_counter)
        self._cache_counts(scope, stored.counts)
        pending.refusing_counter = stored
        if fits_limit([pending]):
            return None
        count = _guarded_count(guard, stored) + pending.guard_delta(guard)
        guarded = [each for each in expired if each.tag in guard.tags]
        if not guarded:
            return Refused(pending.results(), guard_count=count)
        limit = max(count - guard.max_count, MAX_PURGED_PER_TRANSACTION)  # leave the rest to `purge`
        async for purged in purge_expired(self._table, guarded[:limit], pending.now):
            self._on_commit(each.address for each in purged)
        return None

    def _cache_counts(self, scope: SpacePartition, counts: Mapping[Tag, int]) -> None:
        if len(self._cache) >= MAX_CACHED_COUNTERS:
            self._cache.clear()
        self._cache[scope] = counts


def guarded_partition(pending: PendingCommit) -> SpacePartition | None:
    """Return the space and partition whose counter limits the commit.

    Return None if the commit has no guard or does not increase the guarded count.
    """
    if pending.guard is None or pending.guard_delta(pending.guard) <= 0:
        return None
    return pending.guard.space, pending.partition


def fits_limit(pendings: Sequence[PendingCommit]) -> bool:
    """Return whether commits with the same guard together stay within the limit of the guard.

    If the counter has not refused these commits yet, return True.
    """
    guard, stored = pendings[0].guard, pendings[0].refusing_counter
    if guard is None or stored is None:
        return True
    delta = sum(pending.guard_delta(guard) for pending in pendings)
    return _guarded_count(guard, stored) + delta <= guard.max_count


def split_limit(room: int, counts: Mapping[Tag, int], tags: Iterable[Tag]) -> dict[Tag, int]:
    """Split the total limit `room` into a limit for each tag.

    The limit of a tag is its count in `counts` plus an equal share of the rest. If the counts add up to more
    than `room`, they are out of date and are ignored. If `room` is negative, each limit is -1, so that the
    condition always fails.
    """
    names = sorted(tags)
    if room < 0:
        return dict.fromkeys(names, -1)
    known = {tag: counts.get(tag, 0) for tag in names}
    if sum(known.values()) > room:
        known = dict.fromkeys(names, 0)
    share, rest = divmod(room - sum(known.values()), len(names))
    return {tag: known[tag] + share + (n < rest) for n, tag in enumerate(names)}


def _guarded_count(guard: Guard, stored: StoredCounter) -> int:
    return sum(stored.counts.get(tag, 0) for tag in guard.tags)
