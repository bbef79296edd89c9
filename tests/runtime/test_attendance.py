"""A task for which a client waits in a process is cancelled if that process is lost, and is not run again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
from msgspec.structs import replace

from perdure.runtime import App, Runtime, Task, recovery
from perdure.runtime import lease as leases
from perdure.runtime.attendance import Attendant, Attendants
from perdure.runtime.claims import Claimer
from perdure.runtime.lease import Holder
from perdure.runtime.recovery import end_attended
from perdure.storage import Change
from perdure.storage.time_types import HOUR, MINUTE, to_seconds
from perdure.tasks import InputKind, InputRequest, Json, NewTask, Snapshot, Status, edits

from ..conditions import wait_until
from ..markers import row, strong_memory
from .faulty_storage import (
    ME,
    SLOW_HEARTBEAT,
    FaultyLink,
    MovedClock,
    lease_of_process,
    now,
    open_faulty,
    until_status,
)
from .replicas import QUICK, Replicas, new_app, suited_to, value_of

pytestmark = pytest.mark.anyio

RENEWALS = 15
"""So many last longer than a worker waits that takes a process for lost."""
LOST = "the server process that the client was connected to was lost or has stopped"


def recording() -> tuple[App, asyncio.Event, list[int]]:
    """A function that returns its attempt once it may, and the attempts that were started."""
    app, may_end, runs = new_app(), asyncio.Event(), list[int]()

    @app.function
    async def work(task: Task) -> int:
        runs.append(task.attempt)
        await may_end.wait()
        return task.attempt

    return app, may_end, runs


def call(process: str | None) -> NewTask:
    params: Json = {"name": "work", "arguments": {}}
    return NewTask(method="tools/call", params=params, function="work", attended_by=process)


@asynccontextmanager
async def attending(runtime: Runtime) -> AsyncGenerator[str]:
    """A process that renews its lease while the block lasts."""
    keeping = asyncio.create_task(runtime.attendance.keep())
    try:
        async with runtime.attendance.waiting() as process:
            yield process
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping


async def lost_process(replicas: Replicas, app: App) -> str:
    """The name of a process that attends tasks, and renews its lease no more."""
    async with (await replicas.start(app, QUICK, work=False)).attendance.waiting() as process:
        return process


async def ended(runtime: Runtime, made: Snapshot) -> Snapshot:
    return await runtime.wait(ME, made.task.task_id, 60)


# Lost


@row(115)
async def test_a_task_that_runs_elsewhere_is_cancelled_when_the_process_that_waits_is_lost(
    replicas: Replicas,
) -> None:
    app, _, runs = recording()
    process = await lost_process(replicas, app)
    worker = await replicas.start(app)
    made = await worker.create(ME, call(process))
    assert made.task.is_claimed

    task = (await ended(worker, made)).task

    assert (task.status, task.status_message, runs) == (Status.CANCELLED, LOST, [1])
    await wait_until(lambda: _is_gone(worker, process))


async def _is_gone(runtime: Runtime, process: str) -> bool:
    return await lease_of_process(runtime, process) is None


@row(115)
async def test_a_task_of_a_lost_process_and_a_lost_worker_is_not_run_again(replicas: Replicas) -> None:
    app, _, runs = recording()
    process = await lost_process(replicas, app)
    creator = await replicas.start(app, work=False)
    holder = Claimer(creator.store, suited_to(creator.store.storage, QUICK), "dead").new_holder()
    made = await creator.store.create(ME, call(process), lease=lambda first: holder.take(first, None))

    worker = await replicas.start(app)

    assert (await ended(worker, made)).task.status is Status.CANCELLED
    assert runs == []


@row(115)
async def test_a_lost_process_is_found_behind_any_number_of_claims_on_its_tasks(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "BATCH", 2)
    app, _, runs = recording()
    creator = await replicas.start(app, work=False)
    dead = Claimer(creator.store, suited_to(creator.store.storage, QUICK), "dead")
    server = await replicas.start(app, QUICK, work=False, clock=MovedClock(MINUTE))
    async with server.attendance.waiting() as process:
        pass  # its lease expires a minute after the claims
    made = [
        await creator.store.create(ME, call(process), lease=partial(_claimed, dead.new_holder()))
        for _ in range(3)
    ]

    worker = await replicas.start(app, clock=MovedClock(HOUR))

    assert [(await ended(worker, each)).task.status for each in made] == [Status.CANCELLED] * 3
    assert runs == []


def _claimed(holder: Holder, first: Snapshot) -> Change:
    return holder.take(first, None)


@row(115)
async def test_a_queued_task_of_a_process_that_has_stopped_is_never_started(replicas: Replicas) -> None:
    app, _, runs = recording()
    server = await replicas.start(app, work=False)
    async with attending(server) as process:
        made = await server.create(ME, call(process))
    assert await _is_gone(server, process)

    worker = await replicas.start(app)

    task = (await ended(worker, made)).task
    assert (task.status, task.attempts, runs) == (Status.CANCELLED, 0, [])


@row(115)
async def test_a_task_that_waits_for_a_retry_is_not_started_while_the_process_that_waits_is_late(
    replicas: Replicas,
) -> None:
    app, _, runs = recording()
    clock = MovedClock()
    process = await lost_process(replicas, app)
    creator = await replicas.start(app, work=False)
    made = await _released(creator, await creator.store.create(ME, call(process)))
    clock.ahead = HOUR  # its lease has run out, and it is observed from now on

    worker = await replicas.start(app, clock=clock)

    assert (await ended(worker, made)).task.status is Status.CANCELLED
    assert runs == []


async def _released(runtime: Runtime, made: Snapshot) -> Snapshot:
    """The task as a worker leaves it that is to run it again."""
    claimed = await runtime.store.edit(made, lambda task, now, _: edits.claim(task, now=now))
    return await runtime.store.edit(
        claimed, lambda task, now, config: edits.release(task, reason="again", now=now, config=config)
    )


@row(115)
async def test_a_task_that_waits_for_an_answer_is_cancelled_with_its_lost_process(replicas: Replicas) -> None:
    app, _, _ = recording()
    process = await lost_process(replicas, app)
    creator = await replicas.start(app, work=False)
    made = await creator.store.create(ME, call(process))
    question = {"go": InputRequest(kind=InputKind.ELICITATION, params={"message": "Go?"})}
    await creator.store.edit(
        made, lambda task, now, config: edits.ask(task, question, now=now, config=config)
    )

    worker = await replicas.start(app)

    assert (await ended(worker, made)).task.status is Status.CANCELLED


# Not lost


@row(115)
async def test_a_task_is_run_again_after_its_worker_was_lost_while_the_process_waits(
    replicas: Replicas,
) -> None:
    app, may_end, runs = recording()
    may_end.set()
    server = await replicas.start(app, work=False)
    async with attending(server) as process:
        holder = Claimer(server.store, suited_to(server.store.storage, QUICK), "dead").new_holder()
        made = await server.store.create(ME, call(process), lease=lambda first: holder.take(first, None))
        worker = await replicas.start(app)

        assert (value_of(await ended(worker, made)), runs) == (2, [2])


@row(115)
async def test_a_process_that_renews_its_lease_is_not_lost_whatever_the_clock_of_a_worker_says(
    replicas: Replicas,
) -> None:
    app, may_end, runs = recording()
    clock = MovedClock()
    clock.ahead = HOUR
    server = await replicas.start(app, work=False)
    async with attending(server) as process:
        worker = await replicas.start(app, SLOW_HEARTBEAT, clock=clock)
        made = await server.create(ME, call(process))
        await wait_until(lambda: runs == [1])
        await wait_until(lambda: _is_renewed(server, process, RENEWALS))
        may_end.set()

        assert value_of(await ended(worker, made)) == 1


@row(115)
async def test_a_task_is_started_again_while_the_process_waits_whatever_the_clock_of_a_worker_says(
    replicas: Replicas,
) -> None:
    app, may_end, runs = recording()
    may_end.set()
    clock = MovedClock()
    clock.ahead = HOUR
    server = await replicas.start(app, work=False)
    async with attending(server) as process:
        made = await _released(server, await server.store.create(ME, call(process)))
        worker = await replicas.start(app, SLOW_HEARTBEAT, clock=clock)

        assert (value_of(await ended(worker, made)), runs) == (1, [1])


@row(115)
async def test_a_renewal_is_noticed_however_rarely_a_worker_polls_the_queue(replicas: Replicas) -> None:
    app, _, _ = recording()
    server = await replicas.start(app, QUICK, work=False)
    clock = MovedClock()
    clock.ahead = HOUR
    worker = await replicas.start(app, work=False, clock=clock)
    config = replace(QUICK, queue_poll_interval=20.0)
    attendants = Attendants(worker.store, config, "a worker")
    async with attending(server) as process:
        task = (await server.store.create(ME, call(process))).task
        lease = await lease_of_process(server, process)
        assert lease is not None
        assert await attendants.find(task) is Attendant.LATE
        await asyncio.sleep(5 * to_seconds(config.heartbeat_interval))
        await wait_until(lambda: _is_renewed(server, process, lease.version))

        assert await attendants.find(task) is Attendant.PRESENT


@row(115, 131)
async def test_a_task_that_was_left_outlives_the_process_that_waited(replicas: Replicas) -> None:
    app, may_end, _ = recording()
    process = await lost_process(replicas, app)
    worker = await replicas.start(app)
    made = await worker.create(ME, call(process))
    await worker.leave(ME, made.task.task_id)
    await wait_until(lambda: _is_gone(worker, process))
    may_end.set()

    assert value_of(await ended(worker, made)) == 1


async def test_questions_of_a_task_that_is_left_are_due_earlier_but_never_later(replicas: Replicas) -> None:
    app = new_app()

    @app.function
    async def work(task: Task) -> str:
        soon = InputRequest(kind=InputKind.ELICITATION, params={"message": "Soon?"}, deadline=30)
        late = InputRequest(kind=InputKind.ELICITATION, params={"message": "Late?"}, deadline=3000)
        await task.ask({"soon": soon, "late": late})
        return "answered"

    runtime = await replicas.start(app)
    made = await runtime.create(ME, call("any"))
    await until_status(runtime, made, Status.INPUT_REQUIRED)
    before = (await now(runtime, made)).task.inputs
    left = (await runtime.leave(ME, made.task.task_id, ["soon", "late"], answer_within=600)).task

    assert left.attended_by is None
    assert left.inputs["soon"] == before["soon"]
    assert left.inputs["late"].deadline_at == left.last_updated_at + 600_000_000


@strong_memory("it marks the lease by itself, and a commit that is lost is not repeated")
@pytest.mark.parametrize(
    ("tasks", "level", "said"),
    [
        (0, "INFO", "none of its clients was waiting for a task"),
        (1, "WARNING", "cancelled 1 task that its clients were waiting for"),
        (2, "WARNING", "cancelled 2 tasks that its clients were waiting for"),
    ],
)
async def test_a_lost_process_is_a_warning_only_if_tasks_are_cancelled(
    replicas: Replicas, caplog: pytest.LogCaptureFixture, tasks: int, level: str, said: str
) -> None:
    app, _, _ = recording()
    server = await replicas.start(app, QUICK, work=False)
    caplog.set_level("INFO", "perdure.runtime")
    async with server.attendance.waiting() as process:
        for _ in range(tasks):
            await server.create(ME, call(process))
        lease = await lease_of_process(server, process)
        assert lease is not None
        await server.store.storage.commit([leases.mark(lease, leases.LOST)], now=server.store.clock())
        lost = await lease_of_process(server, process)
        assert lost is not None
        await asyncio.sleep(server.store.storage.lag)
        await end_attended(lost, server.store)
    told = [(each.levelname, each.message) for each in caplog.records if "was lost" in each.message]
    assert told == [(level, f"process {process} was lost; {said}")]


# The lease of a process


async def test_a_process_has_a_lease_only_while_calls_wait_in_it(replicas: Replicas) -> None:
    app, _, _ = recording()
    server = await replicas.start(app, work=False)
    keeping = asyncio.create_task(server.attendance.keep())
    async with server.attendance.waiting() as process, server.attendance.waiting():
        lease = await lease_of_process(server, process)
        assert lease is not None
        assert (lease.tag, lease.lane) == (leases.ATTENDING, leases.attendance_lane(server.store.application))
        await wait_until(lambda: _is_renewed(server, process, 2))
    await wait_until(lambda: _is_gone(server, process))
    async with server.attendance.waiting():
        assert await lease_of_process(server, process) is not None
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping

    assert await _is_gone(server, process)


async def _is_renewed(runtime: Runtime, process: str, times: int) -> bool:
    lease = await lease_of_process(runtime, process)
    return lease is not None and lease.version > times


@row(115)
@strong_memory("each call of end_attended is one step, which a lost answer would repeat or skip")
async def test_a_process_that_renews_its_lease_in_time_keeps_its_tasks(replicas: Replicas) -> None:
    app, _, _ = recording()
    server = await replicas.start(app, QUICK, work=False)
    async with server.attendance.waiting() as process:
        made = await server.create(ME, call(process))
        first = await lease_of_process(server, process)
        assert first is not None

        await end_attended(first, server.store)  # suspected
        suspected = await lease_of_process(server, process)
        assert suspected is not None
        assert suspected.tag == leases.SUSPECTED
        await renew_lease(server, process)
        await end_attended(suspected, server.store)  # as it was before the renewal

        assert (await now(server, made)).task.status is Status.WORKING
        renewed = await lease_of_process(server, process)
        assert renewed is not None
        assert renewed.tag == leases.ATTENDING


@row(115)
@strong_memory("it marks the lease by itself, and a commit that is lost is not repeated")
async def test_a_process_that_was_declared_lost_continues_under_another_name(replicas: Replicas) -> None:
    app, _, _ = recording()
    server = await replicas.start(app, QUICK, work=False)
    async with server.attendance.waiting() as process:
        lease = await lease_of_process(server, process)
        assert lease is not None
        await server.store.storage.commit([leases.mark(lease, leases.LOST)], now=server.store.clock())
        await wait_until(lambda: (lease.wake_at or 0) <= server.store.clock())  # so the next call renews it
        async with server.attendance.waiting() as other:
            old, new = await server.create(ME, call(process)), await server.create(ME, call(other))
            lost = await lease_of_process(server, process)
            assert lost is not None
            await asyncio.sleep(server.store.storage.lag)
            await end_attended(lost, server.store)

            assert other != process
            assert (await now(server, old)).task.status is Status.CANCELLED
            assert (await now(server, new)).task.status is Status.WORKING
            assert await _is_gone(server, process)
            assert not await _is_gone(server, other)


async def renew_lease(runtime: Runtime, process: str) -> None:
    lease = await lease_of_process(runtime, process)
    assert lease is not None
    keeping = asyncio.create_task(runtime.attendance.keep())
    await wait_until(lambda: _is_renewed(runtime, process, lease.version))
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping


async def test_an_unexpected_error_does_not_end_the_renewal(replicas: Replicas) -> None:
    app, _, _ = recording()
    link = FaultyLink()
    async with open_faulty(replicas, link, app, work=False) as server, attending(server) as process:
        await wait_until(lambda: _is_renewed(server, process, 2))

        async def fail(_: Sequence[Change]) -> None:
            link.mend()
            raise RuntimeError("unexpected")

        link.before = fail
        lease = await lease_of_process(server, process)
        assert lease is not None
        await wait_until(lambda: _is_renewed(server, process, lease.version + 2))


@row(115)
async def test_a_process_that_stops_while_calls_wait_leaves_its_lease_to_the_workers(
    replicas: Replicas,
) -> None:
    app, _, _ = recording()
    server = await replicas.start(app, QUICK, work=False)
    worker = await replicas.start(app)
    async with server.attendance.waiting() as process:
        made = await worker.create(ME, call(process))
        await renew_lease(server, process)

        assert (await ended(worker, made)).task.status is Status.CANCELLED


@row(115)
async def test_a_task_that_a_process_could_not_cancel_is_cancelled_by_the_workers(replicas: Replicas) -> None:
    app, _, _ = recording()
    server = await replicas.start(app, QUICK, work=False)
    worker = await replicas.start(app)
    keeping = asyncio.create_task(server.attendance.keep())
    async with server.attendance.waiting() as process:
        made = await worker.create(ME, call(process))
        server.attendance.abandon_task()

    assert (await ended(worker, made)).task.status is Status.CANCELLED
    async with server.attendance.waiting() as other:
        assert other != process
    keeping.cancel()
