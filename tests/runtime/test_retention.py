"""Started work is kept until it has ended, and a question that nobody answers ends its task: over weeks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from perdure.runtime import App, ClaimLost, Pause, Retry, Runtime, Task
from perdure.runtime.deadline import Deadlines
from perdure.runtime.errors import TooManyWaiting
from perdure.storage import Change
from perdure.storage.time_types import DAY, SECOND, to_seconds
from perdure.tasks import Failure, InputKind, InputRequest, Snapshot, Status
from perdure.tasks.canonical_json import JsonLike
from perdure.tasks.errors import NotFound

from ..conditions import wait_until
from ..markers import row
from .faulty_storage import (
    ME,
    FaultyLink,
    MovedClock,
    ends_a_task,
    now,
    open_faulty,
    until_released,
    until_status,
)
from .replicas import UNHURRIED, Replicas, new_app, value_of

pytestmark = pytest.mark.anyio

TTL = 60
"""Milliseconds: the tests move the clock by days."""
NAME = InputRequest(kind=InputKind.ELICITATION, params={"message": "Whose name?"})
YES: JsonLike = {"action": "accept", "content": {}}


def reason_of(snapshot: Snapshot) -> object:
    assert isinstance(snapshot.task.outcome, Failure), snapshot.task
    assert snapshot.task.status is Status.FAILED
    assert snapshot.task.status_message == snapshot.task.outcome.message
    assert isinstance(snapshot.task.outcome.data, dict)
    return snapshot.task.outcome.data["reason"]


# Started work outlives its ttl


@row(57, 101)
async def test_work_that_is_retried_after_its_ttl_continues(replicas: Replicas) -> None:
    app, clock = new_app(), MovedClock()

    @app.function(retries=8, backoff=0.0)
    async def work(task: Task) -> int:
        clock.ahead += 5 * DAY
        if task.attempt < 8:
            raise Retry("not yet")
        return task.attempt

    runtime = await replicas.start(app, clock=clock)
    made = await runtime.submit("work", ttl=TTL)
    assert value_of(await runtime.wait(ME, made.task.task_id, 120)) == 8


@row(57, 101)
async def test_work_that_paused_for_longer_than_its_ttl_continues(replicas: Replicas) -> None:
    app, clock = new_app(), MovedClock()

    @app.function
    async def work(task: Task) -> str:
        if "name" not in task.questions:
            clock.ahead += DAY  # it has worked for longer than its ttl
            raise Pause({"name": replace(NAME, deadline=20 * 86_400)})
        return "answered"

    runtime = await replicas.start(app, clock=clock)
    made = await runtime.submit("work", ttl=TTL)
    await until_released(runtime, made)
    clock.ahead += 19 * DAY
    await runtime.store.purge()
    await runtime.answer(ME, made.task.task_id, {"name": YES})
    assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == "answered"


@row(57, 101)
async def test_work_that_is_handed_back_or_recovered_after_its_ttl_continues(replicas: Replicas) -> None:
    """A redeploy each day for a month, and at the end a worker is lost."""
    app, clock, started = new_app(), MovedClock(), list[int]()

    @app.function
    async def work(task: Task) -> str:
        started.append(task.attempt)
        if len(started) < 6:
            await task.report_progress(message=f"day {len(started)}")
            await asyncio.Event().wait()
        return "done"

    client = await replicas.start(app, work=False, clock=clock)
    made = await client.submit("work", ttl=TTL)
    for deploy in range(1, 5):
        async with replicas.running(app, replace(UNHURRIED, drain_timeout=0.0), clock=clock):
            await wait_until(lambda deploy=deploy: len(started) == deploy)
            clock.ahead += 6 * DAY
        clock.ahead += DAY  # nothing runs
        await client.store.purge()
    wire = FaultyLink()
    async with open_faulty(replicas, wire, app, UNHURRIED, clock=clock):
        await wait_until(lambda: len(started) == 5)
        wire.cut()
        clock.ahead += DAY
        await replicas.start(app, clock=clock)
        assert value_of(await client.wait(ME, made.task.task_id, 120)) == "done"
        wire.mend()


@row(57)
async def test_a_task_that_was_never_started_expires(replicas: Replicas) -> None:
    app, clock = new_app(), MovedClock()

    @app.function
    async def work() -> None: ...

    client = await replicas.start(app, work=False, clock=clock)
    made = await client.submit("work", ttl=TTL)
    clock.ahead = TTL * SECOND + 1_000_000
    with pytest.raises(NotFound):
        await client.get(ME, made.task.task_id)


# The backstop


async def abandoned(replicas: Replicas, app: App, clock: MovedClock) -> Snapshot:
    """A task that was released and is not started again for a month."""
    client = await replicas.start(app, work=False, clock=clock)
    async with replicas.running(app, replace(UNHURRIED, drain_timeout=0.0), clock=clock) as runtime:
        made = await runtime.submit("work", ttl=TTL)
        await until_status(client, made, Status.WORKING)
    clock.ahead += 30 * DAY
    return made


def hanging(clock: MovedClock) -> App:
    app = new_app()

    @app.function
    async def work() -> None:
        clock.ahead += DAY
        await asyncio.Event().wait()

    return app


@row(101)
async def test_released_work_fails_visibly_if_no_worker_starts_it_for_a_month(replicas: Replicas) -> None:
    clock = MovedClock()
    made = await abandoned(replicas, hanging(clock), clock)
    stranger = await replicas.start(new_app(), clock=clock)  # it lacks the function
    await replicas.subject.caught_up()
    await Deadlines(stranger.store, UNHURRIED).end_abandoned()
    assert reason_of(await now(stranger, made)) == "expired"


@row(101)
async def test_a_worker_does_not_start_what_has_been_released_for_a_month(replicas: Replicas) -> None:
    clock, app = MovedClock(), new_app()
    made = await abandoned(replicas, hanging(clock), clock)

    @app.function
    async def work() -> str:
        return "started"

    runtime = await replicas.start(app, clock=clock)
    assert reason_of(await runtime.wait(ME, made.task.task_id, 60)) == "expired"


@row(101)
async def test_an_audit_leaves_alone_what_runs_waits_or_is_due_later(replicas: Replicas) -> None:
    app, clock = new_app(), MovedClock()

    @app.function(retries=1)
    async def later(task: Task) -> None:
        raise Retry("next quarter", after=90 * 86_400)

    @app.function
    async def hang() -> None:
        await asyncio.Event().wait()

    @app.function
    async def asks() -> None:
        raise Pause({"name": replace(NAME, deadline=90 * 86_400)})

    runtime = await replicas.start(app, clock=clock)
    made = [await runtime.submit(name, ttl=TTL) for name in ("later", "hang", "asks")]
    await until_released(runtime, made[0])
    await until_released(runtime, made[2])
    clock.ahead = 40 * DAY
    await replicas.subject.caught_up()
    await Deadlines(runtime.store, UNHURRIED).end_abandoned()
    assert not any([(await now(runtime, each)).task.is_terminal for each in made])


@row(101)
async def test_an_answer_that_comes_after_a_month_starts_the_task_again(replicas: Replicas) -> None:
    app, clock = new_app(), MovedClock()

    @app.function
    async def asks(task: Task) -> str:
        if "name" not in task.questions:
            raise Pause({"name": replace(NAME, deadline=60 * 86_400)})
        return "answered"

    runtime = await replicas.start(app, clock=clock)
    made = await runtime.submit("asks")
    await until_released(runtime, made)
    clock.ahead = 40 * DAY
    await runtime.answer(ME, made.task.task_id, {"name": YES})
    assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == "answered"


# Questions


def asking(restart: bool = True) -> App:  # noqa: FBT001, FBT002
    app = new_app()

    @app.function(restart=restart)
    async def asks(task: Task) -> str:
        return (await task.elicit("Whose name?", key="name")).action

    return app


@row(103)
async def test_a_question_that_a_run_waits_for_in_place_ends_its_task_at_its_deadline(
    replicas: Replicas,
) -> None:
    clock = MovedClock()
    runtime = await replicas.start(asking(), clock=clock)
    made = await runtime.submit("asks", ttl=TTL)
    await until_status(runtime, made, Status.INPUT_REQUIRED)
    clock.ahead = TTL * SECOND - 10_000_000
    await asyncio.sleep(2 * to_seconds(UNHURRIED.queue_poll_interval))
    assert (await now(runtime, made)).task.status is Status.INPUT_REQUIRED
    clock.ahead = TTL * SECOND
    assert reason_of(await runtime.wait(ME, made.task.task_id, 60)) == "input_deadline"


@row(103)
async def test_a_question_of_an_unclaimed_task_ends_it_at_its_deadline(replicas: Replicas) -> None:
    """No worker that is left knows the function; one of them ends the task nevertheless."""
    clock, app = MovedClock(), new_app()

    @app.function
    async def asks() -> None:
        raise Pause({"name": replace(NAME, deadline=3600)})

    async with replicas.running(app, clock=clock) as asker:
        made = await asker.submit("asks")
        await until_released(asker, made)
    stranger = await replicas.start(new_app(), clock=clock)
    waiting = await now(stranger, made)
    assert (waiting.task.status, waiting.record.lane) == (Status.INPUT_REQUIRED, "deadline/tests")
    clock.ahead = 3601 * 1_000_000
    assert reason_of(await stranger.wait(ME, made.task.task_id, 120)) == "input_deadline"


@row(103)
async def test_a_deadline_counts_from_asking_and_is_not_moved_by_asking_again(replicas: Replicas) -> None:
    app, clock = asking(), MovedClock()
    client = await replicas.start(app, work=False, clock=clock)
    async with replicas.running(app, replace(UNHURRIED, drain_timeout=0.0), clock=clock) as runtime:
        made = await runtime.submit("asks", ttl=TTL)
        await until_status(client, made, Status.INPUT_REQUIRED)
    first = (await now(client, made)).task.inputs["name"]
    assert first.deadline_at == first.asked_at + TTL * SECOND
    clock.ahead = TTL * SECOND // 2
    await replicas.start(app, clock=clock)
    assert (await now(client, made)).task.inputs["name"] == first


async def waiting_runs(runtime: Runtime, count: int) -> list[Snapshot]:
    made = [await runtime.submit("asks") for _ in range(count)]
    for each in made:
        await until_status(runtime, each, Status.INPUT_REQUIRED)
    return made


@row(103)
async def test_runs_that_wait_in_place_are_bounded_and_more_of_them_pause(replicas: Replicas) -> None:
    app = asking()
    runtime = await replicas.start(app, replace(UNHURRIED, max_waiting_runs=2))
    made = await waiting_runs(runtime, 5)

    async def held() -> int:
        return sum([(await now(runtime, each)).task.is_claimed for each in made])

    async def are_paused() -> bool:
        return await held() == 2

    await wait_until(are_paused)
    for each in made:
        await runtime.answer(ME, each.task.task_id, {"name": YES})
    ended = [await runtime.wait(ME, each.task.task_id, 120) for each in made]
    assert [value_of(each) for each in ended] == ["accept"] * 5


@row(103)
async def test_a_run_that_must_not_run_twice_cannot_pause_and_gets_an_error(replicas: Replicas) -> None:
    app = asking()
    caught: list[Exception] = []

    @app.function(restart=False)
    async def once(task: Task) -> None:
        try:
            await task.elicit("Whose name?")
        except TooManyWaiting as error:
            caught.append(error)
            raise

    runtime = await replicas.start(app, replace(UNHURRIED, max_waiting_runs=1))
    await waiting_runs(runtime, 1)
    made = await runtime.submit("once")
    ended = await runtime.wait(ME, made.task.task_id, 60)
    assert (ended.task.status, ended.task.inputs, len(caught)) == (Status.FAILED, {}, 1)


@row(103)
async def test_no_run_that_must_not_run_twice_is_suspended_by_a_crowd(replicas: Replicas) -> None:
    """They ask at the same time, so that none knows of the others before its question is stored."""
    app, starts = new_app(), list[int]()

    @app.function(restart=False)
    async def once(number: int, task: Task) -> str:
        starts.append(number)
        return (await task.elicit("Whose name?", key="name")).action

    runtime = await replicas.start(app, replace(UNHURRIED, max_waiting_runs=1))
    made = await asyncio.gather(*(runtime.submit("once", {"number": number}) for number in range(4)))

    async def are_settled() -> bool:
        tasks = [(await now(runtime, each)).task for each in made]
        return sorted(task.status for task in tasks) == ["failed"] * 3 + ["input_required"]

    await wait_until(are_settled)
    assert sorted(starts) == [0, 1, 2, 3]


@row(103)
@pytest.mark.parametrize(("name", "starts"), [("often", 2), ("once", 1)])
async def test_an_answer_that_comes_at_the_deadline_runs_no_task_twice_that_must_not(
    replicas: Replicas, name: str, starts: int
) -> None:
    app, clock, wire, started = new_app(), MovedClock(), FaultyLink(), list[str]()

    async def work(task: Task) -> str:
        started.append(name)
        return (await task.elicit("Whose name?", key="name")).action

    app.function(name="often")(work)
    app.function(name="once", restart=False)(work)
    client = await replicas.start(app, work=False, clock=clock)

    async def answer_first(changes: Sequence[Change]) -> None:
        if ends_a_task(changes):
            wire.mend()
            await client.answer(ME, made.task.task_id, {"name": YES})

    async with open_faulty(replicas, wire, app, UNHURRIED, clock=clock) as runtime:
        made = await runtime.submit(name, ttl=TTL)
        await until_status(client, made, Status.INPUT_REQUIRED)
        wire.before = answer_first
        clock.ahead = 2 * TTL * SECOND
        ended = await client.wait(ME, made.task.task_id, 60)
    assert len(started) == starts
    assert ended.task.status is (Status.COMPLETED if name == "often" else Status.FAILED)


@row(103)
async def test_a_wait_that_outlives_its_run_ends_and_leaves_its_place(replicas: Replicas) -> None:
    app, left_behind = new_app(), list[asyncio.Task[object]]()

    @app.function
    async def leaves(task: Task) -> str:
        left_behind.append(asyncio.create_task(task.elicit("Whose name?", key="name")))
        await wait_until(lambda: "name" in task.questions)
        return "done"

    runtime = await replicas.start(app, replace(UNHURRIED, max_waiting_runs=1))
    for _ in range(2):  # the second has a place to wait
        made = await runtime.submit("leaves")
        assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == "done"
    await wait_until(lambda: all(each.done() for each in left_behind))
    assert {type(each.exception()) for each in left_behind} == {ClaimLost}


@row(103)
async def test_abandoned_questions_do_not_fill_a_quota_for_good(replicas: Replicas) -> None:
    clock = MovedClock()
    runtime = await replicas.start(asking(), clock=clock)
    made = await waiting_runs(runtime, 20)
    clock.ahead = 2 * DAY
    ended = [await runtime.wait(ME, each.task.task_id, 120) for each in made]
    assert {reason_of(each) for each in ended} == {"input_deadline"}
