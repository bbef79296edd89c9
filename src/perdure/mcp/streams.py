"""The open streams of a server, and `subscriptions/listen` of 2026-07-28, which sends changes of tasks.

The streams that follow one task, with its questions, are in `task_stream`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from typing import Any, cast

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.context import CallNext, HandlerResult
from mcp.server.session import ServerSession
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from ..runtime import Runtime
from ..runtime.task_group import task_group
from ..storage.errors import PerdureError
from ..tasks import Owner
from ..tasks.errors import NotFound
from .wire import JsonObject, RequestContext, as_object, dump_result, task_2026

log = logging.getLogger("perdure.mcp")

MAX_SUBSCRIBED_TASKS = 256
"""Maximum number of tasks whose changes one subscription receives."""
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


class RawMessage(BaseModel):
    """Any request or notification. The SDK has no types for task messages, and would omit a null `ttl`."""

    method: str
    params: dict[str, Any] | None = None


def notification(method: str, params: JsonObject) -> types.ServerNotification:
    return cast("types.ServerNotification", RawMessage(method=method, params=params))


class Streams:
    """The open streams of one server, while it runs. All of them are answered when it stops."""

    def __init__(
        self,
        runtime: Runtime,
        group: TaskGroup,
        keep_alive: float,
        owns_session: Callable[[RequestContext], bool],
    ) -> None:
        self.runtime = runtime
        self.owns_session = owns_session
        """Whether only the caller of a request reads the own stream of its session."""
        self.keep_alive = keep_alive
        """Seconds without a message after which one is sent on a stream that waits."""
        self._group = group
        self._scopes: set[anyio.CancelScope] = set()
        self._is_closing = False

    def close(self) -> None:
        """End all streams: each is answered. Streams that are opened later end at once."""
        self._is_closing = True
        for scope in list(self._scopes):
            scope.cancel()

    @contextmanager
    def open(self) -> Generator[None]:
        """Run a block that is cancelled, without an error, when the server stops."""
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            if self._is_closing:
                scope.cancel()
            try:
                yield
            finally:
                self._scopes.discard(scope)

    def start_soon(self, function: Callable[..., Awaitable[None]], /, *args: object) -> None:
        """Run a function in the background, until it returns or the server stops."""
        self._group.start_soon(self._log_errors, function, args)

    async def _log_errors(self, function: Callable[..., Awaitable[None]], args: tuple[object, ...]) -> None:
        try:
            await function(*args)
        except Exception:
            log.exception("the background job %s failed", getattr(function, "__qualname__", function))


class Subscription:
    """One `subscriptions/listen`: the changes of some tasks of one owner."""

    def __init__(self, request: RequestContext, owner: Owner, task_ids: list[str], streams: Streams) -> None:
        self._request = request
        self._owner = owner
        self._task_ids = task_ids
        self._streams = streams
        self._runtime = streams.runtime
        self._token = get_access_token()

    async def serve(self, call_next: CallNext, *, has_others: bool) -> HandlerResult:
        """Send changes until all tasks have ended or, with `has_others`, until the client disconnects.

        `has_others` means that the client also listens to other kinds of events. The SDK sends them on the
        same stream. Its acknowledgement has to name the tasks too.
        """
        with self._streams.open():
            task_ids = await self._authorize(self._task_ids[:MAX_SUBSCRIBED_TASKS])
            session = _AcknowledgingSession(self._request.session, task_ids)

            async def send_changes(serving: anyio.CancelScope) -> None:
                await session.acknowledged.wait()
                await self._send_changes(task_ids)
                if not has_others:
                    serving.cancel()

            try:
                async with task_group() as group:
                    group.start_soon(send_changes, group.cancel_scope)
                    return await call_next(replace(self._request, session=cast("ServerSession", session)))
            except MCPError as error:
                if (error.error.code, error.error.data) != (types.METHOD_NOT_FOUND, self._request.method):
                    raise  # only the SDK itself names the method that it does not serve
                await self._send(ACKNOWLEDGED, {"notifications": {"taskIds": task_ids}})
                await self._send_changes(task_ids)
        return subscription_result(self._request)

    async def _authorize(self, task_ids: list[str]) -> list[str]:
        """Return the ids of the tasks that belong to the caller."""
        owned: list[str] = []
        for task_id in dict.fromkeys(task_ids):
            with suppress(NotFound):
                await self._runtime.get(self._owner, task_id)
                owned.append(task_id)
        return owned

    async def _send_changes(self, task_ids: list[str]) -> None:
        async with anyio.create_task_group() as group:
            for task_id in task_ids:
                group.start_soon(self._send_changes_of, task_id)

    async def _send_changes_of(self, task_id: str) -> None:
        sent: object = None
        try:
            async with aclosing(self._runtime.watch(self._owner, task_id)) as states:
                async for snapshot in states:
                    task, token = snapshot.task, self._token
                    if token is not None and token.expires_at is not None and token.expires_at < time.time():
                        return
                    if sent == (task.last_updated_at, task.status):
                        continue  # only the log has changed, which clients of 2026-07-28 do not see
                    sent = (task.last_updated_at, task.status)
                    await self._send("notifications/tasks", task_2026(task, self._runtime.store.clock()))
        except NotFound:
            pass  # the task was deleted; a client notices when it polls
        except PerdureError as error:
            log.warning("a subscription no longer receives changes to task %s: %s", task_id, error)

    async def _send(self, method: str, params: JsonObject) -> None:
        tagged = {**params, "_meta": {**as_object(params.get("_meta")), **_subscription_meta(self._request)}}
        await self._request.session.send_notification(notification(method, tagged), self._request.request_id)


def subscription_result(request: RequestContext) -> JsonObject:
    """Return the answer to `subscriptions/listen`, which ends its stream."""
    return {"resultType": "complete", "_meta": _subscription_meta(request)}


def _subscription_meta(request: RequestContext) -> JsonObject:
    return {SUBSCRIPTION_ID_META_KEY: request.request_id}


class _AcknowledgingSession:
    """A session that adds the subscribed tasks to the acknowledgement that the SDK sends."""

    def __init__(self, session: ServerSession, task_ids: list[str]) -> None:
        self._session = session
        self._task_ids = task_ids
        self.acknowledged = anyio.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)

    async def send_notification(
        self, sent: types.ServerNotification, related_request_id: types.RequestId | None = None
    ) -> None:
        if sent.method == ACKNOWLEDGED:
            params = dump_result(sent.params)
            params["notifications"]["taskIds"] = self._task_ids
            sent = notification(sent.method, params)
        await self._session.send_notification(sent, related_request_id)
        self.acknowledged.set()
