"""Requests and sessions that follow a task: questions, progress and log entries on their streams.

- `TaskStream`: a request that waits for a task (`tasks/result` of 2025-11-25, and each call of a durable tool
  by a client without tasks), or the own stream of a session of 2025-11-25.
- `StatusNotifier`: starts the latter for the session in which a task was created, or which polls it.
- `Subscription`: `subscriptions/listen` of 2026-07-28.

`OpenStreams` is what they share: a question is open on one stream of a session at a time, progress only
increases, and all streams end with an answer when the server stops.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeAlias, cast
from weakref import WeakValueDictionary

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.context import CallNext, HandlerResult
from mcp.server.session import ServerSession
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from pydantic import BaseModel, TypeAdapter, ValidationError

from ..runtime import Runtime
from ..storage.errors import PerdureError
from ..tasks import LogLevel, Owner, Snapshot, TaskRecord
from ..tasks.errors import MalformedAnswer, NotFound, TerminalTask
from ..tasks.inputs import Input, InputError
from ..tasks.task_log import LOG_LEVELS, Report
from .errors import to_mcp_error
from .identity import session_id_of
from .wire import (
    PROTOCOL_2026,
    JsonObject,
    RequestContext,
    capabilities_of,
    input_request,
    related_task,
    task_2025,
    task_2026,
)

log = logging.getLogger("perdure.mcp")

MAX_SUBSCRIBED_TASKS = 256
"""Maximum number of tasks whose changes one subscription receives."""
MAX_ASKS = 3
"""How often a client is asked the same question if its answers are malformed."""
TRANSPORT_KEEP_ALIVE_SECONDS = 15.0
"""The SDK's HTTP transports themselves send a comment after this time without a message."""
PING_SECONDS = 5.0
"""How long a client has to answer a ping on the session's own stream, and how long until the next one."""
MAX_FOLLOWING_SESSIONS = 16
"""Maximum number of sessions that one task notifies. The oldest is no longer notified."""

MAX_REMEMBERED_LEVELS = 10_000
"""Maximum number of sessions whose log level is remembered."""
KEEP_ALIVE_METHOD = "notifications/perdure/keepAlive"

SessionKey: TypeAlias = str | int
_question_adapter: TypeAdapter[types.InputRequest] = TypeAdapter(types.InputRequest)


class RawNotification(BaseModel):
    """Any notification. The SDK has no type for those of tasks, and would omit a null `ttl`."""

    method: str
    params: dict[str, Any]


def _notification(method: str, params: JsonObject) -> types.ServerNotification:
    return cast("types.ServerNotification", RawNotification(method=method, params=params))


class OpenStreams:
    """The open streams of one server."""

    def __init__(self, keep_alive: float = TRANSPORT_KEEP_ALIVE_SECONDS) -> None:
        self.keep_alive = keep_alive
        """Seconds without a message after which a stream that waits gets one."""
        self._scopes: set[anyio.CancelScope] = set()
        self._is_closing = False
        self._deliveries: WeakValueDictionary[tuple[SessionKey, str], Delivery] = WeakValueDictionary()
        self._levels: dict[SessionKey, LogLevel] = {}

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

    def delivery(self, request: RequestContext, task: TaskRecord) -> Delivery:
        """Return what the session of a request has received of a task, the same for all its streams."""
        key = (session_key(request), task.task_id)
        return self._deliveries.get(key) or self._deliveries.setdefault(key, Delivery(task))

    def set_level(self, request: RequestContext, level: object) -> None:
        """Remember the log level that a session has set with `logging/setLevel`."""
        if level in LOG_LEVELS:
            self._levels[session_key(request)] = level
            if len(self._levels) > MAX_REMEMBERED_LEVELS:
                del self._levels[next(iter(self._levels))]

    def is_logged(self, request: RequestContext, level: LogLevel) -> bool:
        """Return whether the session wants log entries of this level. By default it gets all of them."""
        lowest = self._levels.get(session_key(request), LOG_LEVELS[0])
        return LOG_LEVELS.index(level) >= LOG_LEVELS.index(lowest)


def session_key(request: RequestContext) -> SessionKey:
    """Return what identifies the session of a request: its id, or the connection if it has none."""
    connection = request.session.client_params
    return session_id_of(request) or id(request.session if connection is None else connection)


class Delivery:
    """What one session has received of one task. Its streams share it."""

    def __init__(self, task: TaskRecord) -> None:
        self.progress_token: str | int | None = None
        """The progress token of the call that created the task, if this session called."""
        self.open_requests = 0
        """How many requests of the session follow the task. Its own stream is used if there are none."""
        self.polls_only = anyio.Event()
        """Set if the client polled again after it saw a question, and so does not wait for the result."""
        self._reports, self._log = task.reports.total, task.log.total
        self._progress: float | None = None
        self._questions: dict[str, anyio.Lock] = {}
        self._has_polled = False
        self._request_seen = anyio.Event()

    def turn(self, key: str) -> anyio.Lock:
        """Return the lock of a question, which is open on one stream of the session at a time."""
        return self._questions.setdefault(key, anyio.Lock())

    def poll(self) -> None:
        """Note that the session has polled a task that asks."""
        if self._has_polled and not self.open_requests:
            self.polls_only.set()
        self._has_polled = True
        self.check_reader()

    def check_reader(self) -> None:
        """Make the session's own stream check that it is read, because the session sent a request."""
        self._request_seen.set()

    async def wait_for_request(self) -> None:
        self._request_seen = anyio.Event()
        await self._request_seen.wait()

    def restart(self) -> None:
        """Deliver everything from the start of the task, of which the client does not know."""
        self._reports = self._log = 0
        self._progress = None

    def take_reports(self, task: TaskRecord) -> list[Report]:
        """Return the new reports that increase the progress, as the protocol demands."""
        reports, self._reports = list(task.reports.after(self._reports)), task.reports.total
        if (last := task.progress) is not None:
            reports.append(Report(done=last.done, total=last.total, message=task.status_message))
        increasing: list[Report] = []
        for report in reports:
            if self._progress is None or report.done > self._progress:
                self._progress = report.done
                increasing.append(report)
        return increasing

    def take_log(self, task: TaskRecord) -> list[JsonObject]:
        """Return the new log entries as the parameters of `notifications/message`."""
        entries, self._log = task.log.after(self._log), task.log.total
        messages = [{"level": each.level, "data": each.message} for each in entries]
        for message, entry in zip(messages, entries, strict=True):
            if entry.logger is not None:
                message["logger"] = entry.logger
        return messages


class TaskStream:
    """Follows one task on the stream of a request, or on the own stream of a session."""

    def __init__(
        self,
        request: RequestContext,
        runtime: Runtime,
        owner: Owner,
        *,
        names_task: bool,
        streams: OpenStreams,
        is_session: bool = False,
    ) -> None:
        self._request = request
        self._runtime = runtime
        self._owner = owner
        self._names_task = names_task
        """Whether the client knows of the task: then every message names it."""
        self._streams = streams
        self._is_session = is_session
        self._metadata = ServerMessageMetadata(related_request_id=None if is_session else request.request_id)
        self._asking: dict[str, anyio.CancelScope] = {}
        self._sent_status: object = None
        self._sent_at = anyio.current_time()
        self._error: Exception | None = None

    async def wait(self, task_id: str, timeout: float | None = None) -> Snapshot:  # noqa: ASYNC109
        """Return the task when it has ended; ask its questions meanwhile. Raise TimeoutError."""
        with anyio.fail_after(timeout):
            return await self._follow(task_id, lambda snapshot: snapshot.task.is_terminal)

    async def wait_for_input(self, task_id: str) -> Snapshot:
        """Return the task when it has ended, or waits for an answer that this client can give."""
        return await self._follow(task_id, lambda read: read.task.is_terminal or bool(self.questions(read)))

    async def wait_in_session(self, seen: TaskRecord) -> None:
        """Follow a task on the session's own stream until it ends. The client has seen this state."""
        self._sent_status = (seen.status, seen.status_message)
        await self.wait(seen.task_id)

    def questions(self, snapshot: Snapshot) -> dict[str, Input]:
        """Return the outstanding questions that the client of this request can be asked."""
        can = capabilities_of(self._request)
        return {key: asked for key, asked in snapshot.task.questions.items() if asked.capability in can}

    async def _follow(self, task_id: str, is_over: Callable[[Snapshot], bool]) -> Snapshot:
        """Send what is new until the task is over. Raise MCPError if the server stops before."""
        snapshot, is_ended = await self._runtime.get(self._owner, task_id), False
        delivery = self._streams.delivery(self._request, snapshot.task)
        if not self._names_task:
            delivery.restart()
        delivery.open_requests += not self._is_session
        try:
            with self._streams.open():
                async with (
                    task_group() as group,
                    aclosing(self._runtime.watch(self._owner, task_id)) as states,
                ):
                    group.start_soon(self._keep_alive)
                    async for snapshot in states:
                        await self._send_news(snapshot.task, delivery)
                        if is_ended := is_over(snapshot):
                            break
                        self._update_questions(snapshot, delivery, group)
        finally:
            delivery.open_requests -= not self._is_session
        if self._error is not None:
            raise self._error
        if not is_ended:
            message = "the server is stopping; send the request again"
            raise MCPError(types.INTERNAL_ERROR, message, {"retryable": True})
        return snapshot

    # Notifications

    async def _send_news(self, task: TaskRecord, delivery: Delivery) -> None:
        """Send the status on a session's own stream, new progress, and new log entries before 2026-07-28."""
        if self._is_session:
            await self._send_status(task)
            if delivery.open_requests:
                return  # which send the rest
        for report in delivery.take_reports(task):
            await self._send_progress(task, report, delivery.progress_token)
        for entry in delivery.take_log(task):
            is_wanted = self._streams.is_logged(self._request, entry["level"])
            if is_wanted and self._request.protocol_version != PROTOCOL_2026:
                await self._notify("notifications/message", self._with_task(entry, task))

    async def _send_status(self, task: TaskRecord) -> None:
        status = (task.status, task.status_message)
        if status != self._sent_status:
            await self._notify("notifications/tasks/status", task_2025(task, self._runtime.store.clock()))
        self._sent_status = status

    async def _send_progress(self, task: TaskRecord, report: Report, token: str | int | None) -> None:
        if not self._names_task:  # the token is that of this request
            self._sent_at = anyio.current_time()
            await self._request.session.report_progress(report.done, report.total, report.message)
        elif token is not None:
            values = {"progress": report.done, "total": report.total, "message": report.message}
            params = {name: value for name, value in values.items() if value is not None}
            params = self._with_task({"progressToken": token, **params}, task)
            await self._notify("notifications/progress", params)

    async def _notify(self, method: str, params: JsonObject) -> None:
        self._sent_at = anyio.current_time()
        await self._request.session.send_notification(
            _notification(method, params), related_request_id=self._metadata.related_request_id
        )

    def _with_task(self, params: JsonObject, task: TaskRecord) -> JsonObject:
        if not self._names_task:
            return params
        return {**params, "_meta": {**params.get("_meta", {}), **related_task(task)}}

    async def _keep_alive(self) -> None:
        """Send a message whenever the stream was silent for too long, so that no proxy closes it.

        The SDK does that at its own interval; this is for a shorter one. 2026-07-28 has no ping by servers:
        its clients ignore a notification that they do not know.
        """
        interval = self._streams.keep_alive
        if interval >= TRANSPORT_KEEP_ALIVE_SECONDS or self._is_session or self._request.request is None:
            return
        while True:
            await anyio.sleep_until(self._sent_at + interval)
            if anyio.current_time() < self._sent_at + interval:
                continue  # something was sent meanwhile
            with suppress(MCPError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                if self._request.session.can_send_request:
                    await self._ping(interval)
                else:
                    await self._notify(KEEP_ALIVE_METHOD, {})

    async def _ping(self, timeout: float) -> bool:  # noqa: ASYNC109
        """Return whether the client answers in time. Raise MCPError if the session has ended."""
        self._sent_at = anyio.current_time()
        ping, answer = types.PingRequest(), types.EmptyResult
        try:
            await self._request.session.send_request(ping, answer, timeout, self._metadata)
        except MCPError as error:
            if _is_unreachable(error):
                raise
            return error.code != types.REQUEST_TIMEOUT
        return True

    # Questions

    def _update_questions(self, snapshot: Snapshot, delivery: Delivery, group: TaskGroup) -> None:
        """Ask new questions. Withdraw those that were answered elsewhere."""
        questions = self.questions(snapshot)
        for key in questions.keys() - self._asking.keys():
            self._asking[key] = anyio.CancelScope()
            group.start_soon(self._ask, snapshot.task.task_id, key, delivery, group.cancel_scope)
        for key in self._asking.keys() - questions.keys():
            self._asking[key].cancel()

    async def _ask(self, task_id: str, key: str, delivery: Delivery, follower: anyio.CancelScope) -> None:
        with self._asking[key]:
            try:
                while not await self._is_asked(task_id, key, delivery):
                    pass
            except (MCPError, PerdureError) as error:
                if self._is_session:
                    log.debug("a question was not asked on a session's own stream: %s", error)
                    return
                self._error = to_mcp_error(error) if isinstance(error, PerdureError) else error
                follower.cancel()

    async def _is_asked(self, task_id: str, key: str, delivery: Delivery) -> bool:
        """Ask a question once no other stream of the session does.

        Return False if it was asked on the session's own stream, and the client no longer reads that.
        """
        if self._is_session:
            await delivery.polls_only.wait()
            while not await self._ping(PING_SECONDS):  # noqa: ASYNC110 (no event shows that it is read)
                await anyio.sleep(PING_SECONDS)
        else:
            delivery.check_reader()
        async with delivery.turn(key), task_group() as group:
            task = (await self._runtime.get(self._owner, task_id)).task
            if self._is_session:
                group.start_soon(self._cancel_without_reader, delivery, group.cancel_scope)
            if key in task.outstanding:
                await self._ask_until_valid(task, key)
            return True
        return False

    async def _cancel_without_reader(self, delivery: Delivery, scope: anyio.CancelScope) -> None:
        """Cancel if the client, which just sent a request, does not answer a ping: its stream was closed.

        A client that sends nothing may be busy with the question.
        """
        with suppress(MCPError):
            await delivery.wait_for_request()
            while await self._ping(PING_SECONDS):
                await delivery.wait_for_request()
        scope.cancel()

    async def _ask_until_valid(self, task: TaskRecord, key: str) -> None:
        """Ask the client, again if its answer is malformed. A JSON-RPC error is an answer for the tool."""
        failure = InputError(code=types.INVALID_PARAMS, message="")
        for _ in range(MAX_ASKS):
            try:
                answer = await self._send_question(task, key, failure.message)
                with suppress(TerminalTask):
                    await self._runtime.answer(self._owner, task.task_id, {key: answer})
                return  # noqa: TRY300
            except (MalformedAnswer, ValidationError) as error:
                text = (
                    str(error)
                    if isinstance(error, MalformedAnswer)
                    else f"the answer to {key!r} is malformed"
                )
                failure = InputError(code=types.INVALID_PARAMS, message=text)
            except MCPError as error:
                if _is_unreachable(error) and self._names_task:
                    return  # the client can be asked on another stream
                if _is_unreachable(error):
                    text = f"the client did not answer {key!r}: {error.message}"
                    raise MCPError(types.INTERNAL_ERROR, text) from error
                failure = InputError(code=error.code, message=error.message)
                break
        with suppress(TerminalTask):
            await self._runtime.fail_question(self._owner, task.task_id, key, failure)

    async def _send_question(self, task: TaskRecord, key: str, reason: str) -> JsonObject:
        """Return the client's answer. `reason` says why its last one was not accepted."""
        question = input_request(task.inputs[key])
        params = self._with_task(dict(question.get("params") or {}), task)
        if reason and "message" in params:
            params["message"] = f"{params['message']}\n\n({reason})"
        if params:
            question["params"] = params
        return await ask(self._request, _question_adapter.validate_python(question), self._metadata)


async def ask(
    request: RequestContext, question: types.InputRequest, metadata: ServerMessageMetadata
) -> JsonObject:
    """Return the client's answer to a question."""
    match question:
        case types.ElicitRequest():
            result_type: type[BaseModel] = types.ElicitResult
        case types.ListRootsRequest():
            result_type = types.ListRootsResult
        case types.CreateMessageRequest(params=params) if params.tools or params.tool_choice:
            result_type = types.CreateMessageResultWithTools
        case _:
            result_type = types.CreateMessageResult
    answer = await request.session.send_request(question, result_type, metadata=metadata)
    return answer.model_dump(by_alias=True, mode="json", exclude_none=True)


def _is_unreachable(error: MCPError) -> bool:
    return isinstance(error, NoBackChannelError) or error.code == types.CONNECTION_CLOSED


class StatusNotifier:
    """Follows tasks on the own streams of the sessions of 2025-11-25 that created or poll them."""

    def __init__(self, runtime: Runtime, streams: OpenStreams, group: TaskGroup) -> None:
        self._runtime = runtime
        self._streams = streams
        self._group = group
        self._following: dict[tuple[SessionKey, str], Delivery] = {}
        self._scopes: dict[tuple[SessionKey, str], anyio.CancelScope] = {}

    def follow(
        self, request: RequestContext, snapshot: Snapshot, progress_token: str | int | None = None
    ) -> Delivery:
        """Follow a task in the session of a request, unless the session already does."""
        key = (session_key(request), snapshot.task.task_id)
        if key not in self._following:
            self._stop_oldest(snapshot.task.task_id)
            self._following[key] = self._streams.delivery(request, snapshot.task)
            self._scopes[key] = anyio.CancelScope()
            self._following[key].progress_token = progress_token
            self._group.start_soon(self._follow, request, snapshot.task, key)
        return self._following[key]

    def poll(self, request: RequestContext, snapshot: Snapshot) -> None:
        """Follow a task that asks in the session of a request, which polls it."""
        self.follow(request, snapshot).poll()

    async def _follow(self, request: RequestContext, task: TaskRecord, key: tuple[SessionKey, str]) -> None:
        stream = TaskStream(
            request, self._runtime, task.owner, names_task=True, streams=self._streams, is_session=True
        )
        try:
            with self._scopes[key]:
                await stream.wait_in_session(task)
        except Exception as error:  # whatever a transport raises if its client has left
            log.debug("a session is no longer notified of task %s: %s", task.task_id, error)
        finally:
            del self._following[key], self._scopes[key]

    def _stop_oldest(self, task_id: str) -> None:
        """Limit the sessions that follow a task: the SDK does not report that a session has ended."""
        followers = [key for key in self._following if key[1] == task_id]
        if len(followers) >= MAX_FOLLOWING_SESSIONS:
            self._scopes[followers[0]].cancel()


class Subscription:
    """One `subscriptions/listen` of 2026-07-28: the changes of some tasks of one owner."""

    def __init__(
        self,
        request: RequestContext,
        runtime: Runtime,
        owner: Owner,
        task_ids: list[str],
        streams: OpenStreams,
    ) -> None:
        self._request = request
        self._runtime = runtime
        self._owner = owner
        self._task_ids = task_ids
        self._streams = streams
        self._token = get_access_token()

    async def serve(self, call_next: CallNext, *, has_others: bool) -> HandlerResult:
        """Send changes until all tasks have ended; with other kinds of events, until the client leaves.

        The SDK serves the other kinds on the same stream. Its acknowledgement has to name the tasks too.
        """
        with self._streams.open():
            task_ids = await self.authorize(self._task_ids[:MAX_SUBSCRIBED_TASKS])
            session = _AcknowledgingSession(self._request.session, task_ids)
            try:
                async with task_group() as group:
                    end = None if has_others else group.cancel_scope
                    group.start_soon(self._send_changes_after, session.acknowledged, task_ids, end)
                    return await call_next(replace(self._request, session=cast("ServerSession", session)))
            except MCPError as error:
                if (error.error.code, error.error.data) != (types.METHOD_NOT_FOUND, self._request.method):
                    raise  # only the SDK itself names the method that it does not serve
                acknowledged: JsonObject = {"notifications": {"taskIds": task_ids}}
                await self._send("notifications/subscriptions/acknowledged", acknowledged)
                await self._send_changes(task_ids)
        return subscription_result(self._request)

    async def authorize(self, task_ids: list[str]) -> list[str]:
        """Return those of these tasks that belong to the caller."""
        return [task_id for task_id in dict.fromkeys(task_ids) if await self._is_owned(task_id)]

    async def _is_owned(self, task_id: str) -> bool:
        with suppress(NotFound):
            await self._runtime.get(self._owner, task_id)
            return True
        return False

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
        tagged = {**params, "_meta": {**params.get("_meta", {}), **_subscription_meta(self._request)}}
        await self._request.session.send_notification(
            _notification(method, tagged), related_request_id=self._request.request_id
        )


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
        self, notification: types.ServerNotification, related_request_id: types.RequestId | None = None
    ) -> None:
        if notification.method == "notifications/subscriptions/acknowledged":
            params = notification.params.model_dump(by_alias=True, mode="json", exclude_none=True)
            params["notifications"]["taskIds"] = self._task_ids
            notification = _notification(notification.method, params)
        await self._session.send_notification(notification, related_request_id)
        self.acknowledged.set()


@asynccontextmanager
async def task_group() -> AsyncGenerator[TaskGroup]:
    """Yield a task group that is cancelled when the block ends. An error of the block is raised as it is."""
    raised: Exception | None = None
    async with anyio.create_task_group() as group:
        try:
            yield group
        except Exception as error:
            raised = error
        group.cancel_scope.cancel()
    if raised is not None:
        raise raised
