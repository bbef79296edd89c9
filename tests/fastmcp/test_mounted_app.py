"""The app of a server works inside another one that passes on its lifespan; otherwise requests fail."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from fastmcp.server.extensions import ServerExtension
from mcp.server import MCPServer
from mcp.server.extension import Extension
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from perdure import Tasks

from ..doc_pages.pages import DOCS, blocks_of
from ..mcp.raw_clients import Client2025, Client2026, serving
from ..mcp.tool_helpers import FAST_CONFIG, text_of
from .served import Served

pytestmark = pytest.mark.anyio

GUIDE = DOCS / "guides" / "deployment.md"


@pytest.fixture
def mounted(mcp: Served) -> Any:
    @mcp.tool(task=True)
    async def nap() -> str:
        return "slept"

    return mcp.http_app(path="/mcp")


def in_starlette(app: Any) -> Any:
    return Starlette(routes=[Mount("/", app)], lifespan=app.lifespan)


async def test_the_app_of_fastmcp_works_inside_another(mounted: Any) -> None:
    await _use(in_starlette(mounted))


def guide_blocks() -> list[str]:
    """Return the Python of the guide on mounting."""
    return [block.text for block in blocks_of(GUIDE) if "mcp_app" in block.text]


@pytest.mark.parametrize("code", guide_blocks())
async def test_what_the_guide_says_works_with_both_frameworks(mcp: Served, code: str) -> None:
    tasks = Tasks("memory:", runtime=FAST_CONFIG)
    server: MCPServer[Any] = MCPServer("root", log_level="ERROR", **tasks.attach())
    entered: list[object] = []

    @asynccontextmanager
    async def my_lifespan(app: FastAPI) -> AsyncGenerator[None]:
        entered.append(app)
        yield

    @server.tool()
    @tasks.durable
    @mcp.tool(task=True)
    async def nap() -> str:
        return "slept"

    given: dict[str, Any] = {"mcp": mcp, "server": server, "FastAPI": FastAPI, "my_lifespan": my_lifespan}
    exec(code, given)  # noqa: S102
    await _use(given["app"])
    assert bool(entered) == ("my_lifespan" in code)


async def _use(app: Any) -> None:
    async with serving(app) as url, Client2026(url) as modern, Client2025(url) as core:
        task = await modern.until(await modern.start("nap"), "completed")
        answer = await core.send("tasks/result", {"taskId": await core.start("nap")})
    assert text_of(task["result"]) == text_of(answer.result) == "slept"


def test_the_guide_has_a_block_for_each_framework_with_and_without_a_lifespan_of_the_users() -> None:
    assert len(guide_blocks()) == 4


class Recorded:
    """Records the names of all attributes that are read."""

    def __init__(self, seen: list[str]) -> None:
        object.__setattr__(self, "_seen", seen)

    def __getattribute__(self, name: str) -> Any:
        object.__getattribute__(self, "_seen").append(name)
        return super().__getattribute__(name)


class RecordedApp(Recorded):
    """An ASGI application."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        object.__getattribute__(self, "_seen").append(f"called with {scope['type']}")
        await Response()(scope, receive, send)


class RecordedExtension(Recorded, Extension):
    """An extension of the SDK."""

    identifier = "com.example/recorded"


class RecordedServerExtension(Recorded, ServerExtension):
    """An extension of FastMCP."""

    identifier = "com.example/recorded"


@pytest.mark.parametrize("framework", [FastAPI, Starlette])
async def test_a_mounted_app_notices_nothing_before_its_first_request(
    framework: type[FastAPI | Starlette],
) -> None:
    """If this fails, a missing lifespan can be reported at the start: see decision 0027."""
    seen: list[str] = []
    outer = framework()
    outer.mount("/", RecordedApp(seen))
    async with serving(outer) as url, httpx2.AsyncClient() as client:
        assert seen == []
        assert (await client.post(url)).status_code == 200
    assert [each for each in seen if each.startswith("called")] == ["called with http"]


def test_an_extension_notices_nothing_of_the_app_of_its_server(mcp: Served) -> None:
    """If this fails, perhaps too."""
    seen: list[str] = []
    server: MCPServer[Any] = MCPServer("root", extensions=[RecordedExtension(seen)])
    mcp.add_extension(RecordedServerExtension(seen))
    assert seen.count("methods") == 2
    seen.clear()
    server.streamable_http_app()
    mcp.http_app()
    assert seen == []


async def test_without_the_lifespan_the_first_request_fails_with_the_missing_line(mounted: Any) -> None:
    api = FastAPI()
    api.mount("/", mounted)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(api), base_url="http://localhost") as client:
        with pytest.raises(RuntimeError, match=r"`lifespan=mcp_app.lifespan`"):
            await client.post("/mcp", json={})


async def test_the_same_for_the_official_sdk_whose_error_names_no_line(anyio_backend: str) -> None:
    server: MCPServer[Any] = MCPServer("root", **Tasks("memory:").attach())
    api = FastAPI()
    api.mount("/", server.streamable_http_app())
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(api), base_url="http://localhost") as client:
        with pytest.raises(RuntimeError, match=r"Task group is not initialized. Make sure to use run\(\)"):
            await client.post("/mcp", json={})


async def test_a_replaced_app_of_the_session_manager_gets_the_first_request(anyio_backend: str) -> None:
    """It could name the line, if perdure knew the session manager: see decision 0027."""
    server: MCPServer[Any] = MCPServer("root", **Tasks("memory:").attach())
    api = FastAPI()
    api.mount("/", server.streamable_http_app())
    seen: list[str] = []
    manager: Any = server.session_manager
    manager.asgi_app = RecordedApp(seen)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(api), base_url="http://localhost") as client:
        assert (await client.post("/mcp", json={})).status_code == 200
    assert "called with http" in seen
