"""The workshop on each engine, and a client whose answers are judged as they come."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator

import pytest

from ..schema_check import Published, Recorded, judged
from .tool_server import open_tool_server, tasks_at


@pytest.fixture(scope="module")
def published() -> Generator[Published]:
    with judged() as published:
        yield published


@pytest.fixture
async def url(where: str) -> AsyncGenerator[str]:
    async with open_tool_server(tasks_at(where)) as url:
        yield url


@pytest.fixture
async def modern(url: str, published: Published) -> AsyncGenerator[Recorded]:
    async with Recorded(url, published) as client:
        yield client
