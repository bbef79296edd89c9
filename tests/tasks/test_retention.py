"""How long a task is kept, and how it is purged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.storage.kit import Subject
from perdure.storage.time_types import DAY, HOUR
from perdure.tasks import (
    Failure,
    NewTask,
    Status,
    StoreConfig,
    Success,
    TaskRecord,
    TaskStore,
    edits,
    expiry_and_deadlines,
)
from perdure.tasks.errors import InvalidValue, LimitExceeded, NotFound
from perdure.tasks.task_record import new_task_id

from .. import task_edits
from ..markers import row
from .samples import ANA, BOB, CALL, START, Clock, created, ids_of

pytestmark = pytest.mark.anyio

MS = 1000
FOREVER = StoreConfig(max_ttl=None, ttl=None)


@row(53)
async def test_a_ttl_is_a_day_by_default_and_thirty_at_most(store: TaskStore) -> None:
    maximum = 30 * DAY // MS
    assert (await store.create(ANA, CALL)).task.ttl_ms == DAY // MS
    assert (await store.create(ANA, NewTask(method="m", ttl_ms=maximum))).task.ttl_ms == maximum
    with pytest.raises(LimitExceeded) as caught:
        await store.create(ANA, NewTask(method="m", ttl_ms=maximum + 1))
    assert (caught.value.field, caught.value.limit, caught.value.actual) == ("ttl", maximum, maximum + 1)
    for ttl in (0, -1):
        with pytest.raises(InvalidValue, match="at least 1"):
            await store.create(ANA, NewTask(method="m", ttl_ms=ttl))


@row(54)
async def test_null_never_expires_if_no_maximum_is_set(subject: Subject, clock: Clock) -> None:
    store = TaskStore(subject.storage, FOREVER, clock=clock, application="tests")
    made = await store.create(ANA, NewTask(method="m", ttl_ms=None))
    default = await store.create(ANA, CALL)
    assert (made.task.ttl_ms, default.task.ttl_ms) == (None, None)
    done = await task_edits.finish(store, made, Success.of(1))
    clock.advance(1_000_000 * HOUR)
    assert await store.get(ANA, made.task.task_id) == done
    with pytest.raises(LimitExceeded, match="ttl"):
        await store.create(ANA, NewTask(method="m", ttl_ms=10**15))


@row(54)
async def test_null_is_refused_while_there_is_a_maximum(store: TaskStore) -> None:
    with pytest.raises(InvalidValue, match="is not allowed; use at most"):
        await store.create(ANA, NewTask(method="m", ttl_ms=None))


@row(55, 56)
async def test_an_expired_task_is_invisible_and_unchangeable_at_the_same_instant(
    store: TaskStore, clock: Clock
) -> None:
    made = await store.create(ANA, NewTask(method="m", ttl_ms=5000))
    clock.advance(5000 * MS - 1)
    moved = await task_edits.report(store, made, message="just in time")
    assert await ids_of(store) == [made.task.task_id]
    clock.advance(1)
    with pytest.raises(NotFound):
        await store.get(ANA, made.task.task_id)
    for attempt in (
        task_edits.report(store, moved, message="late"),
        task_edits.finish(store, moved, Success.of(1)),
        task_edits.cancel(store, moved),
        task_edits.set_variables(store, moved, {"a": 1}),
        task_edits.claim(store, moved),
    ):
        with pytest.raises(NotFound):
            await attempt
    assert await ids_of(store) == []
    assert await task_edits.counts(store) == {}
    assert await store.delete(ANA, made.task.task_id) is False


@row(57)
@pytest.mark.parametrize(
    ("new", "readable"),
    [
        (NewTask(method="m", ttl_ms=5000), 7 * DAY),
        (NewTask(method="m", ttl_ms=5000, is_ttl_requested=True), 5000 * MS),
    ],
    ids=["default", "named"],
)
async def test_a_result_stays_readable_for_its_retention_unless_the_client_named_less(
    store: TaskStore, clock: Clock, new: NewTask, readable: int
) -> None:
    made = await store.create(ANA, new)
    clock.advance(4999 * MS)
    done = await task_edits.finish(store, made, Success.of("kept"))
    clock.advance(readable - 1)
    assert await store.get(ANA, made.task.task_id) == done
    clock.advance(1)
    with pytest.raises(NotFound):
        await store.get(ANA, made.task.task_id)


@row(57)
async def test_a_longer_ttl_keeps_a_result_longer(store: TaskStore, clock: Clock) -> None:
    made = await store.create(ANA, NewTask(method="m", ttl_ms=10 * DAY // MS, is_ttl_requested=True))
    done = await task_edits.finish(store, made, Failure.of(1, "kept"))
    clock.advance(10 * DAY - 1)
    assert await store.get(ANA, made.task.task_id) == done


@row(57)
async def test_a_claimed_task_is_not_discarded_by_its_ttl(store: TaskStore, clock: Clock) -> None:
    made = await store.create(ANA, NewTask(method="m", ttl_ms=5000))
    claimed = await task_edits.claim(store, made)
    clock.advance(100 * HOUR)
    await store.purge()
    done = await task_edits.finish(store, await store.get(ANA, made.task.task_id), Success.of("at last"))
    assert done.version == claimed.version + 1
    clock.advance(HOUR - 1)
    assert await store.get(ANA, made.task.task_id) == done


@row(57, 101)
async def test_released_work_is_not_discarded_by_its_ttl(store: TaskStore, clock: Clock) -> None:
    claimed = await task_edits.claim(
        store, await store.create(ANA, NewTask(method="m", ttl_ms=5000, function="work"))
    )
    clock.advance(HOUR)
    released = await task_edits.release(store, claimed)
    clock.advance(100 * DAY)
    await store.purge()
    assert await store.get(ANA, claimed.task.task_id) == released


# What clients see of it


@row(102)
@given(
    ttl=st.integers(1, 30 * DAY // MS),
    moments=st.lists(st.integers(1, 20 * DAY), min_size=1, max_size=8),
)
def test_the_ttl_that_clients_see_is_ahead_of_every_started_task(ttl: int, moments: list[int]) -> None:
    """For weeks: a client that gives up at `createdAt + ttl` never does so while the task lives."""
    config, now = StoreConfig(), START
    new = NewTask(method="m", ttl_ms=ttl, function="work")
    task = edits.create(new, application="tests", owner=ANA, task_id=new_task_id(), now=now, config=config)
    assert (
        expiry_and_deadlines.client_ttl_ms(task, now + HOUR) == ttl
    )  # it has not been started, and expires then
    shown = ttl
    for moment in moments:
        task = edits.claim(task, now=now)
        now += moment
        assert_ahead(task, now, shown)
        task = edits.release(task, now=now, config=config)
        shown = assert_ahead(task, now, shown)
    done = edits.finish(task, Success.of(1), now=now, config=config)
    expires = expiry_and_deadlines.expires_at(done)
    assert expires is not None
    assert expires <= START + (expiry_and_deadlines.client_ttl_ms(done, now) or 0) * MS < expires + MS
    assert expires >= START + shown * MS  # a client that plans by what it was shown finds the result


def assert_ahead(task: TaskRecord, now: int, shown: int) -> int:
    ttl = expiry_and_deadlines.client_ttl_ms(task, now)
    assert ttl is not None
    assert task.ttl_ms is not None
    assert now + task.ttl_ms * MS <= START + ttl * MS < now + 2 * task.ttl_ms * MS
    assert ttl % task.ttl_ms == 0
    assert ttl >= shown  # it never moves backwards
    return ttl


async def test_results_can_be_kept_forever(subject: Subject, clock: Clock) -> None:
    store = TaskStore(subject.storage, StoreConfig(retention=None), clock=clock, application="tests")
    done = await task_edits.finish(store, await store.create(ANA, CALL), Success.of(1))
    clock.advance(100_000 * HOUR)
    assert await store.get(ANA, done.task.task_id) == done


@row(58)
async def test_a_purge_takes_the_time_works_in_batches_and_returns_ids(
    subject: Subject, store: TaskStore, clock: Clock
) -> None:
    old = {each.task.task_id for each in await created(store, 5)}
    old |= {each.task.task_id for each in await created(store, 2, BOB)}
    clock.advance(DAY // 2)
    young = await created(store, 3)
    await subject.caught_up()
    assert (await store.purge(now=START + DAY - 1)).purged == ()
    first = await store.purge(now=START + DAY, limit=4)
    second = await store.purge(now=START + DAY, limit=4)
    assert (len(first.purged), first.more) == (4, True)
    assert (len(second.purged), second.more) == (3, False)
    assert {each.key for each in (*first.purged, *second.purged)} == old
    assert set(await ids_of(store)) == {each.task.task_id for each in young}


@row(60)
async def test_a_purge_changes_nothing_that_stays(subject: Subject, store: TaskStore, clock: Clock) -> None:
    ended = [
        await task_edits.finish(store, await store.create(ANA, CALL), Success.of(1)),
        await task_edits.finish(store, await store.create(ANA, CALL), Failure.of(1, "x")),
        await task_edits.cancel(store, await store.create(ANA, CALL)),
    ]
    await created(store, 2, new=NewTask(method="m", ttl_ms=1))
    clock.advance(7 * DAY - 1)  # the results expire a microsecond later
    await subject.caught_up()
    assert len((await store.purge()).purged) == 2
    for each in ended:
        assert await store.get(ANA, each.task.task_id) == each


async def test_a_purge_deletes_everything_expired_and_leaves_the_storage_consistent(
    subject: Subject, store: TaskStore, clock: Clock
) -> None:
    await created(store, 20)
    stays = await task_edits.claim(store, await store.create(ANA, CALL))
    clock.advance(2 * DAY)
    await subject.caught_up()
    assert len((await store.purge()).purged) == 20
    await subject.caught_up()
    found = await task_edits.quarantine_damaged(store)
    assert (found.examined, found.damaged) == (1, ())
    assert (await store.storage.maintain()).findings == ()
    await subject.caught_up()
    assert await task_edits.counts(store) == {Status.WORKING: 1}
    assert await store.get(ANA, stays.task.task_id) == stays
