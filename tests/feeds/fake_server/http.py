"""As much of an HTTP/1.1 server as the fake needs: quick, on loopback, able to break an answer anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from itertools import count
from typing import TypeAlias
from urllib.parse import parse_qs, urlsplit

import msgspec


class Request(msgspec.Struct, frozen=True, kw_only=True):
    connection: int
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes

    def one(self, name: str) -> str | None:
        return self.query[name][0] if name in self.query else None


class Response(msgspec.Struct, frozen=True, kw_only=True):
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = {}
    stops_after: float | None = None
    """The connection ends after this part of the whole."""
    pauses: float = 0.0
    """Seconds between the first half of the whole and the rest."""


Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


class Connection(asyncio.Protocol):
    """One connection; its requests are answered one after the other."""

    def __init__(self, handler: Handler, open_ones: set[Connection]) -> None:
        self._handler = handler
        self._open = open_ones
        self._number = next(_numbers)
        self._buffer = b""
        self._waiting: asyncio.Queue[Request] = asyncio.Queue()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._open.add(self)
        self.task = asyncio.create_task(self._serve())

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self)
        self.task.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (request := self._whole_request()) is not None:
            self._waiting.put_nowait(request)

    def _whole_request(self) -> Request | None:
        """The next request, once all of it is there."""
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return None
        self._buffer = rest[length:]
        method, target, _ = first.split(" ")
        parts = urlsplit(target)
        return Request(
            connection=self._number,
            method=method,
            path=parts.path,
            query=parse_qs(parts.query, keep_blank_values=True),
            headers=headers,
            body=rest[:length],
        )

    async def _serve(self) -> None:
        while True:
            await self._answer(await self._handler(await self._waiting.get()))

    async def _answer(self, response: Response) -> None:
        whole = _encoded(response)
        if response.pauses:
            self.transport.write(whole[: len(whole) // 2])
            await asyncio.sleep(response.pauses)
            whole = whole[len(whole) // 2 :]
        if response.stops_after is None:
            self.transport.write(whole)
            return
        self.transport.write(whole[: int(len(whole) * response.stops_after)])
        self.transport.close()


def _encoded(response: Response) -> bytes:
    lines = [f"HTTP/1.1 {response.status} {_PHRASES.get(response.status, '')}"]
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    if response.status != HTTPStatus.NOT_MODIFIED:
        lines.append(f"content-length: {len(response.body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + response.body


class Listener:
    """Listens on loopback until it is closed."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._open: set[Connection] = set()

    async def start(self, port: int) -> int:
        """The port; a free one for 0."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self._handler, self._open), "127.0.0.1", port, backlog=1024
        )
        return self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()
        tasks = [connection.task for connection in self._open]
        for connection in [*self._open]:
            connection.transport.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()


_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_numbers = count(1)
