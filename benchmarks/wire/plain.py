"""The floor: the official SDK's server, and no tasks."""

from __future__ import annotations

from typing import Any

from mcp.server import MCPServer
from starlette.types import ASGIApp

from .apps import PATH, TOOLS


def plain() -> ASGIApp:
    server: MCPServer[Any] = MCPServer("plain")
    for tool in TOOLS:
        server.add_tool(tool)
    return server.streamable_http_app(streamable_http_path=PATH, json_response=True, stateless_http=True)
