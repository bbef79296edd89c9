"""FastMCP's own client uses our tasks, and our client uses those of FastMCP and our own on its server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import fastmcp
import pytest
from fastmcp import Context, FastMCP
from fastmcp.client.elicitation import ElicitResult
from fastmcp.dependencies import Progress
from fastmcp.exceptions import ToolError
from fastmcp_tasks import (
    TasksExtension,
    ToolTask,
    call_tool_task,  # pyright: ignore[reportUnknownVariableType]
)
from mcp.client import Client
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from perdure.fastmcp import TasksExtension as OurExtension
from perdure.fastmcp.extension import _ClientTasks  # pyright: ignore[reportPrivateUsage]
from perdure.mcp.client import ClientTasks, connection
from perdure.mcp.errors import ExtensionNotInstalled
from perdure.runtime import RuntimeConfig

from ..mcp.conformance_server import make_server
from ..mcp.raw_clients import serving
from .features import feature
from .served import Served
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
    "`call_tool_task`, `ToolTask`, and `Client.call_tool`, which waits for the task",
    peer="work in clients that import `fastmcp_tasks`",
    here="such clients work with perdure; in clients that import only `perdure.fastmcp`, "
    "`Client.call_tool` waits for tasks too",
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


@pytest.mark.parametrize("status", [401, 503])
async def test_a_client_does_not_wait_forever_for_a_server_that_does_not_answer(
    shop: ToolServer, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(connection, "RETRY_DELAY", 0.01)
    app, polls = shop.server.http_app(path="/mcp"), 0

    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal polls
        is_poll = (b"mcp-method", b"tasks/get") in scope.get("headers", ())
        polls += is_poll
        await (Response(status_code=status) if is_poll else app)(scope, receive, send)

    async with serving(failing) as url, fastmcp.Client(url, extensions=[_ClientTasks()]) as client:
        with pytest.raises(ToolError, match="the connection to the server failed"):
            await client.call_tool("hold")
        shop.gate.set()
    assert polls - 1 == _ClientTasks.max_repeats


@feature(
    "`progress_handler` of a `Client`",
    peer="not called for a task, only for a call that runs within the request",
    here="the same in protocol 2026-07-28; called in protocol 2025-11-25, but a message "
    "without new progress may be left out",
)
@pytest.mark.parametrize(("mode", "expected"), [("auto", []), ("legacy", [1.0, 2.0, 3.0])])
async def test_a_progress_handler_is_called_at_2025(mcp: Served, mode: Any, expected: list[float]) -> None:
    @mcp.tool(task=True)
    async def count(ctx: Context) -> None:
        for number in (1, 2, 3):
            await ctx.report_progress(number, 3, f"page {number}")

    reported: list[tuple[float, float | None, str | None]] = []

    async def handle(progress: float, total: float | None, message: str | None) -> None:
        reported.append((progress, total, message))

    async with (
        serving(mcp.http_app(path="/mcp")) as url,
        fastmcp.Client(url, mode=mode, progress_handler=handle) as client,
    ):
        await client.call_tool("count")
    assert reported == [(number, 3, f"page {number:g}") for number in expected]


async def test_a_message_of_the_same_progress_is_sent_with_it(anyio_backend: str) -> None:
    """FastMCP's `Progress` sets the value and its message one after the other."""
    mcp: Served = FastMCP("root")
    mcp.add_extension(OurExtension("memory:", runtime=RuntimeConfig(report_interval=5)))

    @mcp.tool(task=True)
    async def count(progress: Progress = Progress()) -> None:
        await progress.set_total(3)
        await progress.increment()
        await progress.set_message("page 1")

    reported: list[tuple[float, float | None, str | None]] = []

    async def handle(*progress: Any) -> None:
        reported.append(progress)

    async with (
        serving(mcp.http_app(path="/mcp")) as url,
        fastmcp.Client(url, mode="legacy", progress_handler=handle) as client,
    ):
        await client.call_tool("count")
    assert reported == [(0, 3, None), (1, 3, "page 1")]


async def test_our_client_for_the_sdk_refuses_a_client_of_fastmcp_with_the_reason(shop: ToolServer) -> None:
    tasks = ClientTasks()
    client: Any = fastmcp.Client(shop.server, extensions=[tasks])
    with pytest.raises(ExtensionNotInstalled, match=r"use mcp\.client\.Client\(\.\.\., extensions"):
        await tasks.start(client, "hold")
