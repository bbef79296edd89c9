"""2025-11-25, which has tasks in its core."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest
from mcp.server import MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ImageContent, TextContent

from perdure import Task, Tasks
from perdure.runtime import RuntimeConfig
from perdure.tasks import StoreConfig

from ..rows import row
from .wire import Core, Json, Modern, serving

pytestmark = pytest.mark.anyio

RELATED = "io.modelcontextprotocol/related-task"
TASK_FIELDS = {"taskId", "status", "createdAt", "lastUpdatedAt", "ttl", "pollInterval"}
DAY_MS = 24 * 3600 * 1000
NO_SUCH_TASK = "f" * 32

Define = Callable[[MCPServer[object], Tasks], None]


@asynccontextmanager
async def hosting(define: Define, **options: Any) -> AsyncGenerator[str]:
    """A server with tools of a test's own."""
    at_once = RuntimeConfig(drain=0.0, cancel_grace=0.5)  # what still waits at the end of a test is let go
    tasks = Tasks("memory:", runtime=at_once, **options)
    server: MCPServer[object] = MCPServer("tests", **tasks.attach())
    define(server, tasks)
    async with serving(server.streamable_http_app()) as endpoint:
        yield endpoint


def simple_tools(server: MCPServer[object], tasks: Tasks) -> None:
    @server.tool()
    @tasks.durable()
    async def quick(number: int = 0) -> str:
        return f"quick {number}"

    @server.tool()
    @tasks.durable()
    async def asking(task: Task) -> str:
        answer = await task.elicit("Go on?")
        return answer.action


async def yes(request: Json) -> Json:
    return {"action": "accept", "content": {"confirm": True}}


async def no(request: Json) -> Json:
    return {"action": "decline"}


class Failing(Core):
    """A client that answers whatever it is asked with a JSON-RPC error."""

    async def _answer(self, request: Json) -> None:
        self.asked.append(request)
        error = {"code": -1, "message": "nobody is at home"}
        await self._post({"jsonrpc": "2.0", "id": request["id"], "error": error})


# What the server says of itself


@row(87)
async def test_a_server_with_durable_tools_advertises_tasks_without_list_where_all_callers_are_alike(
    core: Core,
) -> None:
    tasks = core.initialized["capabilities"]["tasks"]

    assert tasks == {"cancel": {}, "requests": {"tools": {"call": {}}}}


@row(87)
async def test_a_server_that_binds_tasks_to_sessions_advertises_that_it_lists_them() -> None:
    async with hosting(simple_tools, anonymous="session") as url, Core(url) as core:
        tasks = core.initialized["capabilities"]["tasks"]

    assert tasks == {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}


def one_plain_tool(server: MCPServer[object], tasks: Tasks) -> None:
    @server.tool()
    def greet(name: str) -> str:
        return f"Hello, {name}!"


@row(87)
async def test_a_server_without_durable_tools_advertises_no_tasks() -> None:
    async with hosting(one_plain_tool) as url, Core(url) as core:
        assert core.initialized["protocolVersion"] == "2025-11-25"
        assert "tasks" not in core.initialized["capabilities"]


async def test_a_server_that_advertises_no_tasks_passes_over_the_wish_for_one() -> None:
    # "Receivers that do not declare the task capability MUST process requests normally, ignoring any
    # task-augmentation metadata"
    async with hosting(one_plain_tool) as url, Core(url) as core:
        answer = await core.call("greet", {"name": "Ana"}, task={"ttl": 1000})

    assert answer.result["content"][0]["text"] == "Hello, Ana!"


@row(87, 89)
@pytest.mark.parametrize("version", ["2025-06-18", "2025-03-26", "2024-11-05"])
async def test_versions_before_tasks_hear_nothing_of_them(url: str, version: str) -> None:
    async with Core(url, version=version) as core:
        tools = (await core.send("tools/list")).result["tools"]

        assert core.initialized["protocolVersion"] == version
        assert "tasks" not in core.initialized["capabilities"]
        assert not any("execution" in tool for tool in tools)
        for method in ("tasks/get", "tasks/cancel", "tasks/result", "tasks/list"):
            assert (await core.send(method, {"taskId": NO_SUCH_TASK})).code == -32601


@row(87, 89)
async def test_the_later_generation_is_shown_neither_the_capability_nor_the_execution_of_this_one(
    modern: Modern,
) -> None:
    discovered = (await modern.send("server/discover")).result
    tools = (await modern.send("tools/list")).result["tools"]

    assert "tasks" not in discovered["capabilities"]
    assert not any("execution" in tool for tool in tools)


@row(89)
async def test_the_listed_tools_say_which_can_be_tasks_and_no_other_says_anything(core: Core) -> None:
    tools = (await core.send("tools/list")).result["tools"]

    execution = {tool["name"]: tool["execution"] for tool in tools if "execution" in tool}
    assert execution == {
        "slow_compute": {"taskSupport": "optional"},
        "failing_job": {"taskSupport": "required"},
        "protocol_error_job": {"taskSupport": "optional"},
        "confirm_delete": {"taskSupport": "optional"},
        "multi_input": {"taskSupport": "optional"},
        "test_tool_with_task": {"taskSupport": "optional"},
    }
    assert "greet" in {tool["name"] for tool in tools}


def renamed_tools(server: MCPServer[object], tasks: Tasks) -> None:
    @server.tool(name="other")
    @tasks.durable(mode="required")
    async def one() -> str:
        return "of another name"

    def two() -> str:
        return "plain"

    @server.tool(name="durable")
    @tasks.durable(name="two")
    async def durable() -> str:
        return "durable"

    server.tool(name="plain")(two)


@row(89)
async def test_a_tool_registered_under_another_name_is_durable_under_that_name() -> None:
    async with hosting(renamed_tools) as url, Core(url) as core:
        tools = (await core.send("tools/list")).result["tools"]
        task_id = await core.start("other")
        answer = await core.send("tasks/result", {"taskId": task_id})

    execution = {tool["name"]: tool.get("execution") for tool in tools}
    assert execution["other"] == {"taskSupport": "required"}
    assert execution["durable"] == {"taskSupport": "optional"}
    assert answer.result["content"][0]["text"] == "of another name"


@row(89)
async def test_a_plain_tool_is_not_durable_because_its_function_is_named_like_a_durable_one() -> None:
    async with hosting(renamed_tools) as url, Core(url) as core:
        tools = (await core.send("tools/list")).result["tools"]
        refused = await core.call("plain", task={})
        called = await core.call("plain")

    assert "execution" not in next(tool for tool in tools if tool["name"] == "plain")
    assert refused.code == -32601
    assert called.result["content"][0]["text"] == "plain"


# A call becomes a task


@row(82)
async def test_a_call_with_a_task_is_answered_at_once_with_the_task(core: Core) -> None:
    result = (await core.call("slow_compute", {"seconds": 0.3}, task={"ttl": 60_000})).result

    task = result["task"]
    assert set(result) == {"task"}
    assert set(task) == TASK_FIELDS
    assert task["status"] == "working"
    assert task["ttl"] == 60_000
    assert 50 <= task["pollInterval"] <= 30_000
    assert task["createdAt"] == task["lastUpdatedAt"]
    assert task["createdAt"].endswith("Z")


async def test_a_call_with_an_empty_task_gets_the_time_to_live_of_the_server(core: Core) -> None:
    task = (await core.call("slow_compute", {"seconds": 0.3}, task={})).result["task"]

    assert task["ttl"] == 3600 * 1000


async def test_a_tool_that_requires_a_task_is_not_called_without_one(core: Core) -> None:
    answer = await core.call("failing_job")

    assert answer.code == -32601
    assert "failing_job" in answer.error["message"]


async def test_a_plain_tool_is_not_run_when_it_is_called_as_a_task() -> None:
    called: list[str] = []

    def define(server: MCPServer[object], tasks: Tasks) -> None:
        simple_tools(server, tasks)

        @server.tool()
        def plain() -> str:
            called.append("plain")
            return "ran"

    async with hosting(define) as url, Core(url) as core:
        refused = await core.call("plain", task={"ttl": 1000})
        assert (refused.code, called) == (-32601, [])

        await core.call("plain")
        assert called == ["plain"]


@pytest.mark.parametrize(
    "task",
    [
        5,
        "yes",
        True,
        [],
        {"ttl": "60000"},
        {"ttl": True},
        {"ttl": {}},
        {"ttl": -1},
        {"ttl": 0},
        {"ttl": 1.5},
        {"ttl": DAY_MS + 1},
        {"ttl": 1e300},
        {"ttl": None},
    ],
)
async def test_what_is_no_task_or_lives_longer_than_allowed_is_refused_and_nothing_is_created(
    task: Any,
) -> None:
    async with hosting(simple_tools, anonymous="session") as url, Core(url) as core:
        answer = await core.call("quick", task=task)

        assert answer.code == -32602
        assert (await core.send("tasks/list")).result == {"tasks": []}


@pytest.mark.parametrize("task", [5, True, [], {"ttl": "60000"}, {"ttl": -1}, {"ttl": DAY_MS + 1}])
async def test_a_refused_task_is_told_which_field_is_wrong(core: Core, task: Any) -> None:
    answer = await core.call("slow_compute", {"seconds": 0.01}, task=task)

    field = "ttl" if isinstance(task, dict) else "task"
    assert field in answer.error["message"]


async def test_a_task_for_ever_says_so_wherever_it_is_spelled() -> None:
    endless = StoreConfig(max_ttl_ms=None)
    async with hosting(simple_tools, anonymous="session", store=endless) as url, Core(url) as core:
        async with core.listen() as frames:
            created = (await core.call("asking", task={"ttl": None})).result["task"]
            told = (await anext(aiter(frames)))["params"]
        read = await core.get(created["taskId"])
        (listed,) = (await core.send("tasks/list")).result["tasks"]
        cancelled = (await core.send("tasks/cancel", {"taskId": created["taskId"]})).result

    for task in (created, told, read, listed, cancelled):
        assert "ttl" in task
        assert task["ttl"] is None


async def test_a_whole_number_of_milliseconds_may_be_spelled_as_a_float(core: Core) -> None:
    task = (await core.call("slow_compute", {"seconds": 0.3}, task={"ttl": 60_000.0})).result["task"]

    assert task["ttl"] == 60_000


async def test_arguments_that_the_tool_does_not_take_never_become_a_task() -> None:
    async with hosting(simple_tools, anonymous="session") as url, Core(url) as core:
        answer = await core.call("quick", {"number": "not a number"}, task={})

        assert "task" not in answer.message.get("result", {})
        assert "number" in str(answer.message)
        assert (await core.send("tasks/list")).result == {"tasks": []}


# The result


@row(82)
async def test_the_result_of_a_task_is_what_the_call_would_have_returned(core: Core) -> None:
    task_id = await core.start("slow_compute", {"seconds": 0.1, "label": "x"})

    answer = await core.send("tasks/result", {"taskId": task_id})

    assert answer.result["content"][0]["text"] == "computed x in 0.1 seconds"


async def text() -> str:
    return "a text"


async def structured() -> dict[str, int]:
    return {"one": 1, "two": 2}


async def rich() -> CallToolResult:
    content = [TextContent(text="x"), ImageContent(data="eA==", mime_type="image/png")]
    meta = {"theirs/key": {"kept": [1, None, "é"]}, RELATED: {"taskId": "somebody else's"}}
    return CallToolResult(content=[*content], structured_content={"deep": {"er": None}}, _meta=meta)


async def nothing() -> None:
    return None


async def raising() -> str:
    raise ValueError("does not work out")


async def refusing() -> CallToolResult:
    return CallToolResult(content=[TextContent(text="no")], is_error=True)


async def breaking() -> str:
    raise MCPError(-32099, "broken", {"why": ["on", {"purpose": None}]})


async def breaking_silently() -> str:
    raise MCPError(-32042, "broken without data")


PAIRS = (text, structured, rich, nothing, raising, refusing, breaking, breaking_silently)


def pairs_of_tools(server: MCPServer[object], tasks: Tasks) -> None:
    """Each function twice: as a plain tool, and as a durable one."""
    for function in PAIRS:
        name = function.__name__
        server.tool(name=f"plain_{name}")(function)
        server.tool(name=name)(tasks.durable(name=f"durable_{name}")(function))


def without_related(result: Json) -> Json:
    """The result, less what says of which task it is."""
    meta = {key: value for key, value in result.get("_meta", {}).items() if key != RELATED}
    rest = {key: value for key, value in result.items() if key != "_meta"}
    return {**rest, "_meta": meta} if meta else rest


def renamed(message: Json) -> str:
    return json.dumps(message, sort_keys=True).replace("plain_", "")


@row(82, 83)
@pytest.mark.parametrize("tool", ["text", "structured", "rich", "nothing", "raising", "refusing"])
async def test_related_task_metadata_is_added_to_the_result_of_the_call_and_all_else_is_intact(
    tool: str,
) -> None:
    async with hosting(pairs_of_tools) as url, Core(url) as core:
        plain = (await core.call(f"plain_{tool}")).result
        task_id = await core.start(tool)
        result = (await core.send("tasks/result", {"taskId": task_id})).result

    assert result["_meta"][RELATED] == {"taskId": task_id}
    assert renamed(without_related(result)) == renamed(without_related(plain))


@row(82)
@pytest.mark.parametrize("tool", ["breaking", "breaking_silently"])
async def test_a_json_rpc_error_of_the_tool_is_the_result_of_the_task_to_the_letter(tool: str) -> None:
    async with hosting(pairs_of_tools) as url, Core(url) as core:
        plain = (await core.call(f"plain_{tool}")).error
        task_id = await core.start(tool)
        error = (await core.send("tasks/result", {"taskId": task_id})).error
        task = await core.get(task_id)

    assert error == plain
    assert task["status"] == "failed"


@row(82)
async def test_a_result_can_be_read_again_and_from_another_session_that_knows_the_id(
    core: Core, url: str
) -> None:
    task_id = await core.start("slow_compute", {"seconds": 0.1})
    first = (await core.send("tasks/result", {"taskId": task_id})).result

    async with Core(url) as other:
        assert (await core.send("tasks/result", {"taskId": task_id})).result == first
        assert (await other.send("tasks/result", {"taskId": task_id})).result == first
        assert (await other.get(task_id))["status"] == "completed"


@row(82)
async def test_waiting_for_a_result_lasts_until_the_task_ends() -> None:
    async with gated() as (url, open_gate), Core(url) as core:
        task_id = await core.start("gate")
        waiting = asyncio.create_task(core.send("tasks/result", {"taskId": task_id}))
        assert (await core.get(task_id))["status"] == "working"
        assert not waiting.done()

        open_gate()
        assert (await waiting).result["content"][0]["text"] == "through"


async def test_waiting_is_given_up_after_the_limit_of_the_server_and_the_task_goes_on() -> None:
    async with gated(longest_wait=0.2) as (url, open_gate), Core(url) as core:
        task_id = await core.start("gate")
        given_up = await core.send("tasks/result", {"taskId": task_id})

        assert given_up.code == -32603
        assert "call tasks/result again" in given_up.error["message"]
        assert given_up.error["data"] == {"retryable": True}
        assert (await core.get(task_id))["status"] == "working"

        open_gate()
        await core.until(task_id, "completed")
        again = await core.patient_result(task_id)  # so short a wait may be over before the first look
        assert again.result["content"][0]["text"] == "through"


class Abandoning(Core):
    """A client that can take back a request."""

    async def __aenter__(self) -> Abandoning:
        await super().__aenter__()
        return self

    async def abandon(self, request_id: int) -> None:
        params = {"requestId": request_id}
        await self._post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})


async def test_a_client_that_no_longer_waits_for_a_result_leaves_the_task_running() -> None:
    async with gated() as (url, open_gate), Abandoning(url) as core, Core(url) as other:
        task_id = await core.start("gate")
        waiting = asyncio.create_task(core.send("tasks/result", {"taskId": task_id}))
        await other.get(task_id)
        await core.abandon(3)  # after the handshake and the call

        assert (await other.get(task_id))["status"] == "working"
        open_gate()
        result = (await other.send("tasks/result", {"taskId": task_id})).result
        assert result["content"][0]["text"] == "through"
        waiting.cancel()


async def test_everybody_who_waits_for_a_result_learns_that_the_task_was_cancelled() -> None:
    async with gated() as (url, _), Core(url) as core, Core(url) as other:
        task_id = await core.start("gate")
        waiting = [
            asyncio.create_task(each.send("tasks/result", {"taskId": task_id})) for each in (core, other)
        ]
        await core.send("tasks/cancel", {"taskId": task_id})

        assert ["cancel" in (await each).error["message"] for each in waiting] == [True, True]


@asynccontextmanager
async def gated(**options: Any) -> AsyncGenerator[tuple[str, Callable[[], None]]]:
    """A server with a tool that ends when the gate is opened."""
    gate = anyio.Event()

    def define(server: MCPServer[object], tasks: Tasks) -> None:
        @server.tool(name="gate")
        @tasks.durable()
        async def pass_through() -> str:
            await gate.wait()
            return "through"

    async with hosting(define, **options) as url:
        yield url, gate.set


# Looking, listing, cancelling


@row(82, 83)
async def test_looking_at_a_task_and_cancelling_it_answer_the_task_itself(core: Core) -> None:
    task_id = await core.start("slow_compute", {"seconds": 60}, {"ttl": 90_000})
    read = await core.get(task_id)
    cancelled = (await core.send("tasks/cancel", {"taskId": task_id})).result

    for task in (read, cancelled):
        assert TASK_FIELDS <= set(task) <= {*TASK_FIELDS, "statusMessage", "_meta"}
        assert (task["taskId"], task["ttl"]) == (task_id, 90_000)
        assert RELATED not in task.get("_meta", {})
    assert (read["status"], cancelled["status"]) == ("working", "cancelled")
    assert read["createdAt"] == cancelled["createdAt"] < cancelled["lastUpdatedAt"]


@row(82)
async def test_reading_a_task_does_not_change_when_it_was_updated(core: Core) -> None:
    task_id = await core.start("slow_compute", {"seconds": 0.01})
    ended = await core.until(task_id, "completed")

    assert (await core.get(task_id))["lastUpdatedAt"] == ended["lastUpdatedAt"]


@row(82)
async def test_a_cancelled_task_stays_cancelled_and_its_result_is_an_error_that_says_so(core: Core) -> None:
    task_id = await core.start("slow_compute", {"seconds": 60})
    await core.send("tasks/cancel", {"taskId": task_id})

    answer = await core.send("tasks/result", {"taskId": task_id})

    assert "cancel" in answer.error["message"]
    assert (await core.get(task_id))["status"] == "cancelled"


@row(82)
async def test_a_task_that_waits_for_an_answer_is_cancelled_as_a_running_one_is(core: Core) -> None:
    task_id = await core.start("confirm_delete", {"filename": "a.txt"})
    await core.until(task_id, "input_required")

    assert (await core.send("tasks/cancel", {"taskId": task_id})).result["status"] == "cancelled"


@row(82)
async def test_a_task_whose_work_does_not_stop_is_cancelled_all_the_same() -> None:
    # "MUST transition the task to cancelled status before sending the response"
    begun, gate = threading.Event(), threading.Event()

    def define(server: MCPServer[object], tasks: Tasks) -> None:
        @server.tool()
        @tasks.durable()
        def deaf() -> str:
            begun.set()
            gate.wait(30)
            return "too late"

    async with hosting(define) as url, Core(url) as core:
        task_id = await core.start("deaf")
        await asyncio.to_thread(begun.wait, 15)
        try:
            cancelled = (await core.send("tasks/cancel", {"taskId": task_id})).result
        finally:
            gate.set()
        assert cancelled["status"] == "cancelled"
        assert (await core.get(task_id))["status"] == "cancelled"


@row(82)
@pytest.mark.parametrize(
    ("tool", "ended"),
    [
        ("slow_compute", "completed"),
        ("failing_job", "failed"),
        ("protocol_error_job", "failed"),
        ("confirm_delete", "cancelled"),
    ],
)
async def test_a_task_that_has_ended_cannot_be_cancelled(core: Core, tool: str, ended: str) -> None:
    task_id = await core.start(tool, {"seconds": 0.01, "filename": "a.txt"})
    if ended == "cancelled":
        await core.send("tasks/cancel", {"taskId": task_id})
    await core.until(task_id, ended)

    answer = await core.send("tasks/cancel", {"taskId": task_id})

    assert answer.code == -32602
    assert ended in answer.error["message"]
    assert (await core.get(task_id))["status"] == ended


@row(86)
@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
async def test_a_task_that_is_not_there_is_one_answer_whatever_the_id_looks_like(
    core: Core, method: str
) -> None:
    for task_id in (NO_SUCH_TASK, "", "x", "é:%00/../*", "a" * 5000):
        answer = await core.send(method, {"taskId": task_id})
        assert answer.error == {"code": -32602, "message": "Task not found"}


@row(86)
@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
async def test_a_task_of_another_session_is_the_same_answer_as_none(method: str) -> None:
    async with hosting(simple_tools, anonymous="session") as url, Core(url) as core, Core(url) as other:
        task_id = await core.start("asking")
        foreign = await other.send(method, {"taskId": task_id})
        absent = await other.send(method, {"taskId": NO_SUCH_TASK})

        assert foreign.error == absent.error
        assert (await core.get(task_id))["status"] in ("working", "input_required")


@row(86)
@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
async def test_a_task_that_has_expired_is_the_same_answer_as_none(method: str) -> None:
    brief = StoreConfig(result_retention_ms=1)
    async with hosting(simple_tools, store=brief) as url, Core(url) as core:
        task_id = await core.start("quick", task={"ttl": 1})
        await until_gone(core, task_id)

        answer = await core.send(method, {"taskId": task_id})
        assert answer.error == {"code": -32602, "message": "Task not found"}


async def until_gone(core: Core, task_id: str) -> None:
    async with asyncio.timeout(15):
        while True:
            if "error" in (await core.send("tasks/get", {"taskId": task_id})).message:
                return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
@pytest.mark.parametrize("params", [{}, {"taskId": 5}, {"taskId": None}, {"taskId": ["x"]}])
async def test_a_request_that_names_no_task_is_refused_by_the_name_of_the_field(
    core: Core, method: str, params: Json
) -> None:
    answer = await core.send(method, params)

    assert answer.code == -32602
    assert "taskId" in answer.error["message"]


async def test_the_task_that_is_meant_is_the_one_in_the_parameters_not_in_the_metadata(core: Core) -> None:
    task_id = await core.start("slow_compute", {"seconds": 0.01})
    params = {"taskId": task_id, "_meta": {RELATED: {"taskId": NO_SUCH_TASK}}}

    assert (await core.send("tasks/get", params)).result["taskId"] == task_id
    assert (await core.send("tasks/result", params)).result["_meta"][RELATED] == {"taskId": task_id}


@row(85)
async def test_the_method_that_only_the_later_generation_has_is_not_found(core: Core) -> None:
    task_id = await core.start("confirm_delete", {"filename": "a.txt"})
    await core.until(task_id, "input_required")

    params = {"taskId": task_id, "inputResponses": {"confirm": await yes({})}}

    assert (await core.send("tasks/update", params)).code == -32601
    assert (await core.get(task_id))["status"] == "input_required"
    await core.send("tasks/cancel", {"taskId": task_id})


async def test_nothing_is_listed_where_all_callers_are_alike(core: Core) -> None:
    await core.start("slow_compute", {"seconds": 0.01})

    assert (await core.send("tasks/list")).code == -32601


@row(82)
async def test_tasks_are_listed_newest_first_page_by_page() -> None:
    async with hosting(simple_tools, anonymous="session") as url, Core(url) as core:
        made = [await core.start("quick", {"number": number}) for number in range(60)]
        await core.until(made[-1], "completed")

        first = (await core.send("tasks/list")).result
        second = (await core.send("tasks/list", {"cursor": first["nextCursor"]})).result

    assert [task["taskId"] for task in first["tasks"] + second["tasks"]] == made[::-1]
    assert len(first["tasks"]) == 50
    assert "nextCursor" not in second


@row(82, 83)
async def test_what_is_listed_is_what_looking_at_it_answers() -> None:
    async with hosting(simple_tools, anonymous="session") as url, Core(url) as core:
        task_id = await core.start("quick")
        read = await core.until(task_id, "completed")
        (listed,) = (await core.send("tasks/list")).result["tasks"]

    # advice on when to look again grows with the age of the task, and is no part of it
    assert {**listed, "pollInterval": None} == {**read, "pollInterval": None}
    assert RELATED not in listed.get("_meta", {})


@row(82)
async def test_a_cursor_of_a_listing_is_good_for_that_listing_alone() -> None:
    async with hosting(simple_tools, anonymous="session") as url, Core(url) as core, Core(url) as other:
        made = [await core.start("quick") for _ in range(51)]
        theirs = await other.start("quick")
        cursor = (await core.send("tasks/list")).result["nextCursor"]

        damaged: list[Any] = [cursor[:-4] + "AAAA", "A" + cursor[1:], "", "nonsense", "é", made[0], 5, {}]
        for bad in damaged:
            assert (await core.send("tasks/list", {"cursor": bad})).code == -32602, bad
        assert (await other.send("tasks/list", {"cursor": cursor})).code == -32602
        assert [task["taskId"] for task in (await other.send("tasks/list")).result["tasks"]] == [theirs]
        assert len((await core.send("tasks/list", {"cursor": cursor})).result["tasks"]) == 1


# How a task ends


async def test_a_result_that_is_an_error_is_a_failure_here_and_a_completed_task_in_the_later_generation(
    core: Core, modern: Modern
) -> None:
    # "failed: [...] For tool calls specifically, this includes cases where the tool call result has isError
    # set to true"
    task_id = await core.start("failing_job")
    failed = await core.until(task_id, "failed", "completed")

    assert failed["status"] == "failed"
    assert failed["statusMessage"]
    assert (await modern.get(task_id))["status"] == "completed"
    assert (await core.send("tasks/result", {"taskId": task_id})).result["isError"] is True


async def test_a_task_that_failed_says_why(core: Core) -> None:
    task_id = await core.start("protocol_error_job")

    assert "the job broke the protocol" in (await core.until(task_id, "failed"))["statusMessage"]


# What a task asks


async def test_what_a_task_asks_reaches_the_client_on_the_stream_of_its_result(url: str) -> None:
    async with Core(url, answering=yes) as core:
        task_id = await core.start("confirm_delete", {"filename": "a.txt"})
        answer = await core.send("tasks/result", {"taskId": task_id})

    assert answer.result["content"][0]["text"] == "deleted a.txt"
    assert core.asked[0]["params"]["_meta"][RELATED] == {"taskId": task_id}


async def test_a_task_requires_input_until_somebody_asks_for_its_result_and_answers(url: str) -> None:
    async with Core(url, answering=yes) as core:
        task_id = await core.start("confirm_delete", {"filename": "a.txt"})
        await core.until(task_id, "input_required")
        assert core.asked == []

        answer = await core.send("tasks/result", {"taskId": task_id})

        assert [each["method"] for each in core.asked] == ["elicitation/create"]
        assert core.asked[0]["params"]["message"] == "Delete a.txt?"
        assert answer.result["content"][0]["text"] == "deleted a.txt"
        assert (await core.get(task_id))["status"] == "completed"


async def test_a_person_who_declines_is_an_answer(url: str) -> None:
    async with Core(url, answering=no) as core:
        task_id = await core.start("confirm_delete", {"filename": "a.txt"})
        answer = await core.send("tasks/result", {"taskId": task_id})

    assert answer.result["content"][0]["text"] == "kept a.txt"


async def test_two_questions_at_once_are_each_asked_once_and_answered_for_themselves(url: str) -> None:
    async def first_only(request: Json) -> Json:
        return await (yes if request["params"]["message"] == "First?" else no)(request)

    async with Core(url, answering=first_only) as core:
        task_id = await core.start("multi_input")
        answer = await core.send("tasks/result", {"taskId": task_id})

    assert sorted(each["params"]["message"] for each in core.asked) == ["First?", "Second?"]
    assert all(each["params"]["_meta"][RELATED] == {"taskId": task_id} for each in core.asked)
    assert answer.result["content"][0]["text"] == "first: accept, second: decline"


async def test_a_client_that_fails_to_answer_gets_an_error_and_the_task_waits_for_another(url: str) -> None:
    async with Failing(url) as failing, Core(url, answering=yes) as core:
        task_id = await failing.start("confirm_delete", {"filename": "a.txt"})
        failed = await failing.send("tasks/result", {"taskId": task_id})

        assert failed.code == -32603
        assert "nobody is at home" in failed.error["message"]
        assert (await failing.get(task_id))["status"] == "input_required"
        answer = await core.send("tasks/result", {"taskId": task_id})
        assert answer.result["content"][0]["text"] == "deleted a.txt"


async def test_a_question_that_two_sessions_were_asked_is_answered_by_the_first_of_them(url: str) -> None:
    answered = asyncio.Event()

    async def late(request: Json) -> Json:
        await answered.wait()
        return await no(request)

    async with Core(url, answering=late) as slow, Core(url, answering=yes) as core:
        task_id = await slow.start("confirm_delete", {"filename": "a.txt"})
        waiting = asyncio.create_task(slow.send("tasks/result", {"taskId": task_id}))
        await until_asked(slow)
        first = (await core.send("tasks/result", {"taskId": task_id})).result
        answered.set()

        assert first["content"][0]["text"] == "deleted a.txt"
        assert (await waiting).result == first


async def until_asked(core: Core) -> None:
    async with asyncio.timeout(15):
        while True:
            if core.asked:
                return
            await asyncio.sleep(0.02)


async def test_an_answer_that_is_not_what_the_form_asks_for_is_refused_and_the_task_waits(url: str) -> None:
    async def nonsense(request: Json) -> Json:
        return {"action": "accept", "content": {"confirm": "perhaps"}}

    async with Core(url, answering=nonsense) as wrong, Core(url, answering=yes) as core:
        task_id = await wrong.start("confirm_delete", {"filename": "a.txt"})
        refused = await wrong.send("tasks/result", {"taskId": task_id})

        assert "confirm" in refused.error["message"]
        assert (await wrong.get(task_id))["status"] == "input_required"
        answer = await core.send("tasks/result", {"taskId": task_id})
        assert answer.result["content"][0]["text"] == "deleted a.txt"


async def test_a_client_that_cannot_be_asked_is_not_asked_and_the_task_waits_for_one_that_can() -> None:
    async with (
        hosting(simple_tools) as url,
        Core(url, capabilities={}, answering=no) as mute,
        Core(url, answering=yes) as core,
    ):
        task_id = await mute.start("asking")
        refused = await mute.send("tasks/result", {"taskId": task_id})

        assert mute.asked == []
        assert "elicitation" in refused.error["message"].lower()
        answer = await core.send("tasks/result", {"taskId": task_id})
        assert answer.result["content"][0]["text"] == "accept"


async def test_what_a_resolver_asks_is_asked_once_before_there_is_a_task_and_the_run_has_the_answer(
    url: str,
) -> None:
    async def ana(request: Json) -> Json:
        return {"action": "accept", "content": {"name": "Ana"}}

    async with Core(url, answering=ana) as core:
        created = await core.call("test_tool_with_task", task={})
        assert [each["params"]["message"] for each in core.asked] == ["Who is asking?"]
        assert RELATED not in core.asked[0]["params"].get("_meta", {})

        task_id = created.result["task"]["taskId"]
        answer = await core.send("tasks/result", {"taskId": task_id})

        assert answer.result["content"][0]["text"] == "done for Ana"
        assert len(core.asked) == 1


async def test_a_call_whose_resolver_is_declined_never_becomes_a_task(url: str) -> None:
    async with Core(url, answering=no) as core:
        answer = await core.call("test_tool_with_task", task={})

    assert "task" not in answer.message.get("result", {})
    assert len(core.asked) == 1


# Being told


async def told_until(frames: AsyncIterator[Json], *statuses: str) -> list[Json]:
    """What notifications of status say, up to one of these."""
    told: list[Json] = []
    async with asyncio.timeout(15):
        async for frame in frames:
            assert frame["method"] == "notifications/tasks/status"
            told.append(cast("Json", frame["params"]))
            if told[-1]["status"] in statuses:
                break
    return told


async def test_the_session_that_made_a_task_is_told_of_each_status_with_the_full_task(url: str) -> None:
    async with Core(url, answering=yes) as core, core.listen() as frames:
        task_id = await core.start("confirm_delete", {"filename": "a.txt"})
        asked = await told_until(frames, "input_required")
        await core.send("tasks/result", {"taskId": task_id})
        ended = await told_until(frames, "completed")
        read = await core.get(task_id)

    assert [task["status"] for task in asked] == ["input_required"]
    assert {**ended[-1], "pollInterval": None} == {**read, "pollInterval": None}
    assert all(set(task) >= TASK_FIELDS for task in asked + ended)
    assert not any(RELATED in task.get("_meta", {}) for task in asked + ended)


async def test_a_session_is_told_of_its_own_tasks_only(url: str) -> None:
    async with Core(url) as core, Core(url) as other, core.listen() as frames, other.listen() as others:
        mine = await core.start("slow_compute", {"seconds": 0.01})
        assert {task["taskId"] for task in await told_until(frames, "completed")} == {mine}

        theirs = await other.start("slow_compute", {"seconds": 0.01})
        assert {task["taskId"] for task in await told_until(others, "completed")} == {theirs}


async def test_a_task_that_fails_and_one_that_is_cancelled_are_told_of_to_the_end(url: str) -> None:
    async with Core(url) as core, core.listen() as frames:
        await core.start("protocol_error_job")
        failed = (await told_until(frames, "failed"))[-1]

        task_id = await core.start("confirm_delete", {"filename": "a.txt"})
        await told_until(frames, "input_required")
        await core.send("tasks/cancel", {"taskId": task_id})
        cancelled = (await told_until(frames, "cancelled"))[-1]

    assert failed["statusMessage"]
    assert cancelled["taskId"] == task_id
