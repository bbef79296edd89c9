"""A program registers functions, submits work, and the work is done."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any, cast

import pytest

from perdure.runtime import Function, Pause, Retry, Task, TaskFailed, UnknownFunction
from perdure.runtime.workflow import Step, Workflow
from perdure.storage.time_types import DAY
from perdure.tasks import Failure, InputKind, InputRequest, Owner, Status
from perdure.tasks.edits import MAX_FUNCTION_NAME_BYTES
from perdure.tasks.errors import InvalidValue, TerminalTask

from .. import task_edits
from ..markers import row
from .replicas import Replicas, new_app, value_of, with_concurrency

pytestmark = pytest.mark.anyio
ME = Owner.local()


@row(66)
async def test_a_coroutine_runs_in_the_event_loop_and_a_plain_function_in_a_thread(
    replicas: Replicas,
) -> None:
    app = new_app()
    threads: dict[str, int] = {}

    @app.function()
    async def awaited(number: int) -> int:
        threads["awaited"] = threading.get_ident()
        await asyncio.sleep(0)
        return 2 * number

    @app.function()
    def plain(number: int) -> int:
        threads["plain"] = threading.get_ident()
        return 3 * number

    runtime = await replicas.start(app)
    for name, expected in (("awaited", 14), ("plain", 21)):
        made = await runtime.submit(name, {"number": 7})
        assert value_of(await runtime.wait(ME, made.task.task_id, 120)) == expected
    assert threads["awaited"] == threading.get_ident() != threads["plain"]


async def test_the_process_that_creates_a_task_has_it_in_work_before_create_returns(
    replicas: Replicas,
) -> None:
    app = new_app()

    @app.function()
    async def work() -> None: ...

    runtime = await replicas.start(app)
    made = await runtime.submit("work")
    assert (made.task.is_claimed, made.task.attempts, made.version) == (True, 1, 1)
    ended = await runtime.wait(ME, made.task.task_id, 120)
    assert ended.version == 2  # two writes in its life: one that created it in work, one that ended it


@row(68)
async def test_a_function_that_raises_ends_its_task_and_wakes_who_waits(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def broken() -> None:
        raise ValueError("no such year")

    @app.function()
    async def refused() -> None:
        raise TaskFailed(-32001, "not today", {"day": "Sunday"})

    @app.function()
    def leaves() -> None:
        raise SystemExit(3)

    runtime = await replicas.start(app)
    for name, failure in (
        ("broken", Failure.of(-32603, "ValueError: no such year")),
        ("refused", Failure.of(-32001, "not today", {"day": "Sunday"})),
        ("leaves", Failure.of(-32603, "the function called exit(3)")),
    ):
        made = await runtime.submit(name)
        ended = await runtime.wait(ME, made.task.task_id, 120)
        assert (ended.task.status, ended.task.status_message) == (Status.FAILED, failure.message)
        assert isinstance(ended.task.outcome, Failure)
        assert (ended.task.outcome.code, ended.task.outcome.data) == (failure.code, failure.data)


async def test_what_the_function_does_not_take_is_refused_before_a_task_exists(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def report(year: int, task: Task) -> int:
        return year

    runtime = await replicas.start(app)
    for arguments in ({}, {"yeer": 1}, {"year": 1, "task": 2}):
        with pytest.raises(InvalidValue, match="arguments"):
            await runtime.submit("report", arguments)
    with pytest.raises(
        UnknownFunction, match=r"no function is registered as 'repotr'; registered functions: report"
    ):
        await runtime.submit("repotr")
    assert await task_edits.counts(runtime.store) == {}


async def test_a_result_that_cannot_be_stored_fails_the_task(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def strange() -> object:
        return object()

    @app.function()
    async def large() -> str:
        return "x" * 2_000_000

    runtime = await replicas.start(app)
    for name, reason in (("strange", "cannot be stored as JSON"), ("large", "the outcome cannot be stored")):
        made = await runtime.submit(name)
        ended = await runtime.wait(ME, made.task.task_id, 120)
        assert ended.task.status is Status.FAILED
        assert reason in (ended.task.status_message or "")


async def test_a_function_may_ask_to_be_run_again(replicas: Replicas) -> None:
    app = new_app()

    @app.function(retries=2, backoff=0.01)
    async def flaky(task: Task) -> int:
        if task.attempt < 3:
            raise Retry(f"busy {task.attempt}")
        assert task.last_error == "busy 2"
        return task.attempt

    @app.function(retries=1, backoff=0.01)
    async def hopeless() -> None:
        raise Retry("still busy", after=0.01)

    runtime = await replicas.start(app)
    made = await runtime.submit("flaky")
    ended = await runtime.wait(ME, made.task.task_id, 120)
    assert value_of(ended) == 3
    assert [attempt.reason for attempt in ended.task.attempt_history] == ["busy 1", "busy 2", None]
    made = await runtime.submit("hopeless")
    ended = await runtime.wait(ME, made.task.task_id, 120)
    assert ended.task.status_message == "still busy (attempt 2 of 2)"
    assert (ended.task.attempts, ended.task.last_failure) == (2, "still busy")


async def test_a_function_has_the_options_of_a_durable_tool(replicas: Replicas) -> None:
    app = new_app()

    @app.function(retries=1, retry_on=(OSError,), backoff=timedelta(milliseconds=10), ttl=timedelta(hours=2))
    async def fetch(task: Task) -> int:
        if task.attempt == 1:
            raise ConnectionResetError("the line is dead")
        return task.attempt

    @app.function(input_deadline=timedelta(days=3), operators_answer=True)
    async def sign(task: Task) -> None:
        await task.elicit("Who signs?", {"type": "object", "properties": {}}, key="who")

    runtime = await replicas.start(app)
    ended = await runtime.wait(ME, (await runtime.submit("fetch")).task.task_id, 120)
    assert (value_of(ended), ended.task.ttl_ms) == (2, 2 * 3600 * 1000)
    assert (await runtime.submit("fetch", ttl=60)).task.ttl_ms == 60_000
    made = await runtime.submit("sign")
    async for seen in runtime.watch(ME, made.task.task_id):
        if seen.task.status is Status.INPUT_REQUIRED:
            asked = seen.task.questions["who"]
            assert asked.deadline_at == asked.asked_at + 3 * DAY
            assert seen.task.operators_answer
            with suppress(TerminalTask):  # a state may be seen twice
                await runtime.cancel(ME, made.task.task_id)


async def test_the_input_deadline_of_a_function_applies_to_the_questions_of_a_pause(
    replicas: Replicas,
) -> None:
    app = new_app()

    @app.function(input_deadline=timedelta(days=30), operators_answer=True)
    async def approve(task: Task) -> None:
        if not task.questions:
            roots = InputKind.ROOTS
            own = InputRequest(kind=roots, deadline=timedelta(days=2))
            raise Pause({"default": InputRequest(kind=roots), "own": own})

    runtime = await replicas.start(app)
    made = await runtime.submit("approve")
    async for seen in runtime.watch(ME, made.task.task_id):
        if len(asked := seen.task.questions) == 2:
            days = {key: (each.deadline_at or 0) - each.asked_at for key, each in asked.items()}
            assert days == {"default": 30 * DAY, "own": 2 * DAY}
            break
    await runtime.cancel(ME, made.task.task_id)


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("ttl", -1, "ttl"),
        ("timeout", "soon", "timeout"),
        ("mode", "required", r"function\(\) got an unexpected keyword argument 'mode'"),
        ("executor", "process", r"function\(\) got an unexpected keyword argument 'executor'"),
    ],
)
def test_an_option_that_a_function_cannot_have_is_refused(option: str, value: object, problem: str) -> None:
    with pytest.raises((InvalidValue, TypeError), match=problem):
        new_app().function(**cast("Any", {option: value}))(lambda: None)


async def test_times_may_be_timedeltas_in_functions_too(replicas: Replicas) -> None:
    app = new_app()
    soon = timedelta(milliseconds=10)

    @app.function(retries=1, backoff=600)
    async def again(task: Task) -> int:
        if task.attempt == 1:
            raise Retry("busy", after=soon)
        return task.attempt

    @app.function()
    async def ask(task: Task) -> None:
        await task.ask({"who": InputRequest(kind=InputKind.ROOTS, deadline=soon)})

    runtime = await replicas.start(app)
    ended = await runtime.wait(ME, (await runtime.submit("again")).task.task_id, 120)
    assert value_of(ended) == 2
    late = await runtime.wait(ME, (await runtime.submit("ask")).task.task_id, 120)
    assert late.task.status is Status.FAILED
    assert isinstance(late.task.outcome, Failure)
    assert late.task.outcome.data == {"reason": "input_deadline"}


async def test_a_function_may_ask_and_let_go_of_its_worker(replicas: Replicas) -> None:
    app = new_app()
    question = InputRequest(kind=InputKind.ELICITATION, params={"message": "Whose?"})
    runs: list[int] = []

    @app.function()
    async def patient(task: Task) -> str:
        runs.append(task.attempt)
        if "whose" not in task.questions:
            raise Pause({"whose": question}, variables={"seen": True})
        assert task.variables["seen"] is True
        await task.ask({"whose": question})
        return "asked once"

    runtime = await replicas.start(app)
    made = await runtime.submit("patient")
    async for seen in runtime.watch(ME, made.task.task_id):
        if seen.task.status is Status.INPUT_REQUIRED:
            assert not seen.task.is_claimed
            await runtime.answer(ME, made.task.task_id, {"whose": {"action": "accept"}})
    assert value_of(await runtime.wait(ME, made.task.task_id, 120)) == "asked once"
    assert runs == [1, 1]  # it was begun twice, and neither counts against its one attempt


async def test_a_question_that_cannot_be_asked_fails_the_task_that_pauses_with_it(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def wordy() -> None:
        raise Pause({"much": InputRequest(kind=InputKind.ELICITATION, params="x" * 100_000)})

    runtime = await replicas.start(app)
    made = await runtime.submit("wordy")
    ended = await runtime.wait(ME, made.task.task_id, 120)
    assert ended.task.status is Status.FAILED
    assert "inputs.much" in (ended.task.status_message or "")


@pytest.mark.parametrize("after", [1e15, float("nan"), float("inf"), -1.0])
async def test_a_time_that_cannot_be_waited_for_fails_the_task_at_once(
    replicas: Replicas, after: float
) -> None:
    app = new_app()
    begun: list[int] = []

    @app.function(retries=2, backoff=0.0)
    async def work(task: Task) -> None:
        begun.append(task.attempt)
        raise Retry("the shop is closed", after=after)

    async with asyncio.timeout(30):  # to leave, too
        async with replicas.running(app) as runtime:
            made = await runtime.submit("work")
            task = (await runtime.wait(ME, made.task.task_id)).task
    assert (task.status, task.is_claimed, begun) == (Status.FAILED, False, [1])
    assert "after: must be between 0 and" in (task.status_message or "")


async def test_to_pause_for_what_is_answered_already_fails_the_task(replicas: Replicas) -> None:
    app = new_app()
    question = InputRequest(kind=InputKind.ELICITATION, params={"message": "Whose?"})
    runs: list[int] = []

    @app.function()
    async def forgetful(task: Task) -> None:
        runs.append(task.attempt)
        if len(runs) < 10:  # else it would go on for ever
            raise Pause({"whose": question})

    runtime = await replicas.start(app)
    made = await runtime.submit("forgetful")
    async for seen in runtime.watch(ME, made.task.task_id):
        if seen.task.status is Status.INPUT_REQUIRED:
            await runtime.answer(ME, made.task.task_id, {"whose": {"action": "accept"}})
    task = (await runtime.get(ME, made.task.task_id)).task
    assert task.status is Status.FAILED
    assert task.status_message == (
        "the function raised Pause, but all its questions are already answered; "
        "use a new key for a new question"
    )
    assert runs == [1, 1]


@pytest.mark.parametrize("name", ["", "x" * 253, "\u00e9" * 127, "nul\0"])
def test_a_name_that_no_queue_can_have_is_refused_when_the_function_is_registered(name: str) -> None:
    app = new_app()

    async def work() -> None: ...

    with pytest.raises(InvalidValue, match="name"):
        app.function(name=name)(work)
    with pytest.raises(InvalidValue, match="name"):
        app.functions.add(Function(name=name, handler=lambda _: None))
    with pytest.raises(InvalidValue, match="name"):
        app.workflow(Workflow(name, [Step("work", work)]))
    assert not app.functions


def test_a_function_whose_arguments_have_no_names_is_refused_when_it_is_registered() -> None:
    app = new_app()

    def power(base: int, exponent: int, /) -> int:
        return base**exponent

    with pytest.raises(InvalidValue, match="'base' is positional-only"):
        app.function()(power)
    assert not app.functions


async def test_the_longest_name_is_run_and_a_function_is_registered_without_parentheses_too(
    replicas: Replicas,
) -> None:
    app = new_app()

    @app.function
    async def bare(number: int) -> int:
        return number + 1

    @app.function(name="\u00e9" * (MAX_FUNCTION_NAME_BYTES // 2))
    async def long(number: int) -> int:
        return number + 2

    creator = await replicas.start(app, work=False)
    await replicas.start(app)
    for name, expected in (("bare", 8), ("\u00e9" * (MAX_FUNCTION_NAME_BYTES // 2), 9)):
        made = await creator.submit(name, {"number": 7})  # through the queue, which is named after it
        assert value_of(await creator.wait(ME, made.task.task_id, 120)) == expected
    assert await bare(1) == 2  # what the decorator leaves is the function itself


@row(66)
@pytest.mark.parametrize("kind", ["function", "step"])
async def test_as_many_threads_work_at_once_as_there_are_slots(replicas: Replicas, kind: str) -> None:
    app, count = new_app(), 50
    together = threading.Barrier(count)

    @app.function(name="function")
    def plain() -> str:
        together.wait(30)  # for all of the others, each in its thread
        return "met"

    app.workflow(Workflow("step", [Step("plain", plain)]))
    runtime = await replicas.start(app, with_concurrency(count))
    made = await asyncio.gather(*(runtime.submit(kind) for _ in range(count)))
    ended = [await runtime.wait(ME, each.task.task_id, 120) for each in made]
    assert [value_of(each) for each in ended] == ["met"] * count
