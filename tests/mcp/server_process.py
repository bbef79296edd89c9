"""A server in a process of its own: `python -m tests.mcp.server_process URL [--doomed] [--without TOOL] ...`.

It says on the first line of its output where it listens. Tools that last say in the variables of their task
how far they are, so that a test kills the process at that moment and at no other.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Elicit, Resolve
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from perdure import Task, Tasks
from perdure.runtime import RuntimeConfig

from ..runtime.replicas import QUICK, UNHURRIED

NAMED = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class Person(BaseModel):
    name: str


class Sum(BaseModel):
    total: int
    parts: list[int]


def who() -> Elicit[Person]:
    return Elicit("Who is asking?", Person)


async def add(parts: list[int]) -> Sum:
    """Ends at once."""
    return Sum(total=sum(parts), parts=parts)


async def break_off() -> str:
    """Ends at once, with a JSON-RPC error."""
    raise MCPError(-32042, "it broke off", {"at": [1, 2.5, None]})


async def careful(task: Task) -> str:
    """Goes on from its checkpoint; from the start, it gets no further than there."""
    reached = task.variables.get_int("reached", 0)
    if not reached:
        await task.set_variables({"reached": 3, "pid": os.getpid()})
        await asyncio.sleep(600)
    return f"from {reached} in {os.getpid()}"


async def once(task: Task) -> str:
    """Never ends by itself, and is not to be begun again."""
    await task.set_variables({"pid": os.getpid()})
    await asyncio.sleep(600)
    return "never"


async def asks_twice(task: Task) -> str:
    """Asks one thing after the other."""
    first = await task.elicit("Whose?", NAMED, key="first")
    second = await task.elicit("And whose?", NAMED, key="second")
    return f"{(first.data or {})['name']} and {(second.data or {})['name']} in {os.getpid()}"


async def asks_in_context(ctx: Context[Any, Any]) -> str:
    """Asks the same thing twice, as any tool of the SDK does."""
    names: list[str] = []
    for _ in range(2):
        answer = await ctx.elicit("Whose?", schema=Person)
        assert answer.action == "accept"
        names.append(answer.data.name)
    return f"{' and '.join(names)} in {os.getpid()}"


async def welcome(person: Annotated[Person, Resolve(who)], task: Task) -> str:
    """Asks for whom it is before there is a task, and is not to end before it is begun again."""
    if "pid" not in task.variables:
        await task.set_variables({"pid": os.getpid()})
        await asyncio.sleep(600)
    return f"welcome, {person.name}"


TOOLS: tuple[Callable[..., Any], ...] = (add, break_off, careful, once, asks_twice, asks_in_context, welcome)


def make_server(
    url: str,
    runtime: RuntimeConfig,
    *,
    without: Collection[str],
    renamed: Mapping[str, str],
    hand_over_after: float | None = None,
    work: bool = True,
) -> MCPServer[Any]:
    """A server without some of the tools, and with others under new names."""
    tasks = Tasks(url, runtime=runtime, hand_over_after=hand_over_after)
    tasks.work = work
    server: MCPServer[Any] = MCPServer("replica", version="1", log_level="ERROR", **tasks.attach())
    for function in TOOLS:
        name = function.__name__
        if name in without:
            continue
        tool = tasks.durable(restart=function is not once)(function)
        server.add_tool(tool, name=renamed.get(name, name))
    return server


async def serve(server: MCPServer[Any], port: int) -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    config = uvicorn.Config(server.streamable_http_app(), log_level="error", timeout_graceful_shutdown=1)
    running = uvicorn.Server(config)
    serving = asyncio.create_task(running.serve([listener]))
    while not running.started:
        assert not serving.done(), "the server did not start"
        await asyncio.sleep(0.01)
    print(listener.getsockname()[1], flush=True)
    await serving


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--doomed", action="store_true")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--without", action="append", default=[])
    parser.add_argument("--renamed", action="append", default=[], metavar="OLD=NEW")
    parser.add_argument("--hand-over-after", type=float)
    parser.add_argument("--no-work", action="store_true")
    given = parser.parse_args()
    renamed = dict(pair.split("=") for pair in given.renamed)
    runtime = QUICK if given.doomed else UNHURRIED
    server = make_server(
        given.url,
        runtime,
        without=given.without,
        renamed=renamed,
        hand_over_after=given.hand_over_after,
        work=not given.no_work,
    )
    asyncio.run(serve(server, given.port))


if __name__ == "__main__":
    main()
