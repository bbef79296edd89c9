"""Extensions and middleware of others see each durable call once, and what they refuse becomes no task."""

from __future__ import annotations

from typing import Any, cast

import pytest
from mcp.server import MCPServer
from mcp.server.context import CallNext, HandlerResult
from mcp.server.extension import Extension
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequestParams, CallToolResult, TextContent

from perdure import Tasks

from ..raw_clients import Json, serving
from ..tool_helpers import FAST_CONFIG
from .servers import Request, add_tools, clients_of, count_of, make, text, work_in_both

pytestmark = pytest.mark.anyio

TOO_MUCH = 1000
PLACES = ["extension before", "extension behind", "middleware before", "middleware behind"]


class Guard(Extension):
    """An extension of somebody else's, which refuses what is negative, and too late what is too much."""

    identifier = "example.org/guard"

    def __init__(self) -> None:
        self.seen: list[int] = []

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Request, call_next: CallNext
    ) -> HandlerResult:
        number = (params.arguments or {}).get("number", 0)
        self.seen.append(number)
        if number < 0:
            raise MCPError(-32099, "not below zero", {"number": number})
        if number == 0:
            return CallToolResult(content=[TextContent(text="nothing to do")])
        result = await call_next(ctx)
        if number == TOO_MUCH:
            raise MCPError(-32098, "too much")
        return result


class Gate:
    """Middleware of somebody else's, which does the same."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    async def __call__(self, ctx: Request, call_next: CallNext) -> HandlerResult:
        if ctx.method != "tools/call":
            return await call_next(ctx)
        number = cast("Json", ctx.params)["arguments"]["number"]
        self.seen.append(number)
        if number < 0:
            raise MCPError(-32099, "not below zero", {"number": number})
        result = await call_next(ctx)
        if number == TOO_MUCH:
            raise MCPError(-32098, "too much")
        return result


def guarded(url: str, where: str) -> tuple[MCPServer[Any], Tasks, Guard | Gate]:
    """A server with somebody else's guard before or behind the tasks."""
    tasks = Tasks(url, runtime=FAST_CONFIG)
    attached: dict[str, Any] = dict(tasks.attach())
    guard = Guard() if where.startswith("extension") else Gate()
    kind = "extensions" if isinstance(guard, Guard) else "middleware"
    attached[kind] = [guard, *attached[kind]] if where.endswith("before") else [*attached[kind], guard]
    server: MCPServer[Any] = MCPServer("host", log_level="ERROR", **attached)
    add_tools(server, tasks)
    return server, tasks, guard


@pytest.mark.parametrize("where", PLACES)
async def test_what_others_refuse_becomes_no_task_in_either_generation(url: str, where: str) -> None:
    server, tasks, guard = guarded(url, where)
    async with clients_of(server) as (modern, core):
        arguments = {"number": -1}
        answers = [
            await modern.call("double", arguments),
            await modern.call("double", arguments, declared=False),
            await core.call("double", arguments, task={}),
            await core.call("double", arguments),
        ]
        assert await count_of(tasks) == 0
    refusal = {"code": -32099, "message": "not below zero", "data": {"number": -1}}
    assert [answer.error for answer in answers] == [refusal] * 4
    assert guard.seen == [-1] * 4


@pytest.mark.parametrize("where", ["extension before", "extension behind", "middleware behind"])
async def test_what_others_refuse_when_they_have_seen_the_answer_becomes_no_task_either(
    url: str, where: str
) -> None:
    server, tasks, _ = guarded(url, where)
    async with clients_of(server) as (modern, core):
        answers = [
            await modern.call("double", {"number": TOO_MUCH}),
            await core.call("double", {"number": TOO_MUCH}, task={}),
        ]
        assert await count_of(tasks) == 0
    assert [answer.error["message"] for answer in answers] == ["too much"] * 2


@pytest.mark.parametrize("where", PLACES)
async def test_others_see_each_durable_call_once_and_let_it_pass(url: str, where: str) -> None:
    server, tasks, guard = guarded(url, where)
    async with serving(server.streamable_http_app()) as endpoint:
        await work_in_both(endpoint)
        assert await count_of(tasks) == 2
    assert guard.seen == [21, 4]


@pytest.mark.parametrize("where", ["extension before", "extension behind"])
async def test_what_others_answer_themselves_becomes_no_task(url: str, where: str) -> None:
    server, tasks, _ = guarded(url, where)
    async with clients_of(server) as (modern, core):
        answers = [
            await modern.call("double", {"number": 0}),
            await core.call("double", {"number": 0}),
        ]
        assert await count_of(tasks) == 0
    assert [text(answer.result) for answer in answers] == ["nothing to do"] * 2


async def test_others_see_a_call_of_2025_as_one_of_2025(url: str) -> None:
    versions: list[str] = []

    async def note(ctx: Request, call_next: CallNext) -> HandlerResult:
        if ctx.method == "tools/call":
            versions.append(ctx.session.protocol_version)
        return await call_next(ctx)

    server, _ = make(url)
    server.middleware.append(note)
    async with serving(server.streamable_http_app()) as endpoint:
        await work_in_both(endpoint)
    assert versions == ["2026-07-28", "2025-11-25"]


async def test_a_call_that_became_a_task_is_no_error_to_others(url: str) -> None:
    """Whoever counts or logs errors would otherwise do so for each durable call."""
    errors: list[Exception] = []

    async def note(ctx: Request, call_next: CallNext) -> HandlerResult:
        try:
            return await call_next(ctx)
        except Exception as error:
            errors.append(error)
            raise

    server, _ = make(url)
    server.middleware.append(note)
    async with serving(server.streamable_http_app()) as endpoint:
        await work_in_both(endpoint)
    assert errors == []


async def test_arguments_that_do_not_fit_become_no_task(url: str) -> None:
    server, tasks = make(url)
    async with clients_of(server) as (modern, core):
        results = [
            (await modern.call("double", {"number": "x"})).result,
            (await core.call("double", {"number": "x"})).result,
        ]
        assert await count_of(tasks) == 0
    for result in results:
        assert result["isError"] is True
        assert "Error executing tool double" in text(result)
