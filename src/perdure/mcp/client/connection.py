"""How a client reaches its server: connections that are opened again, and notifications of changes.

A request of the SDK's HTTP client that cannot reach the server cancels the block which entered the client. So
requests about tasks use connections of their own, made from the settings of the user's client: a failure ends
such a connection and nothing else. At 2026-07-28 it costs no request, because each request is independent; at
2025-11-25 it is a session of its own. A client over stdio, or in the same process, is used itself for as long
as it is connected.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from random import uniform
from ssl import SSLContext
from typing import Any, TypeAlias, TypeVar, cast

import anyio
import httpx2
from mcp.client import Client, ClientSession, Transport
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import EmptyResult, RequestParams
from mcp_types import Request as ClientRequest
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from .errors import ConnectionLost
from .protocols import MAX_POLL_DELAY, TaskProtocol, is_connection_lost, protocol_of

RECONNECT_DELAY, MAX_RECONNECT_DELAY = 0.25, 10.0
"""Seconds before the first attempt to reach the server again; each further delay doubles, up to a maximum."""
BUSY_RETRY_DELAY = 1.0
"""Seconds before the first attempt to repeat a request that a busy server refused."""
HTTP_TIMEOUT = httpx2.Timeout(30, read=300)
"""The SDK's own timeouts: a server may keep a response stream open."""

T = TypeVar("T")
log = logging.getLogger("perdure.mcp")

Address: TypeAlias = str | StdioServerParameters | Transport
"""What a `Client` connects to and can connect to again."""


class Backoff:
    """Delays that double, with jitter, until they are reset."""

    def __init__(self, first: float = RECONNECT_DELAY) -> None:
        self._first = self._next = first

    def reset(self) -> None:
        self._next = self._first

    def next_delay(self) -> float:
        delay = self._next
        self._next = min(2 * delay, MAX_RECONNECT_DELAY)
        return uniform(delay / 2, delay)


async def caught(work: Awaitable[T]) -> T | Exception:
    """Return an error as a value: raised inside of a task group, it would come out as an exception group."""
    try:
        return await work
    except Exception as error:  # raised by `value_of`
        return error


def value_of(outcome: T | Exception) -> T:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


class Connector:
    """Opens connections to the server of one client."""

    def __init__(
        self, session: ClientSession, reopen: Callable[[], Client] | None, *, uses_session: bool
    ) -> None:
        """Open connections with `reopen`, if that is possible; use `session` first if `uses_session`."""
        self.session = session
        self.backoff = Backoff()
        """The delays between connections. Reset when the server answers."""
        self._reopen = reopen
        self._uses_session = uses_session or reopen is None

    async def run(self, work: Callable[[TaskProtocol], Awaitable[T]]) -> T:
        """Do work on a connection. Raise ConnectionLost if the connection fails."""
        if self._reopen is not None and not self._uses_session:
            return await self._run_on_new_client(self._reopen, work)
        try:
            return await work(protocol_of(self.session, self.session))
        except ConnectionLost as error:
            if error.is_closed:
                self._uses_session = self._reopen is None
            error.retryable = self._reopen is not None or not error.is_closed
            raise

    async def run_repeatedly(
        self, work: Callable[[TaskProtocol], Awaitable[T]], may_repeat: Callable[[ConnectionLost], bool]
    ) -> T:
        """Do work that survives lost connections: repeat it on new ones, with growing delays."""
        while True:
            try:
                return await self.run(work)
            except ConnectionLost as error:
                if not error.retryable or not may_repeat(error):
                    raise
                delay = self.backoff.next_delay()
                log.warning("%s; reconnecting in %.1f seconds", error, delay)
            await anyio.sleep(delay)

    async def _run_on_new_client(
        self, reopen: Callable[[], Client], work: Callable[[TaskProtocol], Awaitable[T]]
    ) -> T:
        outcome: T | Exception | None = None
        protocol: TaskProtocol | None = None
        try:
            async with reopen() as client:
                protocol = protocol_of(client.session, self.session)
                outcome = await caught(work(protocol))
        except Exception as error:  # the connection failed, which cancelled the work
            if outcome is None:
                was_called = protocol is not None and protocol.has_called
                raise _reason_of(error, was_called=was_called) from error
        return value_of(outcome)


def _reason_of(error: Exception, *, was_called: bool) -> Exception:
    """Return ConnectionLost for an error of the network, and any other error as it is."""
    causes = list(_causes(error))
    for cause in causes:
        is_lost = isinstance(cause, MCPError) and is_connection_lost(cause)
        if not is_lost and not isinstance(cause, httpx2.TransportError | OSError):
            return cause
    is_refused = all(isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout) for cause in causes)
    reason = f"{type(causes[0]).__name__}: {causes[0]}"
    return ConnectionLost(reason, was_sent=was_called and not is_refused)


def _causes(error: Exception) -> Iterator[Exception]:
    """Yield the errors in nested exception groups."""
    if isinstance(error, ExceptionGroup):
        for each in cast("ExceptionGroup[Exception]", error).exceptions:
            yield from _causes(each)
    else:
        yield error


def connector_of(client: Client, reconnect: bool | Callable[[], Address]) -> Connector:  # noqa: FBT001
    """Return how to reach the server of a client; `reconnect` is the option of `ClientTasks`."""
    server = client.server
    if callable(reconnect):
        return Connector(client.session, lambda: _copy(client, reconnect()), uses_session=False)
    if reconnect and isinstance(server, str | StdioServerParameters):
        is_stdio = isinstance(server, StdioServerParameters)
        return Connector(client.session, lambda: _copy(client, server), uses_session=is_stdio)
    return Connector(client.session, None, uses_session=True)


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


# Notifications of changes (2026-07-28)


class ListenParams(RequestParams):
    notifications: dict[str, list[str]]


class ListenRequest(ClientRequest[ListenParams, str]):
    method: str = "subscriptions/listen"
    params: ListenParams


class TaskNotification(BaseModel):
    """The part of a notification that identifies the task. The task itself is read from the server."""

    model_config = ConfigDict(alias_generator=to_camel)

    task_id: str


class ChangeSignal:
    """Ends a delay early when the task changes."""

    def __init__(self) -> None:
        self._changed = anyio.Event()
        self.is_pushed = False
        """Whether the server notifies. It sends the first notification at once, so silence means no."""

    def set(self) -> None:
        self._changed.set()

    async def wait(self, seconds: float) -> None:
        """Wait for a change; if the server does not notify, for this time only."""
        with anyio.move_on_after(MAX_POLL_DELAY if self.is_pushed else seconds):
            await self._changed.wait()
        self._changed = anyio.Event()


class Subscriptions:
    """The notifications of all clients with this extension, and the waits that they wake."""

    def __init__(self) -> None:
        self._signals: defaultdict[str, set[ChangeSignal]] = defaultdict(set)

    async def on_notification(self, notification: TaskNotification) -> None:
        for signal in self._signals.get(notification.task_id, ()):
            signal.is_pushed = True
            signal.set()

    async def run(
        self, session: ClientSession, task_id: str, work: Callable[[ChangeSignal], Awaitable[T]]
    ) -> T:
        """Do work with a signal that is set when the task changes."""
        signal = ChangeSignal()
        outcome: T | Exception | None = None
        self._signals[task_id].add(signal)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._listen, session, task_id, signal)
                outcome = await caught(work(signal))
                group.cancel_scope.cancel()
        finally:
            self._signals[task_id].discard(signal)
            if not self._signals[task_id]:
                del self._signals[task_id]
        return value_of(cast("T | Exception", outcome))

    async def _listen(self, session: ClientSession, task_id: str, signal: ChangeSignal) -> None:
        """Subscribe, and again when the stream ends. The task is polled in the meantime."""
        request = ListenRequest(params=ListenParams(notifications={"taskIds": [task_id]}))
        backoff = Backoff(BUSY_RETRY_DELAY)
        while True:
            try:
                await session.send_request(request, EmptyResult)
            except Exception as error:  # whatever it is, the task can be polled
                if not isinstance(error, MCPError) or not is_connection_lost(error):
                    log.debug("the server does not notify of task %s: %s", task_id, error)
                    return
            finally:
                if signal.is_pushed:
                    backoff.reset()
                signal.is_pushed = False
                signal.set()
            await anyio.sleep(backoff.next_delay())
