"""`subscriptions/listen` of 2026-07-28: a client receives the changes of its tasks."""

from __future__ import annotations

import time
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import cast

import anyio
import mcp_types as types
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.context import CallNext, HandlerResult
from mcp.server.session import ServerSession
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.exceptions import MCPError

from ..storage.errors import PerdureError
from ..tasks import Owner
from ..tasks.errors import NotFound
from .task_stream import Streams, notification, task_group
from .wire import JsonObject, RequestContext, as_object, dump_result, task_2026

MAX_SUBSCRIBED_TASKS = 256
"""Maximum number of tasks whose changes one subscription receives."""
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


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
        """Send changes until all tasks have ended; with other kinds of events, until the client leaves.

        The SDK serves the other kinds on the same stream. Its acknowledgement has to name the tasks too.
        """
        with self._streams.open():
            task_ids = await self._authorize(self._task_ids[:MAX_SUBSCRIBED_TASKS])
            session = _AcknowledgingSession(self._request.session, task_ids)
            try:
                async with task_group() as group:
                    end = None if has_others else group.cancel_scope
                    group.start_soon(self._send_changes_after, session.acknowledged, task_ids, end)
                    return await call_next(replace(self._request, session=cast("ServerSession", session)))
            except MCPError as error:
                if (error.error.code, error.error.data) != (types.METHOD_NOT_FOUND, self._request.method):
                    raise  # only the SDK itself names the method that it does not serve
                await self._send(ACKNOWLEDGED, {"notifications": {"taskIds": task_ids}})
                await self._send_changes(task_ids)
        return subscription_result(self._request)

    async def _authorize(self, task_ids: list[str]) -> list[str]:
        """Return those of these tasks that belong to the caller."""
        owned: list[str] = []
        for task_id in dict.fromkeys(task_ids):
            with suppress(NotFound):
                await self._runtime.get(self._owner, task_id)
                owned.append(task_id)
        return owned

    async def _send_changes_after(
        self, start: anyio.Event, task_ids: list[str], end: anyio.CancelScope | None
    ) -> None:
        await start.wait()
        await self._send_changes(task_ids)
        if end is not None:
            end.cancel()

    async def _send_changes(self, task_ids: list[str]) -> None:
        async with anyio.create_task_group() as group:
            for task_id in task_ids:
                group.start_soon(self._send_changes_of, task_id)

    async def _send_changes_of(self, task_id: str) -> None:
        sent: object = None
        with suppress(PerdureError):  # the task was deleted; a client notices when it polls
            async with aclosing(self._runtime.watch(self._owner, task_id)) as states:
                async for snapshot in states:
                    task, token = snapshot.task, self._token
                    if token is not None and token.expires_at is not None and token.expires_at < time.time():
                        return
                    if sent == (task.last_updated_at, task.status):
                        continue  # only the log has changed, which clients of 2026-07-28 do not see
                    sent = (task.last_updated_at, task.status)
                    await self._send("notifications/tasks", task_2026(task, self._runtime.store.clock()))

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
