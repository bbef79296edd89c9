"""A call becomes a task where the tool of its name is a durable one at that moment, however it got there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from mcp.client import Client
from mcp.server import MCPServer

from perdure import Tasks
from perdure.tasks import NewTask, Owner

from ..raw_clients import Client2026, Json, serving
from ..tool_helpers import FAST_CONFIG
from .servers import clients_of, count_of, make, value_of

pytestmark = pytest.mark.anyio


async def test_a_durable_tool_that_is_added_while_the_server_runs_makes_tasks(url: str) -> None:
    server, tasks = make(url)

    async def triple(number: int) -> int:
        return 3 * number

    async with clients_of(server) as (modern, core):
        before = (await modern.call("triple", {"number": 1})).message
        server.add_tool(tasks.durable()(triple))
        done = await modern.until(await modern.start("triple", {"number": 2}), "completed")
        task_id = await core.start("triple", {"number": 3})
        answer = await core.send("tasks/result", {"taskId": task_id})
    assert "taskId" not in str(before)
    assert (value_of(done["result"]), value_of(answer.result)) == (6, 9)


async def test_a_durable_tool_that_is_removed_is_as_unknown_as_any(url: str) -> None:
    server, tasks = make(url)
    async with clients_of(server) as (modern, core):
        await modern.until(await modern.start("double", {"number": 2}), "completed")
        unknown = [(await each.call("nothing")).message for each in (modern, core)]
        server.remove_tool("double")
        removed = [(await each.call("double", {"number": 2})).message for each in (modern, core)]
        listed = (await core.send("tools/list")).result["tools"]
        assert await count_of(tasks) == 1
    for was, is_ in zip(unknown, removed, strict=True):
        assert {**is_, "id": 0} == {**_renamed(was, "nothing", "double"), "id": 0}
    assert [tool["name"] for tool in listed] == ["half"]


def _renamed(message: Any, old: str, new: str) -> Any:
    if isinstance(message, dict):
        return {key: _renamed(value, old, new) for key, value in cast("Json", message).items()}
    if isinstance(message, list):
        return [_renamed(value, old, new) for value in cast("list[Any]", message)]
    return message.replace(old, new) if isinstance(message, str) else message


async def test_a_plain_tool_in_place_of_a_durable_one_makes_no_tasks(url: str) -> None:
    server, _ = make(url)

    async def twice(number: int) -> int:
        return 2 * number

    async with clients_of(server) as (modern, core):
        await modern.until(await modern.start("double", {"number": 2}), "completed")
        server.remove_tool("double")
        server.add_tool(twice, name="double")
        assert value_of((await modern.call("double", {"number": 2})).result) == 4
        assert (await core.call("double", {"number": 2}, task={})).code == -32601
        tools = (await core.send("tools/list")).result["tools"]
    assert not any("execution" in tool for tool in tools)


async def test_a_durable_tool_may_be_registered_under_several_names(url: str) -> None:
    tasks = Tasks(url, runtime=FAST_CONFIG)
    server: MCPServer[Any] = MCPServer("host", log_level="ERROR", **tasks.attach())

    @tasks.durable()
    async def double(number: int) -> int:
        return 2 * number

    server.add_tool(double, name="twofold")
    server.add_tool(double, name="twice")
    async with serving(server.streamable_http_app()) as endpoint, Client2026(endpoint) as modern:
        for name in ("twofold", "twice"):
            done = await modern.until(await modern.start(name, {"number": 2}), "completed")
            assert value_of(done["result"]) == 4


async def test_a_plain_tool_of_the_same_function_name_as_a_durable_one_stays_plain(url: str) -> None:
    server, _ = make(url)

    def other() -> Callable[..., Any]:
        async def double(number: int) -> int:
            return -2 * number

        return double

    server.add_tool(other(), name="minus")
    async with clients_of(server) as (modern, core):
        assert value_of((await modern.call("minus", {"number": 2})).result) == -4
        assert (await core.call("minus", {"number": 2}, task={})).code == -32601
        tools = (await core.send("tools/list")).result["tools"]
    assert {tool["name"] for tool in tools if "execution" in tool} == {"double"}


async def test_a_task_of_a_tool_that_others_made_is_run_all_the_same(url: str) -> None:
    """What is in the storage is run, also where no request of this server brought it."""
    server, tasks = make(url)
    async with Client(server):
        new = NewTask(
            method="tools/call", params={"name": "double", "arguments": {"number": 2}}, function="double"
        )
        made = await tasks.runtime.create(Owner.local(), new)
        done = await tasks.runtime.wait(Owner.local(), made.task.task_id, 10)
    outcome = cast("Any", done.task.outcome)
    assert outcome.value["structuredContent"] == {"result": 4}
