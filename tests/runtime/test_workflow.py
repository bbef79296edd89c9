"""Step workflows: a task of named steps, which pauses where it cannot go on and is continued from outside."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from msgspec.structs import replace

from perdure.runtime import App, Retry, Runtime, Task
from perdure.runtime.workflow import (
    Output,
    Param,
    SchemaMismatch,
    Step,
    ToolError,
    UnresolvableParameters,
    UnresolvedDependency,
    Workflow,
    state_of,
)
from perdure.tasks import Failure, Json, Owner, Progress, Snapshot, Status
from perdure.tasks.errors import InvalidValue

from ..conditions import wait_until
from ..markers import row
from .replicas import UNHURRIED, Replicas, new_app, value_of

pytestmark = pytest.mark.anyio
ME = Owner.local()
NOT_CONTINUED = "the workflow cannot continue, because the client has not provided what it needs"


async def add(a: int, b: int) -> int:
    return a + b


def rows_of(year: int) -> dict[str, list[int]]:
    return {"rows": [year, year + 1]}


def app_of(*steps: Step, retries: int = 0) -> App:
    app = new_app()
    app.workflow(Workflow("flow", steps), retries=retries, backoff=0.01)
    return app


async def paused(runtime: Runtime, task_id: str) -> Snapshot:
    async for seen in runtime.watch(ME, task_id):
        if seen.task.status is not Status.WORKING:
            return seen
    raise AssertionError("it did not pause")


async def go_on(runtime: Runtime, seen: Snapshot, content: dict[str, Json]) -> Snapshot:
    """Answer the one question that the workflow paused with."""
    (key,) = seen.task.outstanding
    return await runtime.answer(ME, seen.task.task_id, {key: {"action": "accept", "content": content}})


@row(92)
async def test_each_step_has_its_result_and_the_task_that_of_the_last(replicas: Replicas) -> None:
    app = app_of(
        Step("find", rows_of, {"year": Param("year")}),
        Step("sum", add, {"a": Output("find", "rows", 1), "b": 5}),
    )
    runtime = await replicas.start(app)
    made = await runtime.submit("flow", {"year": 2026})
    ended = await runtime.wait(ME, made.task.task_id, 120)
    assert value_of(ended) == 2032
    steps = state_of(ended.task.checkpoint).steps
    assert {name: step.result for name, step in steps.items()} == {
        "find": {"rows": [2026, 2027]},
        "sum": 2032,
    }
    assert ended.task.progress == Progress(done=2, total=2)


@row(92)
async def test_a_parameter_that_nothing_resolves_is_asked_for(replicas: Replicas) -> None:
    app = app_of(
        Step("find", rows_of, {"year": 2026}),
        Step("sum", add, {"a": Output("find", "rows", 7), "b": Param("b")}),
    )
    runtime = await replicas.start(app)
    made = await runtime.submit("flow")
    seen = await paused(runtime, made.task.task_id)
    state = state_of(seen.task.checkpoint)
    assert state.paused is not None
    assert state.paused.why == UnresolvableParameters("sum", ("a", "b"))
    assert set(state.steps) == {"find"}
    await go_on(runtime, seen, {"a": 1, "b": 2})
    assert value_of(await runtime.wait(ME, made.task.task_id, 120)) == 3


@row(92)
async def test_arguments_that_do_not_fit_the_step_are_asked_for_anew(replicas: Replicas) -> None:
    app = app_of(Step("sum", add, {"a": Param("a")}))
    runtime = await replicas.start(app)
    made = await runtime.submit("flow", {"a": "one"})
    seen = await paused(runtime, made.task.task_id)
    state = state_of(seen.task.checkpoint)
    assert state.paused is not None
    assert state.paused.why == SchemaMismatch("sum", {"a": "Expected `int`, got `str`", "b": "is missing"})
    await go_on(runtime, seen, {"a": 1, "b": "two"})  # still wrong: it pauses once more
    seen = await paused(runtime, made.task.task_id)
    await go_on(runtime, seen, {"b": 2})
    assert value_of(await runtime.wait(ME, made.task.task_id, 120)) == 3


@row(92)
@pytest.mark.parametrize(
    ("content", "expected"), [({"retry": True}, "made"), ({"result": "by hand"}, "by hand")]
)
async def test_a_step_that_fails_is_retried_or_its_result_given(
    replicas: Replicas, content: dict[str, Json], expected: str
) -> None:
    broken = [True]

    async def make() -> str:
        if broken.pop() if broken else False:
            raise Retry("the oven is cold")
        return "made"

    runtime = await replicas.start(app_of(Step("make", make)))
    made = await runtime.submit("flow")
    seen = await paused(runtime, made.task.task_id)
    state = state_of(seen.task.checkpoint)
    assert state.paused is not None
    assert state.paused.why == ToolError("make", "the oven is cold", retryable=True)
    await go_on(runtime, seen, content)
    ended = await runtime.wait(ME, made.task.task_id, 120)
    assert value_of(ended) == expected
    assert state_of(ended.task.checkpoint).paused is None


@row(92)
async def test_a_step_that_needs_what_an_optional_one_did_not_make_asks_for_that(replicas: Replicas) -> None:
    def lost() -> int:
        raise ValueError("gone")

    app = app_of(
        Step("lost", lost, optional=True),
        Step("fine", rows_of, {"year": 1}),
        Step("sum", add, {"a": Output("lost"), "b": 1}),
    )
    runtime = await replicas.start(app)
    made = await runtime.submit("flow")
    seen = await paused(runtime, made.task.task_id)
    state = state_of(seen.task.checkpoint)
    assert state.paused is not None
    assert state.paused.why == UnresolvedDependency("sum", "lost")
    assert state.steps["lost"].error == "ValueError: gone"
    await go_on(runtime, seen, {"result": 41})
    ended = await runtime.wait(ME, made.task.task_id, 120)
    assert value_of(ended) == 42
    assert state_of(ended.task.checkpoint).steps["lost"].status == "given"


@row(93)
async def test_a_paused_workflow_holds_no_worker_and_is_continued_by_another(replicas: Replicas) -> None:
    calls: list[str] = []

    async def first() -> str:
        calls.append("first")
        return "done"

    app = app_of(Step("first", first), Step("sum", add, {"a": Param("a"), "b": 1}))
    async with replicas.running(app) as runtime:
        made = await runtime.submit("flow")
        seen = await paused(runtime, made.task.task_id)
        assert not seen.task.is_claimed
        assert seen.task.attempts == 0  # to pause is not to fail
    client = await replicas.start(app, work=False)
    await go_on(client, seen, {"a": 1})
    await replicas.start(app)
    assert value_of(await client.wait(ME, made.task.task_id, 120)) == 2
    assert calls == ["first"]


@row(93)
async def test_each_step_is_written_before_the_next_begins_and_not_done_again(replicas: Replicas) -> None:
    calls: list[str] = []
    seen: list[set[str]] = []

    async def first() -> int:
        calls.append("first")
        return 1

    async def second(task: Task) -> int:
        calls.append("second")
        found = await runtime.store.get(ME, task.id)
        seen.append(set(state_of(found.task.checkpoint).steps))
        return 2

    runtime = await replicas.start(app_of(Step("first", first), Step("second", second)))
    made = await runtime.submit("flow")
    await runtime.wait(ME, made.task.task_id, 120)
    assert seen == [{"first"}]
    assert calls == ["first", "second"]


@row(93)
async def test_a_workflow_whose_worker_stops_goes_on_with_the_next_step(replicas: Replicas) -> None:
    calls: list[str] = []
    blocked = True

    async def first() -> int:
        calls.append("first")
        return 1

    async def second(task: Task) -> int:
        calls.append("second")
        if blocked:
            await asyncio.Event().wait()
        return 2

    app = app_of(Step("first", first), Step("second", second), retries=1)
    async with replicas.running(app) as runtime:
        made = await runtime.submit("flow")
        await wait_until(lambda: "second" in calls)
    blocked = False
    another = await replicas.start(app)
    assert value_of(await another.wait(ME, made.task.task_id, 120)) == 2
    assert calls == ["first", "second", "second"]


async def test_a_client_that_declines_ends_the_workflow(replicas: Replicas) -> None:
    runtime = await replicas.start(app_of(Step("sum", add, {"a": Param("a"), "b": 1})))
    made = await runtime.submit("flow")
    seen = await paused(runtime, made.task.task_id)
    (key,) = seen.task.outstanding
    await runtime.answer(ME, made.task.task_id, {key: {"action": "decline"}})
    ended = await runtime.wait(ME, made.task.task_id, 120)
    assert isinstance(ended.task.outcome, Failure)
    assert ended.task.status_message == f"{NOT_CONTINUED}: step 'sum' needs values for a"


def by_position(number: int, /) -> int:
    return number


def test_a_workflow_is_checked_when_it_is_defined() -> None:
    for steps, reason in (
        ([], "at least"),
        ([Step("a", add), Step("a", add)], "several steps are named 'a'"),
        ([Step("a", add, {"c": 1})], "no parameter 'c'"),
        ([Step("a", by_position)], "is positional-only"),
        ([Step("a", add, {"a": Output("b")}), Step("b", add)], "not an earlier step"),
    ):
        with pytest.raises(InvalidValue, match=reason):
            Workflow("flow", steps)
    with pytest.raises(InvalidValue, match="must contain only parameters of the workflow, not 'c'"):
        Workflow("flow", [Step("a", add, {"a": Param("a"), "b": 1})]).check({"arguments": {"c": 1}})


@row(93)
async def test_the_questions_of_a_step_are_its_own_and_what_was_answered_is_not_asked_again(
    replicas: Replicas,
) -> None:
    """Both steps ask the same. Workers stop before the second asks, and again after it was answered."""
    held_up = {"before": asyncio.Event(), "after": asyncio.Event()}
    reached: list[str] = []

    async def first(task: Task) -> Json:
        return ((await task.elicit("How many?")).data or {})["count"]

    async def second(task: Task, earlier: int) -> Json:
        reached.append("before")
        await held_up["before"].wait()
        said = ((await task.elicit("How many?")).data or {})["count"]
        reached.append("after")
        await held_up["after"].wait()
        return [earlier, said]

    app = app_of(Step("first", first), Step("second", second, {"earlier": Output("first")}), retries=1)
    at_once = replace(UNHURRIED, drain_timeout=0.0)
    async with replicas.running(app, at_once) as runtime:
        made = await runtime.submit("flow")
        await go_on(runtime, await paused(runtime, made.task.task_id), {"count": 1})
        await wait_until(lambda: reached == ["before"])
    held_up["before"].set()
    async with replicas.running(app, at_once) as runtime, asyncio.timeout(30):
        await go_on(runtime, await paused(runtime, made.task.task_id), {"count": 2})
        await wait_until(lambda: reached == ["before", "before", "after"])
    held_up["after"].set()
    runtime = await replicas.start(app)
    ended = await runtime.wait(ME, made.task.task_id, 120)
    assert value_of(ended) == [1, 2]
    assert len(ended.task.inputs) == 2


@row(92)
@pytest.mark.parametrize("how", ["returns", "raises"])
async def test_a_plain_step_that_is_cancelled_is_given_time_to_tidy_up(replicas: Replicas, how: str) -> None:
    began, tidied = threading.Event(), threading.Event()

    def plain(task: Task) -> str:
        began.set()
        while not task.is_cancelled():
            time.sleep(0.002)
        time.sleep(0.1)
        tidied.set()
        if how == "raises":
            task.check_cancelled()
        return "tidy"

    runtime = await replicas.start(app_of(Step("plain", plain)))
    made = await runtime.submit("flow")
    await wait_until(began.is_set)
    await runtime.cancel(ME, made.task.task_id)
    ended = await runtime.wait(ME, made.task.task_id, 60)
    assert tidied.is_set()  # before the task ended
    assert ended.task.status is (Status.COMPLETED if how == "returns" else Status.CANCELLED)
    if how == "returns":
        assert value_of(ended) == "tidy"


@row(92)
async def test_a_step_that_is_not_to_be_retried_ends_the_workflow(replicas: Replicas) -> None:
    calls: list[str] = []

    async def make() -> None:
        calls.append("make")
        raise ValueError("no oven")

    runtime = await replicas.start(app_of(Step("make", make), retries=2))
    made = await runtime.submit("flow")
    await go_on(runtime, await paused(runtime, made.task.task_id), {"retry": False})
    ended = await runtime.wait(ME, made.task.task_id, 120)
    assert ended.task.status is Status.FAILED
    assert ended.task.status_message == f"{NOT_CONTINUED}: step 'make' failed: ValueError: no oven"
    assert calls == ["make"]


@row(92)
@pytest.mark.parametrize("size", ["a string", "all together"])
async def test_a_result_that_the_variables_cannot_hold_pauses_the_workflow(
    replicas: Replicas, size: str
) -> None:
    async def make() -> Json:
        many: list[Json] = ["x" * 60_000] * 20
        return "x" * 100_000 if size == "a string" else many

    async def measure(made: str) -> int:
        return len(made)

    runtime = await replicas.start(
        app_of(Step("make", make), Step("measure", measure, {"made": Output("make")}))
    )
    made = await runtime.submit("flow")
    seen = await paused(runtime, made.task.task_id)
    state = state_of(seen.task.checkpoint)
    assert state.paused is not None
    assert isinstance(state.paused.why, ToolError)
    assert (state.paused.why.step, state.paused.why.retryable) == ("make", False)
    assert state.paused.why.error.startswith("the result cannot be stored: ")
    await go_on(runtime, seen, {"result": "short"})
    assert value_of(await runtime.wait(ME, made.task.task_id, 120)) == 5


@row(92)
async def test_a_step_that_returns_what_is_not_json_has_failed(replicas: Replicas) -> None:
    async def odd() -> object:
        return object()

    runtime = await replicas.start(app_of(Step("odd", odd)))
    made = await runtime.submit("flow")
    seen = await paused(runtime, made.task.task_id)
    state = state_of(seen.task.checkpoint)
    assert state.paused is not None
    assert isinstance(state.paused.why, ToolError)
    assert "cannot be encoded as JSON" in state.paused.why.error
