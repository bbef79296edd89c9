"""A client that waits survives lost connections: a killed server, another replica, gateway errors."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import httpx2
import mcp
import pytest
from mcp.client import Client
from mcp.client.session import ClientRequestContext
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    ElicitRequestParams,
    ElicitResult,
    EmptyResult,
    PingRequest,
)
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from perdure.mcp.client import ClientTask, ClientTasks, connection
from perdure.mcp.errors import ConnectionLost, WaitTimeout

from ...conditions import wait_until
from ...markers import once, row
from ..raw_clients import serving
from ..replicas import Replicas
from ..tool_helpers import text_of
from .tool_server import BOTH, AnsweringUser, Mode, ToolServer, cancelled, visiting

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]


async def is_running(task: ClientTask) -> None:
    """Wait until the tool of the server process has reported that it runs."""

    async def has_started() -> bool:
        return "pid" in (await task.status()).variables

    await wait_until(has_started)


# A server that is killed


@row(132)
@pytest.mark.parametrize(("mode", "push"), [("auto", False), ("auto", True), ("legacy", False)])
async def test_a_wait_survives_the_death_of_the_server_and_a_restart_at_the_same_address(
    replicas: Replicas, mode: Mode, *, push: bool
) -> None:
    first = await replicas.start_doomed()
    async with visiting(first.url, mode, push=push) as visitor:
        task = await visitor.start("careful")
        await is_running(task)
        waiting = asyncio.create_task(task.wait(timedelta(minutes=2)))
        await first.end(signal.SIGKILL)
        await asyncio.sleep(1)  # the client fails to connect in the meantime
        assert not waiting.done()
        second = await replicas.start("--port", str(first.port))

        assert text_of(await waiting) == f"from 3 in {second.pid}"
        assert (await task.status()).status == "completed"


@row(132)
@BOTH
async def test_a_wait_continues_at_another_replica(replicas: Replicas, mode: Mode) -> None:
    first = await replicas.start_doomed()
    addresses = [first.url]
    tasks = ClientTasks(reconnect=lambda: addresses[-1])
    async with Client(first.url, mode=mode, extensions=[tasks]) as client:
        task = await tasks.start(client, "careful")
        await is_running(task)
        waiting = asyncio.create_task(task.wait(120))
        second = await replicas.start()
        addresses.append(second.url)
        await first.end(signal.SIGKILL)

        assert text_of(await waiting) == f"from 3 in {second.pid}"


def stdio_server(storage: Path) -> StdioServerParameters:
    start = (
        "from tests.mcp.server_process import QUICK, make_server;"
        f"make_server('sqlite:///{storage}', QUICK, without=(), renamed={{}}).run('stdio')"
    )
    return StdioServerParameters(command=sys.executable, args=["-c", start], cwd=ROOT)


@row(132)
@BOTH
async def test_over_stdio_the_server_is_started_again(tmp_path: Path, mode: Mode) -> None:
    async with visiting(stdio_server(tmp_path / "tasks.db"), mode) as visitor:
        task = await visitor.start("careful")
        await is_running(task)
        pid = (await task.status()).variables["pid"]
        waiting = asyncio.create_task(task.wait(120))
        os.kill(pid, signal.SIGKILL)

        result = text_of(await waiting)
        assert result.startswith("from 3 in ")
        assert result != f"from 3 in {pid}"
        assert (await task.status()).status == "completed"


@row(132)
@BOTH
async def test_over_stdio_later_calls_start_a_server_that_died(tmp_path: Path, mode: Mode) -> None:
    async with visiting(stdio_server(tmp_path / "tasks.db"), mode) as visitor:
        task = await visitor.start("careful")
        await is_running(task)
        os.kill((await task.status()).variables["pid"], signal.SIGKILL)
        with pytest.raises(MCPError, match="Connection closed"):
            await visitor.client.call_tool("add", {"parts": [1, 2]})

        result = await visitor.call("add", {"parts": [1, 2]})
        assert result.structured_content == {"total": 3, "parts": [1, 2]}
        again = await visitor.start("add", {"parts": [3]})
        assert (await again.wait(60)).structured_content == {"total": 3, "parts": [3]}
        assert text_of(await task.wait(60)).startswith("from 3 in ")


@pytest.mark.parametrize("push", [False, True])
async def test_a_transport_that_is_used_up_cannot_be_opened_again(tmp_path: Path, *, push: bool) -> None:
    async with visiting(stdio_client(stdio_server(tmp_path / "tasks.db")), push=push) as visitor:
        task = await visitor.start("careful")
        await is_running(task)
        waiting = asyncio.create_task(task.wait(60))
        os.kill((await task.status()).variables["pid"], signal.SIGKILL)

        with pytest.raises(ConnectionLost) as raised:
            await waiting
        assert (raised.value.retryable, raised.value.task_id) == (False, task.id)
        with pytest.raises(ConnectionLost):
            await visitor.call("add", {"parts": [1, 2]})


@row(132)
@once
@BOTH
async def test_a_call_survives_the_death_of_the_server_and_its_block_is_not_cancelled(
    replicas: Replicas, mode: Mode
) -> None:
    first = await replicas.start_doomed()
    person = SlowToAnswer()
    async with visiting(first.url, mode, person=person) as visitor:
        calling = asyncio.create_task(visitor.call("asks_twice", timeout=120))
        await wait_until(lambda: len(person.asked) == 2)
        await first.end(signal.SIGKILL)
        person.killed.set()
        second = await replicas.start("--port", str(first.port))

        assert text_of(await calling) == f"Ada and Ada in {second.pid}"
        assert (await visitor.call("add", {"parts": [1, 2]})).structured_content == {
            "total": 3,
            "parts": [1, 2],
        }
    if mode == "auto":  # the answer is kept; at 2025-11-25 the question was on the stream that was lost
        assert person.asked == ["Whose?", "And whose?"]


@row(132)
@once
@pytest.mark.parametrize("push", [False, True])
async def test_a_callback_is_not_disturbed_while_the_server_restarts(
    replicas: Replicas, *, push: bool
) -> None:
    first = await replicas.start_doomed()
    person = SlowToAnswer()
    async with visiting(first.url, person=person, push=push) as visitor:
        calling = asyncio.create_task(visitor.call("asks_twice", timeout=120))
        await wait_until(lambda: len(person.asked) == 2)
        await first.end(signal.SIGKILL)
        if push:
            await refuse_connections(first.port, 3)
        second = await replicas.start("--port", str(first.port))
        person.killed.set()

        assert text_of(await calling) == f"Ada and Ada in {second.pid}"
    assert person.asked == ["Whose?", "And whose?"]


async def refuse_connections(port: int, number: int) -> None:
    """Close this number of new connections, instead of the server at this port."""
    refused = 0

    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal refused
        refused += 1
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", port):
        await wait_until(lambda: refused >= number)


@row(132)
@once
async def test_with_a_way_to_reconnect_the_call_of_the_sdk_survives_too(replicas: Replicas) -> None:
    first = await replicas.start_doomed()
    person = SlowToAnswer()
    async with httpx2.AsyncClient() as http:
        tasks = ClientTasks(reconnect=lambda: streamable_http_client(first.url, http_client=http))
        callback = cast("Any", person.elicit)
        async with Client(first.url, extensions=[tasks], elicitation_callback=callback) as client:
            calling = asyncio.create_task(client.call_tool("asks_twice"))
            await wait_until(lambda: len(person.asked) == 2)
            await first.end(signal.SIGKILL)
            person.killed.set()
            second = await replicas.start("--port", str(first.port))

            assert text_of(await calling) == f"Ada and Ada in {second.pid}"


class SlowToAnswer(AnsweringUser):
    """Answers the second question when the test has killed the server."""

    def __init__(self) -> None:
        super().__init__()
        self.killed = asyncio.Event()

    async def elicit(self, _: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params.message)
        if params.message == "And whose?":
            await self.killed.wait()
        return ElicitResult(action="accept", content={"name": self.name})


# Errors that name the task


@row(132)
@once
@BOTH
async def test_a_wait_that_times_out_while_the_server_is_down_names_the_task(
    replicas: Replicas, mode: Mode
) -> None:
    first = await replicas.start_doomed()
    async with visiting(first.url, mode) as visitor:
        task = await visitor.start("careful")
        await is_running(task)
        await first.end(signal.SIGKILL)
        with pytest.raises(WaitTimeout) as raised:
            await task.wait(1)
        assert raised.value.task_id == task.id
        assert isinstance(raised.value.__cause__, ConnectionLost)
        with pytest.raises(ConnectionLost) as lost:
            await task.status()
        assert lost.value.task_id == task.id

        await replicas.start("--port", str(first.port))
        assert text_of(await visitor.resume(task.save()).wait(120)).startswith("from 3")


@row(132)
@BOTH
async def test_a_call_that_times_out_names_its_task_and_leaves_it_running(
    shop: ToolServer, url: str, mode: Mode
) -> None:
    async with visiting(url, mode) as visitor:
        calling = asyncio.create_task(visitor.call("hold", {"label": "it"}, timeout=2))
        await wait_until(lambda: shop.held == 1)
        with pytest.raises(WaitTimeout) as raised:
            await calling
        assert isinstance(raised.value, TimeoutError)
        task = visitor.resume(f'{{"task_id": "{raised.value.task_id}", "tool": "hold"}}')
        assert (await task.status()).status == "working"
        shop.gate.set()
        assert text_of(await task.wait(20)) == "held it"


@BOTH
async def test_a_call_that_is_cancelled_cancels_its_task(shop: ToolServer, url: str, mode: Mode) -> None:
    async with visiting(url, mode) as visitor:
        calling = asyncio.create_task(visitor.call("hold"))
        await wait_until(lambda: len(shop.watch.of("tasks/get")) > 0)
        await cancelled(calling)
        await shop.until_statuses("cancelled")


@BOTH
async def test_an_error_of_the_server_names_the_task_in_its_notes(url: str, mode: Mode) -> None:
    async with visiting(url, mode) as visitor:
        task = await visitor.start("break_off")
        with pytest.raises(MCPError, match="it broke off") as raised:
            await task.wait(20)
        assert raised.value.__notes__ == [f"task id: {task.id}"]


@BOTH
async def test_an_error_of_the_tool_is_raised_even_if_it_says_that_it_is_retryable(
    shop: ToolServer, url: str, mode: Mode
) -> None:
    @shop.server.tool()
    @shop.tasks.durable()
    async def break_for_now() -> str:
        raise MCPError(-32603, "the printer is out of paper", {"retryable": True})

    async with visiting(url, mode) as visitor:
        with pytest.raises(MCPError, match="out of paper"):
            await visitor.call("break_for_now", timeout=30)


# Sessions


@pytest.mark.parametrize("reconnects", [True, False])
async def test_a_task_that_is_bound_to_the_session_is_followed_on_the_clients_own_connection(
    anyio_backend: str, *, reconnects: bool
) -> None:
    """A transport is used up, so a client that has one is used itself."""
    shop, tasks = ToolServer("memory:", anonymous="session"), ClientTasks()
    shop.gate.set()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(shop.server.streamable_http_app()))
        server = url if reconnects else streamable_http_client(url)
        client = await stack.enter_async_context(Client(server, mode="legacy", extensions=[tasks]))
        task = await tasks.start(client, "hold")
        if reconnects:
            with pytest.raises(MCPError, match="Task not found"):
                await task.wait(20)
        else:
            assert text_of(await task.wait(20)) == "held "
        assert text_of(await tasks.call(client, "hold")) == "held "


# A gateway without a server behind it


class Gateway:
    """An application that answers some methods itself, like a proxy, for as long as a test says."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.failing: set[bytes] = set()
        self.is_down = False
        """Whether it answers everything itself."""
        self.answer: Response = PlainTextResponse("no server is available", 503)
        self.failed = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = dict(scope.get("headers", ())).get(b"mcp-method", b"")
        if self.is_down or method in self.failing:
            self.failed += 1
            await self.answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)


@asynccontextmanager
async def gateway() -> AsyncGenerator[tuple[ToolServer, Gateway, str]]:
    shop = ToolServer("memory:")
    between = Gateway(shop.server.streamable_http_app())
    async with serving(between) as url:
        yield shop, between, url


@row(132)
@pytest.mark.parametrize("reconnects", [True, False])
async def test_a_wait_survives_the_errors_of_a_gateway(anyio_backend: str, *, reconnects: bool) -> None:
    async with gateway() as (shop, between, url), httpx2.AsyncClient() as http:
        server = url if reconnects else streamable_http_client(url, http_client=http)
        async with visiting(server, push=True) as visitor:
            waiting = asyncio.create_task((await visitor.start("hold")).wait(60))
            await wait_until(lambda: len(shop.watch.of("tasks/get")) > 0)
            between.failing = {b"tasks/get", b"subscriptions/listen"}
            await wait_until(lambda: between.failed > 2)
            between.failing = set()
            shop.gate.set()
            assert text_of(await waiting) == "held "


@row(132)
@BOTH
@pytest.mark.parametrize(
    "answer",
    [
        PlainTextResponse("404 page not found", 404),
        HTMLResponse("<p>We will be back soon.</p>"),
        JSONResponse({"message": "no route matched"}, 404),
        JSONResponse({"status": "starting"}),
        Response(status_code=202),
    ],
    ids=["404", "html", "json-404", "json", "202"],
)
async def test_a_wait_survives_a_proxy_whose_server_restarts_behind_it(
    anyio_backend: str, mode: Mode, answer: Response
) -> None:
    async with gateway() as (shop, between, url), visiting(url, mode) as visitor:
        waiting = asyncio.create_task(visitor.call("hold", timeout=60))
        await wait_until(lambda: len(shop.watch.of("tasks/get")) > 0)
        between.answer = answer
        between.is_down = True
        await wait_until(lambda: between.failed > 3)
        between.is_down = False
        shop.gate.set()
        assert text_of(await waiting) == "held "


@BOTH
@pytest.mark.parametrize("message", ["Method not found", "Not Found: task"])
async def test_a_json_rpc_error_with_status_404_is_an_answer_of_the_server(
    anyio_backend: str, mode: Mode, message: str
) -> None:
    async with gateway() as (_, between, url), visiting(url, mode) as visitor:
        task = await visitor.start("hold")
        error = {"code": METHOD_NOT_FOUND, "message": message}
        between.answer = JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, 404)
        between.is_down = True
        with pytest.raises(MCPError, match=message) as raised:
            await task.wait(20)
        assert (raised.value.code, between.failed) == (METHOD_NOT_FOUND, 1)


@row(132)
@pytest.mark.parametrize("method", ["call", "start"])
async def test_a_call_that_may_have_reached_the_server_is_not_repeated(
    anyio_backend: str, method: str
) -> None:
    async with gateway() as (shop, between, url), visiting(url) as visitor:
        between.failing = {b"tools/call"}
        with pytest.raises(ConnectionLost) as raised:
            await getattr(visitor, method)("hold")
        assert (between.failed, raised.value.was_sent, raised.value.task_id) == (1, True, None)
        assert shop.held == 0


@row(132)
@pytest.mark.parametrize("method", ["call", "start"])
async def test_a_call_with_an_idempotency_key_is_repeated(anyio_backend: str, method: str) -> None:
    async with gateway() as (_, between, url), visiting(url) as visitor:
        between.failing = {b"tools/call"}
        calling = asyncio.create_task(getattr(visitor, method)("hold", idempotency_key="once"))
        await wait_until(lambda: between.failed > 1)
        between.failing = set()
        with pytest.raises(MCPError, match="cannot be used by an anonymous caller") as raised:
            await calling
        assert raised.value.code == INVALID_PARAMS


@pytest.mark.parametrize("text", sorted({text for _, text in connection._UNANSWERED}))  # pyright: ignore[reportPrivateUsage]
def test_the_sdk_reports_unanswered_requests_in_these_words(text: str) -> None:
    written = f'"{text} {{' if text.endswith(":") else f'"{text}"'
    assert any(written in source.read_text("utf-8") for source in Path(mcp.__path__[0]).rglob("*.py"))


async def test_the_sdk_reports_a_timeout_in_these_words(anyio_backend: str) -> None:
    async with gateway() as (_, _, url), visiting(url) as visitor:
        with pytest.raises(MCPError) as raised:
            await visitor.client.session.send_request(PingRequest(), EmptyResult, 0.0)
    assert connection._is_unanswered(raised.value)  # pyright: ignore[reportPrivateUsage]
