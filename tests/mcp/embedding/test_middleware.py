"""Extensions and middleware of others see each durable call once, as an ordinary call with one answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import anyio
import pytest
from mcp.server import MCPServer
from mcp.server.context import CallNext, HandlerResult
from mcp.server.extension import Extension
from mcp.server.lowlevel import Server
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    InitializeResult,
    ListToolsResult,
    TextContent,
)
from pydantic import RootModel

from perdure import Tasks
from perdure.tasks import Owner, Status

from ... import task_edits
from ...conditions import wait_until
from ...markers import row
from ..raw_clients import Json, serving
from ..tool_helpers import FAST_CONFIG
from .servers import Request, add_tools, clients_of, count_of, make, text, value_of, work_in_both

pytestmark = pytest.mark.anyio

TOO_MUCH = 1000
PLACES = ["extension", "middleware before", "middleware behind"]


class Guard(Extension):
    """An extension of the user's own, which refuses what is negative, and too late what is too much."""

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
    """Middleware of the user's own, which does the same."""

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
    """A server with the user's own guard. `attach` puts given middleware behind that of tasks."""
    tasks = Tasks(url, runtime=FAST_CONFIG)
    guard = Guard() if where == "extension" else Gate()
    if isinstance(guard, Guard):
        attached = tasks.attach(extensions=[guard])
    elif where == "middleware behind":
        attached = tasks.attach(middleware=[guard])
    else:
        attached = tasks.attach()
        attached["middleware"] = [guard, *attached["middleware"]]
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


async def statuses(tasks: Tasks) -> list[Status]:
    return [each.task.status for each in await task_edits.all_tasks(tasks.runtime.store)]


@pytest.mark.parametrize("where", ["extension", "middleware behind"])
async def test_a_task_whose_answer_others_refuse_is_cancelled(url: str, where: str) -> None:
    tasks = Tasks(url, runtime=FAST_CONFIG)
    guard = Guard() if where == "extension" else Gate()
    attached = (
        tasks.attach(extensions=[guard]) if isinstance(guard, Guard) else tasks.attach(middleware=[guard])
    )
    server: MCPServer[Any] = MCPServer("host", log_level="ERROR", **attached)
    add_endless(server, tasks)
    async with clients_of(server) as (modern, core):
        answers = [
            await modern.call("endless", {"number": TOO_MUCH}),
            await core.call("endless", {"number": TOO_MUCH}, task={}),
        ]
        assert [answer.error["message"] for answer in answers] == ["too much"] * 2
        await wait_until(lambda: have(tasks, Status.CANCELLED, Status.CANCELLED))


async def have(tasks: Tasks, *expected: Status) -> bool:
    return await statuses(tasks) == [*expected]


def add_endless(server: MCPServer[Any], tasks: Tasks) -> None:
    @server.tool()
    @tasks.durable
    async def endless(number: int = 1) -> str:
        await anyio.sleep_forever()
        return str(number)


@pytest.mark.parametrize("where", PLACES)
async def test_others_see_each_durable_call_once_and_let_it_pass(url: str, where: str) -> None:
    server, tasks, guard = guarded(url, where)
    async with serving(server.streamable_http_app()) as endpoint:
        await work_in_both(endpoint)
        assert await count_of(tasks) == 2
    assert guard.seen == [21, 4]


async def test_what_others_answer_themselves_becomes_no_task(url: str) -> None:
    server, tasks, _ = guarded(url, "extension")
    async with clients_of(server) as (modern, core):
        answers = [
            await modern.call("double", {"number": 0}),
            await core.call("double", {"number": 0}),
        ]
        assert await count_of(tasks) == 0
    assert [text(answer.result) for answer in answers] == ["nothing to do"] * 2


# What middleware sees


class Logging:
    """A middleware that logs each call, its protocol version and its answer."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, Any]] = []

    async def __call__(self, ctx: Request, call_next: CallNext) -> HandlerResult:
        if ctx.method != "tools/call":
            return await call_next(ctx)
        assert ctx.protocol_version == ctx.session.protocol_version
        try:
            result = await call_next(ctx)
        except Exception as error:
            self.lines.append((ctx.protocol_version, error))
            raise
        self.lines.append((ctx.protocol_version, result))
        return result


@row(125)
async def test_a_logging_middleware_sees_one_ordinary_answer_at_both_versions(url: str) -> None:
    seen = Logging()
    server, _ = make(url, attach={"middleware": [seen]})
    async with clients_of(server) as (modern, core):
        task_ids = [await modern.start("double", {"number": 1}), await core.start("double", {"number": 2})]
        waited = [
            (await modern.call("double", {"number": 3}, declared=False)).result,
            (await core.call("double", {"number": 4})).result,
        ]
    versions = ["2026-07-28", "2025-11-25"]
    assert [version for version, _ in seen.lines] == versions * 2
    (_, created_2026), (_, created_2025), *results = seen.lines
    assert (created_2026["resultType"], created_2026["taskId"]) == ("task", task_ids[0])
    assert (created_2025["content"], created_2025.get("isError", False)) == ([], False)
    assert created_2025["_meta"]["perdure/task"]["taskId"] == task_ids[1]
    assert [value_of(result) for _, result in results] == [6, 8]
    assert [value_of(result) for result in waited] == [6, 8]


class Caching:
    """A middleware that answers a call that it has seen with the answer that it gave then."""

    def __init__(self) -> None:
        self.answers: dict[str, HandlerResult] = {}

    async def __call__(self, ctx: Request, call_next: CallNext) -> HandlerResult:
        if ctx.method != "tools/call":
            return await call_next(ctx)
        key = f"{ctx.protocol_version} {cast('Json', ctx.params)['arguments']}"
        if key not in self.answers:
            self.answers[key] = await call_next(ctx)
        return self.answers[key]


@row(125)
async def test_a_caching_middleware_gives_two_calls_the_same_task_at_both_versions(url: str) -> None:
    server, tasks = make(url, attach={"middleware": [Caching()]})
    async with clients_of(server) as (modern, core):
        for client in (modern, core):
            first, second = [await client.start("double", {"number": 2}) for _ in range(2)]
            assert first == second
            await client.until(first, "completed")
        assert await count_of(tasks) == 2


@row(125)
async def test_a_refusing_middleware_refuses_a_durable_call_as_any_other(url: str) -> None:
    gate = Gate()
    server, tasks = make(url, attach={"middleware": [gate]})
    async with clients_of(server) as (modern, core):
        for tool in ("double", "half"):
            for answer in (
                await modern.call(tool, {"number": -1}),
                await core.call(tool, {"number": -1}),
            ):
                assert (answer.code, answer.error["message"]) == (-32099, "not below zero")
        assert await count_of(tasks) == 0


class Replacing:
    """A middleware that puts an answer of its own in the place of each answer."""

    def __init__(self, *, is_error: bool = False) -> None:
        self.is_error = is_error

    async def __call__(self, ctx: Request, call_next: CallNext) -> HandlerResult:
        result = await call_next(ctx)
        if ctx.method != "tools/call":
            return result
        block: Json = {"type": "text", "text": "out of office"}
        shape: Json = {"resultType": "complete"} if ctx.protocol_version == "2026-07-28" else {}
        return {**shape, "content": [block], "isError": self.is_error}


@row(125)
@pytest.mark.parametrize("is_error", [False, True])
async def test_a_task_whose_answer_was_replaced_is_cancelled_and_the_other_answer_is_sent(
    url: str, *, is_error: bool
) -> None:
    tasks = Tasks(url, runtime=FAST_CONFIG)
    replacing = Replacing(is_error=is_error)
    server: MCPServer[Any] = MCPServer("host", log_level="ERROR", **tasks.attach(middleware=[replacing]))
    add_endless(server, tasks)
    async with clients_of(server) as (modern, core):
        answers = [await core.call("endless", task={}), await modern.call("endless")]
        assert [text(answer.result) for answer in answers] == ["out of office"] * 2
        assert [answer.result["isError"] for answer in answers] == [is_error] * 2
        await wait_until(lambda: have(tasks, Status.CANCELLED, Status.CANCELLED))


class Repeating:
    """A middleware that makes each call twice."""

    async def __call__(self, ctx: Request, call_next: CallNext) -> HandlerResult:
        if ctx.method == "tools/call":
            await call_next(ctx)
        return await call_next(ctx)


@row(125)
async def test_a_task_that_a_repeating_middleware_dropped_is_cancelled(url: str) -> None:
    tasks = Tasks(url, runtime=FAST_CONFIG)
    server: MCPServer[Any] = MCPServer("host", log_level="ERROR", **tasks.attach(middleware=[Repeating()]))
    add_endless(server, tasks)
    async with clients_of(server) as (modern, core):
        for client in (modern, core):
            await client.start("endless")
        expected = [Status.CANCELLED, Status.CANCELLED, Status.WORKING, Status.WORKING]

        async def half_are_cancelled() -> bool:
            return sorted(await statuses(tasks)) == expected

        await wait_until(half_are_cancelled)


class WrappedSession:
    """A session of the SDK that middleware passes on with something of its own around it."""

    def __init__(self, session: object) -> None:
        self._session = session

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)


async def wrap_session(ctx: Request, call_next: CallNext) -> HandlerResult:
    return await call_next(replace(ctx, session=cast("ServerSession", WrappedSession(ctx.session))))


@row(125)
async def test_middleware_may_pass_on_a_session_of_its_own(url: str) -> None:
    asked: list[str] = []

    def identify(ctx: Request) -> Owner:
        asked.append(ctx.method)
        return Owner.user("https://issuer.example", "ana")

    tasks = Tasks(url, runtime=FAST_CONFIG, identify=identify)
    server: MCPServer[Any] = MCPServer("host", log_level="ERROR", **tasks.attach(middleware=[wrap_session]))
    add_tools(server, tasks)
    async with serving(server.streamable_http_app()) as endpoint:
        await work_in_both(endpoint)
        assert await statuses(tasks) == [Status.COMPLETED] * 2
        assert asked.count("tools/call") == 2


def test_the_middleware_of_tasks_is_the_outermost_of_a_low_level_server() -> None:
    tasks, server = Tasks("memory:"), Server[Any]("low")
    server.middleware.append(Replacing())
    tasks.install(server)
    assert getattr(server.middleware[0], "__self__", None) is tasks


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


class AnyResult(RootModel[Json]):
    """A result of which the SDK has no type."""


async def make_models(ctx: Request, call_next: CallNext) -> HandlerResult:
    """Middleware of the user's own, which returns what the SDK allows beside JSON: models."""
    types = {"tools/list": ListToolsResult, "initialize": InitializeResult, "tools/call": AnyResult}
    result = await call_next(ctx)
    return types[ctx.method].model_validate(result) if ctx.method in types else result


async def test_middleware_that_returns_models_loses_no_tasks(url: str) -> None:
    tasks = Tasks(url, runtime=FAST_CONFIG)
    server: MCPServer[Any] = MCPServer("host", log_level="ERROR", **tasks.attach(middleware=[make_models]))
    add_tools(server, tasks)
    async with clients_of(server) as (modern, core):
        assert "tasks" in core.initialized["capabilities"]
        listed = (await core.send("tools/list")).result["tools"]
        assert {"taskSupport": "optional"} in [tool.get("execution") for tool in listed]
        started = [await modern.start("double", {"number": 2}), await core.start("double", {"number": 3})]
        results = [(await modern.until(task_id, "completed"))["result"] for task_id in started]
    assert [text(result) for result in results] == ["4", "6"]


async def test_a_result_that_looks_like_a_created_task_is_a_result(url: str) -> None:
    """At 2025-11-25 the task of a call is carried by the metadata of its result, which others may use too."""
    tasks = Tasks(url, runtime=FAST_CONFIG)
    server: MCPServer[Any] = MCPServer("host", log_level="ERROR", **tasks.attach())

    async def echo(meta: Json) -> CallToolResult:
        return CallToolResult(content=[TextContent(text="real result")], _meta=meta)

    server.tool(name="plain")(echo)
    server.tool(name="durable")(tasks.durable(echo))
    async with clients_of(server) as (_, core):
        for tool in ("plain", "durable"):
            answer = (await core.call(tool, {"meta": {"perdure/task": {"taskId": "x"}}})).result
            assert answer["content"] == [{"type": "text", "text": "real result"}], tool
