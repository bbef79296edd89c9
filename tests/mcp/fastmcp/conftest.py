"""A shop of FastMCP, and where it is when it is open."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from .tool_server import ToolServer, opened


@pytest.fixture
def shop(anyio_backend: str) -> ToolServer:
    return ToolServer()


@pytest.fixture
async def url(shop: ToolServer) -> AsyncGenerator[str]:
    async with opened(shop) as endpoint:
        yield endpoint
