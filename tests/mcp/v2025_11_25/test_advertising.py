"""At 2025-11-25 a server says that it has tasks, and of each tool whether it can be one."""

from __future__ import annotations

import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from perdure import Tasks

from ...markers import once, row
from ..raw_clients import Client2025, Client2026, Json
from .server import NO_SUCH_TASK, hosting, simple_tools

pytestmark = pytest.mark.anyio


@row(87)
async def test_a_server_with_durable_tools_advertises_tasks_without_list_where_all_callers_are_alike(
    core: Client2025,
) -> None:
    tasks = core.initialized["capabilities"]["tasks"]

    assert tasks == {"cancel": {}, "requests": {"tools": {"call": {}}}}


@row(87)
async def test_a_server_that_binds_tasks_to_sessions_advertises_that_it_lists_them() -> None:
    async with hosting(simple_tools, anonymous="session") as url, Client2025(url) as core:
        tasks = core.initialized["capabilities"]["tasks"]

    assert tasks == {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}


def plain_tools(server: MCPServer[object], tasks: Tasks) -> None:
    @server.tool()
    def greet(name: str) -> str:
        return f"Hello, {name}!"

    @server.tool()
    def fail() -> str:
        raise ToolError("disk full")


@row(87)
async def test_a_server_without_durable_tools_advertises_no_tasks() -> None:
    async with hosting(plain_tools) as url, Client2025(url) as core:
        assert core.initialized["protocolVersion"] == "2025-11-25"
        assert "tasks" not in core.initialized["capabilities"]


@pytest.mark.parametrize("task", [{}, {"ttl": 1000}])
async def test_a_server_that_advertises_no_tasks_passes_over_the_wish_for_one(task: Json) -> None:
    # "Receivers that do not declare the task capability MUST process requests normally, ignoring any
    # task-augmentation metadata"
    async with hosting(plain_tools) as url, Client2025(url) as core:
        answer = await core.call("greet", {"name": "Ana"}, task=task)
        failed = await core.call("fail", task=task)

    assert answer.result["content"][0]["text"] == "Hello, Ana!"
    assert failed.result["isError"] is True
    assert "disk full" in failed.result["content"][0]["text"]


@row(87, 89)
@pytest.mark.parametrize("version", ["2025-06-18", "2025-03-26", "2024-11-05"])
@once
async def test_versions_before_tasks_hear_nothing_of_them(url: str, version: str) -> None:
    async with Client2025(url, version=version) as core:
        tools = (await core.send("tools/list")).result["tools"]

        assert core.initialized["protocolVersion"] == version
        assert "tasks" not in core.initialized["capabilities"]
        assert not any("execution" in tool for tool in tools)
        for method in ("tasks/get", "tasks/cancel", "tasks/result", "tasks/list"):
            assert (await core.send(method, {"taskId": NO_SUCH_TASK})).code == -32601


@row(87, 89)
async def test_the_later_generation_is_shown_neither_the_capability_nor_the_execution_of_this_one(
    modern: Client2026,
) -> None:
    discovered = (await modern.send("server/discover")).result
    tools = (await modern.send("tools/list")).result["tools"]

    assert "tasks" not in discovered["capabilities"]
    assert not any("execution" in tool for tool in tools)


@row(89)
async def test_the_listed_tools_say_which_can_be_tasks_and_no_other_says_anything(core: Client2025) -> None:
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
    async with hosting(renamed_tools) as url, Client2025(url) as core:
        tools = (await core.send("tools/list")).result["tools"]
        task_id = await core.start("other")
        answer = await core.send("tasks/result", {"taskId": task_id})

    execution = {tool["name"]: tool.get("execution") for tool in tools}
    assert execution["other"] == {"taskSupport": "required"}
    assert execution["durable"] == {"taskSupport": "optional"}
    assert answer.result["content"][0]["text"] == "of another name"


@row(89)
async def test_a_plain_tool_is_not_durable_because_its_function_is_named_like_a_durable_one() -> None:
    async with hosting(renamed_tools) as url, Client2025(url) as core:
        tools = (await core.send("tools/list")).result["tools"]
        refused = await core.call("plain", task={})
        called = await core.call("plain")

    assert "execution" not in next(tool for tool in tools if tool["name"] == "plain")
    assert refused.code == -32601
    assert called.result["content"][0]["text"] == "plain"
