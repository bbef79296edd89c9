"""An HTTP proxy between the engine and its server, which counts requests and injects faults.

It returns errors of AWS that local servers never return, and loses requests or responses. Requests are
forwarded unchanged, so their signatures stay valid.
"""

from __future__ import annotations

import asyncio
import json
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from enum import Enum, auto
from typing import Any, TypeAlias
from urllib.parse import urlencode
from uuid import uuid4

import msgspec

from perdure.storage.kit.servers.dynamodb import REGION

ERRORS = "com.amazonaws.dynamodb.v20120810#"


class Loss(Enum):
    REQUEST = auto()
    """The connection breaks before the server receives the request."""
    ANSWER = auto()
    """The connection breaks after the server has executed the request."""


class Error(msgspec.Struct, frozen=True):
    """An error that the proxy returns instead of the server."""

    code: str
    status: int = 400
    reasons: tuple[str, ...] = ()


class Answer(msgspec.Struct, frozen=True):
    """A successful response that the proxy returns instead of the server."""

    response: dict[str, Any]


Fault: TypeAlias = Loss | Error | Answer | None
Rule: TypeAlias = Callable[[str, dict[str, Any]], Fault]
"""A function that returns the fault for a request, given its operation and its parameters."""


def conflict(_: str, question: dict[str, Any]) -> Error:
    """Return the error of AWS for a transaction that conflicts with another one."""
    items = len(question["TransactItems"])
    return Error("TransactionCanceledException", reasons=("TransactionConflict",) + ("None",) * (items - 1))


class Proxy:
    """Counts requests, and calls `rule` for each of them."""

    def __init__(self, server_port: int) -> None:
        self.asked: Counter[str] = Counter()
        self.largest = 0
        self.rule: Rule = lambda _operation, _question: None
        self.port = 0
        self._server_port = server_port

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def new_url(self, options: str = "") -> str:
        query = urlencode({"endpoint_url": self.endpoint, "region_name": REGION})
        return f"dynamodb://perdure-{uuid4().hex}?{query}{options}"

    def fail(self, operation: str, *faults: Fault) -> None:
        """Let the next requests with this operation fail, each with the next of these faults."""
        left = list(faults)

        def rule(asked: str, _: dict[str, Any]) -> Fault:
            return left.pop(0) if asked == operation and left else None

        self.rule = rule

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while await self._pass_on(reader, writer, from_server, to_server):
                    pass
        finally:
            writer.close()
            to_server.close()

    async def _pass_on(
        self, reader: StreamReader, writer: StreamWriter, from_server: StreamReader, to_server: StreamWriter
    ) -> bool:
        head, body = await _read(reader)
        operation = _header(head, b"x-amz-target").rpartition(b".")[2].decode()
        self.asked[operation] += 1
        question = json.loads(body)
        self.largest = max(self.largest, len(question.get("TransactItems", ())))
        fault = self.rule(operation, question)
        if fault is Loss.REQUEST:
            return False
        if isinstance(fault, (Error, Answer)):
            writer.write(_refusal(fault) if isinstance(fault, Error) else _answer(200, fault.response))
            return True
        to_server.write(head + body)
        answer_head, answer = await _read(from_server)
        if fault is Loss.ANSWER:
            return False
        writer.write(answer_head + answer)
        return True


@asynccontextmanager
async def proxy_to(port: int) -> AsyncGenerator[Proxy]:
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=2**24)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()


async def _read(reader: StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    return head, await reader.readexactly(int(_header(head, b"content-length")))


def _header(head: bytes, name: bytes) -> bytes:
    lines = head.split(b"\r\n")
    return next(
        value.strip() for key, _, value in (line.partition(b":") for line in lines) if key.lower() == name
    )


def _refusal(error: Error) -> bytes:
    response: dict[str, Any] = {"__type": ERRORS + error.code, "message": "injected"}
    if error.reasons:
        response["CancellationReasons"] = [{"Code": reason} for reason in error.reasons]
    return _answer(error.status, response)


def _answer(status: int, response: dict[str, Any]) -> bytes:
    body = json.dumps(response).encode()
    head = f"HTTP/1.1 {status} Injected\r\nContent-Type: application/x-amz-json-1.0\r\n"
    return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
