"""The server that the conformance suite judges, written with FastMCP.

Its tools are those of `tests/mcp/conformance_server.py`, which has them for the official SDK.
"""

from __future__ import annotations

from typing import Any

import anyio
from fastmcp import Context, FastMCP
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.tools.base import InputRequiredToolResult
from fastmcp.utilities.tasks import TaskConfig
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from pydantic import BaseModel

from perdure.fastmcp import TasksExtension
from perdure.runtime import RuntimeConfig


class Confirmation(BaseModel):
    confirm: bool


class Person(BaseModel):
    name: str


NO_DRAIN = RuntimeConfig(drain_timeout=0.0, cancel_grace=1.0)


def form(message: str, field: str, kind: str) -> Any:
    schema: Any = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def make_server(url: str) -> FastMCP[Any]:
    mcp: FastMCP[Any] = FastMCP("perdure-fixture", version="1.0")
    mcp.add_extension(TasksExtension(url, runtime=NO_DRAIN))
    mcp.add_middleware(AskingFirst())
    add_tools(mcp)
    add_asking_tools(mcp)
    return mcp


class AskingFirst(Middleware):
    """Asks who it is for, before there is a task. Clients of 2025-11-25 can only be asked by the task."""

    async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        request = None if context.fastmcp_context is None else context.fastmcp_context.request_context
        can_ask = request is not None and request.protocol_version == "2026-07-28"
        is_new = context.message.name == "test_tool_with_task" and context.message.input_responses is None
        if can_ask and is_new:
            asked = {"person": form("Who is asking?", "name", "string")}
            return InputRequiredToolResult(InputRequiredResult(input_requests=asked))
        return await call_next(context)


def add_tools(mcp: FastMCP[Any]) -> None:
    @mcp.tool
    def greet(name: str) -> str:
        """Greets; never a task."""
        return f"Hello, {name}!"

    @mcp.tool(task=True)
    async def slow_compute(ctx: Context, seconds: float, label: str = "") -> str:
        """Takes its time."""
        await ctx.report_progress(0, seconds, f"computing {label}".strip())
        await anyio.sleep(seconds)
        return f"computed {label} in {seconds} seconds"

    @mcp.tool(task=TaskConfig(mode="required"))
    async def failing_job() -> str:
        """Takes a second, and does not work out."""
        await anyio.sleep(1)
        raise ValueError("the job does not work out")

    @mcp.tool(task=True)
    async def protocol_error_job() -> str:
        """Ends with a JSON-RPC error."""
        await anyio.sleep(0.1)
        raise MCPError(-32603, "the job broke the protocol", {"why": "on purpose"})


def add_asking_tools(mcp: FastMCP[Any]) -> None:
    @mcp.tool(task=True)
    async def confirm_delete(ctx: Context, filename: str) -> str:
        """Asks before it deletes."""
        answer = await ctx.elicit(f"Delete {filename}?", Confirmation)
        confirmed = answer.action == "accept" and answer.data.confirm
        return f"deleted {filename}" if confirmed else f"kept {filename}"

    @mcp.tool(task=True)
    async def multi_input(ctx: Context) -> str | InputRequiredResult:
        """Asks two things at once."""
        answers: Any = ctx.input_responses
        if answers is None:
            asked = {key: form(f"{key}?", "confirm", "boolean") for key in ("first", "second")}
            return InputRequiredResult(input_requests=asked)
        return ", ".join(f"{key}: {answers[key].action}" for key in sorted(answers))

    @mcp.tool(task=True)
    async def test_tool_with_task(ctx: Context) -> str:
        """Is asked for by a person, who is known before there is a task."""
        await anyio.sleep(0.2)
        answers: Any = ctx.input_responses
        if answers is not None:
            return f"done for {answers['person'].content['name']}"
        answer = await ctx.elicit("Who is asking?", Person)
        return f"done for {answer.data.name}" if answer.action == "accept" else "done for nobody"
