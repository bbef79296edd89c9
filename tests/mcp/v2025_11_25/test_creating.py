"""At 2025-11-25 a call becomes a task where the caller wishes it, and never by an unfit wish."""

from __future__ import annotations

from typing import Any

import pytest
from mcp.server import MCPServer

from perdure import Tasks
from perdure.tasks import StoreConfig

from ...markers import once, row
from ..raw_clients import Client2025
from .server import TASK_FIELDS, hosting, simple_tools

pytestmark = pytest.mark.anyio

DAY_MS = 24 * 3600 * 1000


@row(82)
async def test_a_call_with_a_task_is_answered_at_once_with_the_task(core: Client2025) -> None:
    result = (await core.call("slow_compute", {"seconds": 0.3}, task={"ttl": 60_000})).result

    task = result["task"]
    assert set(result) == {"task"}
    assert set(task) == TASK_FIELDS
    assert task["status"] == "working"
    assert task["ttl"] == 60_000
    assert 50 <= task["pollInterval"] <= 30_000
    assert task["createdAt"] == task["lastUpdatedAt"]
    assert task["createdAt"].endswith("Z")


async def test_a_call_with_an_empty_task_gets_the_time_to_live_of_the_server(core: Client2025) -> None:
    task = (await core.call("slow_compute", {"seconds": 0.3}, task={})).result["task"]

    assert task["ttl"] == DAY_MS


async def test_a_tool_that_requires_a_task_is_not_called_without_one(core: Client2025) -> None:
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

    async with hosting(define) as url, Client2025(url) as core:
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
        {"ttl": 30 * DAY_MS + 1},
        {"ttl": 1e300},
        {"ttl": None},
    ],
)
async def test_what_is_no_task_or_lives_longer_than_allowed_is_refused_and_nothing_is_created(
    task: Any,
) -> None:
    async with hosting(simple_tools, anonymous="session") as url, Client2025(url) as core:
        answer = await core.call("quick", task=task)

        assert answer.code == -32602
        assert (await core.send("tasks/list")).result == {"tasks": []}


@pytest.mark.parametrize("task", [5, True, [], {"ttl": "60000"}, {"ttl": -1}, {"ttl": 30 * DAY_MS + 1}])
@once
async def test_a_refused_task_is_told_which_field_is_wrong(core: Client2025, task: Any) -> None:
    answer = await core.call("slow_compute", {"seconds": 0.01}, task=task)

    field = "ttl" if isinstance(task, dict) else "task"
    assert field in answer.error["message"]


async def test_a_task_for_ever_says_so_wherever_it_is_spelled() -> None:
    endless = StoreConfig(max_ttl=None)
    async with hosting(simple_tools, anonymous="session", store=endless) as url, Client2025(url) as core:
        async with core.listen() as frames:
            created = (await core.call("asking", task={"ttl": None})).result["task"]
            told = (await anext(aiter(frames)))["params"]
        read = await core.get(created["taskId"])
        (listed,) = (await core.send("tasks/list")).result["tasks"]
        cancelled = (await core.send("tasks/cancel", {"taskId": created["taskId"]})).result

    for task in (created, told, read, listed, cancelled):
        assert "ttl" in task
        assert task["ttl"] is None


async def test_a_whole_number_of_milliseconds_may_be_spelled_as_a_float(core: Client2025) -> None:
    task = (await core.call("slow_compute", {"seconds": 0.3}, task={"ttl": 60_000.0})).result["task"]

    assert task["ttl"] == 60_000


async def test_arguments_that_the_tool_does_not_take_never_become_a_task() -> None:
    async with hosting(simple_tools, anonymous="session") as url, Client2025(url) as core:
        answer = await core.call("quick", {"number": "not a number"}, task={})

        assert "task" not in answer.message.get("result", {})
        assert "number" in str(answer.message)
        assert (await core.send("tasks/list")).result == {"tasks": []}
