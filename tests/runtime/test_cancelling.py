"""Cancelling ends at once what waits, and wherever it runs what is in work."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import anyio.from_thread
import pytest
from msgspec.structs import replace

from perdure.runtime import Cancellation, ClaimLost, Retry, Runtime, Task, TaskCancelled
from perdure.storage import Change
from perdure.storage.errors import OutcomeUnknown
from perdure.storage.time_types import SECOND
from perdure.tasks import Failure, Snapshot, Status
from perdure.tasks.errors import TerminalTask

from ..conditions import wait_until
from ..markers import row, strong_memory
from .apps import hanging
from .faulty_storage import (
    ME,
    FaultyLink,
    MovedClock,
    lease_of,
    nothing,
    now,
    open_faulty,
    several_heartbeats,
    until_released,
    until_status,
)
from .replicas import QUICK, UNHURRIED, Replicas, leave_with_a_dead_worker, new_app, value_of

pytestmark = pytest.mark.anyio


# The handle


@row(67)
async def test_a_cancellation_is_asked_for_once_and_seen_by_all(anyio_backend: str) -> None:
    cancellation = Cancellation()
    waiting = [asyncio.create_task(cancellation.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not cancellation.is_requested
    assert [cancellation.request(), cancellation.request()] == [True, False]
    await asyncio.wait_for(asyncio.gather(*waiting, cancellation.wait()), 30)
    assert cancellation.is_requested


@row(67)
async def test_who_waits_after_it_was_asked_for_does_not_wait(anyio_backend: str) -> None:
    cancellation = Cancellation()
    cancellation.request()
    await asyncio.wait_for(cancellation.wait(), 30)
    assert not cancellation.request()


# What waits


@row(70)
async def test_a_task_that_waits_for_a_worker_ends_at_once(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def work() -> None: ...

    runtime = await replicas.start(app, work=False)
    made = await runtime.submit("work")
    ended = await runtime.cancel(ME, made.task.task_id)
    assert (ended.task.status, ended.task.status_message) == (Status.CANCELLED, "The task was cancelled")
    assert isinstance(ended.task.outcome, Failure)
    assert ended.record.lane is None
    with pytest.raises(TerminalTask):
        await runtime.cancel(ME, made.task.task_id)


@row(70)
async def test_a_task_that_waits_to_be_run_again_ends_at_once_and_takes_its_lease_along(
    replicas: Replicas,
) -> None:
    app = new_app()

    @app.function(retries=1, backoff=600)
    async def work() -> None:
        raise Retry("later")

    runtime = await replicas.start(app)
    made = await runtime.submit("work")
    await until_released(runtime, made)
    assert (await runtime.cancel(ME, made.task.task_id)).task.status is Status.CANCELLED
    assert await lease_of(runtime, made) is None


@row(70)
async def test_a_cancel_that_meets_the_first_claim_reaches_who_claimed(replicas: Replicas) -> None:
    app, wire = hanging(), FaultyLink()
    creator = await replicas.start(app, work=False)
    made = await creator.submit("hang")

    async def be_claimed(_: Sequence[Change]) -> None:
        wire.before = nothing
        await replicas.start(app)
        await until_held(creator, made)

    wire.before = be_claimed
    async with open_faulty(replicas, wire, new_app(), work=False) as other:
        await other.cancel(ME, made.task.task_id)
        assert (await creator.wait(ME, made.task.task_id, 60)).task.status is Status.CANCELLED


@row(70)
async def test_a_cancel_that_meets_a_later_claim_reaches_who_claimed(replicas: Replicas) -> None:
    """By then the task has a lease, which the cancel meant to take away and the claim took over."""
    app, wire, clock = new_app(), FaultyLink(), MovedClock()

    @app.function(retries=1)
    async def work(task: Task) -> None:
        if task.attempt == 1:
            raise Retry("later", after=600)
        await asyncio.Event().wait()

    worker = await replicas.start(app, clock=clock)
    made = await worker.submit("work")
    await until_released(worker, made)

    async def be_claimed(_: Sequence[Change]) -> None:
        wire.before = nothing
        clock.ahead = 700 * SECOND
        await until_held(worker, made)

    wire.before = be_claimed
    async with open_faulty(replicas, wire, new_app(), work=False) as other:
        await other.cancel(ME, made.task.task_id)
        assert (await worker.wait(ME, made.task.task_id, 60)).task.status is Status.CANCELLED


async def until_held(runtime: Runtime, task: Snapshot) -> None:
    async def is_held() -> bool:
        return (await now(runtime, task)).task.is_claimed

    await wait_until(is_held)


# What is in work

IMPATIENT = replace(UNHURRIED, cancel_grace=0.3)
"""With what does not heed a cancel."""


@row(70, 71)
@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_cancel_reaches_the_worker_wherever_it_is_and_clean_up_comes_before_the_end(
    replicas: Replicas, where: str
) -> None:
    app = new_app()
    cleaned: list[Status] = []

    @app.function()
    async def work(task: Task) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            assert task.is_cancelled()
            await asyncio.sleep(0.02)
            await task.set_variables({"tidy": True})
            cleaned.append((await worker.store.get(ME, task.id)).task.status)

    worker = await replicas.start(app)
    other = worker if where == "here" else await replicas.start(app, work=False)
    made = await worker.submit("work")
    await several_heartbeats(worker, made, 1)
    flagged = await other.cancel(ME, made.task.task_id)
    assert (flagged.task.status, flagged.task.cancel_requested_at is None) == (Status.WORKING, False)
    ended = await other.wait(ME, made.task.task_id, 60)
    assert (ended.task.status, cleaned) == (Status.CANCELLED, [Status.WORKING])
    assert ended.task.variables == {"tidy": True}
    assert await lease_of(worker, made) is None


@row(71)
async def test_a_cancel_reaches_a_worker_that_hears_nothing(replicas: Replicas) -> None:
    app, wire = hanging(), FaultyLink()
    wire.is_deaf = True
    other = await replicas.start(app, work=False)
    async with open_faulty(replicas, wire, app, UNHURRIED) as worker:
        made = await worker.submit("hang")
        await several_heartbeats(worker, made, 1)
        await other.cancel(ME, made.task.task_id)
        assert (await other.wait(ME, made.task.task_id, 60)).task.status is Status.CANCELLED


@row(70)
async def test_cancelling_again_while_it_runs_changes_nothing_and_when_it_has_ended_is_refused(
    replicas: Replicas,
) -> None:
    app, go_on = new_app(), asyncio.Event()

    @app.function()
    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await go_on.wait()

    runtime = await replicas.start(app)
    made = await runtime.submit("slow_to_end")
    await several_heartbeats(runtime, made, 1)
    once = await runtime.cancel(ME, made.task.task_id)
    assert await runtime.cancel(ME, made.task.task_id) == once == await now(runtime, made)
    go_on.set()
    assert (await runtime.wait(ME, made.task.task_id, 60)).task.status is Status.CANCELLED
    with pytest.raises(TerminalTask, match="cancelled and can no longer change"):
        await runtime.cancel(ME, made.task.task_id)


@row(70)
async def test_a_result_that_comes_in_spite_of_a_cancel_counts(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def nearly_done() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done anyway"
        return "never"

    runtime = await replicas.start(app)
    made = await runtime.submit("nearly_done")
    await several_heartbeats(runtime, made, 1)
    await runtime.cancel(ME, made.task.task_id)
    assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == "done anyway"


@row(67, 70)
async def test_a_plain_function_learns_of_it_when_it_looks(replicas: Replicas) -> None:
    app = new_app()
    raised: list[Exception] = []

    @app.function()
    def work(task: Task) -> None:
        try:
            while True:
                task.check_cancelled()
                time.sleep(0.005)
        except TaskCancelled as error:
            raised.append(error)
            raise

    runtime = await replicas.start(app)
    other = await replicas.start(app, work=False)
    made = await runtime.submit("work")
    await several_heartbeats(runtime, made, 1)
    await other.cancel(ME, made.task.task_id)
    assert (await other.wait(ME, made.task.task_id, 60)).task.status is Status.CANCELLED
    assert len(raised) == 1


@row(70)
async def test_a_plain_function_that_waits_for_an_answer_is_woken_by_a_cancel(replicas: Replicas) -> None:
    app, left = new_app(), threading.Event()

    @app.function()
    def work(task: Task) -> None:
        try:
            anyio.from_thread.run(task.elicit, "Whose?")
        finally:
            left.set()

    runtime = await replicas.start(app)
    made = await runtime.submit("work")
    await until_status(runtime, made, Status.INPUT_REQUIRED)
    await runtime.cancel(ME, made.task.task_id)
    assert (await runtime.wait(ME, made.task.task_id, 60)).task.status is Status.CANCELLED
    await wait_until(left.is_set)  # its thread is not left behind for ever


@row(70)
@pytest.mark.parametrize("write", ["report", "set_variables", "elicit"])
async def test_who_does_not_heed_a_cancel_is_left_behind_and_writes_no_more(
    replicas: Replicas, write: str
) -> None:
    app, go_on = new_app(), asyncio.Event()
    refused: list[Exception] = []

    @app.function()
    async def deaf(task: Task) -> None:
        while not go_on.is_set():
            with suppress(asyncio.CancelledError):
                await go_on.wait()
        try:
            await writing(task, write)
        except Exception as error:
            refused.append(error)

    runtime = await replicas.start(app, IMPATIENT)
    made = await runtime.submit("deaf")
    await several_heartbeats(runtime, made, 1)
    await runtime.cancel(ME, made.task.task_id)
    ended = await runtime.wait(ME, made.task.task_id, 60)
    assert ended.task.status is Status.CANCELLED
    go_on.set()
    await wait_until(lambda: bool(refused))
    assert isinstance(refused[0], ClaimLost)
    assert await now(runtime, made) == ended


async def writing(task: Task, how: str) -> None:
    match how:
        case "report":
            await task.report_progress(message="still here")
        case "set_variables":
            await task.set_variables({"still": "here"})
        case _:
            await task.elicit("Still there?")


@row(70)
async def test_a_thread_that_does_not_heed_a_cancel_is_left_behind(replicas: Replicas) -> None:
    app, go_on = new_app(), threading.Event()
    refused: list[Exception] = []

    @app.function()
    def deaf(task: Task) -> None:
        go_on.wait(30)
        try:
            anyio.from_thread.run(task.set_variables, {"still": "here"})
        except Exception as error:
            refused.append(error)

    runtime = await replicas.start(app, IMPATIENT)
    made = await runtime.submit("deaf")
    await several_heartbeats(runtime, made, 1)
    await runtime.cancel(ME, made.task.task_id)
    ended = await runtime.wait(ME, made.task.task_id, 60)
    go_on.set()
    await wait_until(lambda: bool(refused))
    assert (ended.task.status, type(refused[0])) == (Status.CANCELLED, ClaimLost)
    assert await now(runtime, made) == ended


@row(62, 70)
async def test_a_cancel_of_a_task_whose_worker_is_dead_is_carried_out_by_recovery(replicas: Replicas) -> None:
    app, wire = new_app(), FaultyLink()

    @app.function(retries=4)
    async def hang() -> None:
        await asyncio.Event().wait()

    client = await replicas.start(app, work=False)
    async with open_faulty(replicas, wire, app, QUICK) as doomed:
        made = await doomed.submit("hang")
        wire.cut()
        await client.cancel(ME, made.task.task_id)
        survivor = await replicas.start(app)
        task = (await survivor.wait(ME, made.task.task_id, 60)).task
    assert (task.status, task.attempts) == (Status.CANCELLED, 1)


@row(70)
async def test_an_error_in_the_clean_up_does_not_undo_the_cancel(replicas: Replicas) -> None:
    app = new_app()

    @app.function(retries=2)
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("cannot tidy up")

    runtime = await replicas.start(app)
    made = await runtime.submit("work")
    await several_heartbeats(runtime, made, 1)
    await runtime.cancel(ME, made.task.task_id)
    task = (await runtime.wait(ME, made.task.task_id, 60)).task
    assert (task.status, task.attempts) == (Status.CANCELLED, 1)


@row(114)
async def test_a_task_is_cancelled_at_once_also_if_its_worker_is_dead(replicas: Replicas) -> None:
    app = new_app()

    @app.function
    async def work() -> str:
        return "run again"

    client = await replicas.start(app, work=False)
    lost = await leave_with_a_dead_worker(client, ME)
    cancelled = await client.cancel_now(ME, lost)
    assert cancelled.task.status is Status.CANCELLED
    assert await lease_of(client, cancelled) is None  # there is nothing to recover
    with pytest.raises(TerminalTask):
        await client.cancel_now(ME, lost)


@row(114)
@strong_memory("it counts the answers that are lost")
@pytest.mark.parametrize("is_written", [True, False])
async def test_a_cancel_whose_answer_is_lost_is_found_out_and_repeated(
    replicas: Replicas, *, is_written: bool
) -> None:
    wire = FaultyLink()
    client = await replicas.start(hanging(), work=False)
    lost = await leave_with_a_dead_worker(client, ME)
    answers = 0

    async def lose_once(_: Sequence[Change]) -> None:
        nonlocal answers
        answers += 1
        if answers == 1:
            raise OutcomeUnknown("no answer")

    async with open_faulty(replicas, wire, new_app(), QUICK, work=False) as runtime:
        if is_written:
            wire.after = lose_once
        else:
            wire.before = lose_once
        cancelled = await runtime.cancel_now(ME, lost)
    assert cancelled.task.status is Status.CANCELLED
    assert answers == (1 if is_written else 2)


@row(114)
async def test_a_run_whose_task_was_cancelled_over_its_head_can_write_nothing(replicas: Replicas) -> None:
    """Its worker is elsewhere, beats its heart, and is in the middle of a thread."""
    app, started, gate = new_app(), threading.Event(), threading.Event()
    refused: list[Exception] = []

    @app.function
    def work(task: Task) -> str:
        started.set()
        gate.wait(30)
        try:
            anyio.from_thread.run(task.set_variables, {"late": True})
        except ClaimLost as error:
            refused.append(error)
            raise
        return "late"

    client = await replicas.start(app, work=False)
    await replicas.start(app)
    made = await client.submit("work")
    await wait_until(started.is_set)
    cancelled = await client.cancel_now(ME, made.task.task_id)
    gate.set()
    await wait_until(lambda: bool(refused))
    assert await now(client, made) == cancelled
