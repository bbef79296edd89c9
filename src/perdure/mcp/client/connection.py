"""Connects a client to its server, and reconnects it after the connection is lost.

If the SDK's HTTP client cannot send a request to the server, it cancels the block that entered the client. So
requests about tasks use separate clients with the settings of the user's client. Each of them is entered in
its own asyncio task, so that its failure ends nothing else. At 2026-07-28, a separate client needs no
additional request, because each request is independent. At 2025-11-25, it has its own session. If the user's
client uses stdio, or a server in the same process, it is used directly while it is connected.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
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

from ...storage.exception_text import text_of
from ..errors import ConnectionLost
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
the connection failed, or a proxy answered in its place. The SDK has no separate codes for these errors."""

T = TypeVar("T")
log = logging.getLogger("perdure.mcp")

Address: TypeAlias = str | StdioServerParameters | Transport
"""A server to which a `Client` can connect again."""


def is_temporary(error: Exception) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, MCPError):  # servers that use perdure report it
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
    """Return ConnectionLost for an error of the network. Return any other error, without its group."""
    match error:
        case ExceptionGroup(exceptions=errors):
            reasons = [_reason_of(each, was_sent=was_sent) for each in cast("tuple[Exception, ...]", errors)]
            # prefer another error to a lost connection, and a request that was sent to one that was not
            return max(reasons, key=lambda each: getattr(each, "was_sent", 2))
        case MCPError() if _is_unanswered(error):
            was_sent = was_sent and _report_of(error) not in _LOST_SESSION  # else the server did not read it
        case httpx2.ConnectError() | httpx2.ConnectTimeout():
            was_sent = False
        case httpx2.TransportError() | OSError():
            pass
        case _:
            return error
    return ConnectionLost(text_of(error), was_sent=was_sent)


@dataclass(eq=False)
class _Link:
    """A session with the server, and the client that was opened for it, if it is not the user's own."""

    session: ClientSession
    requests: int = 0
    """Number of requests that wait for an answer. A link that lost a request stays open until this is 0."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)
    failure: Exception | None = None


class Connection:
    """Sends requests to the server of a client, within an `async with` block.

    The first request opens the connection. If it is lost, the next request opens it again. Errors raised in
    the block are not wrapped in an exception group.
    """

    def __init__(
        self,
        own: ClientSession,
        reopen: Callable[[], Client] | None = None,
        *,
        uses_own: bool = False,
        max_repeats: int | None = None,
    ) -> None:
        """Create a connection. It opens clients with `reopen`. If that is None, it uses the session `own`.

        With `uses_own`, it uses the session `own` until this session is lost. `max_repeats` is the maximum
        number of times that `repeat` sends the same request again after the server did not answer.
        """
        self.own = own
        self.trouble: ConnectionLost | None = None
        """Why the server most recently could not be reached. None if it was always reached."""
        self._reopen = reopen
        self._max_repeats = max_repeats
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
        """Do work in the background until the block ends. The caller may call this only once."""

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
        delay, unanswered = RETRY_DELAY, 0
        while True:
            try:
                return await self.send(request)
            except (ConnectionLost, MCPError) as error:
                if isinstance(error, ConnectionLost):
                    self.trouble = error
                    unanswered += 1
                is_too_often = self._max_repeats is not None and unanswered > self._max_repeats
                if is_too_often or not may_repeat(error):
                    raise
                log.warning("%s; trying again within %.1f seconds", error, delay)
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
        """Return the error for a request that was not answered. The next request uses another link."""
        if self._link is link:
            self._link = None
        is_closed = _report_of(error) in _CLOSED
        if is_closed:
            self._uses_own = self._reopen is None
            link.scope.cancel()
            await link.ended.wait()  # from then on, its failure is known
        reason = _reason_of(link.failure or error, was_sent=was_sent)
        if isinstance(reason, ConnectionLost):
            reason.retryable = self._reopen is not None or not is_closed
        return reason


async def _is_open(session: ClientSession) -> bool:
    """Send a ping, and return whether the connection is open. It is open even if the server rejects pings."""
    try:
        await session.send_request(PingRequest(), EmptyResult, REQUEST_TIMEOUT_SECONDS)
    except MCPError as error:
        return _report_of(error) not in _CLOSED
    return True


def connections_of(client: Client, reconnect: Callable[[], Address] | None) -> Callable[[], Connection]:
    """Return a function that creates connections to the server of a client."""
    own, server = client.session, client.server
    if reconnect is not None:
        return partial(Connection, own, lambda: _copy(client, reconnect()))
    if isinstance(server, str | StdioServerParameters):
        uses_own = isinstance(server, StdioServerParameters)
        return partial(Connection, own, lambda: _copy(client, server), uses_own=uses_own)
    return partial(Connection, own)


def _copy(client: Client, address: Address) -> Client:
    """Return a client with the same settings and the same negotiated version."""
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
    """Return one context for all connections: creating a context takes longer than a request."""
    return httpx2.create_ssl_context()
