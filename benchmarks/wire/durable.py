"""The subject: the same server as the floor, and its tools are durable."""

from __future__ import annotations

from typing import Any

from mcp.server import MCPServer
from starlette.types import ASGIApp

from perdure import Tasks
from perdure.runtime import RuntimeConfig

from .apps import PATH, SLOTS, TOOLS


def durable(url: str) -> ASGIApp:
    tasks = Tasks(url, runtime=RuntimeConfig(concurrency=SLOTS))
    server: MCPServer[Any] = MCPServer("durable", **tasks.attach())
    for tool in TOOLS:
        server.add_tool(tasks.durable(tool))
    return server.streamable_http_app(streamable_http_path=PATH, json_response=True, stateless_http=True)
