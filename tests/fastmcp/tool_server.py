"""A server of FastMCP with tools that are tasks, and one that knows its callers by their tokens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

from fastmcp import Context, FastMCP
from fastmcp.dependencies import Depends
from fastmcp.exceptions import ToolError
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier
from fastmcp.tools.base import ToolResult
from fastmcp.utilities.tasks import TaskConfig
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from perdure import Task, current_task
from perdure.fastmcp import TaskOptions, TasksExtension
from perdure.tasks import InputKind, InputRequest

from .. import task_edits
from ..mcp.raw_clients import Client2025, Json, serving
from ..mcp.tool_helpers import FAST_CONFIG, NAME_FORM

NAMING_ADA: Json = {"action": "accept", "content": {"name": "Ada"}}
ADA, BOB = "ada", "bob"
"""Their tokens, and their names."""


class Sum(BaseModel):
    total: int


class ToolServer:
    """A server of FastMCP with tools that are tasks, and plain ones that do the same."""

    def __init__(self, url: str = "memory:", *, server: FastMCP[Any] | None = None, **options: Any) -> None:
        self.extension = TasksExtension(url, runtime=FAST_CONFIG, **options)
        self.server: FastMCP[Any] = FastMCP("fast", version="1.2") if server is None else server
        self.gate = asyncio.Event()
        """What `hold` waits for."""
        self.ran: list[str] = []
        self.server.add_extension(self.extension)
        add_tools(self)
        add_pairs(self)
        add_failing_pairs(self)

    async def count(self) -> int:
        return sum((await task_edits.counts(self.extension.tasks.runtime.store)).values())


def add_tools(shop: ToolServer) -> None:
    @shop.server.tool(task=True)
    async def hold(ctx: Context, label: str = "") -> str:
        """Holds."""
        shop.ran.append(label)
        await ctx.report_progress(1, 2, f"holding {label}")
        await shop.gate.wait()
        return f"held {label}"

    @shop.server.tool(task=True)
    async def ask_two(task: Task = Depends(current_task)) -> str:
        params = {"mode": "form", "message": "Who?", "requestedSchema": NAME_FORM}
        each = InputRequest(kind=InputKind.ELICITATION, params=cast("Any", params))
        asked = await task.ask({"first": each, "second": each})
        return ", ".join(f"{key}: {cast('Any', asked[key].answer).values['name']}" for key in sorted(asked))

    @shop.server.tool(task=TaskConfig(mode="required"))
    async def only_as_task() -> str:
        return "done"

    @shop.server.tool(task=TaskOptions())
    def thread_name() -> str:
        """A plain function, which blocks."""
        return f"{threading.current_thread() is threading.main_thread()} {current_task().attempt}"

    @shop.server.tool()
    async def greet(name: str) -> str:
        return f"Hello, {name}!"


def add_pairs(shop: ToolServer) -> None:
    """Each of these twice: as it is, and as a task."""

    async def add(left: int, right: int) -> Sum:
        return Sum(total=left + right)

    async def count(upto: int) -> list[int]:
        return list(range(upto))

    async def nothing() -> None:
        return None

    async def rich() -> ToolResult:
        return ToolResult(content="shown", structured_content={"kept": [1, 2]}, meta={"test/why": "because"})

    _register_twice(shop, add, count, nothing, rich)


def add_failing_pairs(shop: ToolServer) -> None:
    async def fail() -> str:
        raise ToolError("there is no paper")

    async def stumble() -> str:
        raise ValueError("out of paper")

    async def break_off() -> str:
        raise MCPError(-32042, "it broke off", {"at": 1})

    _register_twice(shop, fail, stumble, break_off)


def _register_twice(shop: ToolServer, *functions: Any) -> None:
    for function in functions:
        shop.server.tool(name=f"plain_{function.__name__}")(function)
        shop.server.tool(function, task=True)


def authenticated() -> FastMCP[Any]:
    people: dict[str, dict[str, Any]] = {
        name: {"client_id": "some-client", "scopes": [], "sub": name, "iss": "https://issuer.test"}
        for name in (ADA, BOB)
    }
    return FastMCP("fast", auth=StaticTokenVerifier(people))


@asynccontextmanager
async def opened(shop: ToolServer) -> AsyncGenerator[str]:
    async with serving(shop.server.http_app(path="/mcp")) as url:
        yield url


async def result_of(core: Client2025, task_id: str) -> Json:
    return (await core.send("tasks/result", {"taskId": task_id})).result
