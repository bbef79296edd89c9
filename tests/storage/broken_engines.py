"""Engines that break the contract. Each overrides one step of the reference engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from perdure.storage import (
    Address,
    Change,
    Committed,
    Delete,
    Guard,
    Insert,
    InsertIfAbsent,
    LanePosition,
    Micros,
    PageRequest,
    Purged,
    Record,
    Refused,
    Replace,
    Space,
    Tag,
    Watch,
)
from perdure.storage.records_and_changes import Accepted, ChangeResult, Conflict, Kept, Missing
from perdure.storage.time_types import system_clock
from perdure.storage.watch import WatchRegistry

from .reference_engine import ReferenceEngine


class OverwritingInsert(ReferenceEngine):
    def decide(self, change: Change, now: Micros) -> ChangeResult:
        return Accepted(change.record.version) if isinstance(change, Insert) else super().decide(change, now)


class KeepThatReplaces(ReferenceEngine):
    def decide(self, change: Change, now: Micros) -> ChangeResult:
        return (
            Accepted(change.record.version)
            if isinstance(change, InsertIfAbsent)
            else super().decide(change, now)
        )


class LostUpdate(ReferenceEngine):
    """Replaces whichever record is stored."""

    def decide(self, change: Change, now: Micros) -> ChangeResult:
        answer = super().decide(change, now)
        blind = isinstance(change, Replace) and isinstance(answer, Conflict)
        return Accepted(change.after.version) if blind and isinstance(change, Replace) else answer


class OnlyTheVersionCounts(ReferenceEngine):
    """Takes a reinserted record for the one that was read."""

    def decide(self, change: Change, now: Micros) -> ChangeResult:
        found = self.find(change.address, now)
        if isinstance(change, Replace | Delete) and found and found.version == change.before.version:
            return Accepted(found.version + isinstance(change, Replace))
        return super().decide(change, now)


class UncheckedDelete(ReferenceEngine):
    def decide(self, change: Change, now: Micros) -> ChangeResult:
        answer = super().decide(change, now)
        return Accepted(change.before.version) if isinstance(change, Delete) else answer


class MissingIsConflict(ReferenceEngine):
    def decide(self, change: Change, now: Micros) -> ChangeResult:
        answer = super().decide(change, now)
        return Conflict(0) if isinstance(answer, Missing) else answer


class ConflictWithoutVersion(ReferenceEngine):
    def decide(self, change: Change, now: Micros) -> ChangeResult:
        answer = super().decide(change, now)
        return Conflict(1) if isinstance(answer, Conflict) else answer


class RaceBetweenCheckAndWrite(ReferenceEngine):
    """Decides, lets others run, then writes."""

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        answers = tuple(self.decide(change, now) for change in changes)
        await asyncio.sleep(0)
        if all(isinstance(answer, Accepted | Kept) for answer in answers):
            await super().commit(changes, guard=guard, now=now)
            for change in changes:
                self.apply(change)
            return Committed(tuple(answer for answer in answers if isinstance(answer, Accepted | Kept)))
        return Refused(answers)


class StaleRead(ReferenceEngine):
    """Reads a copy that is one commit behind."""

    def __init__(self) -> None:
        super().__init__()
        self.behind: dict[Address, Record] = {}

    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:
        current, self.records = self.records, self.behind
        try:
            return await super().get(addresses, now=now)
        finally:
            self.records = current

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        self.behind = dict(self.records)
        return await super().commit(changes, guard=guard, now=now)


class NonAtomicBatch(ReferenceEngine):
    """Writes the changes that it can."""

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        result = await super().commit(changes, guard=guard, now=now)
        if isinstance(result, Refused):
            for change, answer in zip(changes, result.results, strict=True):
                if isinstance(answer, Accepted):
                    self.apply(change)
        return result


class OnlyTheFirstRefusalIsReported(ReferenceEngine):
    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        result = await super().commit(changes, guard=guard, now=now)
        return Refused(result.results[:1]) if isinstance(result, Refused) else result


class UnstableOrder(ReferenceEngine):
    """Equal orders come in the order of writing."""

    async def page(self, request: PageRequest, *, now: Micros) -> list[Record]:
        found = [record for record in self.live(now) if self.is_wanted(record, request)]
        found.sort(key=lambda record: record.order, reverse=request.descending)
        return found[: request.limit]


class PageOfAnySize(ReferenceEngine):
    """Bounds a page in records only."""

    async def page(self, request: PageRequest, *, now: Micros) -> list[Record]:
        found = [record for record in self.live(now) if self.is_wanted(record, request)]
        found.sort(key=lambda record: record.position, reverse=request.descending)
        return found[: request.limit]


class PositionIncluded(ReferenceEngine):
    def is_after(self, record: Record, request: PageRequest) -> bool:
        return record.position == request.after or super().is_after(record, request)


class PositionWithoutPartition(ReferenceEngine):
    """Loses records of equal order and key in other partitions."""

    def is_after(self, record: Record, request: PageRequest) -> bool:
        same = request.after is not None and record.position[:2] == request.after[:2]
        return not same and super().is_after(record, request)


class LateExpiry(ReferenceEngine):
    """Visible at the instant of expiry."""

    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:
        return await super().get(addresses, now=max(0, now - 1))


class ExpiredStaysInPlace(ReferenceEngine):
    """An expired record still takes its address."""

    def decide(self, change: Change, now: Micros) -> ChangeResult:
        return super().decide(change, 0 if isinstance(change, Insert | InsertIfAbsent) else now)


class FiltersAfterTheLimit(ReferenceEngine):
    """Cuts the page first and drops the expired afterwards."""

    async def page(self, request: PageRequest, *, now: Micros) -> list[Record]:
        return [record for record in await super().page(request, now=0) if record.is_live(now)]


class WrongCount(ReferenceEngine):
    """Counts what is expired."""

    async def counts(self, space: Space, partition: str | None, *, now: Micros) -> Mapping[Tag, int]:
        return await super().counts(space, partition, now=0)


class CountsZero(ReferenceEngine):
    async def counts(self, space: Space, partition: str | None, *, now: Micros) -> Mapping[Tag, int]:
        everywhere = {record.tag: 0 for record in self.records.values()}
        return {**everywhere, "t": 0, **await super().counts(space, partition, now=now)}


class GuardBeforeTheCommit(ReferenceEngine):
    """Looks at the count as it was, and so admits one too many."""

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        if guard is not None and self.count(guard, changes[0].address.partition, now) > guard.max_count:
            return Refused(
                tuple(self.decide(change, now) for change in changes), guard_count=guard.max_count + 1
            )
        return await super().commit(changes, guard=None, now=now)


class GuardCountsExpiredRecords(ReferenceEngine):
    def count(self, guard: Guard, partition: str, now: Micros) -> int:
        return super().count(guard, partition, 0)


class PurgeTooMuch(ReferenceEngine):
    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        return await super().purge(until=until + 1, limit=limit)


class PurgeIgnoresTheLimit(ReferenceEngine):
    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        return await super().purge(until=until, limit=limit * 1000)


class NativeTtl(ReferenceEngine):
    """Deletes what is expired at every read."""

    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:
        self.records = {record.address: record for record in self.live(now)}
        return await super().get(addresses, now=now)

    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        await super().purge(until=until, limit=limit)
        return []


class NormalisesBodies(ReferenceEngine):
    def apply(self, change: Change) -> None:
        super().apply(change)
        found = self.records.get(change.address)
        if found is not None:
            self.records[change.address] = replace(found, body=found.body.strip())


class SeparatorInNames(ReferenceEngine):
    """Joins partition and key with a colon."""

    def find(self, address: Address, now: Micros) -> Record | None:
        name = f"{address.space}:{address.partition}:{address.key}".lower()
        return next((r for r in self.live(now) if ":".join(r.address).lower() == name), None)


class ForgetsLanes(ReferenceEngine):
    """A replaced record keeps its old timer."""

    def apply(self, change: Change) -> None:
        if isinstance(change, Replace) and change.after.lane is None:
            change = replace(
                change,
                after=replace(change.after, lane=change.before.lane, wake_at=change.before.wake_at),
            )
        super().apply(change)


class DueTooSoon(ReferenceEngine):
    async def due(
        self, lane: str, *, after: LanePosition | None, until: Micros, limit: int, now: Micros
    ) -> list[Record]:
        return await super().due(lane, after=after, until=until + 1, limit=limit, now=now)


class DueFromTheStart(ReferenceEngine):
    async def due(
        self, lane: str, *, after: LanePosition | None, until: Micros, limit: int, now: Micros
    ) -> list[Record]:
        return await super().due(lane, after=None, until=until, limit=limit, now=now)


class DeafWatch(ReferenceEngine):
    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch:
        return Watch(WatchRegistry(), (space, partition, key))


class VersionOneForEveryInsert(ReferenceEngine):
    def decide(self, change: Change, now: Micros) -> ChangeResult:
        result = super().decide(change, now)
        return Accepted(1) if isinstance(change, Insert) and isinstance(result, Accepted) else result


class AddressesAreUsedOnce(ReferenceEngine):
    """A deleted or purged record still occupies its address."""

    def __init__(self) -> None:
        super().__init__()
        self.used: set[Address] = set()

    def decide(self, change: Change, now: Micros) -> ChangeResult:
        is_used = isinstance(change, Insert | InsertIfAbsent) and change.address in self.used
        return Conflict(1) if is_used else super().decide(change, now)

    def apply(self, change: Change) -> None:
        super().apply(change)
        self.used.add(change.address)


class KeepsThePurgedInTheirLane(ReferenceEngine):
    def __init__(self) -> None:
        super().__init__()
        self.purged: list[Record] = []

    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        before = dict(self.records)
        purged = await super().purge(until=until, limit=limit)
        self.purged += [before[each.address] for each in purged]
        return purged

    async def due(
        self, lane: str, *, after: LanePosition | None, until: Micros, limit: int, now: Micros
    ) -> list[Record]:
        found = await super().due(lane, after=after, until=until, limit=limit, now=now)
        return [*(record for record in self.purged if record.lane == lane and record.is_live(now)), *found]


class ForgetsNewTags(ReferenceEngine):
    """A replaced record is listed with its old tag."""

    def __init__(self) -> None:
        super().__init__()
        self.first_tags: dict[Address, Tag] = {}

    def apply(self, change: Change) -> None:
        super().apply(change)
        if isinstance(change, Insert | InsertIfAbsent):
            self.first_tags[change.address] = change.record.tag

    def is_wanted(self, record: Record, request: PageRequest) -> bool:
        return super().is_wanted(replace(record, tag=self.first_tags[record.address]), request)


class PositionMustExist(ReferenceEngine):
    """Starts again at the beginning if no record has the position."""

    def is_after(self, record: Record, request: PageRequest) -> bool:
        exists = any(each.position == request.after for each in self.records.values())
        return not exists or super().is_after(record, request)


class WatchThatStaysOpen(ReferenceEngine):
    """Closing a watch does not wake the caller that waits for it."""

    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch:
        return _WatchThatStaysOpen(self.watches, (space, partition, key))


class _WatchThatStaysOpen(Watch):
    async def close(self) -> None:
        pass


class ForgetsEverythingOnClosing(ReferenceEngine):
    async def close(self) -> None:
        self.records.clear()
        await super().close()


class ClosesOnlyOnce(ReferenceEngine):
    async def close(self) -> None:
        if self.watches.is_closed:
            raise RuntimeError("this engine is closed")
        await super().close()


class ClosesUnderItsReaders(ReferenceEngine):
    """A read in flight when the engine closes raises an error of the driver."""

    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:
        for _ in range(10):
            await asyncio.sleep(0)  # the caller may close the storage now
        if self.watches.is_closed:
            raise RuntimeError("this connection is closed")
        return await super().get(addresses, now=now)


class ExpiresByItself(ReferenceEngine):
    """Deletes records by a clock of its own, at a fixed time after they expired."""

    def __init__(self, delay: Micros) -> None:
        super().__init__()
        self.delay = delay
        self.time = system_clock()

    async def advance_time(self, to: Micros) -> None:
        self.time = to

    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        self.delete_expired()
        return await super().purge(until=until, limit=limit)

    def live(self, now: Micros) -> list[Record]:
        self.delete_expired()
        return super().live(now)

    def find(self, address: Address, now: Micros) -> Record | None:
        self.delete_expired()
        return super().find(address, now)

    def delete_expired(self) -> None:
        horizon = self.time - self.delay
        self.records = {each.address: each for each in self.records.values() if each.is_live(horizon)}


BROKEN = [
    OverwritingInsert,
    KeepThatReplaces,
    LostUpdate,
    OnlyTheVersionCounts,
    UncheckedDelete,
    MissingIsConflict,
    ConflictWithoutVersion,
    RaceBetweenCheckAndWrite,
    StaleRead,
    NonAtomicBatch,
    OnlyTheFirstRefusalIsReported,
    UnstableOrder,
    PageOfAnySize,
    PositionIncluded,
    PositionWithoutPartition,
    LateExpiry,
    ExpiredStaysInPlace,
    FiltersAfterTheLimit,
    WrongCount,
    CountsZero,
    GuardBeforeTheCommit,
    GuardCountsExpiredRecords,
    PurgeTooMuch,
    PurgeIgnoresTheLimit,
    NativeTtl,
    NormalisesBodies,
    SeparatorInNames,
    ForgetsLanes,
    DueTooSoon,
    DueFromTheStart,
    DeafWatch,
    VersionOneForEveryInsert,
    AddressesAreUsedOnce,
    KeepsThePurgedInTheirLane,
    ForgetsNewTags,
    PositionMustExist,
    WatchThatStaysOpen,
    ForgetsEverythingOnClosing,
    ClosesOnlyOnce,
    ClosesUnderItsReaders,
]
