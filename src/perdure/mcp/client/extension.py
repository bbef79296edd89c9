"""`ClientTasks`: what the author of a client writes.

tasks = ClientTasks()
async with Client(url, extensions=[tasks]) as client:
    result = await tasks.call(client, "build_report", {"year": 2026}, timeout=3600)

    task = await tasks.start(client, "build_report", {"year": 2026})
    saved = task.save()
    ...
    result = await tasks.resume(client, saved).wait()
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
from mcp.client import Client, ClientSession
from mcp.client.extension import ClaimContext, ClientExtension, NotificationBinding, ResultClaim
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types import REQUEST_TIMEOUT, CallToolResult

from ...storage.time_types import Duration
from ..wire import EXTENSION, PROTOCOL_2026
from .client_task import ClientTask, ProgressReporter, SavedTask, to_seconds
from .connection import Address, Connector, Subscriptions, TaskNotification, connector_of, transport_to
from .errors import ClientTaskError, ConnectionLost, ExtensionNotInstalled, WaitTimeout
from .protocols import CallbackRefused, CreateTaskResult, TaskProtocol, ToolCall

CANCEL_TIMEOUT = 5.0
"""Seconds in which a caller that stops waiting cancels its task."""

log = logging.getLogger("perdure.mcp")


class ClientTasks(ClientExtension):
    """Lets a client of the SDK call durable tools, and wait for them or not."""

    identifier = EXTENSION

    def __init__(self, *, push: bool = False, reconnect: bool | Callable[[], Address] = True) -> None:
        """Create the extension; pass it to `Client(..., extensions=[tasks])`.

        With `push`, servers of 2026-07-28 notify when a task changes, instead of being polled.

        `reconnect` is needed for clients that were created with a transport: a function that returns a new
        transport, or the URL of a server with the same storage. With False, only the client's own connection
        is used, for servers that bind tasks to the session.
        """
        self._subscriptions = Subscriptions() if push else None
        self._reconnect = reconnect

    async def call(
        self,
        client: Client,
        tool: str,
        arguments: Mapping[str, Any] = {},
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109
        progress_callback: ProgressFnT | None = None,
        idempotency_key: str | None = None,
    ) -> CallToolResult:
        """Call a tool and wait for its result, also if the server restarts in the meantime.

        After the timeout, raises WaitTimeout and leaves the task running: its id is on the error. If the
        caller is cancelled, or a callback refuses to answer, the task is cancelled. Raises ConnectionLost if
        the connection fails while the tool is called, so that it is unknown whether there is a task; with an
        `idempotency_key`, the call is repeated instead.
        """
        tool_call = ToolCall(
            tool=tool,
            arguments=arguments,
            idempotency_key=idempotency_key,
            progress_callback=progress_callback,
        )
        call = _Call(self._connector(client), self._subscriptions, tool_call)
        seconds = to_seconds(timeout)
        try:
            with anyio.move_on_after(seconds):
                return await call.run()
        except (CallbackRefused, anyio.get_cancelled_exc_class()):
            if call.task is not None:
                await _cancel_quietly(call.task)
            raise
        raise WaitTimeout(seconds or 0, call.task.id if call.task else None) from call.trouble

    async def start(
        self,
        client: Client,
        tool: str,
        arguments: Mapping[str, Any] = {},
        *,
        ttl: Duration | None = None,
        idempotency_key: str | None = None,
    ) -> ClientTask:
        """Call a tool without waiting for it.

        Servers of 2025-11-25 take a `ttl`, others decide themselves. A repeated call with the same
        `idempotency_key` returns the same task, if it is a server of perdure that authenticates its callers.
        """
        connector, seconds = self._connector(client), to_seconds(ttl)
        call = ToolCall(
            tool=tool,
            arguments=arguments,
            ttl_ms=None if seconds is None else round(seconds * 1000),
            idempotency_key=idempotency_key,
        )
        started = await connector.run(lambda protocol: protocol.start(call))
        return ClientTask(connector, self._subscriptions, SavedTask.of(tool, started))

    def resume(self, client: Client, saved: str) -> ClientTask:
        """Return the task that was saved as this text."""
        kept = SavedTask.read(saved)
        return ClientTask(self._connector(client), self._subscriptions, kept)

    def _connector(self, client: Client) -> Connector:
        if self not in (client.extensions or ()):
            raise ExtensionNotInstalled
        return connector_of(client, self._reconnect)

    def _connector_of_session(self, session: ClientSession) -> Connector:
        """Return how to reach the server of a client of which the SDK passes only the session."""
        reconnect = self._reconnect
        if not callable(reconnect):
            return Connector(session, None, uses_session=True)

        def reopen() -> Client:
            return Client(
                transport_to(reconnect()),
                mode=PROTOCOL_2026,
                prior_discover=session.discover_result,
                extensions=[self],
                cache=None,
            )

        return Connector(session, reopen, uses_session=False)

    # What the SDK asks an extension for

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [
            ResultClaim(
                result_type="task",
                model=CreateTaskResult,
                resolve=self._resolve,
                protocol_versions=frozenset({PROTOCOL_2026}),
            )
        ]

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        if self._subscriptions is None:
            return ()
        return [
            NotificationBinding(
                method="notifications/tasks",
                params_type=TaskNotification,
                handler=self._subscriptions.on_notification,
            )
        ]

    async def _resolve(self, created: CreateTaskResult, context: ClaimContext) -> CallToolResult:
        """Wait for the task of `client.call_tool`. Its caller has no id, so it is cancelled with the wait."""
        saved = SavedTask(task_id=created.task_id, tool=context.tool_name)
        task = ClientTask(self._connector_of_session(context.session), self._subscriptions, saved)
        seconds = context.read_timeout_seconds
        try:
            with anyio.move_on_after(seconds):
                return await task.wait()
        except (CallbackRefused, anyio.get_cancelled_exc_class()):
            await _cancel_quietly(task)
            raise
        await _cancel_quietly(task)
        raise MCPError(REQUEST_TIMEOUT, f"task {task.id} did not end within {seconds} seconds")


class _Call:
    """One `ClientTasks.call`: it starts the task and follows it, on one connection after the other."""

    def __init__(self, connector: Connector, subscriptions: Subscriptions | None, call: ToolCall) -> None:
        self._connector = connector
        self._subscriptions = subscriptions
        self._call = call
        self._observe = ProgressReporter(call.progress_callback)
        self.task: ClientTask | None = None
        self.trouble: ConnectionLost | None = None

    async def run(self) -> CallToolResult:
        return await self._connector.run_repeatedly(self._run_on, self._may_repeat)

    async def _run_on(self, protocol: TaskProtocol) -> CallToolResult:
        if self.task is None:
            started = await protocol.start(self._call)
            if isinstance(started, CallToolResult):
                return started
            saved = SavedTask(task_id=started, tool=self._call.tool)
            self.task = ClientTask(self._connector, self._subscriptions, saved)
        return await self.task.follow(protocol, self._observe)

    def _may_repeat(self, error: ConnectionLost) -> bool:
        self.trouble = error
        if self.task is not None:
            return self.task.note_lost(error)
        return not error.was_sent or self._call.idempotency_key is not None


async def _cancel_quietly(task: ClientTask) -> None:
    with anyio.move_on_after(CANCEL_TIMEOUT, shield=True):
        try:
            await task.cancel()
        except (MCPError, ClientTaskError) as error:
            log.warning("task %s keeps running: it could not be cancelled: %s", task.id, error)
