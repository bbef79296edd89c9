"""The application of a server works inside another one that passes on its lifespan, else it fails."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from mcp.server import MCPServer
from starlette.applications import Starlette
from starlette.routing import Mount

from perdure import Tasks

from ..mcp.raw_clients import Client2025, Client2026, serving
from ..mcp.tool_helpers import FAST_CONFIG, text_of
from .served import Served

pytestmark = pytest.mark.anyio


@pytest.fixture
def mounted(mcp: Served) -> Any:
    @mcp.tool(task=True)
    async def nap() -> str:
        return "slept"

    return mcp.http_app(path="/mcp")


def in_fastapi(app: Any) -> Any:
    api = FastAPI(lifespan=app.lifespan)
    api.mount("/", app)
    return api


def in_fastapi_with_a_lifespan(app: Any) -> Any:
    @asynccontextmanager
    async def lifespan(api: FastAPI) -> AsyncGenerator[None]:
        async with app.lifespan(api):
            yield

    api = FastAPI(lifespan=lifespan)
    api.mount("/", app)
    return api


def in_starlette(app: Any) -> Any:
    return Starlette(routes=[Mount("/", app)], lifespan=app.lifespan)


@pytest.mark.parametrize("mount", [in_fastapi, in_fastapi_with_a_lifespan, in_starlette])
async def test_the_app_of_fastmcp_works_inside_another(mounted: Any, mount: Callable[[Any], Any]) -> None:
    async with serving(mount(mounted)) as url, Client2026(url) as modern, Client2025(url) as core:
        task = await modern.until(await modern.start("nap"), "completed")
        answer = await core.send("tasks/result", {"taskId": await core.start("nap")})
    assert text_of(task["result"]) == text_of(answer.result) == "slept"


async def test_without_the_lifespan_the_first_request_fails_with_the_missing_line(mounted: Any) -> None:
    api = FastAPI()
    api.mount("/", mounted)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(api), base_url="http://localhost") as client:
        with pytest.raises(RuntimeError, match=r"`lifespan=mcp_app.lifespan`"):
            await client.post("/mcp", json={})


async def test_the_same_for_the_official_sdk(anyio_backend: str) -> None:
    tasks = Tasks("memory:", runtime=FAST_CONFIG)
    server: MCPServer[Any] = MCPServer("root", log_level="ERROR", **tasks.attach())

    @server.tool()
    @tasks.durable
    async def nap() -> str:
        return "slept"

    app = server.streamable_http_app()
    api = FastAPI(lifespan=lambda _: server.session_manager.run())
    api.mount("/", app)
    async with serving(api) as url, Client2026(url) as modern:
        task = await modern.until(await modern.start("nap"), "completed")
    assert text_of(task["result"]) == "slept"
    forgetful = FastAPI()
    forgetful.mount("/", server.streamable_http_app())
    transport = httpx2.ASGITransport(forgetful)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        with pytest.raises(RuntimeError, match=r"Make sure to use run\(\)"):
            await client.post("/mcp", json={})
