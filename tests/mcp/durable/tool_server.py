"""A server on which tests register durable tools and run them, with a client of each generation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from mcp.server import MCPServer

from perdure import Task, Tasks
from perdure.runtime import RuntimeConfig

from .. import tool_helpers
from ..raw_clients import Client2025, Client2026, Json, serving

FAST_CONFIG = RuntimeConfig(
    drain_timeout=0.2,
    cancel_grace=10.0,
    report_interval=0.05,
    queue_poll_interval=0.2,
    heartbeat_interval=0.5,
)

ADA: Json = {"action": "accept", "content": {"name": "Ada"}}
NO: Json = {"action": "decline"}


class ToolServer:
    """A server to register tools on, which runs within `running`."""

    url: str
    modern: Client2026
    core: Client2025

    def __init__(self, *, attach: dict[str, Any] | None = None, **options: Any) -> None:
        self.tasks = Tasks("memory:", runtime=FAST_CONFIG)
        self.server: MCPServer[Any] = MCPServer(
            "bench", log_level="CRITICAL", **self.tasks.attach(**(attach or {})), **options
        )

    def tool(self, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a durable tool, as users do."""

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            return self.server.tool()(self.tasks.durable(**options)(function))

        return register

    @asynccontextmanager
    async def running(self, **client: Any) -> AsyncGenerator[ToolServer]:
        async with (
            serving(self.server.streamable_http_app()) as self.url,
            Client2026(self.url, **client) as self.modern,
            Client2025(self.url, **client) as self.core,
        ):
            yield self

    async def ended(self, tool: str, **arguments: Any) -> Json:
        """What became of a call."""
        return await self.end_of(await self.modern.start(tool, arguments))

    async def end_of(self, task_id: str) -> Json:
        return await self.modern.until(task_id, "completed", "failed", "cancelled")

    async def said(self, tool: str, **arguments: Any) -> str:
        """The text that a call ended with."""
        return text_of(await self.ended(tool, **arguments))


def text_of(task: Json) -> str:
    assert task["status"] == "completed", task
    assert not task["result"].get("isError"), task
    return tool_helpers.text_of(task["result"])


async def first(task: Task, year: int) -> str:
    """Takes the task first."""
    return f"{year} {task.attempt}"
