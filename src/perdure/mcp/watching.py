"""Telling clients of a task as it changes: `notifications/tasks/status` of 2025-11-25, and the streams of
`subscriptions/listen` of 2026-07-28.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

import anyio
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.context import CallNext, HandlerResult
from mcp.server.session import ServerSession
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND, SERVER_INFO_META_KEY, RequestId, ServerNotification
from pydantic import BaseModel

from ..runtime import Runtime
from ..storage.errors import PerdureError
from ..tasks import Owner, Snapshot
from ..tasks.errors import NotFound
from .adapters import Serving
from .beside import beside
from .errors import missing_capability
from .identity import Caller, session_id_of
from .wire import JsonObject, ListenParams, RequestContext, declares_tasks, decode, task_2025, task_2026

log = logging.getLogger("perdure.mcp")

MOST_TASKS = 256
"""Whose changes one stream carries."""


class _Notification(BaseModel):
    """Any notification. The SDK has no type for those of tasks, and would leave out a null `ttl`."""

    method: str
    params: dict[str, Any]


def _notification(method: str, params: JsonObject) -> ServerNotification:
    return cast("ServerNotification", _Notification(method=method, params=params))


# 2025-11-25


class StatusNotifier:
    """Tells the session in which a task was created of each change of its status or message, to its end."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._announcing: set[tuple[str | None, str]] = set()

    def start(self, request: RequestContext, created: Snapshot) -> None:
        """Begin; once for a task and a session, however often the call is repeated."""
        what = (session_id_of(request), created.task.task_id)
        if what not in self._announcing:
            self._announcing.add(what)
            self._serving.start_soon(self._announce, request, created, what)

    async def _announce(
        self, request: RequestContext, created: Snapshot, what: tuple[str | None, str]
    ) -> None:
        try:
            await _announce(request, self._serving.runtime, created)
        finally:
            self._announcing.discard(what)


async def _announce(request: RequestContext, runtime: Runtime, created: Snapshot) -> None:
    told = (created.task.status, created.task.status_message)
    try:
        async with aclosing(runtime.watch(created.task.owner, created.task.task_id)) as states:
            async for snapshot in states:
                saying = (snapshot.task.status, snapshot.task.status_message)
                if saying != told:
                    told = saying
                    shape = task_2025(snapshot.task, runtime.store.clock())
                    await request.session.send_notification(
                        _notification("notifications/tasks/status", shape)
                    )
    except PerdureError:
        return  # the task is gone; a client learns of that when it looks
    except Exception as error:  # whatever a transport raises whose client has left
        log.debug("a session was not told of a change: %s", error)


# 2026-07-28


class Listening:
    """Answers `subscriptions/listen` where a client wants to hear of tasks."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def answer(
        self, request: RequestContext, call_next: CallNext, caller_of: Callable[[RequestContext], Caller]
    ) -> HandlerResult:
        wanted = _wanted(request.params)
        if wanted is None:
            return await call_next(request)
        owner = caller_of(request).owner
        if not declares_tasks(request.params):
            raise missing_capability()
        subscription = decode(wanted, ListenParams, "$.notifications")
        stream = _Stream(request, self._serving, owner)
        task_ids = await stream.own(subscription.task_ids[:MOST_TASKS])
        alone = not any(value for kind, value in wanted.items() if kind != "taskIds")
        try:
            return await self._beside_others(request, call_next, stream, task_ids, alone=alone)
        except MCPError as error:
            if (error.error.code, error.error.data) != (METHOD_NOT_FOUND, request.method):
                raise  # a refusal; only the SDK itself names the method that it does not serve
        await stream.acknowledge({"taskIds": task_ids})  # the server itself has no such streams
        await stream.tell_of(task_ids)
        return self._ending(stream)

    async def _beside_others(
        self,
        request: RequestContext,
        call_next: CallNext,
        stream: _Stream,
        task_ids: list[str],
        *,
        alone: bool,
    ) -> HandlerResult:
        """The SDK serves the other kinds on the same stream; its acknowledgement has to name the tasks.

        Where there are no others, the stream ends when all the tasks have.
        """
        session = _Acknowledging(request.session, task_ids)
        with anyio.CancelScope() as others:
            async with beside(stream.tell_after(session.acknowledged, task_ids, others if alone else None)):
                return await call_next(replace(request, session=cast("ServerSession", session)))
        return self._ending(stream)

    def _ending(self, stream: _Stream) -> JsonObject:
        adapter = self._serving.adapter
        stamp = {} if adapter is None else {SERVER_INFO_META_KEY: adapter.info_stamp}
        return {"resultType": "complete", "_meta": {**stream.meta, **stamp}}


class _Stream:
    """One stream, that carries the changes of some tasks of one owner."""

    def __init__(self, request: RequestContext, serving: Serving, owner: Owner) -> None:
        self._request = request
        self._serving = serving
        self._owner = owner
        self._token = get_access_token()
        self.meta: JsonObject = {SUBSCRIPTION_ID_META_KEY: request.request_id}

    async def own(self, task_ids: list[str]) -> list[str]:
        """Those of these tasks that the caller has."""
        return [task_id for task_id in dict.fromkeys(task_ids) if await self._has(task_id)]

    async def _has(self, task_id: str) -> bool:
        try:
            await self._serving.runtime.get(self._owner, task_id)
        except NotFound:
            return False
        return True

    async def acknowledge(self, notifications: JsonObject) -> None:
        await self._send("notifications/subscriptions/acknowledged", {"notifications": notifications})

    async def tell_after(
        self, start: anyio.Event, task_ids: list[str], then: anyio.CancelScope | None
    ) -> None:
        await start.wait()
        await self.tell_of(task_ids)
        if then is not None:
            then.cancel()

    async def tell_of(self, task_ids: list[str]) -> None:
        """Every state of each task, up to its end."""
        async with anyio.create_task_group() as group:
            for task_id in task_ids:
                group.start_soon(self._tell_of_one, task_id)

    async def _tell_of_one(self, task_id: str) -> None:
        try:
            async with aclosing(self._serving.runtime.watch(self._owner, task_id)) as states:
                async for snapshot in states:
                    if self._has_lapsed():
                        return
                    shape = task_2026(snapshot.task, self._serving.runtime.store.clock())
                    await self._send("notifications/tasks", shape)
        except PerdureError:
            return  # the task is gone; a client learns of that when it looks

    def _has_lapsed(self) -> bool:
        """Whether the token, by which the caller was let in, has run out since."""
        token = self._token
        return token is not None and token.expires_at is not None and token.expires_at < time.time()

    async def _send(self, method: str, params: JsonObject) -> None:
        tagged = {**params, "_meta": {**params.get("_meta", {}), **self.meta}}
        await self._request.session.send_notification(
            _notification(method, tagged), related_request_id=self._request.request_id
        )


class _Acknowledging:
    """A session that adds to the acknowledgement, which another sends, the tasks that are heard of too."""

    def __init__(self, session: ServerSession, task_ids: list[str]) -> None:
        self._session = session
        self._task_ids = task_ids
        self.acknowledged = anyio.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)

    async def send_notification(
        self, notification: ServerNotification, related_request_id: RequestId | None = None
    ) -> None:
        if notification.method == "notifications/subscriptions/acknowledged":
            params = notification.params.model_dump(by_alias=True, mode="json", exclude_none=True)
            params["notifications"]["taskIds"] = self._task_ids
            notification = _notification(notification.method, params)
        await self._session.send_notification(notification, related_request_id)
        self.acknowledged.set()


def _wanted(params: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The kinds that the client wants to hear of, where tasks are among them."""
    kinds = (params or {}).get("notifications")
    if isinstance(kinds, Mapping) and "taskIds" in kinds:
        return cast("Mapping[str, Any]", kinds)
    return None
