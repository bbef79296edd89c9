"""How long a task is remembered, and how it is swept away."""

from __future__ import annotations

import pytest

from perdure.storage.kit import Subject
from perdure.tasks import Failure, NewTask, Status, StoreConfig, Success, TaskStore
from perdure.tasks.errors import InvalidValue, LimitExceeded, NotFound

from ..rows import row
from .samples import ANA, BOB, CALL, HOUR, START, Clock, created, ids_of

pytestmark = pytest.mark.anyio

MS = 1000
FOREVER = StoreConfig(max_ttl_ms=None, default_ttl_ms=None)


@row(53)
async def test_a_ttl_is_an_hour_unless_asked_and_a_day_at_most(store: TaskStore) -> None:
    assert (await store.create(ANA, CALL)).task.ttl == 3_600_000
    assert (await store.create(ANA, NewTask(method="m", ttl=86_400_000))).task.ttl == 86_400_000
    with pytest.raises(LimitExceeded) as caught:
        await store.create(ANA, NewTask(method="m", ttl=86_400_001))
    assert (caught.value.field, caught.value.limit, caught.value.actual) == ("ttl", 86_400_000, 86_400_001)
    for ttl in (0, -1):
        with pytest.raises(InvalidValue, match="at least 1"):
            await store.create(ANA, NewTask(method="m", ttl=ttl))


@row(54)
async def test_null_is_for_ever_where_no_maximum_is_set(subject: Subject, clock: Clock) -> None:
    store = TaskStore(subject.storage, FOREVER, clock=clock)
    made = await store.create(ANA, NewTask(method="m", ttl=None))
    default = await store.create(ANA, CALL)
    assert (made.task.ttl, default.task.ttl) == (None, None)
    done = await store.finish(made, Success.of(1))
    clock.advance(1_000_000 * HOUR)
    assert await store.get(ANA, made.task.task_id) == done
    with pytest.raises(LimitExceeded, match="ttl"):
        await store.create(ANA, NewTask(method="m", ttl=10**15))


@row(54)
async def test_null_is_refused_while_there_is_a_maximum(store: TaskStore) -> None:
    with pytest.raises(InvalidValue, match="for ever"):
        await store.create(ANA, NewTask(method="m", ttl=None))


@row(55, 56)
async def test_an_expired_task_is_invisible_and_unchangeable_at_the_same_instant(
    store: TaskStore, clock: Clock
) -> None:
    made = await store.create(ANA, NewTask(method="m", ttl=5000))
    clock.advance(5000 * MS - 1)
    moved = await store.report(made, message="just in time")
    assert await ids_of(store) == [made.task.task_id]
    clock.advance(1)
    with pytest.raises(NotFound):
        await store.get(ANA, made.task.task_id)
    for attempt in (
        store.report(moved, message="late"),
        store.finish(moved, Success.of(1)),
        store.cancel(moved),
        store.set_variables(moved, {"a": 1}),
        store.hold(moved),
    ):
        with pytest.raises(NotFound):
            await attempt
    assert await ids_of(store) == []
    assert await store.counts() == {}
    assert await store.delete(ANA, made.task.task_id) is False


@row(57)
async def test_a_result_stays_readable_for_its_retention_after_it_was_stored(
    store: TaskStore, clock: Clock
) -> None:
    made = await store.create(ANA, NewTask(method="m", ttl=5000))
    clock.advance(4999 * MS)
    done = await store.finish(made, Success.of("kept"))
    clock.advance(HOUR - 1)
    assert await store.get(ANA, made.task.task_id) == done
    clock.advance(1)
    with pytest.raises(NotFound):
        await store.get(ANA, made.task.task_id)


@row(57)
async def test_a_longer_ttl_keeps_a_result_longer(store: TaskStore, clock: Clock) -> None:
    made = await store.create(ANA, NewTask(method="m", ttl=10 * 3_600_000))
    done = await store.finish(made, Failure.of(1, "kept"))
    clock.advance(10 * HOUR - 1)
    assert await store.get(ANA, made.task.task_id) == done


@row(57)
async def test_held_work_is_not_discarded_by_its_ttl(store: TaskStore, clock: Clock) -> None:
    made = await store.create(ANA, NewTask(method="m", ttl=5000))
    held = await store.hold(made)
    clock.advance(100 * HOUR)
    await store.sweep()
    done = await store.finish(await store.get(ANA, made.task.task_id), Success.of("at last"))
    assert done.version == held.version + 1
    clock.advance(HOUR - 1)
    assert await store.get(ANA, made.task.task_id) == done


@row(57)
async def test_released_work_is_ended_by_its_ttl_again(store: TaskStore, clock: Clock) -> None:
    held = await store.hold(await store.create(ANA, NewTask(method="m", ttl=5000)))
    clock.advance(HOUR)
    await store.release(held)
    with pytest.raises(NotFound):
        await store.get(ANA, held.task.task_id)


async def test_results_can_be_kept_for_ever(subject: Subject, clock: Clock) -> None:
    store = TaskStore(subject.storage, StoreConfig(result_retention_ms=None), clock=clock)
    done = await store.finish(await store.create(ANA, CALL), Success.of(1))
    clock.advance(100_000 * HOUR)
    assert await store.get(ANA, done.task.task_id) == done


@row(58)
async def test_a_sweep_takes_the_time_works_in_batches_and_tells_ids(
    subject: Subject, store: TaskStore, clock: Clock
) -> None:
    old = {each.task.task_id for each in await created(store, 5)}
    old |= {each.task.task_id for each in await created(store, 2, BOB)}
    clock.advance(HOUR // 2)
    young = await created(store, 3)
    await subject.settled()
    assert (await store.sweep(now=START + HOUR - 1)).purged == ()
    first = await store.sweep(now=START + HOUR, limit=4)
    second = await store.sweep(now=START + HOUR, limit=4)
    assert (len(first.task_ids), first.more) == (4, True)
    assert (len(second.task_ids), second.more) == (3, False)
    assert {*first.task_ids, *second.task_ids} == old
    assert set(await ids_of(store)) == {each.task.task_id for each in young}


@row(60)
async def test_a_sweep_changes_nothing_that_stays(subject: Subject, store: TaskStore, clock: Clock) -> None:
    ended = [
        await store.finish(await store.create(ANA, CALL), Success.of(1)),
        await store.finish(await store.create(ANA, CALL), Failure.of(1, "x")),
        await store.cancel(await store.create(ANA, CALL)),
    ]
    await created(store, 2, new=NewTask(method="m", ttl=1))
    clock.advance(HOUR - 1)
    await subject.settled()
    assert len((await store.sweep()).task_ids) == 2
    for each in ended:
        assert await store.get(ANA, each.task.task_id) == each


async def test_maintain_purges_everything_overdue_and_reports(
    subject: Subject, store: TaskStore, clock: Clock
) -> None:
    await created(store, 20)
    stays = await store.hold(await store.create(ANA, CALL))
    clock.advance(2 * HOUR)
    await subject.settled()
    upkeep = await store.maintain()
    assert (upkeep.swept, upkeep.examined, upkeep.quarantined, upkeep.findings) == (20, 1, (), ())
    await subject.settled()
    assert await store.counts() == {Status.WORKING: 1}
    assert await store.get(ANA, stays.task.task_id) == stays
