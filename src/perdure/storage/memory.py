"""The memory engine: the simplest implementation of the contract, for tests and demonstrations.

Its records are lost when the process ends. The contract kit compares other engines with it. No method awaits
anything, so no other call can run in the middle of a verb. The indexes contain only records that are in
`_records`. Reads skip expired records, which remain in `_records` until they are purged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from .contract import Engine, MaintenanceReport, StorageInfo
from .errors import CannotOpen
from .page_builder import page_of
from .records_and_changes import (
    Address,
    Change,
    ChangeResult,
    Committed,
    Guard,
    Kept,
    LanePosition,
    Micros,
    PageRequest,
    Position,
    Purged,
    Record,
    RecordState,
    Refused,
    Space,
    Tag,
    accepted_results,
    decide,
    guard_delta,
    record_after,
)
from .sorted_set import SortedSet
from .watch import Watch, WatchRegistry

_ListingKey = tuple[Space, str | None, Tag | None]
_Expiry = tuple[Micros, Address]


class MemoryEngine(Engine):
    """An engine that keeps its records in dictionaries and sorted sets."""

    name = "memory"

    def __init__(self) -> None:
        self._records: dict[Address, Record] = {}
        self._listings: defaultdict[_ListingKey, SortedSet[Position]] = defaultdict(SortedSet)
        self._timers: defaultdict[str, SortedSet[LanePosition]] = defaultdict(SortedSet)
        self._expiries: SortedSet[_Expiry] = SortedSet()
        self._counts: defaultdict[tuple[Space, str | None], dict[Tag, int]] = defaultdict(dict)
        self._watches = WatchRegistry()

    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:
        return [self._live(address, now) for address in addresses]

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        results = tuple(decide(change, self._state_at(change.address, now)) for change in changes)
        accepted = accepted_results(results)
        if accepted is None:
            return Refused(results)
        if guard is not None:
            delta = guard_delta(guard, changes, accepted, now)
            guard_count = self._guard_excess(guard, changes[0].address.partition, delta, now)
            if guard_count is not None:
                return Refused(results, guard_count=guard_count)
        for change, result in zip(changes, accepted, strict=True):
            self._apply(change, result)
        self._watches.wake_for(changes)
        return Committed(accepted)

    async def page(self, request: PageRequest, *, now: Micros) -> list[Record]:
        listing = self._listings.get((request.space, request.partition, request.tag))
        if listing is None:
            return []
        positions = listing.before(request.after) if request.descending else listing.after(request.after)
        found = (self._records[Address(request.space, each.partition, each.key)] for each in positions)
        return page_of((record for record in found if record.is_live(now)), request.limit)

    async def due(
        self, lane: str, *, after: LanePosition | None, until: Micros, limit: int, now: Micros
    ) -> list[Record]:
        return page_of(self._due(lane, after, until, now), limit)

    async def counts(self, space: Space, partition: str | None, *, now: Micros) -> Mapping[Tag, int]:
        counts = dict(self._counts.get((space, partition), {}))
        for record in self._expired(now):
            if record.space == space and partition in (None, record.partition):
                counts[record.tag] -= 1
        return {tag: count for tag, count in counts.items() if count}

    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        expired = list(islice(self._expired(until), limit))
        for record in expired:
            self._remove(record)
        self._watches.wake(record.address for record in expired)
        return [Purged(*record.address, record.tag) for record in expired]

    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch:
        return self._watches.watch((space, partition, key))

    async def maintain(self, *, repair: bool) -> MaintenanceReport:  # noqa: ARG002 - nothing to repair
        return MaintenanceReport()

    async def info(self) -> StorageInfo:
        return StorageInfo(is_shared=False)

    async def close(self) -> None:
        self._watches.close()

    # Reading

    def _live(self, address: Address, now: Micros) -> Record | None:
        record = self._records.get(address)
        return record if record is not None and record.is_live(now) else None

    def _state_at(self, address: Address, now: Micros) -> RecordState | None:
        record = self._live(address, now)
        return None if record is None else record.state

    def _due(self, lane: str, after: LanePosition | None, until: Micros, now: Micros) -> Iterator[Record]:
        for timer in self._timers.get(lane, SortedSet[LanePosition]()).after(after):
            if timer.wake_at > until:
                return
            record = self._live(Address(timer.space, timer.partition, timer.key), now)
            if record is not None:
                yield record

    def _expired(self, until: Micros) -> Iterator[Record]:
        for expires_at, address in self._expiries.after(None):
            if expires_at > until:
                return
            yield self._records[address]

    def _guard_excess(self, guard: Guard, partition: str, delta: int, now: Micros) -> int | None:
        """Return None if `guard` accepts the commit, otherwise the count that the commit would reach."""
        if delta <= 0 or self._guarded_count(guard, partition) + delta <= guard.max_count:
            return None
        for record in [each for each in self._expired(now) if each.partition == partition]:
            self._remove(record)
        count = self._guarded_count(guard, partition) + delta
        return count if count > guard.max_count else None

    def _guarded_count(self, guard: Guard, partition: str) -> int:
        counts = self._counts.get((guard.space, partition), {})
        return sum(counts.get(tag, 0) for tag in guard.tags)

    # Writing

    def _apply(self, change: Change, result: ChangeResult) -> None:
        if isinstance(result, Kept):
            return
        stale = self._records.get(change.address)  # replaced or deleted by this change, or expired
        if stale is not None:
            self._remove(stale)
        after = record_after(change)
        if after is not None:
            self._add(after)

    def _add(self, record: Record) -> None:
        self._records[record.address] = record
        position = record.position
        for listing in self._listings_of(record):
            self._listings[listing].add(position)
        self._count(record, 1)
        if record.lane is not None and record.wake_at is not None:
            self._timers[record.lane].add(record.lane_position)
        if record.expires_at is not None:
            self._expiries.add((record.expires_at, record.address))

    def _remove(self, record: Record) -> None:
        del self._records[record.address]
        position = record.position
        for scope in self._listings_of(record):
            listing = self._listings[scope]
            listing.remove(position)
            if not listing:
                del self._listings[scope]
        self._count(record, -1)
        if record.lane is not None and record.wake_at is not None:
            timers = self._timers[record.lane]
            timers.remove(record.lane_position)
            if not timers:
                del self._timers[record.lane]
        if record.expires_at is not None:
            self._expiries.remove((record.expires_at, record.address))

    def _count(self, record: Record, delta: int) -> None:
        for partition in (None, record.partition):
            counts = self._counts[record.space, partition]
            counts[record.tag] = count = counts.get(record.tag, 0) + delta
            if not count:
                del counts[record.tag]
                if not counts:
                    del self._counts[record.space, partition]

    @staticmethod
    def _listings_of(record: Record) -> tuple[_ListingKey, ...]:
        space, partition, tag = record.space, record.partition, record.tag
        return (space, partition, None), (space, partition, tag), (space, None, None), (space, None, tag)


async def open_engine(url: str) -> Engine:
    if url != "memory:":
        raise CannotOpen(url, "a memory: URL cannot contain a path or options", 'use "memory:"')
    return MemoryEngine()
