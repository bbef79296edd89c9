"""Calls of clients without tasks are handed over by FastMCP's server as by that of the official SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastmcp import Context, FastMCP
from fastmcp.server.auth import StaticTokenVerifier, require_scopes
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.server.middleware.authorization import AuthMiddleware
from fastmcp.server.middleware.caching import ResponseCachingMiddleware

from perdure.fastmcp import TasksExtension
from perdure.tasks.errors import InvalidValue

from ..markers import row
from ..mcp.raw_clients import CORE, MODERN, Client2026, serving
from ..mcp.tool_helpers import text_of
from ..mcp.without_tasks.test_hand_over import ADDED, LATE, SOON, task_id_of, tools_of, wait
from ..mcp.without_tasks.tool_server import calling
from .served import Served

pytestmark = pytest.mark.anyio

ADA, BOB = "ada", "bob"


class Recording(Middleware):
    """Middleware of the user, which sees every call."""

    def __init__(self) -> None:
        self.called: list[str] = []

    async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        self.called.append(context.message.name)
        return await call_next(context)


@asynccontextmanager
async def hosting(recording: Recording) -> AsyncGenerator[str]:
    server: Served = FastMCP("late", middleware=[recording])
    server.add_extension(TasksExtension("memory:", hand_over_after=LATE))

    @server.tool(task=True)
    async def confirm(ctx: Context) -> dict[str, str]:
        answer = await ctx.elicit("Your name?", response_type=str)
        return {"said": f"{answer.action} {getattr(answer, 'data', None)}"}

    async with serving(server.http_app(path="/mcp")) as url:
        yield url


@row(131)
@pytest.mark.parametrize("version", [MODERN, CORE])
async def test_a_model_answers_a_question_and_gets_the_result(version: str) -> None:
    recording = Recording()
    async with hosting(recording) as url, calling(url, version, capabilities={}) as client:
        tools = await tools_of(client)
        task_id = task_id_of(await client.call("confirm"))
        answered = await client.call("answer_task", {"task_id": task_id, "content": {"value": "Ada"}})
        done = await wait(client, task_id)

    assert tools.keys() == {"confirm"} | ADDED
    assert "outputSchema" not in tools["confirm"]
    assert "The answer is stored." in text_of(answered.result)
    assert done.result["structuredContent"] == {"said": "accept Ada"}
    assert recording.called == ["confirm", "answer_task", "wait_for_task"]


@row(131)
@pytest.mark.parametrize("version", [MODERN, CORE])
async def test_a_cache_does_not_keep_the_state_of_a_task(version: str) -> None:
    server: Served = FastMCP("late", middleware=[ResponseCachingMiddleware()])
    server.add_extension(TasksExtension("memory:", hand_over_after=SOON))
    gate = asyncio.Event()

    @server.tool(task=True)
    async def gated() -> str:
        await gate.wait()
        return "open"

    async with (
        serving(server.http_app(path="/mcp")) as url,
        calling(url, version, capabilities={}) as client,
    ):
        task_id = task_id_of(await client.call("gated"))
        early = await wait(client, task_id)
        gate.set()
        late = await wait(client, task_id)
    assert "is still running" in text_of(early.result)
    assert text_of(late.result) == "open"


@row(131)
@pytest.mark.parametrize("version", [MODERN, CORE])
async def test_middleware_that_checks_access_finds_the_added_tools(version: str) -> None:
    verifier = StaticTokenVerifier(
        {ADA: {"client_id": "ada", "scopes": ["w"]}, BOB: {"client_id": "bob", "scopes": []}}
    )
    middleware = AuthMiddleware(auth=require_scopes("w"))
    server: Served = FastMCP("late", auth=verifier, middleware=[middleware])
    server.add_extension(TasksExtension("memory:", hand_over_after=SOON, encryption_keys=[]))

    @server.tool(task=True)
    async def slow() -> str:
        await asyncio.sleep(3 * SOON)
        return "done"

    async with serving(server.http_app(path="/mcp")) as url:
        async with calling(url, version, capabilities={}, token=ADA) as client:
            task_id = task_id_of(await client.call("slow"))
            while "is still running" in (text := text_of((await wait(client, task_id)).result)):
                pass
        async with calling(url, version, capabilities={}, token=BOB) as other:
            refused = await wait(other, task_id)
    assert text == "done"
    assert refused.result["isError"]
    assert "insufficient scope" in text_of(refused.result)


async def test_a_client_with_tasks_does_not_find_the_added_tools() -> None:
    async with hosting(Recording()) as url, Client2026(url) as client:
        answer = await client.call("wait_for_task", {"task_id": "a"})
    assert text_of(answer.result) == "Unknown tool: 'wait_for_task'"


async def test_without_the_option_a_server_that_is_mounted_later_has_its_own_tools(mcp: Served) -> None:
    todo: Served = FastMCP("todo")

    @todo.tool
    async def cancel_task(number: int) -> str:
        return f"todo {number} is cancelled"

    async with serving(mcp.http_app(path="/mcp")) as url, Client2026(url) as client:
        assert await mcp.get_tool("cancel_task") is None
        mcp.mount(todo)
        answer = await client.call("cancel_task", {"number": 1})
    assert text_of(answer.result) == "todo 1 is cancelled"


@pytest.mark.parametrize("name", sorted(ADDED))
async def test_a_tool_with_the_name_of_one_of_ours_is_refused_at_start(name: str) -> None:
    server: Served = FastMCP("late")
    server.add_extension(TasksExtension("memory:", hand_over_after=LATE))

    @server.tool(name=name)
    async def mine() -> str:
        return "mine"

    app = server.http_app()
    with pytest.raises(InvalidValue, match=f"the server has a tool named '{name}'"):
        async with app.router.lifespan_context(app):
            pass
