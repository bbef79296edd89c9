"""2026-07-28, as the extension `io.modelcontextprotocol/tasks` has it.

Every answer that comes here is judged by the published schemas too, when the module is done.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, validate
from mcp.server import MCPServer
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from perdure import Task, Tasks
from perdure.mcp.polling import Answer as AnswerThese
from perdure.mcp.polling import Ended, Wait, advised_interval, decide
from perdure.runtime import RuntimeConfig
from perdure.tasks import Owner, Status, StoreConfig, TaskRecord
from perdure.tasks.errors import InvalidValue
from perdure.tasks.record import new_task_id

from ..rows import row
from .fixture import add_task_fixtures
from .published import Published, Recorded, judged
from .wire import EXTENSION, Answer, Json, serving

pytestmark = pytest.mark.anyio

T = TypeVar("T")

CONFIRM: Json = {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}
YES: Json = {"action": "accept", "content": {"confirm": True}}
NO: Json = {"action": "decline"}
MISSING: Json = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
NOBODYS = "0" * 32
VARIABLES, IDEMPOTENCY_KEY = "perdure/variables", "perdure/idempotencyKey"


@pytest.fixture(scope="module")
def published() -> Generator[Published]:
    with judged() as published:
        yield published


# A server with tools for what the fixture server of the suites does not do


class Measure(BaseModel):
    length: float
    unit: str


def add_tools(server: MCPServer[object], tasks: Tasks) -> None:
    @server.tool()
    @tasks.durable()
    async def measure(length: float) -> Measure:
        return Measure(length=length, unit="m")

    @server.tool()
    @tasks.durable(poll_interval=60)
    async def ask_twice(task: Task) -> str:
        """Asks the same thing twice."""
        answers = [await task.elicit("Sure?", CONFIRM) for _ in range(2)]
        return ", ".join(answer.action for answer in answers)

    @server.tool()
    @tasks.durable()
    async def ask_under_one_key(task: Task) -> str:
        """Asks two things under the same key."""
        answers = [await task.elicit(what, CONFIRM, key="sure") for what in ("Sure?", "Really?")]
        return ", ".join(answer.action for answer in answers)

    @server.tool()
    @tasks.durable()
    async def remember(variables: dict[str, Any], task: Task) -> str:
        """Sets variables, asks, and says which there are then."""
        await task.set_variables(variables)
        await task.elicit("Go on?", CONFIRM, key="go")
        return json.dumps(dict(task.variables))

    @server.tool()
    @tasks.durable()
    async def break_with(code: int, message: str, data: Any) -> str:
        """Ends with this JSON-RPC error."""
        raise MCPError(code, message, data)

    @server.tool()
    @tasks.durable(timeout=0.05)
    async def take_too_long() -> str:
        await asyncio.sleep(60)
        return "in time"


def tasks_at(where: str, **options: Any) -> Tasks:
    """Tasks of a server that does not wait for what tests leave behind."""
    return Tasks(where, runtime=RuntimeConfig(drain=0), **options)


@asynccontextmanager
async def workshop(tasks: Tasks) -> AsyncGenerator[str]:
    """The address of a server with these tasks, the tools of the fixture server and those above."""
    server: MCPServer[object] = MCPServer("workshop", version="1", **tasks.attach())
    add_task_fixtures(server, tasks)
    add_tools(server, tasks)
    async with serving(server.streamable_http_app()) as url:
        yield url


@pytest.fixture
async def url(where: str) -> AsyncGenerator[str]:
    async with workshop(tasks_at(where)) as url:
        yield url


@pytest.fixture
async def modern(url: str, published: Published) -> AsyncGenerator[Recorded]:
    async with Recorded(url, published) as client:
        yield client


async def asking(client: Recorded, tool: str, arguments: Mapping[str, Any] = {}) -> tuple[str, list[str]]:
    """Start a tool that asks; its task, and the keys under which it asks."""
    task_id = await client.start(tool, arguments)
    return task_id, list((await client.until(task_id, "input_required"))["inputRequests"])


async def eventually(look: Callable[[], Awaitable[T]], good: Callable[[T], object]) -> T:
    """Look until what is seen is good."""
    async with asyncio.timeout(15):
        while True:
            if good(seen := await look()):
                return seen
            await asyncio.sleep(0.02)


def bare(result: Json) -> Json:
    return {name: value for name, value in result.items() if name != "_meta"}


def text_of(result: Json) -> str:
    return result["content"][0]["text"]


ONE_TASK = ("tasks/get", "tasks/update", "tasks/cancel")


async def about(client: Recorded, method: str, task_id: Any, **options: Any) -> Answer:
    answers: Json = {"inputResponses": {}} if method == "tasks/update" else {}
    return await client.send(method, {"taskId": task_id, **answers}, **options)


# What server and client tell each other that they can


async def test_the_extension_is_advertised_as_an_empty_object_and_the_old_capability_is_gone(
    modern: Recorded,
) -> None:
    capabilities = (await modern.send("server/discover")).result["capabilities"]

    assert capabilities["extensions"] == {EXTENSION: {}}
    assert "tasks" not in capabilities


@row(85)
@pytest.mark.parametrize("method", ["tasks/list", "tasks/result"])
@pytest.mark.parametrize("declared", [True, False])
async def test_the_retired_methods_are_not_found(modern: Recorded, method: str, *, declared: bool) -> None:
    task_id = await modern.start("slow_compute", {"seconds": 0})

    assert (await modern.send(method, {"taskId": task_id}, declared=declared)).code == -32601


@row(85)
async def test_a_tool_that_requires_tasks_tells_an_undeclared_client_what_it_lacks(modern: Recorded) -> None:
    error = (await modern.call("failing_job", declared=False)).error

    assert (error["code"], error["data"]) == (-32021, MISSING)


@row(85)
@pytest.mark.parametrize("method", ONE_TASK)
@pytest.mark.parametrize("params", [{"taskId": NOBODYS, "inputResponses": {}}, {"taskId": 5}, {}])
async def test_an_undeclared_client_is_told_so_before_anything_else_that_is_wrong(
    modern: Recorded, method: str, params: Json
) -> None:
    error = (await modern.send(method, params, declared=False)).error

    assert (error["code"], error["data"]) == (-32021, MISSING)


@pytest.mark.parametrize("method", ONE_TASK)
async def test_a_client_that_declared_itself_once_must_do_so_again(modern: Recorded, method: str) -> None:
    task_id, _ = await asking(modern, "confirm_delete", {"filename": "a.txt"})

    assert (await about(modern, method, task_id, declared=False)).code == -32021
    assert (await modern.get(task_id))["status"] == "input_required"


async def test_the_capability_of_2025_11_25_declares_nothing(modern: Recorded) -> None:
    old: Json = {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}

    assert (await modern.call("failing_job", capabilities=old)).code == -32021
    assert (await about(modern, "tasks/get", NOBODYS, capabilities=old)).code == -32021
    plain = (await modern.call("slow_compute", {"seconds": 0}, capabilities=old)).result
    assert plain["resultType"] == "complete"


@pytest.mark.parametrize("tool", ["greet", "slow_compute"])
async def test_the_task_parameter_of_2025_11_25_asks_for_nothing(modern: Recorded, tool: str) -> None:
    arguments = {"name": "Ada", "seconds": 0}

    answer = await modern.send(
        "tools/call", {"name": tool, "arguments": arguments, "task": {"ttl": 1000}}, declared=False
    )

    assert answer.result["resultType"] == "complete"


# Clients without tasks


async def test_an_undeclared_client_gets_the_plain_result_of_an_optional_tool(modern: Recorded) -> None:
    result = (await modern.call("slow_compute", {"seconds": 0, "label": "x"}, declared=False)).result

    assert result["resultType"] == "complete"
    assert text_of(result) == "computed x in 0.0 seconds"
    assert "taskId" not in result


async def test_an_undeclared_client_gets_the_protocol_error_of_an_optional_tool(modern: Recorded) -> None:
    error = (await modern.call("protocol_error_job", declared=False)).error

    assert error == {"code": -32603, "message": "the job broke the protocol", "data": {"why": "on purpose"}}


async def round_of(client: Recorded, call: Json, asked: Json, answers: Json) -> Json:
    """The next round of a call, by a client without tasks."""
    more: Json = {"inputResponses": answers, "requestState": asked["requestState"]}
    return (await client.send("tools/call", {**call, **more}, declared=False)).result


@pytest.mark.parametrize(("answer", "said"), [(YES, "deleted a.txt"), (NO, "kept a.txt")])
async def test_an_undeclared_client_is_asked_in_rounds_of_its_call(
    modern: Recorded, answer: Json, said: str
) -> None:
    call: Json = {"name": "confirm_delete", "arguments": {"filename": "a.txt"}}
    asked = (await modern.send("tools/call", call, declared=False)).result
    assert asked["resultType"] == "input_required"
    assert asked["inputRequests"]["confirm"]["params"]["message"] == "Delete a.txt?"

    ended = await round_of(modern, call, asked, {"confirm": answer})

    assert (ended["resultType"], text_of(ended)) == ("complete", said)


async def test_a_round_asks_only_what_the_rounds_before_left_open(modern: Recorded) -> None:
    call: Json = {"name": "multi_input", "arguments": {}}
    asked = (await modern.send("tools/call", call, declared=False)).result
    assert set(asked["inputRequests"]) == {"first", "second"}

    again = await round_of(modern, call, asked, {"first": YES})
    assert set(again["inputRequests"]) == {"second"}

    ended = await round_of(modern, call, again, {"second": NO})
    assert text_of(ended) == "first: accept, second: decline"


# A call becomes a task


@row(84)
async def test_a_task_is_found_as_soon_as_its_id_is_known_and_ends_with_the_result_of_the_call(
    modern: Recorded,
) -> None:
    task_id = await modern.start("slow_compute", {"seconds": 0.1, "label": "x"})
    assert (await modern.get(task_id))["status"] in ("working", "completed")

    ended = await modern.until(task_id, "completed")

    assert text_of(ended["result"]) == "computed x in 0.1 seconds"
    assert ended["result"]["resultType"] == ended["resultType"] == "complete"


async def test_a_created_task_is_flat_and_carries_nothing_else(modern: Recorded) -> None:
    created = (await modern.call("confirm_delete", {"filename": "a.txt"})).result

    always = {"resultType", "taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"}
    assert bare(created).keys() - {"statusMessage"} == always
    assert created["status"] in ("working", "input_required")


async def test_no_other_answer_says_that_it_is_a_task(modern: Recorded) -> None:
    task_id, _ = await asking(modern, "multi_input")
    said = [
        (await modern.call("greet", {"name": "Ada"})).result,
        (await modern.send("tools/list")).result,
        (await modern.send("server/discover")).result,
        await modern.get(task_id),
        (await modern.update(task_id, {"first": YES})).result,
        (await modern.cancel(task_id)).result,
        await modern.until(task_id, "cancelled"),
    ]

    assert {answer.get("resultType", "complete") for answer in said} == {"complete"}


async def test_a_task_that_is_kept_for_ever_says_so(where: str, published: Published) -> None:
    for_ever = StoreConfig(default_ttl_ms=None, max_ttl_ms=None)
    async with workshop(tasks_at(where, store=for_ever)) as url, Recorded(url, published) as client:
        created = (await client.call("ask_twice")).result
        assert created["ttlMs"] is None

        assert (await client.until(created["taskId"], "input_required"))["ttlMs"] is None
        await client.cancel(created["taskId"])
        assert (await client.until(created["taskId"], "cancelled"))["ttlMs"] is None


async def test_what_a_tool_asks_first_is_asked_in_the_call_before_there_is_a_task(modern: Recorded) -> None:
    asked = (await modern.call("test_tool_with_task")).result
    assert asked["resultType"] == "input_required"
    (key,) = asked["inputRequests"]

    answers: Json = {key: {"action": "accept", "content": {"name": "Ada"}}}
    more: Json = {"inputResponses": answers, "requestState": asked["requestState"]}
    params: Json = {"name": "test_tool_with_task", "arguments": {}, **more}
    created = (await modern.send("tools/call", params)).result
    assert created["resultType"] == "task"

    ended = await modern.until(created["taskId"], "completed")
    assert text_of(ended["result"]) == "done for Ada"


@pytest.fixture
async def known(where: str, published: Published) -> AsyncGenerator[Recorded]:
    """A client of a server that can tell who is asking."""

    def ada(_: object) -> Owner:
        return Owner.user("", "ada")

    tasks = tasks_at(where, identify=ada)
    async with workshop(tasks) as url, Recorded(url, published) as client:
        yield client


def keyed(length: float, key: Any) -> Json:
    return {"name": "measure", "arguments": {"length": length}, "_meta": {IDEMPOTENCY_KEY: key}}


async def test_the_same_call_with_the_same_idempotency_key_is_one_task(known: Recorded) -> None:
    first = (await known.send("tools/call", keyed(1, "k"))).result
    await known.until(first["taskId"], "completed")

    again = (await known.send("tools/call", keyed(1, "k"))).result
    other = (await known.send("tools/call", keyed(1, "another"))).result

    assert again["taskId"] == first["taskId"] != other["taskId"]
    assert "result" not in again


async def test_another_call_with_a_used_idempotency_key_is_refused(known: Recorded) -> None:
    await known.send("tools/call", keyed(1, "k"))

    error = (await known.send("tools/call", keyed(2, "k"))).error

    assert error["code"] == -32602
    assert "idempotency key" in error["message"]


async def test_what_is_no_idempotency_key_is_refused_by_name(known: Recorded) -> None:
    error = (await known.send("tools/call", keyed(1, 5))).error

    assert error["code"] == -32602
    assert IDEMPOTENCY_KEY in error["message"]


# Looking at a task


async def test_the_result_of_a_task_is_what_the_output_schema_of_its_tool_says(modern: Recorded) -> None:
    tools = {tool["name"]: tool for tool in (await modern.send("tools/list")).result["tools"]}
    task_id = await modern.start("measure", {"length": 1.5})

    result = (await modern.until(task_id, "completed"))["result"]

    assert result["structuredContent"] == {"length": 1.5, "unit": "m"}
    validate(result["structuredContent"], tools["measure"]["outputSchema"], Draft202012Validator)


@row(84)
@pytest.mark.parametrize("data", [{"why": ["on purpose", None, 1.5]}, "text", 0, [], False])
async def test_a_json_rpc_error_is_kept_to_the_letter_and_explained(modern: Recorded, data: Any) -> None:
    error = {"code": -32042, "message": "it broke: «so»", "data": data}
    task_id = await modern.start("break_with", error)

    failed = await modern.until(task_id, "failed", "completed")

    assert failed["status"] == "failed"
    assert failed["error"] == error
    assert failed["statusMessage"]
    assert "result" not in failed


async def test_an_error_without_data_is_kept_without_data(modern: Recorded) -> None:
    task_id = await modern.start("break_with", {"code": -32042, "message": "it broke", "data": None})

    assert (await modern.until(task_id, "failed"))["error"] == {"code": -32042, "message": "it broke"}


async def test_a_run_that_is_stopped_for_its_time_fails_with_an_error_that_says_so(modern: Recorded) -> None:
    failed = await modern.until(await modern.start("take_too_long"), "failed", "completed")

    assert failed["status"] == "failed"
    assert isinstance(failed["error"]["code"], int)
    assert failed["error"]["message"]
    assert failed["statusMessage"]


@row(84)
async def test_an_error_of_the_tool_is_a_result_and_no_failure(modern: Recorded) -> None:
    ended = await modern.until(await modern.start("failing_job"), "failed", "completed")

    assert ended["status"] == "completed"
    assert ended["result"]["isError"] is True
    assert "error" not in ended


@row(90)
async def test_looking_at_a_task_does_not_change_it(modern: Recorded) -> None:
    task_id, _ = await asking(modern, "confirm_delete", {"filename": "a.txt"})
    first = await modern.get(task_id)

    # time has passed when the hint has grown
    again = await eventually(
        lambda: modern.get(task_id), lambda task: task["pollIntervalMs"] > first["pollIntervalMs"]
    )

    assert {**again, "pollIntervalMs": 0} == {**first, "pollIntervalMs": 0}


@row(90)
async def test_the_hint_when_to_look_again_grows_with_the_task_up_to_what_its_tool_says(
    modern: Recorded,
) -> None:
    began = time.monotonic()
    created = (await modern.call("ask_twice")).result
    oldest_ms = (time.monotonic() - began) * 1000
    hints = [created["pollIntervalMs"]]

    async def look() -> int:
        hints.append((await modern.get(created["taskId"]))["pollIntervalMs"])
        return hints[-1]

    await eventually(look, lambda hint: hint >= 60)

    assert hints[0] == 50 or hints[0] <= oldest_ms / 6  # it may be older when it is told
    assert hints == sorted(hints)
    assert hints[-1] == 60


# Ids of no task


@row(86)
@pytest.mark.parametrize("method", ONE_TASK)
@pytest.mark.parametrize(
    "task_id", [NOBODYS, "", "no-such-task", "../tasks", "786512e2-9e0d-44bd-8f29-789f320fe840", "a" * 5000]
)
async def test_the_id_of_no_task_is_answered_with_one_text_whatever_it_looks_like(
    modern: Recorded, method: str, task_id: str
) -> None:
    error = (await about(modern, method, task_id)).error

    assert error == {"code": -32602, "message": "Task not found"}


@row(86)
@pytest.mark.parametrize("method", ONE_TASK)
async def test_a_task_that_has_expired_is_as_if_it_had_never_been(
    where: str, published: Published, method: str
) -> None:
    brief = StoreConfig(default_ttl_ms=1, result_retention_ms=1)
    async with workshop(tasks_at(where, store=brief)) as url, Recorded(url, published) as client:
        task_id = await client.start("measure", {"length": 1})
        answer = await eventually(
            lambda: about(client, method, task_id), lambda answer: "error" in answer.message
        )

        assert answer.error == (await about(client, method, NOBODYS)).error


@row(86)
@pytest.mark.parametrize("method", ONE_TASK)
@pytest.mark.parametrize("task_id", [5, None, ["a"], {}])
async def test_what_is_no_id_at_all_is_refused_by_name(modern: Recorded, method: str, task_id: Any) -> None:
    error = (await about(modern, method, task_id)).error

    assert error["code"] == -32602
    assert "taskId" in error["message"]


@pytest.mark.parametrize("method", ONE_TASK)
async def test_a_header_that_names_another_task_is_refused_and_nothing_is_done(
    modern: Recorded, method: str
) -> None:
    task_id, _ = await asking(modern, "multi_input")
    params: Json = {"taskId": task_id, "inputResponses": {"first": YES}}

    assert (await modern.send(method, params, headers={"mcp-name": NOBODYS})).code == -32020
    assert set((await modern.get(task_id))["inputRequests"]) == {"first", "second"}


class Unnamed(Recorded):
    """A client that does not repeat the id of a task in a header."""

    def headers(self, method: str, name: str | None) -> dict[str, str]:
        return super().headers(method, None if method.startswith("tasks/") else name)


async def test_a_client_need_not_repeat_the_id_in_a_header(url: str, published: Published) -> None:
    async with Unnamed(url, published) as client:
        task_id, _ = await asking(client, "multi_input")

        assert bare((await client.update(task_id, {"first": YES})).result) == {"resultType": "complete"}
        assert bare((await client.cancel(task_id)).result) == {"resultType": "complete"}
        await client.until(task_id, "cancelled")


# Answering what a task asks


@row(84)
async def test_an_update_is_acknowledged_with_an_empty_result_and_its_answer_reaches_the_tool(
    modern: Recorded,
) -> None:
    task_id, keys = await asking(modern, "confirm_delete", {"filename": "a.txt"})

    answer = await modern.update(task_id, {keys[0]: YES})

    assert bare(answer.result) == {"resultType": "complete"}
    assert text_of((await modern.until(task_id, "completed"))["result"]) == "deleted a.txt"


async def second_question(client: Recorded, task_id: str, first: str) -> Json:
    """What is asked after the first question was answered."""
    await client.update(task_id, {first: YES})
    task = await eventually(lambda: client.get(task_id), lambda task: "inputRequests" in task)
    return task["inputRequests"]


async def test_a_tool_that_asks_the_same_twice_asks_under_two_keys(modern: Recorded) -> None:
    task_id, (first,) = await asking(modern, "ask_twice")
    before = (await modern.get(task_id))["inputRequests"][first]

    asked = await second_question(modern, task_id, first)

    assert asked.keys().isdisjoint({first})
    assert list(asked.values()) == [before]


async def test_an_answer_to_what_is_answered_already_is_not_taken_for_the_next_one(modern: Recorded) -> None:
    task_id, (first,) = await asking(modern, "ask_twice")
    (second,) = await second_question(modern, task_id, first)

    assert bare((await modern.update(task_id, {first: NO})).result) == {"resultType": "complete"}
    assert set((await modern.get(task_id))["inputRequests"]) == {second}

    await modern.update(task_id, {second: NO})
    assert text_of((await modern.until(task_id, "completed"))["result"]) == "accept, decline"


async def test_a_key_is_never_asked_again_though_the_tool_does(modern: Recorded) -> None:
    task_id, (key,) = await asking(modern, "ask_under_one_key")

    await modern.update(task_id, {key: YES})

    ended = await modern.until(task_id, "completed", "input_required")
    assert text_of(ended["result"]) == "accept, accept"


@row(84)
@pytest.mark.parametrize("ignored", [{"never": YES}, {"never": 5}, {"never": {"action": "?"}}, {}])
async def test_what_nobody_asked_is_passed_over(modern: Recorded, ignored: Json) -> None:
    task_id, _ = await asking(modern, "multi_input")
    before = await modern.get(task_id)

    assert bare((await modern.update(task_id, ignored)).result) == {"resultType": "complete"}
    after = await modern.get(task_id)
    assert (after["inputRequests"], after["status"]) == (before["inputRequests"], "input_required")

    await modern.update(task_id, {**ignored, "first": YES, "second": NO})
    ended = await modern.until(task_id, "completed")
    assert text_of(ended["result"]) == "first: accept, second: decline"


async def test_a_malformed_answer_to_what_is_answered_already_is_passed_over(modern: Recorded) -> None:
    task_id, _ = await asking(modern, "multi_input")
    await modern.update(task_id, {"first": YES})

    assert bare((await modern.update(task_id, {"first": 5})).result) == {"resultType": "complete"}


@row(84)
@pytest.mark.parametrize(
    "malformed",
    [
        5,
        None,
        [],
        {},
        {"action": "maybe"},
        {"action": "accept", "content": 5},
        {"action": "accept", "content": {"confirm": "perhaps"}},
        {"action": "accept", "content": {}},
        {"action": "accept"},
        {"roots": []},
    ],
)
async def test_an_answer_that_is_not_what_was_asked_for_is_refused_by_its_key_and_nothing_is_stored(
    modern: Recorded, malformed: Any
) -> None:
    task_id, _ = await asking(modern, "multi_input")
    before = await modern.get(task_id)

    error = (await modern.update(task_id, {"first": YES, "second": malformed})).error

    assert error["code"] == -32602
    assert "'second'" in error["message"]
    after = await modern.get(task_id)
    assert {**after, "pollIntervalMs": 0} == {**before, "pollIntervalMs": 0}


@row(84)
async def test_answers_to_a_part_leave_the_others_outstanding_on_the_very_next_look(modern: Recorded) -> None:
    task_id, _ = await asking(modern, "multi_input")

    await modern.update(task_id, {"second": YES})

    task = await modern.get(task_id)
    assert (task["status"], set(task["inputRequests"])) == ("input_required", {"first"})


async def test_an_update_of_a_task_that_has_ended_is_acknowledged_and_changes_nothing(
    modern: Recorded,
) -> None:
    task_id = await modern.start("slow_compute", {"seconds": 0})
    before = await modern.until(task_id, "completed")

    assert bare((await modern.update(task_id, {"late": YES})).result) == {"resultType": "complete"}
    assert await modern.get(task_id) == before | {"pollIntervalMs": pytest.approx(50, abs=5000)}


async def test_an_update_without_answers_at_all_is_refused_by_name(modern: Recorded) -> None:
    task_id, _ = await asking(modern, "multi_input")

    wrong: list[Json] = [{"taskId": task_id}, {"taskId": task_id, "inputResponses": []}]
    for params in wrong:
        error = (await modern.send("tasks/update", params)).error
        assert error["code"] == -32602
        assert "inputResponses" in error["message"]


# Variables, which task and client share

SHADOWS: Json = {
    "io.modelcontextprotocol/related-task": {"taskId": "other"},
    "io.modelcontextprotocol/serverInfo": {"name": "other", "version": "0"},
    "io.modelcontextprotocol/subscriptionId": 99,
    "perdure/progress": {"done": 9},
    "progressToken": "other",
    "status": "failed",
    "taskId": "other",
    "ttlMs": 1,
    "_meta": {"other": True},
}


@row(51)
async def test_variables_stand_under_one_name_and_shadow_nothing(modern: Recorded) -> None:
    task_id, _ = await asking(modern, "remember", {"variables": SHADOWS})

    task = await modern.get(task_id)

    assert task["_meta"][VARIABLES] == SHADOWS
    assert (task["taskId"], task["status"]) == (task_id, "input_required")
    others = {name: value for name, value in task["_meta"].items() if name in SHADOWS}
    assert not [name for name, value in others.items() if value == SHADOWS[name]]
    assert task.keys().isdisjoint(SHADOWS.keys() - {"taskId", "status", "ttlMs", "_meta"})

    await modern.update(task_id, {"go": YES})
    ended = await modern.until(task_id, "completed")
    assert ended["result"].get("_meta", {}).keys().isdisjoint(SHADOWS)


async def set_variables(client: Recorded, task_id: str, changes: Any, answers: Json | None = None) -> Answer:
    params: Json = {"taskId": task_id, "inputResponses": answers or {}, "_meta": {VARIABLES: changes}}
    return await client.send("tasks/update", params)


@row(51)
async def test_a_client_sets_variables_that_the_tool_finds_when_it_is_answered(modern: Recorded) -> None:
    task_id, _ = await asking(modern, "remember", {"variables": {"a": 1, "b": {"x": 1}, "c": 3}})

    changed = await set_variables(modern, task_id, {"a": 2, "b": {"y": 2}, "c": None})
    assert bare(changed.result) == {"resultType": "complete"}
    assert (await modern.get(task_id))["_meta"][VARIABLES] == {"a": 2, "b": {"y": 2}}

    await set_variables(modern, task_id, {"with": "the answer"}, {"go": YES})
    said = text_of((await modern.until(task_id, "completed"))["result"])
    assert json.loads(said) == {"a": 2, "b": {"y": 2}, "with": "the answer"}


def deep(levels: int) -> Json:
    return {} if levels == 0 else {"deeper": deep(levels - 1)}


@row(51)
@pytest.mark.parametrize("changes", [5, [], "text", {"deep": deep(20)}, {"long": "x" * 70_000}])
async def test_an_update_whose_variables_are_refused_changes_nothing_at_all(
    modern: Recorded, changes: Any
) -> None:
    task_id, _ = await asking(modern, "remember", {"variables": {"a": 1}})

    assert (await set_variables(modern, task_id, changes, {"go": YES})).code == -32602

    task = await modern.get(task_id)
    assert set(task.get("inputRequests", {})) == {"go"}
    assert task["_meta"][VARIABLES] == {"a": 1}


# Cancelling


@row(84)
async def test_a_cancel_is_acknowledged_with_an_empty_result_and_the_task_ends_cancelled(
    modern: Recorded,
) -> None:
    task_id = await modern.start("slow_compute", {"seconds": 60})

    assert bare((await modern.cancel(task_id)).result) == {"resultType": "complete"}

    task = await modern.until(task_id, "cancelled")
    assert task["resultType"] == "complete"
    assert task.keys().isdisjoint({"result", "error", "inputRequests"})


async def test_a_cancelled_task_asks_nothing_any_more(modern: Recorded) -> None:
    task_id, _ = await asking(modern, "confirm_delete", {"filename": "a.txt"})

    await modern.cancel(task_id)

    assert "inputRequests" not in await modern.until(task_id, "cancelled")


@row(84)
async def test_cancelling_what_has_ended_is_acknowledged_and_changes_nothing(modern: Recorded) -> None:
    task_id = await modern.start("slow_compute", {"seconds": 0})
    before = await modern.until(task_id, "completed")

    assert bare((await modern.cancel(task_id)).result) == {"resultType": "complete"}
    after = await modern.get(task_id)
    assert {**after, "pollIntervalMs": 0} == {**before, "pollIntervalMs": 0}


async def test_the_notification_that_cancels_a_request_does_not_cancel_its_task(modern: Recorded) -> None:
    task_id = await modern.start("slow_compute", {"seconds": 0.5})

    for request_id in (modern.last_id, task_id):
        status = await modern.notify("notifications/cancelled", {"requestId": request_id})
        assert status < 500

    assert (await modern.until(task_id, "completed", "cancelled", "failed"))["status"] == "completed"


# When to look again: pure

ages = st.integers(0, 10**13)
intervals = st.integers(50, 30_000)


def task_of(poll_interval: int, status: Status = Status.WORKING) -> TaskRecord:
    return TaskRecord(
        task_id=new_task_id(),
        owner=Owner.local(),
        status=status,
        created_at=10**15,
        last_updated_at=10**15,
        ttl=None,
        poll_interval=poll_interval,
        original_method="tools/call",
    )


@row(90)
@given(age=ages, later=ages, interval=intervals)
def test_the_advice_starts_small_never_shrinks_and_stays_within_what_is_stored(
    age: int, later: int, interval: int
) -> None:
    task = task_of(interval)

    assert advised_interval(task, task.created_at) == 50
    advice, then = (advised_interval(task, task.created_at + at) for at in (age, age + later))
    assert 50 <= advice <= then <= interval


@row(90)
@given(age=ages, interval=intervals)
def test_whoever_follows_the_advice_learns_of_the_end_a_sixth_of_the_age_too_late_at_most(
    age: int, interval: int
) -> None:
    task = task_of(interval)

    advice = advised_interval(task, task.created_at + age)

    assert advice == 50 or advice <= age / 1000 / 6


@row(90)
@given(ahead=ages, interval=intervals)
def test_a_clock_that_lags_behind_the_creator_of_the_task_gives_the_smallest_advice(
    ahead: int, interval: int
) -> None:
    task = task_of(interval)

    assert advised_interval(task, task.created_at - ahead) == 50


@row(90)
@pytest.mark.parametrize("interval", [49, 30_001, 0, -1, 1.5, True, None])
def test_a_tool_cannot_ask_for_less_than_50_ms_or_more_than_30_s(interval: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        Tasks("memory:").durable(poll_interval=interval)(lambda: None)

    assert caught.value.field == "poll_interval"


statuses = st.sampled_from(Status)
keys = st.lists(st.text(max_size=3), unique=True, max_size=5)
advised = st.none() | st.integers(-(10**6), 10**6)


@row(91)
@given(status=statuses.filter(lambda status: status.is_terminal), asked=keys, answered=keys, interval=advised)
def test_a_client_is_done_when_the_task_has_ended_whatever_else_it_says(
    status: Status, asked: list[str], answered: list[str], interval: int | None
) -> None:
    assert decide(status, asked, answered, interval) == Ended()


@row(91)
@given(asked=keys, answered=keys, interval=advised)
def test_a_client_answers_what_is_new_and_never_the_same_twice(
    asked: list[str], answered: list[str], interval: int | None
) -> None:
    decision = decide(Status.INPUT_REQUIRED, asked, answered, interval)

    new = tuple(key for key in asked if key not in answered)
    assert decision == AnswerThese(new) if new else isinstance(decision, Wait)


@row(91)
@given(asked=keys, interval=advised)
def test_a_client_otherwise_waits_as_it_is_advised_within_bounds(
    asked: list[str], interval: int | None
) -> None:
    for status, answered in ((Status.WORKING, []), (Status.INPUT_REQUIRED, asked)):
        decision = decide(status, asked, answered, interval)

        wanted = 1000 if interval is None else interval
        assert decision == Wait(min(max(wanted, 50), 30_000) / 1000)


# The judge itself


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("tasks/get", {"resultType": "complete", "taskId": "a", "status": "working"}),
        ("tasks/cancel", {"resultType": "complete", "taskId": "a"}),
        ("tasks/update", {"resultType": "task"}),
        ("tools/call", {"resultType": "task", "taskId": "a", "status": "working"}),
    ],
)
def test_the_judge_of_these_answers_notices_a_malformed_one(method: str, result: Json) -> None:
    published = Published()
    published.answer(method, {}, Answer(200, {"result": result}))

    assert len(published.wrongs()) == 1
