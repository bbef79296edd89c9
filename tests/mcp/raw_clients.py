"""Raw JSON-RPC over HTTP in both generations, and servers on real sockets to talk to.

The clients here know no rule: they send what a test says and hand back what came, to the letter.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from ..conditions import wait_for_status

EXTENSION = "io.modelcontextprotocol/tasks"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
VERSION = "io.modelcontextprotocol/protocolVersion"
MODERN, CORE = "2026-07-28", "2025-11-25"
ACCEPT = "application/json, text/event-stream"

Json = dict[str, Any]
Answering = Callable[[Json], Awaitable[Json]]
"""What a client does with a request of the server: from the request to its result."""


@dataclass(frozen=True)
class Answer:
    """What came back. Either a result or an error is there; `frames` came before it on the stream."""

    status: int
    message: Json
    frames: tuple[Json, ...] = ()
    content_type: str = ""

    @property
    def result(self) -> Json:
        assert "result" in self.message, f"an error came back: {self.message}"
        return cast("Json", self.message["result"])

    @property
    def error(self) -> Json:
        assert "error" in self.message, f"a result came back: {self.message}"
        return cast("Json", self.message["error"])

    @property
    def code(self) -> int:
        return cast("int", self.error["code"])


class PromptServer(uvicorn.Server):
    """Stops as soon as it is told to. uvicorn itself checks ten times a second, and sleeps in between."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._is_stopping = asyncio.Event()

    def stop(self) -> None:
        self._is_stopping.set()

    async def main_loop(self) -> None:
        await self.on_tick(0)  # which sets the headers of every answer
        await self._is_stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        except TimeoutError:
            for task in self.server_state.tasks:
                task.cancel()
        await self.lifespan.shutdown()


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncGenerator[str]:
    """The application on a free port of loopback; the URL of its MCP endpoint."""
    listener = socket.socket(proto=socket.IPPROTO_TCP)  # else answers wait for acknowledgements
    listener.bind(("127.0.0.1", 0))
    server = PromptServer(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    running = asyncio.create_task(server.serve([listener]))
    try:
        while not server.started:
            assert not running.done(), "the server did not start"
            await asyncio.sleep(0.001)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    finally:
        server.stop()
        await running
        listener.close()


@asynccontextmanager
async def in_process(app: Starlette) -> AsyncGenerator[httpx2.ASGITransport]:
    """The application without a socket, for clients in the same process, also in simulated time."""
    async with app.router.lifespan_context(app):
        yield httpx2.ASGITransport(app)


def _connected(url: str | httpx2.ASGITransport) -> tuple[httpx2.AsyncClient, str]:
    """A client of HTTP, and the URL of the endpoint for it."""
    if isinstance(url, str):
        return httpx2.AsyncClient(timeout=30, verify=False), url
    return httpx2.AsyncClient(transport=url), "http://127.0.0.1:8000/mcp"


async def is_open(port: int) -> bool:
    """Whether somebody listens at this port of loopback."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


class Client2026:
    """2026-07-28: each request stands for itself."""

    def __init__(self, url: str | httpx2.ASGITransport, *, token: str | None = None) -> None:
        self._http, self._url = _connected(url)
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._ids = itertools.count(1)
        self.last_id = 0
        """The id of the last request."""

    async def __aenter__(self) -> Client2026:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    def body(self, method: str, params: Mapping[str, Any], capabilities: Json) -> Json:
        meta = {VERSION: MODERN, CAPABILITIES: capabilities, **params.get("_meta", {})}
        self.last_id = next(self._ids)
        return {
            "jsonrpc": "2.0",
            "id": self.last_id,
            "method": method,
            "params": {**params, "_meta": meta},
        }

    def headers(self, method: str, name: str | None) -> dict[str, str]:
        named = {} if name is None else {"mcp-name": name}
        return {
            "accept": ACCEPT,
            "mcp-protocol-version": MODERN,
            "mcp-method": method,
            **named,
            **self._headers,
        }

    async def send(
        self,
        method: str,
        params: Mapping[str, Any] = {},
        *,
        declared: bool = True,
        capabilities: Json | None = None,
        headers: Mapping[str, str] = {},
    ) -> Answer:
        """`Mcp-Name` is set as the protocol says, unless the headers say something else."""
        offered: Json = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}
        if declared:
            offered["extensions"] = {EXTENSION: {}}
        key = {"tools/call": "name", "resources/read": "uri", "prompts/get": "name"}.get(method)
        name = params.get("taskId" if method.startswith("tasks/") else key or "")
        body = self.body(method, params, offered if capabilities is None else capabilities)
        sent = {**self.headers(method, name if isinstance(name, str) else None), **headers}
        response = await self._http.post(self._url, json=body, headers=sent)
        return _read(response)

    async def call(self, tool: str, arguments: Mapping[str, Any] = {}, **options: Any) -> Answer:
        return await self.send("tools/call", {"name": tool, "arguments": arguments}, **options)

    async def start(self, tool: str, arguments: Mapping[str, Any] = {}, **options: Any) -> str:
        """Call a tool that becomes a task; the id of it."""
        result = (await self.call(tool, arguments, **options)).result
        assert result["resultType"] == "task", result
        return cast("str", result["taskId"])

    async def get(self, task_id: str, **options: Any) -> Json:
        return (await self.send("tasks/get", {"taskId": task_id}, **options)).result

    async def until(self, task_id: str, *statuses: str) -> Json:
        return await wait_for_status(lambda: self.get(task_id), *statuses)

    async def update(self, task_id: str, answers: Mapping[str, Any], **options: Any) -> Answer:
        return await self.send("tasks/update", {"taskId": task_id, "inputResponses": answers}, **options)

    async def cancel(self, task_id: str, **options: Any) -> Answer:
        return await self.send("tasks/cancel", {"taskId": task_id}, **options)

    @asynccontextmanager
    async def listen(
        self, notifications: Json, *, declared: bool = True
    ) -> AsyncGenerator[AsyncIterator[Json]]:
        """The frames of `subscriptions/listen`, as they come, the acknowledgement first."""
        capabilities: Json = {"extensions": {EXTENSION: {}}} if declared else {}
        async with self.stream(
            "subscriptions/listen", {"notifications": notifications}, capabilities
        ) as frames:
            yield frames

    @asynccontextmanager
    async def stream(
        self, method: str, params: Mapping[str, Any], capabilities: Json, name: str | None = None
    ) -> AsyncGenerator[AsyncIterator[Json]]:
        """The frames of the answer to a request, as they come."""
        body, headers = self.body(method, params, capabilities), self.headers(method, name)
        async with self._http.stream("POST", self._url, json=body, headers=headers) as response:
            yield _frames(response)


class Client2025:
    """2025-11-25: a session, begun with a handshake. Enter it with `async with`."""

    def __init__(
        self,
        url: str | httpx2.ASGITransport,
        *,
        token: str | None = None,
        version: str = CORE,
        answering: Answering | None = None,
        capabilities: Json | None = None,
    ) -> None:
        self._http, self._url = _connected(url)
        self._headers = {"accept": ACCEPT} | ({} if token is None else {"authorization": f"Bearer {token}"})
        self._version = version
        self._answering = answering
        self._capabilities: Json = {"elicitation": {}} if capabilities is None else capabilities
        self._ids = itertools.count(1)
        self.last_id = 0
        """The id of the last request."""
        self.initialized: Json = {}
        """What the server answered to `initialize`."""
        self.asked: list[Json] = []
        """Requests of the server that reached this client."""
        self.pings = 0

    async def __aenter__(self) -> Client2025:
        hello: Json = {
            "protocolVersion": self._version,
            "capabilities": self._capabilities,
            "clientInfo": {"name": "tests", "version": "1"},
        }
        self.initialized = (await self.send("initialize", hello)).result
        self._headers["mcp-protocol-version"] = self.initialized["protocolVersion"]
        await self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    @property
    def session_id(self) -> str | None:
        return self._headers.get("mcp-session-id")

    async def send(self, method: str, params: Mapping[str, Any] = {}) -> Answer:
        """Send a request, answer what the server asks meanwhile, and hand back the answer."""
        request_id = self.last_id = next(self._ids)
        body = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": dict(params)}
        async with self._http.stream("POST", self._url, json=body, headers=self._headers) as response:
            if "mcp-session-id" in response.headers:
                self._headers["mcp-session-id"] = response.headers["mcp-session-id"]
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                await response.aread()
                return _read(response)
            frames: list[Json] = []
            async for frame in _frames(response):
                if frame.get("id") == request_id and "method" not in frame:
                    return Answer(response.status_code, frame, tuple(frames), _content_type(response))
                frames.append(frame)
                if "id" in frame and "method" in frame:
                    await self._reply(frame)
        raise AssertionError(f"the stream of {method} ended without an answer; frames: {frames}")

    @asynccontextmanager
    async def listen(self) -> AsyncGenerator[AsyncIterator[Json]]:
        """What the server sends on the session's own stream."""
        for _ in range(200):
            async with self._http.stream("GET", self._url, headers=self._headers) as response:
                if response.status_code == 200:
                    yield self._notifications(response)
                    return
                assert response.status_code == 409  # the server has not noticed yet that the last was closed
            await asyncio.sleep(0.02)
        raise AssertionError("the session's own stream is still open")

    async def _notifications(self, response: httpx2.Response) -> AsyncIterator[Json]:
        """The notifications on a stream; what the server asks there is answered."""
        async for frame in _frames(response):
            if "id" in frame:
                await self._reply(frame)
            else:
                yield frame

    async def _reply(self, request: Json) -> None:
        if request["method"] == "ping":
            self.pings += 1
            await self._post({"jsonrpc": "2.0", "id": request["id"], "result": {}})
        else:
            await self._answer(request)

    async def _answer(self, request: Json) -> None:
        self.asked.append(request)
        assert self._answering is not None, f"the server asks what no test expects: {request}"
        result = await self._answering(request)
        await self._post({"jsonrpc": "2.0", "id": request["id"], "result": result})

    async def _post(self, message: Json) -> None:
        response = await self._http.post(self._url, json=message, headers=self._headers)
        assert response.status_code in (200, 202), (response.status_code, response.text)

    async def end(self) -> None:
        """End the session, as a client does that leaves."""
        response = await self._http.delete(self._url, headers=self._headers)
        assert response.status_code == 200, (response.status_code, response.text)

    async def call(self, tool: str, arguments: Mapping[str, Any] = {}, **more: Any) -> Answer:
        return await self.send("tools/call", {"name": tool, "arguments": arguments, **more})

    async def start(self, tool: str, arguments: Mapping[str, Any] = {}, task: Json | None = None) -> str:
        """Call a tool as a task; the id of it."""
        result = (await self.call(tool, arguments, task=task or {})).result
        return cast("str", result["task"]["taskId"])

    async def get(self, task_id: str) -> Json:
        return (await self.send("tasks/get", {"taskId": task_id})).result

    async def until(self, task_id: str, *statuses: str) -> Json:
        return await wait_for_status(lambda: self.get(task_id), *statuses)


def _read(response: httpx2.Response) -> Answer:
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        lines = response.text.split("\r\n")  # not `splitlines`: to it, some characters of a string end a line
        frames = [json.loads(line[5:]) for line in lines if line.startswith("data:")]
        return Answer(response.status_code, frames[-1], tuple(frames[:-1]), _content_type(response))
    message: Json = response.json() if response.content else {}
    return Answer(response.status_code, message, content_type=_content_type(response))


def _content_type(response: httpx2.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0]


async def _frames(response: httpx2.Response) -> AsyncIterator[Json]:
    async for line in response.aiter_lines():
        if line.startswith("data:") and line[5:].strip():
            yield json.loads(line[5:])
