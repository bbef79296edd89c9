"""FastMCP's own client uses our tasks, and our client uses those of FastMCP and our own on its server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import fastmcp
import pytest
from fastmcp import FastMCP
from fastmcp.client.elicitation import ElicitResult
from fastmcp.exceptions import ToolError
from fastmcp_tasks import (
    TasksExtension,
    ToolTask,
    call_tool_task,  # pyright: ignore[reportUnknownVariableType]
)
from mcp.client import Client

from perdure.mcp.client import ClientTasks

from ..mcp.conformance_server import make_server
from ..mcp.raw_clients import serving
from .features import feature
from .tool_server import ToolServer

pytestmark = pytest.mark.anyio


class Elicited:
    """What a client of FastMCP was asked, and answers."""

    def __init__(self, **answer: Any) -> None:
        self.asked: list[str] = []
        self._answer = answer

    async def __call__(self, message: str, *_: object) -> ElicitResult[dict[str, Any]]:
        self.asked.append(message)
        return ElicitResult(action="accept", content=self._answer)


async def test_fastmcps_client_waits_for_our_tasks_by_itself(shop: ToolServer, url: str) -> None:
    shop.gate.set()
    elicited = Elicited(name="Ada")
    async with fastmcp.Client(url, elicitation_handler=elicited) as client:
        assert (await client.call_tool("hold", {"label": "it"})).data == "held it"
        assert (await client.call_tool("ask_two")).data == "first: Ada, second: Ada"
        with pytest.raises(ToolError, match="no paper"):
            await client.call_tool("fail")
        assert await shop.count() == 3

    assert elicited.asked == ["Who?", "Who?"]


@feature(
    "`call_tool_task`, `ToolTask`, and `Client.call_tool`, which waits by itself",
    peer="for clients that import `fastmcp_tasks`",
    here="those work with tasks of perdure; for clients that import `perdure.fastmcp` only, "
    "`Client.call_tool` waits by itself too",
)
async def test_fastmcps_client_follows_one_of_our_tasks_by_its_handle(shop: ToolServer, url: str) -> None:
    async with fastmcp.Client(url) as client:
        task = await call_tool_task(client, "hold", {"label": "it"})
        assert isinstance(task, ToolTask)
        assert (await task.status()).status == "working"
        shop.gate.set()
        assert (await task.result()).data == "held it"
        shop.gate.clear()
        other = await call_tool_task(client, "hold")
        await other.cancel()
        assert (await other.wait(timeout=20)).status == "cancelled"


async def test_fastmcps_client_connects_to_our_server_in_the_same_process(shop: ToolServer) -> None:
    shop.gate.set()
    async with fastmcp.Client(shop.server) as client:
        assert (await client.call_tool("hold", {"label": "it"})).data == "held it"
        assert await shop.count() == 1


async def test_fastmcps_client_uses_a_server_of_the_official_sdk_too(anyio_backend: str) -> None:
    server, _ = make_server("memory:")
    elicited = Elicited(confirm=True)
    async with (
        serving(server.streamable_http_app()) as url,
        fastmcp.Client(url, elicitation_handler=elicited) as client,
    ):
        task = await call_tool_task(client, "slow_compute", {"seconds": 0.1, "label": "it"})
        assert (await task.result()).structured_content == {"result": "computed it in 0.1 seconds"}
        deleted = await client.call_tool("confirm_delete", {"filename": "a"})
        assert deleted.structured_content == {"result": "deleted a"}
        with pytest.raises(ToolError, match="failing_job"):
            await client.call_tool("failing_job")
        with pytest.raises(ToolError, match="the job broke the protocol"):
            await client.call_tool("protocol_error_job")

    assert elicited.asked == ["Delete a?"]


@pytest.mark.parametrize("push", [False, True])
async def test_our_client_uses_our_tasks_on_fastmcp(shop: ToolServer, url: str, *, push: bool) -> None:
    shop.gate.set()
    tasks = ClientTasks(push=push)
    async with Client(url, extensions=[tasks]) as client:
        result = await client.call_tool("hold", {"label": "it"})
        task = await tasks.start(client, "add", {"left": 2, "right": 3})
        assert (await task.wait(20)).structured_content == {"total": 5}

    assert result.structured_content == {"result": "held it"}


@pytest.mark.parametrize("push", [False, True])
async def test_our_client_uses_the_tasks_of_fastmcp(anyio_backend: str, *, push: bool) -> None:
    theirs = FastMCP("theirs")
    theirs.add_extension(TasksExtension())

    @theirs.tool(task=True)
    async def triple(number: int) -> int:
        return 3 * number

    tasks = ClientTasks(push=push)
    async with serving(theirs.http_app(path="/mcp")) as url, Client(url, extensions=[tasks]) as client:
        async with asyncio.timeout(20):
            result = await client.call_tool("triple", {"number": 14})
        task = await tasks.start(client, "triple", {"number": 2})
        assert (await task.wait(20)).structured_content == {"result": 6}

    assert result.structured_content == {"result": 42}


# The part of the client in perdure.fastmcp

PROGRAM = """
import asyncio, sys
import fastmcp
from fastmcp import Context, FastMCP
from fastmcp.client.elicitation import ElicitResult
from fastmcp.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from perdure.fastmcp import TaskOptions, TasksExtension

mcp = FastMCP("root")
mcp.add_extension(TasksExtension("memory:"))

@mcp.tool(task=True)
async def ask(ctx: Context) -> str:
    return f"{(await ctx.elicit('Who?', str)).data}, {ctx.is_background_task}"

@mcp.tool(task=True)
async def fail() -> str:
    raise MCPError(-32042, "it broke off")

async def answer(*_):
    return ElicitResult(action="accept", content={"value": "Ada"})

async def use():
    async with fastmcp.Client(mcp, elicitation_handler=answer) as client:
        print((await client.call_tool("ask")).data)
        try:
            await client.call_tool("fail")
        except ToolError as error:
            print(error)

async def main():
    await use()
    assert "fastmcp_tasks" not in sys.modules
    import fastmcp_tasks
    await use()

asyncio.run(main())
"""


def test_a_client_waits_with_either_part_and_both_may_be_imported() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "Ada, True\nit broke off\n" * 2), ended.stderr
