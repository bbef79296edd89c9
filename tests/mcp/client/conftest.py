"""A shop that is open, and where clients find it."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from .tool_server import Target, ToolServer, opened


@pytest.fixture
async def open_shop(anyio_backend: str) -> AsyncGenerator[tuple[ToolServer, str]]:
    async with opened("memory:") as both:
        yield both


@pytest.fixture
def shop(open_shop: tuple[ToolServer, str]) -> ToolServer:
    return open_shop[0]


@pytest.fixture
def url(open_shop: tuple[ToolServer, str]) -> str:
    return open_shop[1]


@pytest.fixture(params=["http", "in-process"])
def target(request: pytest.FixtureRequest, shop: ToolServer, url: str) -> Target:
    """Where a client finds the shop."""
    return url if request.param == "http" else shop.server
