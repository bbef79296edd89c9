"""Servers with tools of a test's own, and what tests of 2025-11-25 have in common."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from mcp.server import MCPServer

from perdure import Task, Tasks
from perdure.runtime import RuntimeConfig

from ..raw_clients import Json, serving

RELATED = "io.modelcontextprotocol/related-task"
TASK_FIELDS = {"taskId", "status", "createdAt", "lastUpdatedAt", "ttl", "pollInterval"}
NO_SUCH_TASK = "f" * 32

Define = Callable[[MCPServer[object], Tasks], None]


@asynccontextmanager
async def hosting(
    define: Define, *, json_response: bool = False, stateless: bool = False, **options: Any
) -> AsyncGenerator[str]:
    """A server with tools of a test's own."""
    at_once = RuntimeConfig(drain_timeout=0.0, cancel_grace=0.5)  # at the end of a test, runs are stopped
    tasks = Tasks("memory:", runtime=at_once, **options)
    server: MCPServer[object] = MCPServer("tests", **tasks.attach())
    define(server, tasks)
    app = server.streamable_http_app(json_response=json_response, stateless_http=stateless)
    async with serving(app) as endpoint:
        yield endpoint


def simple_tools(server: MCPServer[object], tasks: Tasks) -> None:
    @server.tool()
    @tasks.durable()
    async def quick(number: int = 0) -> str:
        return f"quick {number}"

    @server.tool()
    @tasks.durable()
    async def asking(task: Task) -> str:
        answer = await task.elicit("Go on?")
        return answer.action


async def yes(request: Json) -> Json:
    return {"action": "accept", "content": {"confirm": True}}
