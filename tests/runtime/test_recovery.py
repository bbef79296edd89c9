"""What becomes of work when workers die, clocks jump, disks are slow and storages fail."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from msgspec.structs import replace

from perdure.runtime import Again, App, InProcessExecutor, Job, LeaseLost, Runtime, RuntimeConfig, Task
from perdure.runtime.recovery import LOST
from perdure.storage import Address, Change, Committed, Record, Replace, Space, Watch
from perdure.storage.errors import StorageBusy, StorageError, StorageFailed, StorageFull
from perdure.tasks import Json, NewTask, Status, TaskStore
from perdure.tasks.snapshot import LEASES
from perdure.tasks.upkeep import SET_ASIDE

from ..rows import row
from .doubles import (
    CALM,
    HOUR,
    ME,
    MINUTE,
    STEADY,
    Beats,
    Fair,
    Hook,
    MovedClock,
    Wire,
    creates_a_task,
    ends_a_task,
    lease_of,
    nothing,
    now,
    several_heartbeats,
    until_released,
    until_status,
    wired,
)
from .replicas import QUICK, UNHURRIED, Replicas, new_app, until, value_of, with_concurrency

pytestmark = pytest.mark.anyio

# A worker is lost


@row(62, 68)
async def test_a_task_whose_worker_is_lost_fails_with_a_message_and_wakes_who_waits(
    replicas: Replicas,
) -> None:
    app, wire = hanging(), Wire()
    survivor = await replicas.start(app)
    async with wired(replicas, wire, app) as doomed:
        made = await doomed.submit("hang")
        waiting = asyncio.create_task(survivor.wait(ME, made.task.task_id, 10))
        wire.cut()
        task = (await waiting).task
    assert (task.status, task.status_message, task.last_failure) == (Status.FAILED, LOST.reason, LOST.reason)
    assert (task.attempts, task.held) == (1, False)
    assert await lease_of(survivor, made) is None


def hanging() -> App:
    app = new_app()

    @app.function()
    async def hang() -> None:
        await asyncio.Event().wait()

    return app


@row(62, 65)
async def test_a_function_of_several_attempts_is_run_again_from_what_was_stored(replicas: Replicas) -> None:
    app, wire = new_app(), Wire()
    stuck = asyncio.Event()

    @app.function(attempts=2, backoff=0.0)
    async def copy(folder: str, task: Task) -> Json:
        answer = await task.elicit("How many pages?", key="pages")
        if task.attempt == 1:
            await task.set_variables({"page": 7})
            stuck.set()
            await asyncio.Event().wait()
        return [folder, task.variables["page"], answer.action, task.attempt, task.last_failure]

    clock = MovedClock()
    survivor = await replicas.start(app, clock=clock)
    async with wired(replicas, wire, app, UNHURRIED) as doomed:
        made = await doomed.submit("copy", {"folder": "a/b"})
        await until_status(survivor, made, Status.INPUT_REQUIRED)
        await survivor.answer(ME, made.task.task_id, {"pages": {"action": "decline"}})
        await stuck.wait()
        wire.cut()
        clock.ahead = MINUTE  # the lease is over
        ended = await survivor.wait(ME, made.task.task_id, 10)
        wire.mend()
    assert value_of(ended) == ["a/b", 7, "decline", 2, LOST.reason]
    assert (ended.task.attempts, ended.task.last_failure) == (2, LOST.reason)
    assert [attempt.reason for attempt in ended.task.history] == [LOST.reason, None]
    assert ended.task.inputs.keys() == {"pages"}


def deadly(wire: Wire, clock: MovedClock, stored: list[int], survivor: Runtime) -> App:
    """A function that takes its worker with it. By the clock the lease is over then."""
    app = new_app()

    @app.function(attempts=3, backoff=0.0)
    async def kill(task: Task) -> None:
        stored.append((await survivor.store.get(ME, task.id)).task.attempts)
        wire.cut()
        clock.ahead += MINUTE
        await asyncio.Event().wait()

    return app


@row(62)
async def test_a_task_that_always_kills_its_worker_ends_after_its_attempts(replicas: Replicas) -> None:
    wires, clock, stored = [Wire() for _ in range(5)], MovedClock(), list[int]()
    survivor = await replicas.start(new_app(), work=False)
    async with AsyncExitStack() as stack:
        apps = [deadly(wire, clock, stored, survivor) for wire in wires]
        doomed = [
            await stack.enter_async_context(wired(replicas, wire, app, UNHURRIED, clock=clock))
            for wire, app in zip(wires, apps, strict=True)
        ]
        made = await doomed[0].submit("kill")
        task = (await survivor.wait(ME, made.task.task_id, 30)).task
        for wire in wires:
            wire.mend()
    assert stored == [1, 2, 3]  # each was counted before it began
    assert (task.status, task.attempts) == (Status.FAILED, 3)
    assert task.status_message == f"{LOST.reason} (attempt 3 of 3)"


@row(62, 65)
@pytest.mark.parametrize("attempts", [1, 2])
async def test_who_does_not_know_the_function_leaves_the_decision_to_those_who_do(
    replicas: Replicas, attempts: int
) -> None:
    app, wire = new_app(), Wire()

    @app.function(attempts=attempts)
    async def work(task: Task) -> int:
        if task.attempt == 1:
            await asyncio.Event().wait()
        return task.attempt

    clock = MovedClock()
    stranger = await replicas.start(new_app(), clock=clock)
    async with wired(replicas, wire, app, UNHURRIED) as doomed:
        made = await doomed.submit("work")
        wire.cut()
        clock.ahead = MINUTE  # the lease is over
        await until_released(stranger, made)
        task = (await now(stranger, made)).task
        assert (task.status, task.attempts, task.last_failure) == (Status.WORKING, 1, LOST.reason)
        await replicas.start(app, clock=clock)
        ended = (await stranger.wait(ME, made.task.task_id, 10)).task
        wire.mend()
    assert (ended.status is Status.COMPLETED, ended.attempts) == (attempts == 2, attempts)


# Live work is spared


@row(63)
@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
async def test_a_clock_that_is_wrong_by_an_hour_takes_no_live_work(replicas: Replicas, ahead: int) -> None:
    app, go_on, runs = counted()
    async with both_alive(replicas, app, MovedClock(), MovedClock(ahead)) as holder:
        made = await holder.submit("work")
        await several_heartbeats(holder, made, 3)  # for longer than the patience of the other
        go_on.set()
        assert value_of(await holder.wait(ME, made.task.task_id, 10)) == 1
    assert runs == [1]


@asynccontextmanager
async def both_alive(
    replicas: Replicas, app: App, mine: MovedClock, others: MovedClock
) -> AsyncGenerator[Runtime]:
    """One of two replicas that hear of each other, however late a heartbeat is."""
    living: dict[Address, Beats] = {}
    config = replace(CALM, sweep_interval=60.0)  # or who is an hour ahead sweeps what has just ended
    async with (
        wired(replicas, Fair(living), app, config, clock=mine) as runtime,
        wired(replicas, Fair(living), app, config, clock=others),
    ):
        yield runtime


def counted() -> tuple[App, asyncio.Event, list[int]]:
    """A function that returns its attempt once it may, and which attempts there were."""
    app, go_on, runs = new_app(), asyncio.Event(), list[int]()

    @app.function(attempts=5, backoff=0.0)
    async def work(task: Task) -> int:
        runs.append(task.attempt)
        await go_on.wait()
        return task.attempt

    return app, go_on, runs


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
        assert value_of(await holder.wait(ME, made.task.task_id, 10)) == 1
    assert runs == [1]


@row(63)
async def test_recovery_takes_the_work_of_the_dead_and_spares_that_of_the_living(replicas: Replicas) -> None:
    app, go_on, _ = counted()
    wire, beats = Wire(), dict[Address, Beats]()
    async with AsyncExitStack() as stack:
        living = await stack.enter_async_context(wired(replicas, Fair(beats), app, CALM))
        spared = [await living.submit("work") for _ in range(5)]
        doomed = await stack.enter_async_context(wired(replicas, wire, hanging(), CALM))
        lost = [await doomed.submit("hang") for _ in range(5)]
        wire.cut()
        await stack.enter_async_context(wired(replicas, Fair(beats), hanging(), CALM))
        ended = [await living.wait(ME, each.task.task_id, 10) for each in lost]
        go_on.set()
        kept = [await living.wait(ME, each.task.task_id, 10) for each in spared]
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

    runtime = await replicas.start(app, replace(UNHURRIED, heartbeat=1.0), clock=clock)
    made = await runtime.submit("rude")
    assert value_of(await runtime.wait(ME, made.task.task_id, 10)) == "done"


# A function takes too long


@row(68)
@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_function_that_takes_too_long_fails(replicas: Replicas, kind: str) -> None:
    app = new_app()
    end = asyncio.Event()

    @app.function(timeout=0.1)
    async def coroutine() -> None:
        await end.wait()

    @app.function(timeout=0.1)
    def thread(task: Task) -> None:
        while not task.cancellation.is_requested:
            time.sleep(0.01)
        task.check_cancelled()

    runtime = await replicas.start(app)
    made = await runtime.submit(kind)
    task = (await runtime.wait(ME, made.task.task_id, 10)).task
    assert (task.status, task.attempts) == (Status.FAILED, 1)
    assert task.status_message == "the function took longer than 0.1 seconds"


@row(68)
@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_function_that_takes_too_long_is_run_again_while_attempts_are_left(
    replicas: Replicas, kind: str
) -> None:
    app = new_app()

    @app.function(timeout=0.1, attempts=2, backoff=0.0)
    async def coroutine(task: Task) -> int:
        if task.attempt == 1:
            await asyncio.Event().wait()
        return task.attempt

    @app.function(timeout=0.1, attempts=2, backoff=0.0)
    def thread(task: Task) -> int:
        while task.attempt == 1:
            time.sleep(0.01)
            task.check_cancelled()
        return task.attempt

    runtime = await replicas.start(app)
    made = await runtime.submit(kind)
    ended = await runtime.wait(ME, made.task.task_id, 10)
    assert value_of(ended) == 2
    assert ended.task.last_failure == "the function took longer than 0.1 seconds"


async def test_waiting_for_an_answer_is_not_work_that_a_timeout_counts(replicas: Replicas) -> None:
    app = new_app()

    @app.function(timeout=1.0)
    async def ask(task: Task) -> str:
        return (await task.elicit("Whose?", key="whose")).action

    runtime = await replicas.start(app)
    made = await runtime.submit("ask")
    await until_status(runtime, made, Status.INPUT_REQUIRED)
    await asyncio.sleep(1.1)
    await runtime.answer(ME, made.task.task_id, {"whose": {"action": "accept"}})
    assert value_of(await runtime.wait(ME, made.task.task_id, 10)) == "accept"


async def test_waiting_for_a_slot_is_not_work_that_a_timeout_counts(replicas: Replicas) -> None:
    app, begun, go_on = new_app(), asyncio.Event(), asyncio.Event()

    @app.function(timeout=1.0)
    async def ask(task: Task) -> str:
        return (await task.elicit("Whose?", key="whose")).action

    @app.function()
    async def hog() -> None:
        begun.set()
        await go_on.wait()

    runtime = await replicas.start(app, with_concurrency(1))
    made = await runtime.submit("ask")
    await until_status(runtime, made, Status.INPUT_REQUIRED)
    await runtime.submit("hog")
    await asyncio.wait_for(begun.wait(), 10)
    await runtime.answer(ME, made.task.task_id, {"whose": {"action": "accept"}})
    await asyncio.sleep(1.1)
    go_on.set()
    assert value_of(await runtime.wait(ME, made.task.task_id, 10)) == "accept"


# The storage is slow, or fails


def slow(seconds: float) -> Hook:
    async def wait(_: Sequence[Change]) -> None:
        await asyncio.sleep(seconds)

    return wait


@row(64, 65)
@pytest.mark.parametrize("seconds", [1.5 * QUICK.heartbeat, 1.5 * QUICK.lease])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_on_a_slow_disk_work_ends_and_has_one_outcome(
    replicas: Replicas, seconds: float, when: str
) -> None:
    """Slower than a heartbeat, slower than a lease; written late, or answered late."""
    app, wire = new_app(), Wire()

    @app.function(attempts=20, backoff=0.0)
    async def work(task: Task) -> int:
        await task.set_variables({f"attempt {task.attempt}": True})
        await asyncio.sleep(0.2)
        return task.attempt

    setattr(wire, when, slow(seconds))
    async with wired(replicas, wire, app) as slow_one:
        made = await asyncio.gather(*(slow_one.submit("work") for _ in range(2)))
        other = await replicas.start(app)
        ended = [await other.wait(ME, each.task.task_id, 30) for each in made]
    for each in ended:
        assert value_of(each) == each.task.attempts
        assert await now(other, each) == each


def times(count: int, error: StorageError, which: Callable[[Sequence[Change]], bool]) -> Hook:
    """Fail so many commits of a kind."""
    left = [error] * count

    async def fail(changes: Sequence[Change]) -> None:
        if left and which(changes):
            raise left.pop()

    return fail


BUSY, FAILED = StorageBusy("others hold it"), StorageFailed("the line was lost")


@row(68)
@pytest.mark.parametrize(
    ("when", "count", "error"), [("before", 4, BUSY), ("before", 4, FAILED), ("after", 1, FAILED)]
)
async def test_a_storage_that_fails_for_a_while_loses_no_result(
    replicas: Replicas, when: str, count: int, error: StorageError
) -> None:
    app, go_on, runs = counted()
    wire = Wire()
    setattr(wire, when, times(count, error, ends_a_task))
    go_on.set()
    async with wired(replicas, wire, app, STEADY) as runtime:
        other = await replicas.start(app, STEADY)
        made = await runtime.submit("work")
        ended = await other.wait(ME, made.task.task_id, 10)
    assert (value_of(ended), ended.task.attempts, runs) == (1, 1, [1])
    assert await now(other, made) == ended


@row(68)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_heartbeats_that_fail_for_less_than_a_lease_do_no_harm(replicas: Replicas, when: str) -> None:
    app, go_on, runs = counted()
    wire = Wire()
    setattr(wire, when, times(3, FAILED, lambda changes: len(changes) == 1))
    async with wired(replicas, wire, app, STEADY) as runtime:
        await replicas.start(app, STEADY)
        made = await runtime.submit("work")
        await several_heartbeats(runtime, made, 2)
        go_on.set()
        assert value_of(await runtime.wait(ME, made.task.task_id, 10)) == 1
    assert runs == [1]


@row(68)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_write_of_which_nothing_was_heard_costs_the_function_nothing_but_another_try(
    replicas: Replicas, when: str
) -> None:
    app, wire = new_app(), Wire()

    @app.function()
    async def work(task: Task) -> list[str]:
        setattr(wire, when, times(1, FAILED, lambda changes: len(changes) == 2))
        with pytest.raises(StorageFailed):
            await task.set_variables({"a": 1})
        await task.set_variables({"b": 2})
        return sorted(task.variables)

    async with wired(replicas, wire, app, STEADY) as runtime:
        made = await runtime.submit("work")
        expected = ["b"] if when == "before" else ["a", "b"]
        assert value_of(await runtime.wait(ME, made.task.task_id, 10)) == expected


@row(69)
@pytest.mark.parametrize(("when", "error"), [("before", BUSY), ("after", FAILED)])
async def test_a_claim_of_which_nothing_was_heard_is_begun_once(
    replicas: Replicas, when: str, error: StorageError
) -> None:
    """A function of one attempt, which would fail if it had to be recovered."""
    app, wire = new_app(), Wire()

    @app.function()
    async def work(task: Task) -> int:
        return task.attempt

    creator = await replicas.start(app, work=False)
    made = await creator.submit("work")
    setattr(wire, when, times(1, error, lambda changes: isinstance(changes[0], Replace)))
    async with wired(replicas, wire, app, STEADY):
        assert value_of(await creator.wait(ME, made.task.task_id, 10)) == 1


@row(68)
async def test_a_result_is_not_lost_to_a_client_that_writes_all_the_time(replicas: Replicas) -> None:
    app, go_on, runs = counted()
    wire, other = Wire(), await replicas.start(new_app(), work=False)
    left = list(range(15))

    async def be_quicker(changes: Sequence[Change]) -> None:
        if left and ends_a_task(changes):
            read = await other.store.get(ME, changes[0].address.key)
            await other.store.set_variables(read, {"count": left.pop()})

    wire.before = be_quicker
    go_on.set()
    async with wired(replicas, wire, app, STEADY) as runtime:
        made = await runtime.submit("work")
        ended = await other.wait(ME, made.task.task_id, 30)
    assert (value_of(ended), runs, ended.task.variables) == (1, [1], {"count": 0})


class Noting(InProcessExecutor):
    """Tells when a run is over, whatever its function still does."""

    is_over: asyncio.Event

    def __init__(self, store: TaskStore, config: RuntimeConfig) -> None:
        super().__init__(store, config)
        Noting.is_over = asyncio.Event()

    async def submit(self, job: Job) -> None:
        await super().submit(job)
        self.is_over.set()


@row(64)
async def test_who_was_given_up_for_want_of_heartbeats_writes_no_more(replicas: Replicas) -> None:
    """The lease in the storage may still be its own, but the run is over, and nobody would end the task."""
    app, wire = new_app(), Wire()
    begun, go_on = asyncio.Event(), asyncio.Event()
    told: list[Exception | None] = []

    @app.function(attempts=5)
    async def deaf(task: Task) -> None:
        if begun.is_set():
            return
        begun.set()
        wire.before = times(1000, BUSY, lambda changes: True)
        while not go_on.is_set():
            with suppress(asyncio.CancelledError):
                await go_on.wait()
        try:
            await task.set_variables({"still": "here"})
            told.append(None)
        except Exception as error:
            told.append(error)

    async with wired(replicas, wire, app, executor=Noting) as runtime:
        made = await runtime.submit("deaf")
        await begun.wait()
        Noting.is_over.clear()  # set by now, if an attempt was late and never began
        await Noting.is_over.wait()
        wire.mend()
        go_on.set()
        await until(lambda: bool(told))
        assert isinstance(told[0], LeaseLost)
        assert (await runtime.wait(ME, made.task.task_id, 10)).task.variables == {}


@row(68)
async def test_an_outage_longer_than_a_lease_does_not_fail_what_nobody_else_may_run(
    replicas: Replicas,
) -> None:
    """The worker sees that the lease ran out, and could write that it was lost. But the run is its own."""
    app, wire = new_app(), Wire()
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.function()
    async def work() -> str:
        begun.set()
        await go_on.wait()
        return "done"

    config = replace(QUICK, heartbeat=0.2)
    async with wired(replicas, wire, app, config) as runtime:
        made = await runtime.submit("work")
        await begun.wait()
        wire.before = times(1000, BUSY, lambda changes: len(changes) == 1)

        async def is_overdue() -> bool:
            lease = await lease_of(runtime, made)
            return lease is not None and (lease.wake_at or 0) <= runtime.store.clock()

        await until(is_overdue)
        await asyncio.sleep(5 * config.heartbeat)
        wire.mend()
        await several_heartbeats(runtime, made, 1)
        go_on.set()
        assert value_of(await runtime.wait(ME, made.task.task_id, 10)) == "done"


# What cannot be told, or read


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot be said")


@row(68)
@pytest.mark.parametrize("error", [Unspeakable(), Again("\ud800"), ValueError("\ud800")])
async def test_an_error_that_cannot_be_told_ends_the_task_all_the_same(
    replicas: Replicas, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "perdure.runtime")  # what cannot be told cannot be reported either
    app = new_app()
    runs: list[int] = []

    @app.function(attempts=2, backoff=0.0)
    async def work(task: Task) -> None:
        runs.append(task.attempt)
        raise error

    runtime = await replicas.start(app)
    made = await runtime.submit("work")
    assert (await runtime.wait(ME, made.task.task_id, 10)).task.status is Status.FAILED
    assert len(runs) <= 2


@row(47, 62)
async def test_a_leased_record_that_is_damaged_is_set_aside_and_its_lease_removed(replicas: Replicas) -> None:
    app, wire, clock = hanging(), Wire(), MovedClock()
    survivor = await replicas.start(app, clock=clock)
    async with wired(replicas, wire, app, UNHURRIED) as doomed:
        made = await doomed.submit("hang")
        wire.cut()
        await put(survivor, made.record, '{"no":"task"}')
        clock.ahead = MINUTE  # the lease is over

        async def is_put_aside() -> bool:
            found = await survivor.store.storage.get(made.record.address, now=survivor.store.clock())
            return found is not None and found.tag == SET_ASIDE and not await lease_of(survivor, made)

        await until(is_put_aside)
        wire.mend()


async def put(runtime: Runtime, record: Record, body: str) -> None:
    change = record.becoming(
        body=body,
        tag=record.tag,
        lane=record.lane,
        wake_at=record.wake_at,
        expires_at=record.expires_at,
    )
    assert isinstance(await runtime.store.storage.commit([change], now=runtime.store.clock()), Committed)


@row(62)
async def test_a_lease_that_is_damaged_does_not_keep_its_task_from_being_recovered(
    replicas: Replicas,
) -> None:
    app, wire, clock = hanging(), Wire(), MovedClock()
    survivor = await replicas.start(app, clock=clock)
    async with wired(replicas, wire, app, UNHURRIED) as doomed:
        made = await doomed.submit("hang")
        wire.cut()
        lease = await lease_of(survivor, made)
        assert lease is not None
        await put(survivor, lease, '{"holder":[]}')
        clock.ahead = MINUTE  # it is over
        assert (await survivor.wait(ME, made.task.task_id, 10)).task.status is Status.FAILED
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

    await until(is_gone)
    assert await runtime.store.storage.counts(LEASES, now=runtime.store.clock()) == {}


# Sweeping


@row(59)
async def test_a_worker_sweeps_what_has_expired_and_nobody_calls_it(replicas: Replicas) -> None:
    app = hanging()
    creator = await replicas.start(app, work=False)
    new = NewTask(method="tools/call", function="hang", ttl=1)
    made = [await creator.create(ME, new) for _ in range(3)]
    addresses = [each.record.address for each in made]
    stored = await creator.store.storage.get_many(addresses, now=0)  # as it was before they expired
    assert stored == [each.record for each in made]
    await replicas.start(new_app())

    async def are_gone() -> bool:
        return await creator.store.storage.get_many(addresses, now=0) == [None] * 3

    await until(are_gone)


@row(59, 57)
async def test_the_sweeper_leaves_alone_what_is_in_work(replicas: Replicas) -> None:
    app, go_on, _ = counted()
    runtime = await replicas.start(app)
    made = await runtime.create(ME, NewTask(method="tools/call", function="work", ttl=1))
    gone = await (await replicas.start(new_app(), work=False)).store.create(
        ME, NewTask(method="tools/call", ttl=1)
    )

    async def is_gone() -> bool:
        return await runtime.store.storage.get(gone.record.address, now=0) is None

    await until(is_gone)
    go_on.set()
    assert value_of(await runtime.wait(ME, made.task.task_id, 10)) == 1


@row(59)
async def test_a_step_that_fails_is_tried_again(replicas: Replicas) -> None:
    """A worker outlives a storage that fails: it recovers, sweeps and claims when that is over."""
    app, wire = hanging(), Wire()
    creator = await replicas.start(app, work=False)
    async with wired(replicas, wire, app, UNHURRIED) as runtime:
        wire.before = times(1, BUSY, lambda changes: not creates_a_task(changes))
        made = await creator.submit("hang")

        async def is_held() -> bool:
            return (await now(runtime, made)).task.held

        await until(is_held)


# What a review found


def full(changes: Sequence[Change]) -> Awaitable[None]:
    """A hook: there is room for heartbeats, and never for the end of a task."""
    if ends_a_task(changes):
        raise StorageFull("no room left")
    return nothing(changes)


@row(68)
async def test_a_run_whose_end_can_never_be_written_is_given_up_after_a_lease(replicas: Replicas) -> None:
    app, wire = new_app(), Wire()
    begun, go_on = list[int](), asyncio.Event()

    @app.function()
    async def work(number: int) -> None:
        begun.append(number)
        await go_on.wait()

    wire.before = full
    asyncio.get_running_loop().call_later(60, wire.mend)  # or a test that fails would not end
    async with wired(replicas, wire, app, replace(QUICK, concurrency=1, drain=60.0)) as runtime:
        made = [await runtime.submit("work", {"number": number}) for number in range(2)]
        assert [each.task.held for each in made] == [True, False]
        await several_heartbeats(runtime, made[0], 1)
        go_on.set()
        await until(lambda: begun == [0, 1])  # the other has the slot now
    assert wire.before is full


class ShortOfWatches(Wire):
    """A line on which the first watch of a single task cannot be opened."""

    is_refused = False

    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch:
        if key is not None and not self.is_refused:
            self.is_refused = True
            raise StorageBusy("too many watch already")
        return super().watch(space, partition, key)


@row(67, 68)
@pytest.mark.parametrize("word", ["cancel", "answer"])
async def test_a_watch_that_cannot_be_opened_at_first_keeps_no_word_from_the_run(
    replicas: Replicas, word: str
) -> None:
    app, wire = new_app(), ShortOfWatches()

    @app.function()
    async def ask(task: Task) -> str:
        return (await task.elicit("Whose?", key="whose")).action

    other = await replicas.start(app, work=False)
    async with wired(replicas, wire, app, STEADY) as runtime:
        made = await runtime.submit("ask")
        await until(lambda: wire.is_refused)
        await until_status(other, made, Status.INPUT_REQUIRED)
        if word == "cancel":
            await other.cancel(ME, made.task.task_id)
        else:
            await other.answer(ME, made.task.task_id, {"whose": {"action": "decline"}})
        ended = await other.wait(ME, made.task.task_id, 10)
    assert ended.task.status is (Status.CANCELLED if word == "cancel" else Status.COMPLETED)


@row(68)
async def test_an_end_of_which_nothing_was_heard_does_not_count_as_dropped(
    replicas: Replicas, caplog: pytest.LogCaptureFixture
) -> None:
    app, go_on, runs = counted()
    wire = Wire()
    wire.after = times(1, FAILED, ends_a_task)
    go_on.set()
    other = await replicas.start(app, work=False)
    with caplog.at_level(logging.WARNING, "perdure.runtime"):
        async with wired(replicas, wire, app, STEADY) as runtime:
            made = await runtime.submit("work")
            assert value_of(await other.wait(ME, made.task.task_id, 10)) == 1
    assert runs == [1]
    assert "lease is lost" not in caplog.text


@row(68)
@pytest.mark.parametrize(("write", "attempts"), [("set_variables", 2), ("report", 1)])
async def test_a_storage_that_is_busy_costs_a_function_an_attempt_and_a_report_nothing(
    replicas: Replicas, write: str, attempts: int
) -> None:
    app, wire = new_app(), Wire()

    @app.function(attempts=3, backoff=0.0)
    async def work(task: Task) -> int:
        if task.attempt == 1:
            wire.before = times(1, BUSY, lambda changes: len(changes) == 2)
        if write == "set_variables":
            await task.set_variables({"half": "done"})
        else:
            await task.report("half done")
        return task.attempt

    async with wired(replicas, wire, app, STEADY) as runtime:
        made = await runtime.submit("work")
        ended = await runtime.wait(ME, made.task.task_id, 10)
    assert (value_of(ended), ended.task.attempts) == (attempts, attempts)
    if write == "set_variables":
        assert ended.task.last_failure == "StorageBusy: others hold it"
        assert dict(ended.task.variables) == {"half": "done"}
    else:
        assert ended.task.status_message == "half done"


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
    assert made.task.held
    other = await replicas.start(app)
    await until(lambda: bool(runs))
    executors[0].go_on.set()
    await asyncio.wait_for(executors[0].is_over.wait(), 10)
    assert 1 not in runs  # that was the attempt of the one that was held up
    go_on.set()
    assert value_of(await other.wait(ME, made.task.task_id, 10)) == runs[-1]
