"""The work of a lost worker is taken over from what is stored, and that of a living one is left alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from msgspec.structs import replace

from perdure.runtime import App, InProcessExecutor, Job, Runtime, RuntimeConfig, Task, recovery
from perdure.runtime.recovery import LOST
from perdure.storage import Address, Committed, Micros, Record
from perdure.storage.errors import StorageCorrupt
from perdure.storage.inspection_and_quarantine import CORRUPT_TAG
from perdure.storage.time_types import HOUR, MINUTE
from perdure.tasks import Failure, Json, Status, TaskStore
from perdure.tasks.task_snapshot import LEASES

from ..conditions import wait_until
from ..markers import row
from .apps import counted, hanging
from .faulty_storage import (
    ME,
    SLOW_HEARTBEAT,
    Beats,
    Fair,
    FaultyLink,
    MovedClock,
    lease_of,
    now,
    open_faulty,
    several_heartbeats,
    until_released,
    until_status,
)
from .replicas import QUICK, UNHURRIED, Replicas, leave_with_a_dead_worker, new_app, value_of

pytestmark = pytest.mark.anyio


# A worker is lost


@row(62, 68)
async def test_a_task_whose_worker_is_lost_fails_with_a_message_and_wakes_who_waits(
    replicas: Replicas,
) -> None:
    app, wire = hanging(), FaultyLink()
    survivor = await replicas.start(app)
    async with open_faulty(replicas, wire, app) as doomed:
        made = await doomed.submit("hang")
        waiting = asyncio.create_task(survivor.wait(ME, made.task.task_id, 60))
        wire.cut()
        task = (await waiting).task
    assert (task.status, task.last_failure) == (Status.FAILED, LOST.reason)
    assert task.status_message == f"{LOST.reason}, and the function must not run twice (restart=False)"
    assert (task.attempts, task.is_claimed) == (1, False)
    assert await lease_of(survivor, made) is None


@row(62, 65)
async def test_a_function_of_several_attempts_is_run_again_from_what_was_stored(replicas: Replicas) -> None:
    app, wire = new_app(), FaultyLink()
    stuck = asyncio.Event()

    @app.function(retries=1, backoff=0.0)
    async def copy(folder: str, task: Task) -> Json:
        answer = await task.elicit("How many pages?", key="pages")
        if task.attempt == 1:
            await task.set_variables({"page": 7})
            stuck.set()
            await asyncio.Event().wait()
        return [folder, task.variables["page"], answer.action, task.attempt, task.last_error]

    clock = MovedClock()
    survivor = await replicas.start(app, clock=clock)
    async with open_faulty(replicas, wire, app, UNHURRIED) as doomed:
        made = await doomed.submit("copy", {"folder": "a/b"})
        await until_status(survivor, made, Status.INPUT_REQUIRED)
        await survivor.answer(ME, made.task.task_id, {"pages": {"action": "decline"}})
        await stuck.wait()
        wire.cut()
        clock.ahead = MINUTE  # the lease is over
        ended = await survivor.wait(ME, made.task.task_id, 60)
        wire.mend()
    assert value_of(ended) == ["a/b", 7, "decline", 2, LOST.reason]
    assert (ended.task.attempts, ended.task.last_failure) == (2, LOST.reason)
    assert [attempt.reason for attempt in ended.task.attempt_history] == [LOST.reason, None]
    assert ended.task.inputs.keys() == {"pages"}


def deadly(wire: FaultyLink, clock: MovedClock, stored: list[int], survivor: Runtime) -> App:
    """A function that takes its worker with it. By the clock the lease is over then."""
    app = new_app()

    @app.function(backoff=0.0)
    async def kill(task: Task) -> None:
        stored.append((await survivor.store.get(ME, task.id)).task.attempts)
        wire.cut()
        clock.ahead += MINUTE
        await asyncio.Event().wait()

    return app


@row(62)
async def test_a_task_that_always_kills_its_worker_ends_as_interrupted_too_often(replicas: Replicas) -> None:
    wires, clock, stored = [FaultyLink() for _ in range(8)], MovedClock(), list[int]()
    survivor = await replicas.start(new_app(), work=False)
    async with AsyncExitStack() as stack:
        apps = [deadly(wire, clock, stored, survivor) for wire in wires]
        doomed = [
            await stack.enter_async_context(open_faulty(replicas, wire, app, UNHURRIED, clock=clock))
            for wire, app in zip(wires, apps, strict=True)
        ]
        made = await doomed[0].submit("kill")
        task = (await survivor.wait(ME, made.task.task_id, 120)).task
        for wire in wires:
            wire.mend()
    assert stored == [1, 2, 3, 4, 5, 6]  # each was counted before it started
    assert (task.status, task.attempts) == (Status.FAILED, 6)
    assert task.status_message == f"interrupted too often: {LOST.reason} (6 times without progress)"
    assert isinstance(task.outcome, Failure)
    assert task.outcome.data == {"reason": "interrupted_too_often"}


@row(62, 65)
@pytest.mark.parametrize("restart", [False, True])
async def test_a_worker_that_lacks_the_function_leaves_the_decision_to_one_that_has_it(
    replicas: Replicas, *, restart: bool
) -> None:
    app, wire = new_app(), FaultyLink()

    @app.function(restart=restart)
    async def work(task: Task) -> int:
        if task.attempt == 1:
            await asyncio.Event().wait()
        return task.attempt

    clock = MovedClock()
    stranger = await replicas.start(new_app(), clock=clock)
    async with open_faulty(replicas, wire, app, UNHURRIED) as doomed:
        made = await doomed.submit("work")
        wire.cut()
        clock.ahead = MINUTE  # the lease is over
        await until_released(stranger, made)
        task = (await now(stranger, made)).task
        assert (task.status, task.attempts, task.last_failure) == (Status.WORKING, 1, LOST.reason)
        await replicas.start(app, clock=clock)
        ended = (await stranger.wait(ME, made.task.task_id, 60)).task
        wire.mend()
    assert (ended.status is Status.COMPLETED, ended.attempts) == (restart, 1 + restart)


# Live work is spared


@row(63)
@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
async def test_a_clock_that_is_wrong_by_an_hour_takes_no_live_work(replicas: Replicas, ahead: int) -> None:
    app, go_on, runs = counted()
    async with both_alive(replicas, app, MovedClock(), MovedClock(ahead)) as holder:
        made = await holder.submit("work")
        await several_heartbeats(holder, made, 3)  # for longer than the other observes a lease
        go_on.set()
        assert value_of(await holder.wait(ME, made.task.task_id, 60)) == 1
    assert runs == [1]


@asynccontextmanager
async def both_alive(
    replicas: Replicas, app: App, mine: MovedClock, others: MovedClock
) -> AsyncGenerator[Runtime]:
    """One of two replicas that hear of each other, however late a heartbeat is."""
    living: dict[Address, Beats] = {}
    config = replace(
        SLOW_HEARTBEAT, purge_interval=60.0
    )  # or who is an hour ahead sweeps what has just ended
    async with (
        open_faulty(replicas, Fair(living), app, config, clock=mine) as runtime,
        open_faulty(replicas, Fair(living), app, config, clock=others),
    ):
        yield runtime


@row(63)
async def test_a_clock_that_jumps_in_the_middle_of_a_run_takes_no_live_work(replicas: Replicas) -> None:
    clocks = MovedClock(), MovedClock()
    app, go_on, runs = counted()
    async with both_alive(replicas, app, *clocks) as holder:
        made = await holder.submit("work")
        for mine, others in ((-HOUR, 0), (0, HOUR)):
            clocks[0].ahead, clocks[1].ahead = mine, others
            await several_heartbeats(holder, made, 2)
        go_on.set()
        assert value_of(await holder.wait(ME, made.task.task_id, 60)) == 1
    assert runs == [1]


@row(63)
async def test_recovery_takes_the_work_of_the_dead_and_spares_that_of_the_living(replicas: Replicas) -> None:
    app, go_on, _ = counted()
    wire, beats = FaultyLink(), dict[Address, Beats]()
    async with AsyncExitStack() as stack:
        living = await stack.enter_async_context(open_faulty(replicas, Fair(beats), app, SLOW_HEARTBEAT))
        spared = [await living.submit("work") for _ in range(5)]
        doomed = await stack.enter_async_context(open_faulty(replicas, wire, hanging(), SLOW_HEARTBEAT))
        lost = [await doomed.submit("hang") for _ in range(5)]
        wire.cut()
        await stack.enter_async_context(open_faulty(replicas, Fair(beats), hanging(), SLOW_HEARTBEAT))
        ended = [await living.wait(ME, each.task.task_id, 60) for each in lost]
        go_on.set()
        kept = [await living.wait(ME, each.task.task_id, 60) for each in spared]
        wire.mend()
    assert {each.task.status for each in ended} == {Status.FAILED}
    assert [value_of(each) for each in kept] == [1] * 5


@row(63)
async def test_a_coroutine_that_holds_up_its_loop_for_longer_than_a_lease_keeps_its_result(
    replicas: Replicas,
) -> None:
    app, clock = new_app(), MovedClock()

    @app.function()
    async def rude() -> str:
        time.sleep(2 * QUICK.lease)  # noqa: ASYNC251
        clock.ahead = MINUTE  # and more
        return "done"

    runtime = await replicas.start(app, replace(UNHURRIED, heartbeat_interval=1.0), clock=clock)
    made = await runtime.submit("rude")
    assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == "done"


class HeldUp(InProcessExecutor):
    """A process that is held up after it has claimed, and before it begins."""

    def __init__(self, store: TaskStore, config: RuntimeConfig) -> None:
        super().__init__(store, config)
        self.go_on = asyncio.Event()
        self.is_over = asyncio.Event()

    async def submit(self, job: Job) -> None:
        await self.go_on.wait()
        await super().submit(job)
        self.is_over.set()


@row(64)
async def test_who_was_held_up_does_not_begin_what_another_has_taken(replicas: Replicas) -> None:
    app, go_on, runs = counted()
    executors: list[HeldUp] = []

    def executor(store: TaskStore, config: RuntimeConfig) -> HeldUp:
        executors.append(HeldUp(store, config))
        return executors[-1]

    slow = await replicas.start(app, replace(QUICK, concurrency=1), executor=executor)
    made = await slow.submit("work")
    assert made.task.is_claimed
    other = await replicas.start(app)
    await wait_until(lambda: bool(runs))
    executors[0].go_on.set()
    await asyncio.wait_for(executors[0].is_over.wait(), 10)
    assert 1 not in runs  # that was the attempt of the one that was held up
    go_on.set()
    assert value_of(await other.wait(ME, made.task.task_id, 60)) == runs[-1]


# A record or a lease is damaged, or gone


@row(47, 62)
async def test_a_leased_record_that_is_damaged_is_quarantined_and_its_lease_removed(
    replicas: Replicas,
) -> None:
    app, wire, clock = hanging(), FaultyLink(), MovedClock()
    survivor = await replicas.start(app, clock=clock)
    async with open_faulty(replicas, wire, app, UNHURRIED) as doomed:
        made = await doomed.submit("hang")
        wire.cut()
        await put(survivor, made.record, '{"no":"task"}')
        clock.ahead = MINUTE  # the lease is over

        async def is_put_aside() -> bool:
            found = await survivor.store.storage.get(made.record.address, now=survivor.store.clock())
            return found is not None and found.tag == CORRUPT_TAG and not await lease_of(survivor, made)

        await wait_until(is_put_aside)
        wire.mend()


class DamagedLink(FaultyLink):
    """A line to a storage in which a record is damaged, and must be repaired by an operator."""

    damaged: Address | None = None

    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:
        if self.damaged in addresses:
            raise StorageCorrupt(f"the record {self.damaged} is damaged")
        return await super().get(addresses, now=now)


@row(62)
async def test_a_task_that_the_storage_cannot_read_does_not_keep_others_from_being_recovered(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "BATCH", 1)
    app, link, clock = hanging(), DamagedLink(), MovedClock()
    async with open_faulty(replicas, link, app, clock=clock) as survivor:
        first, second = [await leave_with_a_dead_worker(survivor, ME, "hang") for _ in range(2)]
        link.damaged = (await survivor.get(ME, first)).record.address
        clock.ahead = MINUTE  # both leases are over
        assert (await survivor.wait(ME, second, 60)).task.status is Status.FAILED


async def put(runtime: Runtime, record: Record, body: str) -> None:
    change = record.replace_with(
        body=body,
        tag=record.tag,
        lane=record.lane,
        wake_at=record.wake_at,
        expires_at=record.expires_at,
    )
    assert isinstance(await runtime.store.storage.commit([change], now=runtime.store.clock()), Committed)


@row(62)
@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_lease_that_is_damaged_does_not_keep_its_task_from_being_recovered(
    replicas: Replicas, *, is_busy: bool
) -> None:
    app, wire, clock = hanging(), FaultyLink(), MovedClock()
    survivor = await replicas.start(app, clock=clock)
    if is_busy:  # then it looks whether the lease is one of its own
        await survivor.submit("hang")
    async with open_faulty(replicas, wire, app, UNHURRIED) as doomed:
        made = await doomed.submit("hang")
        wire.cut()
        lease = await lease_of(survivor, made)
        assert lease is not None
        await put(survivor, lease, '{"holder":[]}')
        clock.ahead = MINUTE  # it is over
        assert (await survivor.wait(ME, made.task.task_id, 60)).task.status is Status.FAILED
        wire.mend()


@row(62)
async def test_the_lease_of_a_task_that_was_deleted_goes_too(replicas: Replicas) -> None:
    clock = MovedClock()
    runtime = await replicas.start(hanging(), clock=clock)
    made = await runtime.submit("hang")
    await several_heartbeats(runtime, made, 1)
    assert await runtime.store.delete(ME, made.task.task_id)

    async def is_gone() -> bool:
        clock.ahead += MINUTE  # it is over, even if a heartbeat was under way
        return await lease_of(runtime, made) is None

    await wait_until(is_gone)
    await replicas.subject.caught_up()
    assert await runtime.store.storage.counts(LEASES, now=runtime.store.clock()) == {}
