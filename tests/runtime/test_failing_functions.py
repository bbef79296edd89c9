"""A function that takes too long, or fails with what cannot be told, ends or is run again all the same."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from perdure.runtime import Retry, Task
from perdure.tasks import Status

from ..markers import row
from .faulty_storage import ME, until_status
from .replicas import Replicas, new_app, value_of, with_concurrency

pytestmark = pytest.mark.anyio


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
        while not task.is_cancelled():
            time.sleep(0.01)
        task.check_cancelled()

    runtime = await replicas.start(app)
    made = await runtime.submit(kind)
    task = (await runtime.wait(ME, made.task.task_id, 60)).task
    assert (task.status, task.attempts) == (Status.FAILED, 1)
    assert task.status_message == "the function took longer than 0.1 seconds"


@row(68)
@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_function_that_takes_too_long_is_run_again_while_attempts_are_left(
    replicas: Replicas, kind: str
) -> None:
    app = new_app()

    @app.function(timeout=0.1, retries=1, backoff=0.0)
    async def coroutine(task: Task) -> int:
        if task.attempt == 1:
            await asyncio.Event().wait()
        return task.attempt

    @app.function(timeout=0.1, retries=1, backoff=0.0)
    def thread(task: Task) -> int:
        while task.attempt == 1:
            time.sleep(0.01)
            task.check_cancelled()
        return task.attempt

    runtime = await replicas.start(app)
    made = await runtime.submit(kind)
    ended = await runtime.wait(ME, made.task.task_id, 60)
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
    assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == "accept"


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
    assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == "accept"


# What the log says


async def test_a_mistake_in_a_call_of_perdure_is_logged_as_any_other_exception(
    replicas: Replicas, caplog: pytest.LogCaptureFixture
) -> None:
    app = new_app()

    @app.function()
    async def work(task: Task) -> None:
        await task.report_progress(message="x" * 10_000)

    runtime = await replicas.start(app)
    with caplog.at_level(logging.WARNING, "perdure.runtime"):
        made = await runtime.submit("work")
        ended = (await runtime.wait(ME, made.task.task_id, 60)).task
    assert ended.status is Status.FAILED
    (record,) = [each for each in caplog.records if each.exc_info]
    assert record.getMessage() == f"task {ended.task_id}: function work raised an exception in attempt 1"
    assert "LimitExceeded" in caplog.text


# What cannot be told


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot be said")


@row(68)
@pytest.mark.parametrize("error", [Unspeakable(), Retry("\ud800"), ValueError("\ud800")])
async def test_an_error_that_cannot_be_told_ends_the_task_all_the_same(
    replicas: Replicas, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "perdure.runtime")  # what cannot be told cannot be reported either
    app = new_app()
    runs: list[int] = []

    @app.function(retries=1, backoff=0.0)
    async def work(task: Task) -> None:
        runs.append(task.attempt)
        raise error

    runtime = await replicas.start(app)
    made = await runtime.submit("work")
    assert (await runtime.wait(ME, made.task.task_id, 60)).task.status is Status.FAILED
    assert len(runs) <= 2
