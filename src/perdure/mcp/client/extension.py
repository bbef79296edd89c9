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
from functools import partial
from typing import Any
from weakref import WeakSet

import anyio
from mcp.client import Client, ClientSession
from mcp.client.extension import ClaimContext, ClientExtension, NotificationBinding, ResultClaim
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types import REQUEST_TIMEOUT, CallToolRequestParams, CallToolResult, NotificationParams, TaskMetadata

from ...storage.time_types import Duration, to_milliseconds, to_seconds
from ..errors import ClientTaskError, ConnectionLost, ExtensionNotInstalled, WaitTimeout
from ..wire import EXTENSION, IDEMPOTENCY_KEY, PROTOCOL_2026
from .client_task import ClientTask, SavedTask, Wakeup
from .connection import Address, Connection, connections_of, transport_to
from .protocols import CallbackRefused, CreateTaskResult, TaskState

CANCEL_TIMEOUT = 5.0
"""Maximum number of seconds that cancelling a task takes when its caller stops waiting."""

log = logging.getLogger("perdure.mcp")


class TaskNotification(NotificationParams):
    """The part of a notification that identifies the task. The task itself is read from the server."""

    task_id: str


class ClientTasks(ClientExtension):
    """Lets a client of the SDK call durable tools, with or without waiting for their results."""

    identifier = EXTENSION
    max_repeats: int | None = None
    """How often a request that the server has not answered is repeated, while `client.call_tool` waits for a
    task on the client's own session. None for no limit."""

    def __init__(self, *, push: bool = False, reconnect: Callable[[], Address] | None = None) -> None:
        """Create the extension; pass it to `Client(..., extensions=[tasks])`.

        With `push`, servers of 2026-07-28 notify when a task changes, instead of being polled.

        `reconnect` is for clients that were created with a transport, which is used up after one connection.
        It is a function that returns a new transport, or the URL of a server with the same storage.
        """
        self._wakeups: WeakSet[Wakeup] | None = WeakSet() if push else None
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

        After the timeout, raise WaitTimeout, which has the id of the task, and do not cancel the task. If the
        caller is cancelled, or a callback refuses to answer or fails, cancel the task. Raise ConnectionLost
        if the connection fails while the tool is called, because it is then unknown whether there is a task.
        With an `idempotency_key`, repeat the call instead.
        """
        call = _call_of(tool, arguments, idempotency_key)
        connect = self._connections_of(client)
        connection, task = connect(), None
        seconds = None if timeout is None else to_seconds(timeout)
        try:
            with anyio.move_on_after(seconds):
                async with connection:
                    started = await connection.repeat(
                        lambda protocol: protocol.start(call, progress_callback),
                        partial(_may_repeat, idempotency_key),
                    )
                    task = ClientTask(connect, self._wakeups, SavedTask.of(tool, started))
                    return await task.follow(connection, ProgressReporter(progress_callback))
        except (CallbackRefused, anyio.get_cancelled_exc_class()):
            if task is not None:
                await _cancel_quietly(task)
            raise
        raise WaitTimeout(seconds or 0, None if task is None else task.id) from connection.trouble

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

        Servers of 2025-11-25 accept a `ttl`. Other servers choose it themselves. A repeated call with the
        same `idempotency_key` returns the same task, if the server uses perdure and authenticates its
        callers. So with a key, repeat the call until the server answers. Without a key, raise ConnectionLost.
        """
        call = _call_of(tool, arguments, idempotency_key, ttl)
        connect = self._connections_of(client)
        async with connect() as connection:
            started = await connection.repeat(
                lambda protocol: protocol.start(call, None),
                lambda error: idempotency_key is not None and _may_repeat(idempotency_key, error),
            )
        return ClientTask(connect, self._wakeups, SavedTask.of(tool, started))

    def resume(self, client: Client, saved: str) -> ClientTask:
        """Return the task that was saved as this text."""
        return ClientTask(self._connections_of(client), self._wakeups, SavedTask.read(saved))

    def _connections_of(self, client: Client) -> Callable[[], Connection]:
        if self not in (getattr(client, "extensions", None) or ()):  # a client of FastMCP has no such field
            raise ExtensionNotInstalled
        return connections_of(client, self._reconnect)

    def _connections_of_session(self, session: ClientSession) -> Callable[[], Connection]:
        """Return a function that creates connections for a client. The SDK passes only its session."""
        reconnect, known = self._reconnect, session.discover_result
        if reconnect is None:
            return partial(Connection, session, max_repeats=self.max_repeats)
        options: dict[str, Any] = {"mode": PROTOCOL_2026, "prior_discover": known, "extensions": [self]}
        return partial(Connection, session, lambda: Client(transport_to(reconnect()), cache=None, **options))

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
        if self._wakeups is None:
            return ()
        return [
            NotificationBinding(
                method="notifications/tasks", params_type=TaskNotification, handler=self._notify
            )
        ]

    async def _notify(self, notification: TaskNotification) -> None:
        for wakeup in self._wakeups or ():
            if wakeup.task_id == notification.task_id:
                wakeup.set(is_notified=True)

    async def _resolve(self, created: CreateTaskResult, context: ClaimContext) -> CallToolResult:
        """Wait for the task of `client.call_tool`. If the wait fails, cancel it: the caller has no id."""
        saved = SavedTask(task_id=created.task_id, tool=context.tool_name)
        task = ClientTask(self._connections_of_session(context.session), self._wakeups, saved)
        try:
            return await task.wait(context.read_timeout_seconds)
        except WaitTimeout as error:
            await _cancel_quietly(task)
            raise MCPError(REQUEST_TIMEOUT, str(error)) from error
        except (CallbackRefused, anyio.get_cancelled_exc_class()):
            await _cancel_quietly(task)
            raise


def _may_repeat(idempotency_key: str | None, error: Exception) -> bool:
    """Return whether a call can be sent again without calling the tool twice."""
    if not isinstance(error, ConnectionLost) or not error.retryable:
        return False
    return idempotency_key is not None or not error.was_sent


class ProgressReporter:
    """Calls a progress callback when the progress of a task has changed."""

    def __init__(self, callback: ProgressFnT | None) -> None:
        self._callback = callback
        self._last: tuple[Any, ...] | None = None

    async def __call__(self, state: TaskState) -> None:
        if self._callback is None or state.progress is None or "done" not in state.progress:
            return
        progress = (state.progress["done"], state.progress.get("total"), state.status_message)
        if progress == self._last or (
            state.status.is_terminal and self._last and progress[:2] == self._last[:2]
        ):
            return  # the message of a task that has ended is not about its progress
        self._last = progress
        try:
            await self._callback(*progress)
        except Exception:  # as the SDK does: the callback is not part of the call
            log.exception("the progress callback raised an exception")


def _call_of(
    tool: str, arguments: Mapping[str, Any], idempotency_key: str | None, ttl: Duration | None = None
) -> CallToolRequestParams:
    """Return a call that requests a task with the parameter `task`, which only 2025-11-25 has."""
    meta: Any = None if idempotency_key is None else {IDEMPOTENCY_KEY: idempotency_key}
    task = TaskMetadata(ttl=None if ttl is None else to_milliseconds(ttl))
    return CallToolRequestParams(name=tool, arguments=dict(arguments), task=task, _meta=meta)


async def _cancel_quietly(task: ClientTask) -> None:
    with anyio.move_on_after(CANCEL_TIMEOUT, shield=True):
        try:
            await task.cancel()
        except (MCPError, ClientTaskError) as error:
            log.warning("could not cancel task %s, which may keep running: %s", task.id, error)
