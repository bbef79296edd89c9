"""How a client reaches its server, and reaches it again after the connection was lost.

A request of the SDK's HTTP client that cannot reach the server cancels the block which entered the client. So
requests about tasks use clients of their own, made from the settings of the user's client. Each is entered in
a task of its own, and its failure ends nothing else. At 2026-07-28 it costs no request, because each request
is independent; at 2025-11-25 it is a session of its own. A client over stdio, or in the same process, is used
itself for as long as it is connected.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from random import uniform
from ssl import SSLContext
from typing import Any, Self, TypeAlias, TypeVar, cast

import anyio
import httpx2
from anyio.abc import TaskStatus
from mcp.client import Client, ClientSession, Transport
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    EmptyResult,
    PingRequest,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from .errors import ConnectionLost
from .protocols import REQUEST_TIMEOUT_SECONDS, CallbackRefused, TaskProtocol, protocol_of

RETRY_DELAY, MAX_RETRY_DELAY = 0.5, 10.0
"""Seconds before a request is repeated for the first time; each further delay doubles, up to a maximum."""
HTTP_TIMEOUT = httpx2.Timeout(30, read=300)
"""The SDK's own timeouts: a server may keep a response stream open."""

_LOST_SESSION = {(INVALID_REQUEST, "Session terminated"), (INVALID_REQUEST, "Session not found")}
_CLOSED = {(CONNECTION_CLOSED, "Connection closed"), *_LOST_SESSION}
_UNANSWERED = {
    *_CLOSED,
    (CONNECTION_CLOSED, "SSE stream failed:"),
    (CONNECTION_CLOSED, "SSE stream ended without a response"),
    (CONNECTION_CLOSED, "SSE stream ended and reconnection attempts were exhausted"),
    (INTERNAL_ERROR, "Server returned an error response"),
    (INVALID_REQUEST, "Unexpected content type:"),
    (PARSE_ERROR, "Failed to parse JSON response:"),
    (INVALID_REQUEST, "server answered a request with 202 Accepted"),
    (METHOD_NOT_FOUND, "Not Found"),  # HTTP 404 without a JSON-RPC message
}
"""The code and the message, up to a colon, by which the SDK reports that the server did not answer a request:
the connection failed, or a proxy answered in its place. The SDK has no codes of their own for them."""

T = TypeVar("T")
log = logging.getLogger("perdure.mcp")

Address: TypeAlias = str | StdioServerParameters | Transport
"""What a `Client` connects to and can connect to again."""


def is_temporary(error: Exception) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, MCPError):  # servers of perdure report it
        data = error.error.data
        return isinstance(data, dict) and cast("dict[str, Any]", data).get("retryable") is True
    return isinstance(error, ConnectionLost) and error.retryable


def _is_unanswered(error: MCPError) -> bool:
    """Return whether the SDK, and not the server, reports that a request was not answered."""
    if error.error.data is not None or isinstance(error, CallbackRefused):
        return False
    if error.code == REQUEST_TIMEOUT:
        return error.message.startswith("Request '") and error.message.endswith("' timed out")
    return _report_of(error) in _UNANSWERED


def _report_of(error: MCPError) -> tuple[int, str]:
    start, colon, _ = error.message.partition(": ")
    return error.code, start + colon.rstrip()


def _reason_of(error: Exception, *, was_sent: bool) -> Exception:
    """Return ConnectionLost for an error of the network, and any other error as it is."""
    causes = list(_causes(error))
    for cause in causes:
        is_lost = isinstance(cause, MCPError) and _is_unanswered(cause)
        if not is_lost and not isinstance(cause, httpx2.TransportError | OSError):
            return cause
    was_received = was_sent and not all(_is_refused(cause) for cause in causes)
    return ConnectionLost(str(causes[0]) or type(causes[0]).__name__, was_sent=was_received)


def _is_refused(error: Exception) -> bool:
    """Return whether the server has not seen the request, or has not looked at it for lack of a session."""
    if isinstance(error, MCPError):
        return _report_of(error) in _LOST_SESSION
    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)


def _causes(error: Exception) -> Iterator[Exception]:
    """Yield the errors in nested exception groups."""
    if isinstance(error, ExceptionGroup):
        for each in cast("ExceptionGroup[Exception]", error).exceptions:
            yield from _causes(each)
    else:
        yield error


@dataclass(eq=False)
class _Link:
    """A session with the server, and the client that was opened for it, if it is not the user's own."""

    session: ClientSession
    requests: int = 0
    """How many requests wait for an answer. Until there is none, a link stays open that lost a request."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)
    failure: Exception | None = None


class Connection:
    """Sends requests to the server of a client, within an `async with` block.

    It is opened with the first request, and again after it was lost. What the block raises stays as it is.
    """

    def __init__(
        self, own: ClientSession, reopen: Callable[[], Client] | None = None, *, uses_own: bool = False
    ) -> None:
        """Open clients with `reopen`, if that is possible; use the session `own` first if `uses_own`."""
        self.own = own
        self.trouble: ConnectionLost | None = None
        """Why the server could not be reached the last time."""
        self._reopen = reopen
        self._uses_own = uses_own or reopen is None
        self._link: _Link | None = None
        self._opening = anyio.Lock()
        self._group = anyio.create_task_group()
        self._until_closed = anyio.CancelScope()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._until_closed.cancel()
        if self._link is not None:
            self._link.scope.cancel()
        await self._group.__aexit__(None, None, None)  # an error of the block would become an exception group

    def start(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do work in the background until the block ends. To be called once."""

        async def run() -> None:
            with self._until_closed:
                await work()

        self._group.start_soon(run)

    async def repeat(
        self,
        request: Callable[[TaskProtocol], Awaitable[T]],
        may_repeat: Callable[[Exception], bool] = is_temporary,
    ) -> T:
        """Send a request until it is answered, with growing delays."""
        delay = RETRY_DELAY
        while True:
            try:
                return await self.send(request)
            except (ConnectionLost, MCPError) as error:
                if isinstance(error, ConnectionLost):
                    self.trouble = error
                if not may_repeat(error):
                    raise
                log.warning("%s; trying again in %.1f seconds", error, delay)
            await anyio.sleep(uniform(delay / 2, delay))
            delay = min(2 * delay, MAX_RETRY_DELAY)

    async def send(self, request: Callable[[TaskProtocol], Awaitable[T]]) -> T:
        """Send a request once. Raise ConnectionLost if the server does not answer it."""
        link = await self._connected()
        protocol = protocol_of(link.session, self.own)
        link.requests += 1
        try:
            return await request(protocol)
        except MCPError as error:
            if not _is_unanswered(error):
                raise
            raise await self._lost(link, error, was_sent=protocol.has_called) from error
        finally:
            link.requests -= 1
            is_needed = link is self._link and not self._until_closed.cancel_called
            if not is_needed and link.requests == 0:
                link.scope.cancel()

    async def _connected(self) -> _Link:
        async with self._opening:
            if self._uses_own and self._reopen is not None and self._link is None:
                self._uses_own = await _is_open(self.own)
            if self._link is None and self._uses_own:
                self._link = _Link(self.own)
                self._link.ended.set()
            elif self._link is None:
                try:
                    self._link = await self._group.start(self._keep_open)
                except Exception as error:
                    raise _reason_of(error, was_sent=False) from error
            return cast("_Link", self._link)

    async def _keep_open(self, *, task_status: TaskStatus[_Link]) -> None:
        """Keep a client open until it fails or its link is closed."""
        link: _Link | None = None
        try:
            async with cast("Callable[[], Client]", self._reopen)() as client:
                link = _Link(client.session)
                with link.scope:
                    task_status.started(link)
                    await anyio.sleep_forever()
        except Exception as error:
            if link is None:
                raise  # to the caller of start()
            link.failure = error
        finally:
            if link is not None:
                link.ended.set()

    async def _lost(self, link: _Link, error: MCPError, *, was_sent: bool) -> Exception:
        """Return what to raise for a request that was not answered. The next one uses another link."""
        if self._link is link:
            self._link = None
        is_closed = _report_of(error) in _CLOSED
        if is_closed:
            self._uses_own = self._reopen is None
            link.scope.cancel()
            await link.ended.wait()  # then its failure is known
        reason = _reason_of(link.failure or error, was_sent=was_sent)
        if isinstance(reason, ConnectionLost):
            reason.retryable = self._reopen is not None or not is_closed
        return reason


async def _is_open(session: ClientSession) -> bool:
    """Return whether a connection is open. A server that knows no ping answers, too: with an error."""
    try:
        await session.send_request(PingRequest(), EmptyResult, REQUEST_TIMEOUT_SECONDS)
    except MCPError as error:
        return _report_of(error) not in _CLOSED
    return True


def connections_of(client: Client, reconnect: Callable[[], Address] | None) -> Callable[[], Connection]:
    """Return how connections to the server of a client are made."""
    own, server = client.session, client.server
    if reconnect is not None:
        return partial(Connection, own, lambda: _copy(client, reconnect()))
    if isinstance(server, str | StdioServerParameters):
        uses_own = isinstance(server, StdioServerParameters)
        return partial(Connection, own, lambda: _copy(client, server), uses_own=uses_own)
    return partial(Connection, own)


def _copy(client: Client, address: Address) -> Client:
    """Return a client with the same settings, which adopts the negotiated version."""
    version = client.protocol_version
    is_handshake = version not in MODERN_PROTOCOL_VERSIONS
    return replace(
        client,
        server=transport_to(address),
        mode="legacy" if is_handshake else version,
        prior_discover=None if is_handshake else client.session.discover_result,
        cache=None,
    )


def transport_to(address: Address) -> StdioServerParameters | Transport:
    return _open_url(address) if isinstance(address, str) else address


@asynccontextmanager
async def _open_url(url: str) -> AsyncGenerator[tuple[Any, Any]]:
    http = httpx2.AsyncClient(timeout=HTTP_TIMEOUT, verify=_ssl_context())
    async with http, streamable_http_client(url, http_client=http) as streams:
        yield streams


@cache
def _ssl_context() -> SSLContext:
    """Return one context for all connections: to create one takes longer than a request."""
    return httpx2.create_ssl_context()
