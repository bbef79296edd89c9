"""What the tests of features need: a server that runs, and a task at its end."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from fastmcp import FastMCP

from perdure.storage import Micros
from perdure.storage.time_types import system_clock

from ..mcp.raw_clients import Client2026, Json, serving
from ..mcp.tool_helpers import text_of

Served = FastMCP[Any]


class ShiftedClock:
    """The clock of this machine, which a test can put forward."""

    def __init__(self) -> None:
        self.ahead: Micros = 0

    def __call__(self) -> Micros:
        return system_clock() + self.ahead


@asynccontextmanager
async def modern_of(server: Served) -> AsyncGenerator[Client2026]:
    async with serving(server.http_app(path="/mcp")) as url, Client2026(url) as client:
        yield client


async def done(client: Client2026, tool: str, arguments: Json | None = None) -> Json:
    """Call a tool as a task, and return the task at its end."""
    return await client.until(await client.start(tool, arguments or {}), "completed", "failed")


async def said(server: Served, tool: str, arguments: Json | None = None) -> str:
    """Call a tool as a task, and return its text."""
    async with modern_of(server) as client:
        return text_of((await done(client, tool, arguments))["result"])
