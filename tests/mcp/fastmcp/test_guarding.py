"""What FastMCP's own middleware and authentication say of a call holds for the task that it becomes."""

from __future__ import annotations

import mcp_types
import pytest
from fastmcp.exceptions import ToolError
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.server.middleware.caching import ResponseCachingMiddleware
from fastmcp.tools.base import ToolResult

from ... import task_edits
from ...markers import row
from ..raw_clients import Client2025, Client2026
from ..tool_helpers import text_of
from .tool_server import ADA, BOB, NAMING_ADA, ToolServer, authenticated, opened

pytestmark = pytest.mark.anyio


# Who else has a say in a call


class Porter(Middleware):
    """Lets nobody in who does not say why."""

    def __init__(self) -> None:
        self.saw: list[str] = []

    async def on_call_tool(
        self,
        context: MiddlewareContext[mcp_types.CallToolRequestParams],
        call_next: CallNext[mcp_types.CallToolRequestParams, ToolResult],
    ) -> ToolResult:
        self.saw.append(context.message.name)
        if (context.message.arguments or {}).get("label") == "thief":
            raise ToolError("not you")
        return await call_next(context)


async def test_what_a_middleware_of_fastmcp_refuses_becomes_no_task(shop: ToolServer) -> None:
    porter = Porter()
    shop.server.add_middleware(porter)
    async with opened(shop) as url, Client2026(url) as modern, Client2025(url) as core:
        first = await modern.call("hold", {"label": "thief"})
        second = await core.call("hold", {"label": "thief"}, task={})
        assert (first.result["isError"], text_of(first.result)) == (True, "not you")
        assert (second.code, second.error["message"]) == (-32602, "not you")
        assert await shop.count() == 0


async def test_a_middleware_of_fastmcp_sees_a_call_once_however_often_its_tool_runs(shop: ToolServer) -> None:
    porter = Porter()
    shop.server.add_middleware(porter)
    shop.gate.set()
    async with opened(shop) as url, Client2026(url) as modern:
        await modern.until(await modern.start("hold", {"label": "guest"}), "completed")

    assert (porter.saw, shop.ran) == (["hold"], ["guest"])


class Doorkeeper(Middleware):
    """Writes on each call who brought it."""

    async def on_call_tool(
        self,
        context: MiddlewareContext[mcp_types.CallToolRequestParams],
        call_next: CallNext[mcp_types.CallToolRequestParams, ToolResult],
    ) -> ToolResult:
        arguments = {**(context.message.arguments or {}), "label": "by the doorkeeper"}
        message = context.message.model_copy(update={"arguments": arguments})
        return await call_next(context.copy(message=message))


async def test_what_a_middleware_of_fastmcp_makes_of_the_arguments_is_what_the_tool_gets(
    shop: ToolServer,
) -> None:
    shop.server.add_middleware(Doorkeeper())
    shop.gate.set()
    async with opened(shop) as url, Client2026(url) as modern:
        done = await modern.until(await modern.start("hold", {"label": "by nobody"}), "completed")

    assert text_of(done["result"]) == "held by the doorkeeper"


async def test_a_cache_of_answers_does_not_make_one_task_of_two_calls(shop: ToolServer) -> None:
    shop.server.add_middleware(ResponseCachingMiddleware())
    shop.gate.set()
    async with opened(shop) as url, Client2026(url) as modern:
        tasks = [await modern.start("hold", {"label": "it"}) for _ in range(3)]
        results = [(await modern.until(task_id, "completed"))["result"] for task_id in tasks]

    assert len(set(tasks)) == 3
    assert [text_of(result) for result in results] == ["held it"] * 3
    assert shop.ran == ["it"] * 3


async def test_a_tool_that_is_not_for_this_caller_becomes_no_task(anyio_backend: str) -> None:
    shop = ToolServer(server=authenticated())

    @shop.server.tool(auth=lambda context: context.token is not None and context.token.subject == ADA)
    @shop.tasks.durable()
    async def for_ada() -> str:
        return "for Ada"

    async with opened(shop) as url, Client2026(url, token=ADA) as ada, Client2026(url, token=BOB) as bob:
        refused = await bob.call("for_ada")
        assert "error" in refused.message or refused.result["isError"]
        assert await shop.count() == 0
        done = await ada.until(await ada.start("for_ada"), "completed")
        assert text_of(done["result"]) == "for Ada"


# Owners


@row(26)
async def test_a_task_belongs_to_whom_the_token_names(anyio_backend: str) -> None:
    shop = ToolServer(server=authenticated())
    async with opened(shop) as url, Client2026(url, token=ADA) as ada, Client2026(url, token=BOB) as bob:
        task_id = await ada.start("hold")
        for answer in (
            await bob.send("tasks/get", {"taskId": task_id}),
            await bob.cancel(task_id),
            await bob.update(task_id, {"first": NAMING_ADA}),
        ):
            assert answer.code == -32602
        assert (await ada.get(task_id))["status"] == "working"
        (found,) = await task_edits.all_tasks(shop.tasks.runtime.store)
        assert (found.task.owner.kind, found.task.owner.subject) == ("user", ADA)
        assert found.task.owner.issuer == "https://issuer.test"


async def test_each_user_lists_their_own_tasks(anyio_backend: str) -> None:
    shop = ToolServer(server=authenticated())
    async with opened(shop) as url, Client2025(url, token=ADA) as ada, Client2025(url, token=BOB) as bob:
        mine = [await ada.start("hold") for _ in range(2)]
        theirs = await bob.start("hold")
        assert {task["taskId"] for task in (await ada.send("tasks/list")).result["tasks"]} == set(mine)
        assert [task["taskId"] for task in (await bob.send("tasks/list")).result["tasks"]] == [theirs]


async def test_a_caller_without_a_token_is_not_let_in(anyio_backend: str) -> None:
    shop = ToolServer(server=authenticated())
    async with opened(shop) as url, Client2026(url) as nobody:
        assert (await nobody.call("hold")).status == 401
        assert await shop.count() == 0
