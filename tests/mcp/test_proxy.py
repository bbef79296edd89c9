"""A waiting call keeps its connection through a real proxy that closes idle connections (nginx)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from mcp.server import MCPServer
from mcp.shared.exceptions import MCPError

from perdure import Tasks

from ..conditions import wait_until
from . import nginx
from .client.tool_server import BOTH, Mode
from .raw_clients import serving
from .tool_helpers import FAST_CONFIG, text_of

pytestmark = pytest.mark.anyio

READ_TIMEOUT = 3
"""Seconds after which nginx closes a connection on which nothing was sent."""
KEEP_ALIVE = 1.0
NEVER = 600.0


class WaitingServer:
    """A server with a tool that ends when a test says so."""

    def __init__(self, keep_alive: float) -> None:
        self.tasks = Tasks("memory:", runtime=FAST_CONFIG, keep_alive=keep_alive)
        self.server: MCPServer[Any] = MCPServer("waiting", log_level="ERROR", **self.tasks.attach())
        self.gate = asyncio.Event()
        self.started = 0

        @self.server.tool()
        @self.tasks.durable()
        async def hold() -> str:
            self.started += 1
            await self.gate.wait()
            return "held"


@asynccontextmanager
async def behind_nginx(folder: Path, keep_alive: float) -> AsyncGenerator[tuple[WaitingServer, str]]:
    waiting = WaitingServer(keep_alive)
    async with (
        serving(waiting.server.streamable_http_app()) as url,
        nginx.proxy(url, folder, read_timeout=READ_TIMEOUT) as proxied,
    ):
        yield waiting, proxied


@BOTH
async def test_a_waiting_call_of_a_plain_client_outlives_the_idle_timeout_of_a_proxy(
    tmp_path: Path, mode: Mode
) -> None:
    async with AsyncExitStack() as stack:
        server, url = await stack.enter_async_context(behind_nginx(tmp_path / "kept", KEEP_ALIVE))
        _, idle = await stack.enter_async_context(behind_nginx(tmp_path / "idle", NEVER))
        client = await stack.enter_async_context(Client(url, mode=mode))
        calling = asyncio.create_task(client.call_tool("hold"))
        await wait_until(lambda: server.started == 1)

        await is_closed_by_the_proxy(idle, mode)  # takes as long as the proxy tolerates silence
        assert not calling.done()
        server.gate.set()

        assert text_of(await calling) == "held"
        assert server.started == 1


async def is_closed_by_the_proxy(url: str, mode: Mode) -> None:
    """Call a tool of a server that sends nothing while the tool runs."""
    async with Client(url, mode=mode) as client:
        with pytest.raises(MCPError):
            await client.call_tool("hold")
