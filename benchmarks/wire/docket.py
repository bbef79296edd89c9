"""What FastMCP has for tasks, in its own server. Its default of 10 slots would be slower here."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from fastmcp import FastMCP
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension
from starlette.types import ASGIApp

from .apps import PATH, SLOTS, TOOLS

CONFIG = TaskConfig(mode="optional", poll_interval=timedelta(milliseconds=100))


def docket(url: str) -> ASGIApp:
    server: FastMCP[Any] = FastMCP("docket")
    server.add_extension(TasksExtension(url=url, concurrency=SLOTS))
    for tool in TOOLS:
        server.tool(task=CONFIG)(tool)
    return server.http_app(path=PATH, json_response=True, stateless_http=True)
