"""A running fixture server on each engine, and clients of both generations."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path

import pytest

from ..storage.engines import layer_url, new_url
from .conformance_server import make_server
from .raw_clients import Client2025, Client2026, serving
from .replicas import Replicas

import_module("tests.runtime.weak")  # which registers the scheme of the weak memory engine


@pytest.fixture
async def where(
    on_engine: str, request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: str
) -> AsyncGenerator[str]:
    """The URL of a storage on each engine."""
    async with layer_url(on_engine, request.node, tmp_path) as url:
        yield url


@pytest.fixture
async def url(where: str, anyio_backend: str) -> AsyncGenerator[str]:
    """The MCP endpoint of the fixture server, without authentication."""
    server, _ = make_server(where)
    async with serving(server.streamable_http_app()) as endpoint:
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
async def replicas(on_shared_engine: str, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Replicas]:
    """Server processes on each engine that several processes can share."""
    async with AsyncExitStack() as stack:
        yield Replicas(await new_url(on_shared_engine, tmp_path), stack)


@pytest.fixture
def set_ahead(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the clock by which tokens run out so many seconds ahead; that of tasks stays as it is."""

    def set_it(seconds: float) -> None:
        right = time.time
        monkeypatch.setattr(time, "time", lambda: right() + seconds)

    return set_it
