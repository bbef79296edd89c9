"""One server of each kind with the same durable tool, which takes longer than its clients wait."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
from fastmcp import FastMCP
from mcp.server import MCPServer
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import ListToolsResult, PaginatedRequestParams, Tool
from pydantic import BaseModel

from perdure import Tasks, current_task
from perdure.fastmcp import TasksExtension

from ..raw_clients import serving
from ..tool_helpers import FAST_CONFIG


class Report(BaseModel):
    pages: int
    title: str


async def build_report(seconds: float, pages: int = 12) -> Report:
    """Build a report, page by page."""
    for page in range(1, pages + 1):
        await anyio.sleep(seconds / pages)
        await current_task().report_progress(page, pages, f"page {page}")
    return Report(pages=pages, title=f"{pages} pages")


def official(url: str, **options: Any) -> tuple[Any, Tasks]:
    tasks = Tasks(url, runtime=FAST_CONFIG, **options)
    server: MCPServer[Any] = MCPServer("late", **tasks.attach())
    server.add_tool(tasks.durable(build_report))
    return server.streamable_http_app(), tasks


def low_level(url: str, **options: Any) -> tuple[Any, Tasks]:
    tasks = Tasks(url, runtime=FAST_CONFIG, **options)
    tasks.durable(build_report)

    async def list_tools(_: ServerRequestContext[Any], __: PaginatedRequestParams | None) -> ListToolsResult:
        schema = {"type": "object", "properties": {"seconds": {"type": "number"}}, "required": ["seconds"]}
        output = Report.model_json_schema()
        return ListToolsResult(tools=[Tool(name="build_report", input_schema=schema, output_schema=output)])

    server: Server[Any] = Server("late", on_list_tools=list_tools)
    tasks.install(server)
    return server.streamable_http_app(), tasks


def fastmcp(url: str, **options: Any) -> tuple[Any, Tasks]:
    extension = TasksExtension(url, runtime=FAST_CONFIG, **options)
    server = FastMCP[Any]("late")
    server.add_extension(extension)
    server.tool(build_report, task=True)
    return server.http_app(path="/mcp"), extension.tasks


KINDS: dict[str, Callable[..., tuple[Any, Tasks]]] = {
    "official": official,
    "low level": low_level,
    "fastmcp": fastmcp,
}


def late_server(
    kind: str, url: str, hand_over_after: float
) -> AbstractAsyncContextManager[tuple[str, Tasks]]:
    """The URL of a server of this kind while it runs, and its tasks."""
    app, tasks = KINDS[kind](url, hand_over_after=hand_over_after)
    return _served(app, tasks)


@asynccontextmanager
async def _served(app: Any, tasks: Tasks) -> AsyncGenerator[tuple[str, Tasks]]:
    async with serving(app) as url:
        yield url, tasks
