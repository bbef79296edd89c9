"""A tool that runs in a task has FastMCP's own context, progress and dependencies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest
from fastmcp import Context, FastMCP
from fastmcp.dependencies import CallArgument, CurrentContext, CurrentFastMCP, Depends, Progress, Shared
from fastmcp.server.dependencies import get_context, get_http_request, get_server
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext

from perdure import current_task
from perdure.fastmcp import TaskOptions, TasksExtension

from .. import task_edits
from ..conditions import wait_until
from ..markers import row
from ..mcp.raw_clients import Json
from ..mcp.tool_helpers import text_of
from .features import feature
from .served import Served, done, modern_of, said

pytestmark = pytest.mark.anyio


@row(120)
@feature(
    "`ctx: Context`, `CurrentContext()`, `get_context()`",
    peer="a context without a session: `ctx.info` raises; `get_context()` raises unless the tool also "
    "takes a context",
    here="one context in all three ways; everything in it works",
)
async def test_the_context_is_one_in_every_way_to_it(mcp: Served) -> None:
    @mcp.tool(task=True)
    async def three(ctx: Context, other: Context = CurrentContext()) -> bool:
        return ctx is other is get_context()

    @mcp.tool(task=True)
    async def only_called() -> str | None:
        return get_context().task_id

    async with modern_of(mcp) as client:
        assert text_of((await done(client, "three"))["result"]) == "true"
        task = await done(client, "only_called")
    assert text_of(task["result"]) == task["taskId"]


@row(120)
@feature(
    "`ctx.is_background_task`, `ctx.task_id`, `ctx.origin_request_id`",
    peer="true, the id of the task, the id of the request",
)
async def test_the_context_knows_its_task_and_its_request(mcp: Served) -> None:
    @mcp.tool(task=True)
    async def about(ctx: Context) -> list[str | bool | None]:
        return [ctx.is_background_task, ctx.task_id, ctx.origin_request_id == ctx.request_id]

    async with modern_of(mcp) as client:
        task = await done(client, "about")
    assert task["result"]["structuredContent"] == {"result": [True, task["taskId"], True]}


async def reporter(progress: Progress = Progress()) -> Progress:
    await progress.set_total(4)
    return progress


@asynccontextmanager
async def step(progress: Progress = Depends(reporter)) -> AsyncGenerator[Progress]:
    yield progress
    await progress.set_message("closed")


@row(120)
@feature(
    "`ctx.report_progress`, `Progress()`, also in `Depends`",
    peer="kept with the task; the text is its `statusMessage`",
)
@pytest.mark.parametrize("tool", ["by_context", "by_parameter", "by_dependency", "by_annotation"])
async def test_progress_is_that_of_the_task_in_every_way_to_it(mcp: Served, tool: str) -> None:
    gate = asyncio.Event()

    @mcp.tool(task=True)
    async def by_context(ctx: Context) -> None:
        await ctx.report_progress(3, 4, "nearly")
        await gate.wait()

    @mcp.tool(task=True)
    async def by_parameter(progress: Progress = Progress()) -> None:
        await progress.set_total(4)
        await _reach_three(progress)
        await gate.wait()

    @mcp.tool(task=True)
    async def by_dependency(progress: Progress = Depends(step)) -> None:
        await _reach_three(progress)
        await gate.wait()

    @mcp.tool(task=True)
    async def by_annotation(number: int, progress: Annotated[Progress, Depends(step)]) -> None:
        await _reach_three(progress)
        await gate.wait()

    async with modern_of(mcp) as client:
        task_id = await client.start(tool, {"number": 1} if tool == "by_annotation" else {})
        task: Json = {}

        async def is_near() -> bool:
            task.update(await client.get(task_id))
            return task.get("statusMessage") == "nearly"

        await wait_until(is_near)
        gate.set()
        await client.until(task_id, "completed")
    assert task["_meta"]["perdure/progress"] == {"done": 3, "total": 4}


async def _reach_three(progress: Progress) -> None:
    await progress.increment()
    await progress.increment(2)
    await progress.set_message("nearly")
    assert (progress.current, progress.total, progress.message) == (3, 4, "nearly")


@row(120)
@feature(
    "`ctx.info`, `ctx.log` and the others",
    peer="raise",
    here="kept with the task for operators; sent to clients of 2025-11-25",
)
@pytest.mark.filterwarnings("ignore:The .* capability is deprecated")
async def test_log_messages_are_kept_with_the_task(mcp: Served, extension: TasksExtension) -> None:
    @mcp.tool(task=True)
    async def talk(ctx: Context) -> None:
        await ctx.info("halfway", extra={"page": 6})

    async with modern_of(mcp) as client:
        await done(client, "talk")
        (found,) = await task_edits.all_tasks(extension.tasks.runtime.store)
    (entry,) = found.task.log.entries
    assert (entry.level, entry.message) == ("info", {"msg": "halfway", "extra": {"page": 6}})


@row(120)
@feature(
    "`Depends`, `Shared`, `CallArgument`, context managers",
    peer="resolved in the worker, closed after the body",
)
async def test_dependencies_are_resolved_when_the_tool_runs_and_closed_after_it(mcp: Served) -> None:
    made: list[str] = []

    @asynccontextmanager
    async def opened(name: str = CallArgument("who"), ctx: Context = CurrentContext()) -> AsyncGenerator[str]:
        made.append(f"open for {name}, {ctx.is_background_task}")
        yield f"file of {name}"
        made.append(f"closed, {get_context() is ctx}")

    async def pool() -> str:
        made.append("pool")
        return "pool"

    @mcp.tool(task=True)
    async def use(who: str, file: str = Depends(opened), shared: str = Shared(pool)) -> str:
        made.append("body")
        return f"{file}, {shared}"

    async with modern_of(mcp) as client:
        assert (await client.call("use", {"who": 1})).result["isError"]
        assert made == []
        assert text_of((await done(client, "use", {"who": "Ada"}))["result"]) == "file of Ada, pool"
        await done(client, "use", {"who": "Bob"})
    assert made == [
        "open for Ada, True",
        "pool",
        "body",
        "closed, True",
        "open for Bob, True",
        "body",
        "closed, True",
    ]


@row(120)
@feature(
    "`CurrentFastMCP()`, `get_server()`, `ctx.fastmcp`, `ctx.lifespan_context`",
    peer="of the first mounted server",
    here="of the innermost server, to which the tool belongs",
)
async def test_a_tool_of_a_mounted_server_sees_its_own_server_and_lifespan(mcp: Served) -> None:
    states: list[str] = []

    def server(name: str) -> Served:
        @asynccontextmanager
        async def lifespan(_: object) -> AsyncGenerator[Json]:
            states.append(f"{name} opens")
            yield {"name": name}
            states.append(f"{name} closes")

        return FastMCP(name, lifespan=lifespan)

    outer, inner = server("outer"), server("inner")

    @inner.tool(task=True)
    async def where(ctx: Context, mine: FastMCP = CurrentFastMCP()) -> list[str]:
        return [ctx.fastmcp.name, mine.name, get_server().name, ctx.lifespan_context["name"]]

    outer.mount(inner, namespace="in")
    mcp.mount(outer, namespace="out")
    async with modern_of(mcp) as client:
        task = await done(client, "out_in_where")
    assert task["result"]["structuredContent"] == {"result": ["inner"] * 4}
    assert states == ["outer opens", "inner opens", "inner closes", "outer closes"]


@row(120)
@feature(
    "`ctx.session_id`, `ctx.get_state`, `ctx.set_state`",
    peer="those of the call",
)
async def test_the_state_of_the_call_is_that_of_its_task(mcp: Served) -> None:
    class Tenant(Middleware):
        async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
            assert context.fastmcp_context is not None
            await context.fastmcp_context.set_state("tenant", "acme")
            return await call_next(context)

    mcp.add_middleware(Tenant())

    @mcp.tool(task=TaskOptions(retries=1, retry_on=(OSError,), backoff=0.01))
    async def tenant(ctx: Context) -> str:
        if current_task().attempt == 1:
            await ctx.set_state("attempt", "the first")
            raise OSError
        return f"{await ctx.get_state('tenant')}, {await ctx.get_state('attempt')}"

    assert await said(mcp, "tenant") == "acme, the first"


@feature(
    "`get_http_request()`, `CurrentRequest()`",
    peer="raise: there is no request",
)
async def test_there_is_no_http_request_in_a_task(mcp: Served) -> None:
    @mcp.tool(task=True)
    async def host() -> str:
        return get_http_request().url.path

    assert await said(mcp, "host") == "Error calling tool 'host': No active HTTP request found."
