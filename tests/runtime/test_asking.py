"""Input rounds: asked by a function, answered through any replica, kept for whoever runs it next."""

from __future__ import annotations

import asyncio

import anyio.from_thread
import pytest
from msgspec.structs import replace

from perdure.runtime import App, Retry, Runtime, Task
from perdure.storage.time_types import MINUTE
from perdure.tasks import InputKind, InputRequest, Json, Snapshot, Status
from perdure.tasks.errors import MalformedAnswer

from .. import task_edits
from ..conditions import wait_until
from ..markers import row
from .faulty_storage import (
    ME,
    STEADY_HEARTBEAT,
    FaultyLink,
    MovedClock,
    lease_of,
    now,
    open_faulty,
    several_heartbeats,
    until_released,
)
from .replicas import UNHURRIED, Replicas, new_app, value_of

pytestmark = pytest.mark.anyio

YES: Json = {"action": "accept", "content": {"name": "Ana"}}
NO: Json = {"action": "decline"}


async def asked(runtime: Runtime, task: Snapshot, count: int = 1) -> Snapshot:
    """The task, once it has so many open questions."""

    async def is_asked() -> bool:
        return len((await now(runtime, task)).task.outstanding) == count

    await wait_until(is_asked)
    return await now(runtime, task)


async def only_key(runtime: Runtime, task: Snapshot) -> str:
    (key,) = (await asked(runtime, task)).task.outstanding
    return key


def asking() -> App:
    """`ask` asks once, `twice` asks two things one after the other, `all` three at once."""
    app = new_app()

    @app.function(retries=2, backoff=0.0)
    async def ask(task: Task) -> list[Json]:
        answer = await task.elicit("Whose?", key="whose")
        return [answer.action, task.attempt]

    @app.function()
    async def all_at_once(task: Task) -> list[str]:
        answers = await task.ask(
            {
                "name": InputRequest(kind=InputKind.ELICITATION, params={"message": "Whose?"}),
                "text": InputRequest(kind=InputKind.SAMPLING, params={"messages": []}),
                "roots": InputRequest(kind=InputKind.ROOTS),
            }
        )
        return [type(each.answer).__name__ for each in answers.values()]

    return app


SAID: Json = {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m"}
ROOTS: Json = {"roots": [{"uri": "file:///a"}]}


@row(80, 81)
async def test_each_kind_of_question_gets_its_kind_of_answer(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def ask(task: Task) -> list[Json]:
        person = await task.elicit("Whose?", {"type": "object", "properties": {"name": {"type": "string"}}})
        model = await task.sample([], max_tokens=10)
        places = await task.list_roots()
        return [(person.data or {})["name"], model["model"], places[0].uri]

    runtime = await replicas.start(app)
    other = await replicas.start(app, work=False)
    made = await runtime.submit("ask")
    for answer in (YES, SAID, ROOTS):
        key = await only_key(other, made)
        await other.answer(ME, made.task.task_id, {key: answer})
    ended = await other.wait(ME, made.task.task_id, 60)
    assert value_of(ended) == ["Ana", "m", "file:///a"]
    assert [each.kind for each in ended.task.inputs.values()] == list(InputKind)
    assert next(iter(ended.task.inputs.values())).params == {
        "mode": "form",
        "message": "Whose?",
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
    }


@row(74, 81)
async def test_the_task_is_input_required_until_all_is_answered_and_working_after(replicas: Replicas) -> None:
    app, go_on = new_app(), asyncio.Event()

    @app.function()
    async def ask(task: Task) -> str:
        both = {key: InputRequest(kind=InputKind.ELICITATION) for key in ("a", "b")}
        answers = await task.ask(both)
        await go_on.wait()
        return ",".join(answers)

    runtime = await replicas.start(app)
    other = await replicas.start(app, work=False)
    made = await runtime.submit("ask")
    assert (await asked(other, made, 2)).task.status is Status.INPUT_REQUIRED
    partly = await other.answer(ME, made.task.task_id, {"a": YES})
    assert (partly.task.status, *partly.task.outstanding) == (Status.INPUT_REQUIRED, "b")
    await several_heartbeats(runtime, made, 1)
    assert await now(other, made) == partly
    assert (await other.answer(ME, made.task.task_id, {"b": NO})).task.status is Status.WORKING
    go_on.set()
    assert value_of(await other.wait(ME, made.task.task_id, 60)) == "a,b"


@row(75, 76, 77)
async def test_what_answers_no_open_question_does_not_wake_the_function(replicas: Replicas) -> None:
    runtime = await replicas.start(asking())
    made = await runtime.submit("all_at_once")
    await asked(runtime, made, 3)
    partly = await runtime.answer(ME, made.task.task_id, {"name": YES})
    for answers in ({"name": NO}, {"nobody": YES}):
        assert await runtime.answer(ME, made.task.task_id, answers) == partly
    with pytest.raises(MalformedAnswer, match="'text'"):
        await runtime.answer(ME, made.task.task_id, {"text": YES, "roots": ROOTS})
    assert await now(runtime, made) == partly
    await runtime.answer(ME, made.task.task_id, {"text": SAID, "roots": ROOTS, "name": NO})
    ended = await runtime.wait(ME, made.task.task_id, 60)
    assert value_of(ended) == ["ElicitationAnswer", "SamplingAnswer", "RootsAnswer"]
    assert ended.task.inputs["name"] == partly.task.inputs["name"]


@row(74, 81)
async def test_branches_of_a_function_may_ask_at_the_same_time(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def ask(task: Task) -> list[str]:
        answers = await asyncio.gather(*(task.elicit(f"{each}?", key=each) for each in "abc"))
        return [each.action for each in answers]

    runtime = await replicas.start(app)
    made = await runtime.submit("ask")
    await asked(runtime, made, 3)
    for key, answer in (("b", NO), ("c", YES), ("a", NO)):
        await runtime.answer(ME, made.task.task_id, {key: answer})
    assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == ["decline", "decline", "accept"]


@row(78)
async def test_the_same_words_asked_twice_are_two_questions(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def ask(task: Task) -> list[str]:
        return [(await task.elicit("Sure?")).action, (await task.elicit("Sure?")).action]

    runtime = await replicas.start(app)
    made = await runtime.submit("ask")
    first = await only_key(runtime, made)
    await runtime.answer(ME, made.task.task_id, {first: YES})
    second = await only_key(runtime, made)
    await runtime.answer(ME, made.task.task_id, {second: NO})
    assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == ["accept", "decline"]
    assert first != second


@row(78)
async def test_a_key_that_was_answered_is_not_asked_again(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def ask(task: Task) -> list[str]:
        return [(await task.elicit("Whose?", key="whose")).action for _ in range(2)]

    runtime = await replicas.start(app)
    made = await runtime.submit("ask")
    await asked(runtime, made)
    await runtime.answer(ME, made.task.task_id, {"whose": YES})
    ended = await runtime.wait(ME, made.task.task_id, 60)
    assert (value_of(ended), len(ended.task.inputs)) == (["accept", "accept"], 1)


# Another attempt


@row(65, 74, 81)
async def test_what_was_answered_is_not_asked_again_when_the_asker_has_died(replicas: Replicas) -> None:
    app, wire = new_app(), FaultyLink()
    told: list[tuple[int, str]] = []

    @app.function(retries=1, backoff=0.0)
    async def ask(task: Task) -> list[str]:
        names = [(await task.elicit("First?")).action]
        told.append((task.attempt, names[0]))
        return [*names, (await task.elicit("Second?")).action]

    clock = MovedClock()
    survivor = await replicas.start(app, clock=clock)
    async with open_faulty(replicas, wire, app, UNHURRIED) as doomed:
        made = await doomed.submit("ask")
        await survivor.answer(ME, made.task.task_id, {await only_key(survivor, made): YES})
        waiting = await asked_again(survivor, made, 2)
        wire.cut()
        clock.ahead = MINUTE  # the lease is over
        await until_released(survivor, made)
        released = (await now(survivor, made)).task
        assert (released.status, released.inputs) == (Status.INPUT_REQUIRED, waiting.task.inputs)
        (key,) = released.outstanding
        await survivor.answer(ME, made.task.task_id, {key: NO})
        ended = await survivor.wait(ME, made.task.task_id, 60)
        wire.mend()
    assert value_of(ended) == ["accept", "decline"]
    assert (told, len(ended.task.inputs)) == ([(1, "accept"), (2, "accept")], 2)


async def asked_again(runtime: Runtime, task: Snapshot, count: int) -> Snapshot:
    """The task, once it has asked so many questions, of which one is open."""

    async def is_asked() -> bool:
        read = (await now(runtime, task)).task
        return len(read.inputs) == count and len(read.outstanding) == 1

    await wait_until(is_asked)
    return await now(runtime, task)


@row(81)
async def test_asked_on_one_replica_answered_through_another_and_resumed_on_a_third(
    replicas: Replicas,
) -> None:
    app, wire = asking(), FaultyLink()
    other = await replicas.start(app, work=False)
    async with open_faulty(replicas, wire, app, UNHURRIED) as doomed:
        made = await doomed.submit("ask")
        await asked(other, made)
        wire.cut()
        await other.answer(ME, made.task.task_id, {"whose": YES})  # before anybody has missed the asker
        await replicas.start(app, clock=MovedClock(MINUTE))  # when the lease is over
        assert value_of(await other.wait(ME, made.task.task_id, 60)) == ["accept", 2]
        wire.mend()


@row(81)
async def test_an_answer_reaches_a_task_whose_asker_was_shut_down(replicas: Replicas) -> None:
    app = asking()
    other = await replicas.start(app, work=False)
    async with replicas.running(app, replace(UNHURRIED, drain_timeout=0.0)) as asker:
        made = await asker.submit("ask")
        await asked(other, made)
    waiting = await now(other, made)
    assert (waiting.task.is_claimed, waiting.task.status) == (False, Status.INPUT_REQUIRED)
    assert (
        waiting.record.lane == "deadline/tests"
    )  # no worker has anything to do before it is answered, or too late
    assert (await other.answer(ME, made.task.task_id, {"whose": NO})).record.lane == "run/tests/ask"
    await replicas.start(app)
    assert value_of(await other.wait(ME, made.task.task_id, 60)) == ["decline", 2]


@row(78)
async def test_another_question_at_the_same_place_is_asked_anew(replicas: Replicas) -> None:
    app = new_app()

    @app.function(retries=1, backoff=0.0)
    async def ask(task: Task) -> str:
        answer = await task.elicit(f"Attempt {task.attempt}?")
        if task.attempt == 1:
            raise Retry("ask something else")
        return answer.action

    runtime = await replicas.start(app)
    made = await runtime.submit("ask")
    await runtime.answer(ME, made.task.task_id, {await only_key(runtime, made): YES})
    await asked_again(runtime, made, 2)
    await runtime.answer(ME, made.task.task_id, {await only_key(runtime, made): NO})
    assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == "decline"


@row(70, 74)
@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_task_that_waits_for_an_answer_can_be_cancelled(replicas: Replicas, where: str) -> None:
    runtime = await replicas.start(asking())
    other = runtime if where == "here" else await replicas.start(asking(), work=False)
    made = await runtime.submit("ask")
    await asked(other, made)
    await other.cancel(ME, made.task.task_id)
    ended = await other.wait(ME, made.task.task_id, 60)
    assert (ended.task.status, ended.task.outstanding.keys()) == (Status.CANCELLED, {"whose"})
    assert await lease_of(other, made) is None


@row(81)
async def test_an_answer_reaches_an_asker_that_hears_nothing(replicas: Replicas) -> None:
    app, wire = asking(), FaultyLink()
    wire.is_deaf = True
    other = await replicas.start(app, work=False)
    async with open_faulty(replicas, wire, app, UNHURRIED) as asker:
        made = await asker.submit("ask")
        await asked(other, made)
        await other.answer(ME, made.task.task_id, {"whose": YES})
        assert value_of(await other.wait(ME, made.task.task_id, 60)) == ["accept", 1]


@row(74)
async def test_a_plain_function_asks_from_its_thread(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    def ask(task: Task) -> str:
        return anyio.from_thread.run(task.elicit, "Whose?").action

    runtime = await replicas.start(app, STEADY_HEARTBEAT)
    made = await runtime.submit("ask")
    await runtime.answer(ME, made.task.task_id, {await only_key(runtime, made): NO})
    assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == "decline"


async def test_a_function_that_waits_sees_what_its_client_sets_meanwhile(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def ask(task: Task) -> Json:
        await task.elicit("Whose?", key="whose")
        return task.variables["colour"]

    runtime = await replicas.start(app)
    other = await replicas.start(app, work=False)
    made = await runtime.submit("ask")
    await task_edits.set_variables(other.store, await asked(other, made), {"colour": "blue"})
    await other.answer(ME, made.task.task_id, {"whose": YES})
    assert value_of(await other.wait(ME, made.task.task_id, 60)) == "blue"
