"""The contract once more, with no index but the address: too slow to use, too simple to be wrong.

It holds the memory engine, which is the model of the others, to the contract; and broken variants of it
show that the kit catches what it should.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from perdure.storage import (
    Address,
    Change,
    Committed,
    Delete,
    Engine,
    Guard,
    LanePosition,
    MaintenanceReport,
    Micros,
    PageRequest,
    Purged,
    Record,
    Refused,
    Space,
    Tag,
    Watch,
)
from perdure.storage.page_builder import page_of
from perdure.storage.records_and_changes import (
    ChangeResult,
    Insert,
    InsertIfAbsent,
    Kept,
    accepted_results,
    decide,
)
from perdure.storage.watch import WatchRegistry


class ReferenceEngine(Engine):
    """Every verb in its most obvious form. The broken engines override one step each."""

    name = "reference"

    def __init__(self) -> None:
        self.records: dict[Address, Record] = {}
        self.watches = WatchRegistry()

    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:
        return [self.find(address, now) for address in addresses]

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        answers = tuple(self.decide(change, now) for change in changes)
        done = accepted_results(answers)
        if done is None:
            return Refused(answers)
        saved = dict(self.records)
        before = 0 if guard is None else self.count(guard, changes[0].address.partition, now)
        for change, answer in zip(changes, done, strict=True):
            if not isinstance(answer, Kept):
                self.apply(change)
        if guard is not None:
            guard_count = self.count(guard, changes[0].address.partition, now)
            if guard_count > guard.max_count and guard_count > before:
                self.records = saved
                return Refused(answers, guard_count=guard_count)
        self.watches.wake(change.address for change in changes)
        return Committed(done)

    async def page(self, request: PageRequest, *, now: Micros) -> list[Record]:
        found = [record for record in self.live(now) if self.is_wanted(record, request)]
        found.sort(key=lambda record: record.position, reverse=request.descending)
        return page_of(found, request.limit)

    async def due(
        self, lane: str, *, after: LanePosition | None, until: Micros, limit: int, now: Micros
    ) -> list[Record]:
        found = [
            record
            for record in self.live(now)
            if record.lane == lane and record.wake_at is not None and record.wake_at <= until
        ]
        found.sort(key=lambda record: (record.wake_at, record.key, record.partition, record.space))
        if after is not None:
            found = [record for record in found if record.lane_position > after]
        return page_of(found, limit)

    async def counts(self, space: Space, partition: str | None, *, now: Micros) -> Mapping[Tag, int]:
        return Counter(
            record.tag
            for record in self.live(now)
            if record.space == space and partition in (None, record.partition)
        )

    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        gone = sorted(
            (record for record in self.records.values() if not record.is_live(until)),
            key=lambda record: (record.expires_at or 0, record.address),
        )[:limit]
        for record in gone:
            del self.records[record.address]
        return [Purged(*record.address, record.tag) for record in gone]

    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch:
        return self.watches.watch((space, partition, key))

    async def maintain(self, *, repair: bool) -> MaintenanceReport:
        return MaintenanceReport()

    async def close(self) -> None:
        self.watches.close()

    # The steps

    def live(self, now: Micros) -> list[Record]:
        return [record for record in self.records.values() if record.is_live(now)]

    def find(self, address: Address, now: Micros) -> Record | None:
        found = self.records.get(address)
        return found if found is not None and found.is_live(now) else None

    def decide(self, change: Change, now: Micros) -> ChangeResult:
        found = self.find(change.address, now)
        return decide(change, None if found is None else found.state)

    def apply(self, change: Change) -> None:
        self.records.pop(change.address, None)
        if isinstance(change, Insert | InsertIfAbsent):
            self.records[change.address] = change.record
        elif not isinstance(change, Delete):
            self.records[change.address] = change.after

    def count(self, guard: Guard, partition: str, now: Micros) -> int:
        return sum(
            record.space == guard.space and record.partition == partition and record.tag in guard.tags
            for record in self.live(now)
        )

    def is_wanted(self, record: Record, request: PageRequest) -> bool:
        return (
            record.space == request.space
            and request.partition in (None, record.partition)
            and request.tag in (None, record.tag)
            and self.is_after(record, request)
        )

    def is_after(self, record: Record, request: PageRequest) -> bool:
        if request.after is None:
            return True
        return record.position < request.after if request.descending else record.position > request.after
