"""The client of the wire benchmark: JSON-RPC of 2026-07-28 over connections that are kept open.

It does as little as possible, so that the server is measured: requests are assembled from bytes, and only the
parts of a response that decide the next request are parsed.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable
from time import perf_counter, process_time
from typing import Any, Literal

import msgspec

from ..timing import Seconds
from .apps import PATH, nothing
from .server_process import HOST, Server

VERSION = "2026-07-28"
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "benchmarks", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
}
TOOL = nothing.__name__
WORKING = frozenset({"working", "input_required"})


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run. Times are in seconds."""

    number: int
    """The number of tasks or plain calls."""
    wall: float
    server: float
    """CPU time of the server."""
    driver: float
    """CPU time of the client."""
    calls: Seconds
    """The seconds of each `tools/call`."""
    gets: Seconds
    """The seconds of each `tasks/get`."""

    @property
    def requests(self) -> int:
        return len(self.calls) + len(self.gets)

    @property
    def each(self) -> float:
        """The seconds of a task or a plain call."""
        return self.wall / self.number


async def collect(server: Server, number: int, concurrency: int) -> Run:
    """Create tasks, and poll each without a pause until it has ended."""
    return await _run(server, number, concurrency, _Client.create_and_collect)


async def call(server: Server, number: int, concurrency: int) -> Run:
    """Make plain calls."""
    return await _run(server, number, concurrency, _Client.call_plainly)


async def _run(
    server: Server, number: int, concurrency: int, work: Callable[[_Client], Awaitable[None]]
) -> Run:
    clients = [await _Client.connected(server.port) for _ in range(concurrency)]
    left = iter(range(number))

    async def share(client: _Client) -> None:
        for _ in left:  # a free connection takes the next
            await work(client)

    gc.collect()
    gc.disable()
    used, used_here, started = server.cpu(), process_time(), perf_counter()
    await asyncio.gather(*map(share, clients))
    wall, here, there = perf_counter() - started, process_time() - used_here, server.cpu() - used
    gc.enable()
    for client in clients:
        client.close()
    return Run(
        number=number,
        wall=wall,
        server=there,
        driver=here,
        calls=[each for client in clients for each in client.calls],
        gets=[each for client in clients for each in client.gets],
    )


# Requests and answers


class _Result(msgspec.Struct, rename="camel"):
    result_type: Literal["complete", "task"] = "complete"
    task_id: str = ""
    status: str = ""
    is_error: bool = False


class _Answer(msgspec.Struct):
    result: _Result


_answer = msgspec.json.Decoder(_Answer)


def _request(method: str, name: str, params: dict[str, Any]) -> bytes:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}})
    head = (
        f"POST {PATH} HTTP/1.1",
        f"Host: {HOST}:80",  # servers check whether it is loopback, and ignore the port
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        f"MCP-Protocol-Version: {VERSION}",
        f"Mcp-Method: {method}",
        f"Mcp-Name: {name}",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join((*head, "", body)).encode()


_CALL = _request("tools/call", TOOL, {"name": TOOL, "arguments": {}})


class _Client:
    """One connection, which sends one request after the other."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self.calls: Seconds = []
        self.gets: Seconds = []

    @classmethod
    async def connected(cls, port: int) -> _Client:
        _, wire = await asyncio.get_running_loop().create_connection(_Wire, HOST, port)
        return cls(wire)

    def close(self) -> None:
        self._wire.close()

    async def call_plainly(self) -> None:
        result = await self._send(_CALL, self.calls)
        assert result.result_type == "complete", result
        assert not result.is_error, result

    async def create_and_collect(self) -> None:
        result = await self._send(_CALL, self.calls)
        assert result.result_type == "task", result
        asking = _request("tasks/get", result.task_id, {"taskId": result.task_id})
        while result.status in WORKING:
            result = await self._send(asking, self.gets)
        assert result.status == "completed", result

    async def _send(self, request: bytes, seconds: Seconds) -> _Result:
        started = perf_counter()
        body = await self._wire.exchange(request)
        seconds.append(perf_counter() - started)
        return _answer.decode(body).result


class _Wire(asyncio.Protocol):
    """The part of HTTP that these servers use: a response has a content length."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[bytes] | None = None
        self._received = b""

    def exchange(self, request: bytes) -> asyncio.Future[bytes]:
        """Send a request; return the body of the response."""
        self._waiting = waiting = self._loop.create_future()
        self._transport.write(request)
        return waiting

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        _, named, rest = head.lower().partition(b"\r\ncontent-length:")
        if not (named and head.startswith(b"HTTP/1.1 200")):
            self._fail(f"this is not the answer: {self._received!r}")
        elif len(body) >= int(rest.partition(b"\r\n")[0]):
            self._received = b""
            self._answer(body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection was lost: {exc}")

    def close(self) -> None:
        self._transport.close()

    def _answer(self, body: bytes) -> None:
        if self._waiting is not None:
            self._waiting.set_result(body)

    def _fail(self, why: str) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionError(why))
