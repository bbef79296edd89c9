"""Calls of clients without tasks are handed over by FastMCP's server as by that of the official SDK."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastmcp import Context, FastMCP
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext

from perdure.fastmcp import TasksExtension
from perdure.tasks.errors import InvalidValue

from ..markers import row
from ..mcp.raw_clients import CORE, MODERN, serving
from ..mcp.tool_helpers import text_of
from ..mcp.without_tasks.test_hand_over import ADDED, LATE, task_id_of, tools_of, wait
from ..mcp.without_tasks.tool_server import calling
from .served import Served

pytestmark = pytest.mark.anyio


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
