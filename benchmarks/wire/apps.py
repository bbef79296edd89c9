"""The servers that are compared. All have the same two tools, return JSON, keep no sessions, and write no
log.

Each imports its libraries when it is created, so that no server process carries the libraries of another.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp

if TYPE_CHECKING:
    from fastmcp import FastMCP
    from mcp.server import MCPServer

PATH = "/mcp"
SLOTS = 128
"""Concurrent tasks of a server: more than the client has in flight, so that no task waits for a slot."""


async def nothing() -> str:
    """The work."""
    return "ok"


async def a_second() -> str:
    """Work that takes as long as its name says."""
    await asyncio.sleep(1)
    return "ok"


TOOLS = (nothing, a_second)


def plain() -> ASGIApp:
    """Return the baseline: the official SDK's server, without tasks."""
    from mcp.server import MCPServer  # noqa: PLC0415

    server: MCPServer[Any] = MCPServer("plain")
    for tool in TOOLS:
        server.add_tool(tool)
    return server.streamable_http_app(streamable_http_path=PATH, json_response=True, stateless_http=True)


def durable(url: str) -> ASGIApp:
    """Return the subject: the same server with durable tools."""
    from mcp.server import MCPServer  # noqa: PLC0415

    from perdure import Tasks  # noqa: PLC0415
    from perdure.runtime import RuntimeConfig  # noqa: PLC0415

    tasks = Tasks(url, runtime=RuntimeConfig(concurrency=SLOTS))
    server: MCPServer[Any] = MCPServer("durable", **tasks.attach())
    for tool in TOOLS:
        server.add_tool(tasks.durable(tool))
    return server.streamable_http_app(streamable_http_path=PATH, json_response=True, stateless_http=True)


def docket(url: str) -> ASGIApp:
    """Return FastMCP's server with its own tasks. Its default of 10 slots would be slower here."""
    from fastmcp import FastMCP  # noqa: PLC0415
    from fastmcp.utilities.tasks import TaskConfig  # noqa: PLC0415
    from fastmcp_tasks import TasksExtension  # noqa: PLC0415

    config = TaskConfig(mode="optional", poll_interval=timedelta(milliseconds=100))
    server: FastMCP[Any] = FastMCP("docket")
    server.add_extension(TasksExtension(url=url, concurrency=SLOTS))
    for tool in TOOLS:
        server.tool(task=config)(tool)
    return server.http_app(path=PATH, json_response=True, stateless_http=True)
