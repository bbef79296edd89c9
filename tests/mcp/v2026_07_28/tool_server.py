"""A server of 2026-07-28 with tools of every kind, and a client whose answers are judged.

The published schemas judge every answer that came to the tests of a module, when the module is done.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from mcp.server import MCPServer
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from perdure import Task, Tasks
from perdure.runtime import RuntimeConfig

from ..conformance_server import add_task_fixtures
from ..raw_clients import Answer, Json, serving
from ..schema_check import Recorded

T = TypeVar("T")

CONFIRM: Json = {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}
YES: Json = {"action": "accept", "content": {"confirm": True}}
NO: Json = {"action": "decline"}
UNKNOWN_TASK_ID = "0" * 32


# A server with tools for what the fixture server of the suites does not do


class Measure(BaseModel):
    length: float
    unit: str


def add_tools(server: MCPServer[object], tasks: Tasks) -> None:
    @server.tool()
    @tasks.durable()
    async def measure(length: float) -> Measure:
        return Measure(length=length, unit="m")

    @server.tool()
    @tasks.durable(poll_interval=0.06)
    async def ask_twice(task: Task) -> str:
        """Asks the same thing twice."""
        answers = [await task.elicit("Sure?", CONFIRM) for _ in range(2)]
        return ", ".join(answer.action for answer in answers)

    @server.tool()
    @tasks.durable()
    async def ask_under_one_key(task: Task) -> str:
        """Asks the same twice under one key."""
        answers = [await task.elicit(what, CONFIRM, key="sure") for what in ("Sure?", "Sure?")]
        return ", ".join(answer.action for answer in answers)

    @server.tool()
    @tasks.durable()
    async def remember(variables: dict[str, Any], task: Task) -> str:
        """Sets variables, asks, and says which there are then."""
        await task.set_variables(variables)
        await task.elicit("Go on?", CONFIRM, key="go")
        return json.dumps(dict(task.variables))

    @server.tool()
    @tasks.durable()
    async def break_with(code: int, message: str, data: Any) -> str:
        """Ends with this JSON-RPC error."""
        raise MCPError(code, message, data)

    @server.tool()
    @tasks.durable(timeout=0.05)
    async def take_too_long() -> str:
        await asyncio.sleep(60)
        return "in time"


def tasks_at(where: str, **options: Any) -> Tasks:
    """Tasks of a server that does not wait for what tests leave behind."""
    return Tasks(where, runtime=RuntimeConfig(drain_timeout=0), **options)


@asynccontextmanager
async def open_tool_server(tasks: Tasks) -> AsyncGenerator[str]:
    """The address of a server with these tasks, the tools of the fixture server and those above."""
    server: MCPServer[object] = MCPServer("workshop", version="1", **tasks.attach())
    add_task_fixtures(server, tasks)
    add_tools(server, tasks)
    async with serving(server.streamable_http_app()) as url:
        yield url


async def asking(client: Recorded, tool: str, arguments: Mapping[str, Any] = {}) -> tuple[str, list[str]]:
    """Start a tool that asks; its task, and the keys under which it asks."""
    task_id = await client.start(tool, arguments)
    return task_id, list((await client.until(task_id, "input_required"))["inputRequests"])


def bare(result: Json) -> Json:
    return {name: value for name, value in result.items() if name != "_meta"}


ONE_TASK = ("tasks/get", "tasks/update", "tasks/cancel")


async def about(client: Recorded, method: str, task_id: Any, **options: Any) -> Answer:
    answers: Json = {"inputResponses": {}} if method == "tasks/update" else {}
    return await client.send(method, {"taskId": task_id, **answers}, **options)
