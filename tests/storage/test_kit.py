"""The kit itself: it passes what is right, catches what is broken, and shows what it could not check."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from perdure.storage import (
    Address,
    Change,
    Committed,
    Delete,
    Engine,
    Guard,
    Insert,
    InsertIfAbsent,
    Micros,
    PageRequest,
    Purged,
    Record,
    Refused,
    Replace,
    Space,
    Storage,
    Tag,
    Watch,
)
from perdure.storage.kit import CHECKS, ContractViolation, Factory, Subject, run
from perdure.storage.kit.state_machine import state_machine
from perdure.storage.records_and_changes import Accepted, ChangeResult, Conflict, Kept, Missing
from perdure.storage.watch import WatchRegistry

from ..markers import row
from .engines import no_clock_to_advance
from .reference_engine import ReferenceEngine

pytestmark = pytest.mark.anyio


def subject_of(make: Callable[[], Engine]) -> Factory:
    @asynccontextmanager
    async def factory() -> AsyncGenerator[Subject]:
        engine = make()

        async def second_client() -> Storage:
            return Storage(engine)

        yield Subject(Storage(engine), second_client=second_client, advance_time=no_clock_to_advance)

    return factory


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
    """Replaces whatever stands there."""

    def decide(self, change: Change, now: Micros) -> ChangeResult:
        answer = super().decide(change, now)
        blind = isinstance(change, Replace) and isinstance(answer, Conflict)
        return Accepted(change.after.version) if blind and isinstance(change, Replace) else answer


class OnlyTheVersionCounts(ReferenceEngine):
    """Takes a record born again for the one that was read."""

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
    """Judges, lets others run, then writes."""

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


class OnlyTheFirstRefusalIsTold(ReferenceEngine):
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


class GuardCountsTheDead(ReferenceEngine):
    def count(self, guard: Guard, partition: str, now: Micros) -> int:
        return super().count(guard, partition, 0)


class PurgeTooMuch(ReferenceEngine):
    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        return await super().purge(until=until + 1, limit=limit)


class PurgeIgnoresTheLimit(ReferenceEngine):
    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        return await super().purge(until=until, limit=limit * 1000)


class NativeTtl(ReferenceEngine):
    """Removes what is expired whenever somebody reads."""

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
    async def due(self, lane: str, *, until: Micros, limit: int, now: Micros) -> list[Record]:
        return await super().due(lane, until=until + 1, limit=limit, now=now)


class DeafWatch(ReferenceEngine):
    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch:
        return Watch(WatchRegistry(), (space, partition, key))


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
    OnlyTheFirstRefusalIsTold,
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
    GuardCountsTheDead,
    PurgeTooMuch,
    PurgeIgnoresTheLimit,
    NativeTtl,
    NormalisesBodies,
    SeparatorInNames,
    ForgetsLanes,
    DueTooSoon,
    DeafWatch,
]

MACHINE_CATCHES = [
    OverwritingInsert,
    KeepThatReplaces,
    LostUpdate,
    UncheckedDelete,
    MissingIsConflict,
    NonAtomicBatch,
    WrongCount,
    GuardBeforeTheCommit,
]


@row(98)
@pytest.mark.parametrize("engine", BROKEN, ids=lambda engine: engine.__name__)
async def test_the_kit_catches_a_broken_engine(
    engine: type[ReferenceEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.storage.kit.check_runner.WAKE_TIMEOUT", 0.2)
    for check in CHECKS:
        report = await run(subject_of(engine), [check])
        if report.failed:
            break
    else:
        pytest.fail(f"{engine.__name__} passed every check")
    with pytest.raises(ContractViolation):
        report.raise_if_failed()


async def test_the_report_of_a_broken_engine_continues_after_the_first_failure() -> None:
    report = await run(subject_of(OverwritingInsert))
    assert len(report.results) == len(CHECKS)
    assert 1 < len(report.failed) < len(CHECKS) - len(report.skipped)


async def test_the_kit_passes_the_plainest_right_engine() -> None:
    report = await run(subject_of(ReferenceEngine))
    report.raise_if_failed()
    assert "passed  03-an_insert_never_overwrites" in str(report)


async def test_a_missing_capability_is_a_visible_skip() -> None:
    report = await run(subject_of(ReferenceEngine))
    assert {result.check.needs[0] for result in report.skipped} == {"reopen", "url", "damage"}
    check = "20-everything_is_stored_after_reopening"
    assert f"skipped {check}: the subject has no 'reopen', which this check needs" in str(report)


def test_the_model_of_the_other_engines_agrees_with_one_that_searches() -> None:
    run_state_machine_as_test(
        state_machine(subject_of(ReferenceEngine)),
        settings=settings(stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]),
    )


@row(98)
@pytest.mark.parametrize("engine", MACHINE_CATCHES, ids=lambda engine: engine.__name__)
def test_random_histories_catch_a_broken_engine(engine: type[ReferenceEngine]) -> None:
    with pytest.raises(ContractViolation):
        run_state_machine_as_test(
            state_machine(subject_of(engine)),
            settings=settings(
                max_examples=300,
                stateful_step_count=30,
                derandomize=True,
                phases=[Phase.generate],
                database=None,
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )
