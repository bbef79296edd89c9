"""A server of FastMCP, where it is when it runs, and clients of both generations."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from fastmcp import FastMCP

from perdure.fastmcp import TasksExtension

from ..mcp.raw_clients import Client2025, Client2026
from ..mcp.tool_helpers import FAST_CONFIG
from .served import Served
from .tool_server import ToolServer, opened


@pytest.fixture
def shop(anyio_backend: str) -> ToolServer:
    return ToolServer()


@pytest.fixture
async def url(shop: ToolServer) -> AsyncGenerator[str]:
    async with opened(shop) as endpoint:
        yield endpoint


@pytest.fixture
async def modern(url: str) -> AsyncGenerator[Client2026]:
    async with Client2026(url) as client:
        yield client


@pytest.fixture
async def core(url: str) -> AsyncGenerator[Client2025]:
    async with Client2025(url) as client:
        yield client


@pytest.fixture
def extension(anyio_backend: str) -> TasksExtension:
    return TasksExtension("memory:", runtime=FAST_CONFIG)


@pytest.fixture
def mcp(extension: TasksExtension) -> Served:
    server: Served = FastMCP("root")
    server.add_extension(extension)
    return server
