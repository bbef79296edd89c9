"""Servers of the official SDK to run in every way: one of each kind, and what clients get from them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

from mcp.client import Client
from mcp.server import MCPServer
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)

from perdure import Task, Tasks
from perdure.storage import Storage
from perdure.tasks.task_snapshot import TASKS

from .. import tool_helpers
from ..raw_clients import Client2025, Client2026, Json, serving
from ..tool_helpers import FAST_CONFIG

Request = ServerRequestContext[Any, Any]

NAMED = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def make(
    url: str | Storage, *, attach: dict[str, Any] | None = None, **arguments: Any
) -> tuple[MCPServer[Any], Tasks]:
    """A server with one durable tool and a plain one; with these arguments instead of those attached."""
    tasks = Tasks(url, runtime=FAST_CONFIG)
    given: dict[str, Any] = {**tasks.attach(**(attach or {})), **arguments}
    server: MCPServer[Any] = MCPServer("host", log_level="ERROR", **given)
    add_tools(server, tasks)
    return server, tasks


def add_tools(server: MCPServer[Any], tasks: Tasks) -> None:
    @server.tool()
    @tasks.durable()
    async def double(number: int) -> int:
        return 2 * number

    @server.tool()
    async def half(number: int) -> float:
        return number / 2


def low_level(tasks: Tasks, **options: Any) -> Server[Any]:
    """A server whose handlers are its own."""

    @tasks.durable(retries=1)
    async def sign(what: str, task: Task) -> str:
        answer = await task.elicit("Whose name?", NAMED, key="name")
        return f"{what} by {(answer.data or {})['name']}"

    @tasks.durable(mode="required")
    async def double(number: int) -> int:
        return 2 * number

    @tasks.durable()
    async def pool_in_use(ctx: Context[Any, Any]) -> str:
        return ctx.request_context.lifespan_context.use()

    async def list_tools(_: Request, __: PaginatedRequestParams | None) -> ListToolsResult:
        names = ("sign", "double", "pool_in_use", "plain")
        return ListToolsResult(tools=[Tool(name=name, input_schema={"type": "object"}) for name in names])

    async def call_tool(ctx: Request, params: CallToolRequestParams) -> CallToolResult:
        assert params.name == "plain", "durable functions are called directly"
        return CallToolResult(content=[TextContent(text="plain")])

    server: Server[Any] = Server("low", on_list_tools=list_tools, on_call_tool=call_tool, **options)
    tasks.install(server)
    return server


async def work_in_both(url: str) -> None:
    """A task in each generation, from the call to its result."""
    async with Client2026(url) as modern, Client2025(url) as core:
        done = await modern.until(await modern.start("double", {"number": 21}), "completed")
        task_id = await core.start("double", {"number": 4})
        answer = await core.send("tasks/result", {"taskId": task_id})
    assert (value_of(done["result"]), value_of(answer.result)) == (42, 8)


@asynccontextmanager
async def clients_of(server: MCPServer[Any]) -> AsyncGenerator[tuple[Client2026, Client2025]]:
    """A client of each generation, of a server that runs meanwhile."""
    async with (
        serving(server.streamable_http_app()) as endpoint,
        Client2026(endpoint) as modern,
        Client2025(endpoint) as core,
    ):
        yield modern, core


async def called(client: Client, tool: str = "double", **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments or {"number": 21})
    assert not result.is_error, result
    return cast("Json", result.structured_content)["result"]


async def count_of(tasks: Tasks) -> int:
    """How many tasks there are, whosever."""
    store = tasks.runtime.store
    return sum((await store.storage.counts(TASKS, now=store.clock())).values())


def value_of(result: Json) -> Any:
    return result["structuredContent"]["result"]


def text_of(result: CallToolResult) -> str:
    assert not result.is_error, result.content
    return tool_helpers.text_of(result)


def text(result: Json) -> str:
    return str(result["content"][0]["text"])
