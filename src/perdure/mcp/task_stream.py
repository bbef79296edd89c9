"""Streams that follow a task: its questions, progress and log entries reach the client on them.

- `TaskStream`: a request that waits for a task, which is `tasks/result` of 2025-11-25 or the call of a client
  without tasks.
- `SessionStream`: the own stream of a session of 2025-11-25 that created the task, or polls it.

A question is open on one stream of a session at a time, and progress only increases: `Delivery` is what all
streams of one `Session` share. `Streams` are all of a server.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from pydantic import BaseModel, ValidationError

from ..runtime import Runtime
from ..storage.errors import PerdureError
from ..tasks import InputKind, LogLevel, Owner, Snapshot, TaskRecord
from ..tasks.errors import MalformedAnswer, TerminalTask
from ..tasks.inputs import Input, InputError
from ..tasks.task_log import LOG_LEVELS, Report
from . import wire
from .adapters import connection_of
from .errors import to_mcp_error
from .wire import JsonObject, RequestContext, as_object

log = logging.getLogger("perdure.mcp")

MAX_ASKS = 3
"""How often a client is asked the same question if its answers are malformed."""
TRANSPORT_KEEP_ALIVE_SECONDS = 15.0
"""The SDK's HTTP transports themselves send a comment after this time without a message."""
PING_SECONDS = 5.0
"""How long a client has to answer a ping on the session's own stream, and how long until the next one."""
KEEP_ALIVE_METHOD = "notifications/perdure/keepAlive"
SESSION_STATE_KEY = "perdure"
BUSY_DELAYS = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 10.0)
"""Seconds before a call of the storage that was busy is repeated, each time."""
CANCEL_SECONDS = 5.0
"""How long a task is tried to be cancelled that no client knows. The server may be stopping."""

T = TypeVar("T")


class RawMessage(BaseModel):
    """Any request or notification. The SDK has no types for those of tasks, and would omit a null `ttl`."""

    method: str
    params: dict[str, Any] | None = None


def notification(method: str, params: JsonObject) -> types.ServerNotification:
    return cast("types.ServerNotification", RawMessage(method=method, params=params))


async def retry_busy(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call that is repeated for a while if the storage is busy."""
    for delay in BUSY_DELAYS:
        try:
            return await call()
        except PerdureError as error:
            if not error.retryable:
                raise
            log.info("trying again in %s seconds: %s", delay, error)
        await anyio.sleep(delay)
    return await call()


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
        """Seconds without a message after which a stream that waits gets one."""
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

    async def cancel_abandoned(self, owner: Owner, task_id: str) -> None:
        """Cancel a task that no client knows, also if the caller is cancelled itself."""
        try:
            with anyio.CancelScope(shield=True), anyio.fail_after(CANCEL_SECONDS), suppress(TerminalTask):
                await retry_busy(lambda: self.runtime.cancel(owner, task_id))
        except (PerdureError, TimeoutError) as error:
            reason = str(error) or "the storage is busy"
            log.warning("task %s keeps running without a client: it was not cancelled: %s", task_id, reason)
            self.runtime.attendance.abandon_task()

    async def _log_errors(self, function: Callable[..., Awaitable[None]], args: tuple[object, ...]) -> None:
        try:
            await function(*args)
        except Exception:
            log.exception("%s failed in the background", getattr(function, "__qualname__", function))


class Delivery:
    """What one session has received of one task."""

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
            message = None if task.is_terminal else task.status_message
            reports.append(Report(done=last.done, total=last.total, message=message))
        increasing: list[Report] = []
        for report in reports:
            if self._progress is None or report.done > self._progress:
                self._progress = report.done
                increasing.append(report)
        return increasing

    def take_log(self, task: TaskRecord) -> list[JsonObject]:
        """Return the new log entries as the parameters of `notifications/message`."""
        entries, self._log = task.log.after(self._log), task.log.total
        return [wire.log_message(entry) for entry in entries]


class Session:
    """The state of one connection: of a session up to 2025-11-25, else of a single request."""

    def __init__(self) -> None:
        self.level: LogLevel = LOG_LEVELS[0]
        """The lowest level of the log entries that the client wants."""
        self._deliveries: WeakValueDictionary[str, Delivery] = WeakValueDictionary()
        self._followed: dict[str, anyio.CancelScope] = {}
        """The tasks that are followed on the session's own stream."""

    @staticmethod
    def of(request: RequestContext) -> Session:
        connection = connection_of(request)
        session = connection.state.get(SESSION_STATE_KEY)
        if session is None:
            session = connection.state[SESSION_STATE_KEY] = Session()
            connection.exit_stack.callback(session._end)
        return session

    def _end(self) -> None:
        for scope in self._followed.values():
            scope.cancel()

    def delivery(self, task: TaskRecord) -> Delivery:
        """Return what the session has received of a task, the same for all its streams."""
        return self._deliveries.setdefault(task.task_id, Delivery(task))

    def set_level(self, level: object) -> None:
        """Remember what the client has set with `logging/setLevel`."""
        self.level = level if level in LOG_LEVELS else self.level

    def follow(
        self, request: RequestContext, task: TaskRecord, streams: Streams, token: str | int | None = None
    ) -> Delivery:
        """Follow a task on the session's own stream, unless that is done already.

        `token` is the progress token of the call that created the task.
        """
        delivery = self.delivery(task)
        if task.task_id not in self._followed:
            delivery.progress_token = token
            self._followed[task.task_id] = anyio.CancelScope()
            streams.start_soon(self._follow, SessionStream(request, task.owner, streams), task, delivery)
        return delivery

    async def _follow(self, stream: SessionStream, task: TaskRecord, delivery: Delivery) -> None:
        try:
            with self._followed[task.task_id]:
                await stream.follow(task, delivery)
        except Exception as error:  # whatever a transport raises if its client has left
            log.debug("a session is no longer notified of task %s: %s", task.task_id, error)
        finally:
            del self._followed[task.task_id]


class TaskStream:
    """Follows one task on the stream of a request that waits for it."""

    def __init__(
        self, request: RequestContext, owner: Owner, streams: Streams, *, names_task: bool = True
    ) -> None:
        self._request = request
        self._owner = owner
        self._streams = streams
        self._runtime = streams.runtime
        self._session = Session.of(request)
        self._names_task = names_task
        """Whether the client knows of the task: then every message names it."""
        self._is_open = not names_task or request.session.can_send_request
        """Whether anything can be sent on this stream. With `json_response=True` a request has no stream
        before its answer: then the session's own is used."""
        self._related_id: types.RequestId | None = request.request_id
        self._asking: dict[str, anyio.CancelScope] = {}
        self._sent_at = anyio.current_time()
        self._error: Exception | None = None

    async def wait(self, task_id: str) -> Snapshot:
        """Return the task when it has ended; ask its questions meanwhile."""
        return await self._wait(task_id, lambda snapshot: snapshot.task.is_terminal)

    async def wait_for_input(self, task_id: str) -> Snapshot:
        """Return the task when it has ended, or waits for an answer that this client can give."""
        return await self._wait(
            task_id, lambda read: read.task.is_terminal or bool(self.questions(read.task))
        )

    async def wait_at_most(
        self, task_id: str, seconds: float, is_over: Callable[[Snapshot], bool]
    ) -> Snapshot:
        """Return the task when it is over, or as it is after this time; ask its questions meanwhile."""
        with anyio.move_on_after(seconds):
            return await self._wait(task_id, is_over)
        return await retry_busy(lambda: self._runtime.get(self._owner, task_id))

    def reachable_questions(self, task: TaskRecord) -> dict[str, Input]:
        """Return those that can be sent: in a round of the call, or on a stream before its answer."""
        is_2026 = self._request.protocol_version == wire.PROTOCOL_2026
        return self.questions(task) if is_2026 or self._request.session.can_send_request else {}

    def questions(self, task: TaskRecord) -> dict[str, Input]:
        """Return the outstanding questions that the client of this request can be asked."""
        can = wire.capabilities_of(self._request)
        return {key: asked for key, asked in task.questions.items() if asked.capability in can}

    async def _wait(self, task_id: str, is_over: Callable[[Snapshot], bool]) -> Snapshot:
        snapshot = await retry_busy(lambda: self._runtime.get(self._owner, task_id))
        delivery = self._session.delivery(snapshot.task)
        if not self._names_task:
            delivery.restart()
        delivery.open_requests += self._is_open
        if not self._is_open:
            self._session.follow(self._request, snapshot.task, self._streams).polls_only.set()
        try:
            async with task_group() as group:
                group.start_soon(self._keep_alive)
                return await self._follow(task_id, delivery, is_over)
        finally:
            delivery.open_requests -= self._is_open

    async def _follow(
        self, task_id: str, delivery: Delivery, is_over: Callable[[Snapshot], bool]
    ) -> Snapshot:
        """Send what is new until the task is over. Raise MCPError if the server stops before."""
        ended: Snapshot | None = None
        with self._streams.open():
            async with task_group() as group, aclosing(self._runtime.watch(self._owner, task_id)) as states:
                async for snapshot in states:
                    if self._is_open:
                        await self._send_news(snapshot.task, delivery)
                    if is_over(snapshot):
                        ended = snapshot
                        break
                    if self._is_open:
                        self._update_questions(snapshot, delivery, group)
        if self._error is not None:
            raise self._error
        if ended is None:
            message = "the server is stopping; send the request again"
            raise MCPError(types.INTERNAL_ERROR, message, {"retryable": True})
        return ended

    # Notifications

    async def _send_news(self, task: TaskRecord, delivery: Delivery) -> None:
        """Send new progress, and new log entries before 2026-07-28."""
        for report in delivery.take_reports(task):
            await self._send_progress(task, report, delivery.progress_token)
        for entry in delivery.take_log(task):
            is_wanted = LOG_LEVELS.index(entry["level"]) >= LOG_LEVELS.index(self._session.level)
            if is_wanted and self._request.protocol_version != wire.PROTOCOL_2026:
                await self._notify("notifications/message", self._with_task(entry, task))

    async def _send_progress(self, task: TaskRecord, report: Report, token: str | int | None) -> None:
        if not self._names_task:  # the token is that of this request
            self._sent_at = anyio.current_time()
            await self._request.session.report_progress(report.done, report.total, report.message)
        elif token is not None:
            await self._notify(
                "notifications/progress", self._with_task(wire.progress_params(token, report), task)
            )

    async def _notify(self, method: str, params: JsonObject) -> None:
        self._sent_at = anyio.current_time()
        await self._request.session.send_notification(notification(method, params), self._related_id)

    def _with_task(self, params: JsonObject, task: TaskRecord) -> JsonObject:
        if not self._names_task:
            return params
        return {**params, "_meta": {**as_object(params.get("_meta")), **wire.related_task(task)}}

    async def _keep_alive(self) -> None:
        """Send a message whenever the stream was silent for too long, so that no proxy closes it.

        The SDK does that at its own interval; this is for a shorter one. 2026-07-28 has no ping by servers:
        its clients ignore a notification that they do not know.
        """
        interval = self._streams.keep_alive
        if interval >= TRANSPORT_KEEP_ALIVE_SECONDS or self._request.request is None:
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
        try:
            await self._send_request("ping", None, types.EmptyResult, timeout)
        except MCPError as error:
            if _is_unreachable(error):
                raise
            return error.code != types.REQUEST_TIMEOUT
        return True

    async def _send_request(
        self,
        method: str,
        params: JsonObject | None,
        result_type: type[BaseModel],
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> JsonObject:
        self._sent_at = anyio.current_time()
        request = cast("types.ServerRequest", RawMessage(method=method, params=params))
        metadata = ServerMessageMetadata(related_request_id=self._related_id)
        return wire.dump_result(
            await self._request.session.send_request(request, result_type, timeout, metadata)
        )

    # Questions

    def _update_questions(self, snapshot: Snapshot, delivery: Delivery, group: TaskGroup) -> None:
        """Ask new questions. Withdraw those that were answered elsewhere."""
        questions = self.questions(snapshot.task)
        for key in questions.keys() - self._asking.keys():
            self._asking[key] = anyio.CancelScope()
            group.start_soon(self._ask, snapshot.task.task_id, key, delivery, group.cancel_scope)
        for key in self._asking.keys() - questions.keys():
            self._asking[key].cancel()

    async def _ask(self, task_id: str, key: str, delivery: Delivery, follower: anyio.CancelScope) -> None:
        """Ask a question once no other stream of the session does."""
        with self._asking[key]:
            try:
                delivery.check_reader()
                async with delivery.turn(key):
                    await self._ask_if_open(task_id, key)
            except (MCPError, PerdureError) as error:
                self._error = to_mcp_error(error) if isinstance(error, PerdureError) else error
                follower.cancel()

    async def _ask_if_open(self, task_id: str, key: str) -> None:
        task = (await retry_busy(lambda: self._runtime.get(self._owner, task_id))).task
        if key not in task.outstanding:
            return
        failure = await self._ask_until_valid(task, key)
        if failure is not None:
            with suppress(TerminalTask):
                await retry_busy(lambda: self._runtime.fail_question(self._owner, task_id, key, failure))

    async def _ask_until_valid(self, task: TaskRecord, key: str) -> InputError | None:
        """Ask the client, again if its answer is malformed.

        Return what the tool gets for an answer if there is none: an error.
        """
        reason = ""
        for _ in range(MAX_ASKS):
            try:
                answers = {key: await self._send_question(task, key, reason)}
                with suppress(TerminalTask), anyio.CancelScope(shield=True):  # else the client is asked again
                    await retry_busy(partial(self._runtime.answer, self._owner, task.task_id, answers))
                return None  # noqa: TRY300
            except MalformedAnswer as error:
                reason = str(error)
            except ValidationError:
                reason = f"the answer to {key!r} is malformed"
            except MCPError as error:
                if not _is_unreachable(error):
                    return InputError(code=error.code, message=error.message)
                if self._names_task:
                    return None  # the client can be asked on another stream
                text = f"the client did not answer {key!r}: {error.message}"
                raise MCPError(types.INTERNAL_ERROR, text) from error
        return InputError(code=types.INVALID_PARAMS, message=reason)

    async def _send_question(self, task: TaskRecord, key: str, reason: str) -> JsonObject:
        """Return the client's answer. `reason` says why its last one was not accepted."""
        asked = task.inputs[key]
        question = wire.input_request(asked)
        params = self._with_task(as_object(question.get("params")), task)
        if reason and "message" in params:
            params["message"] = f"{params['message']}\n\n({reason})"
        return await self._send_request(question["method"], params or None, _result_type(asked.kind, params))


def _result_type(kind: InputKind, params: JsonObject) -> type[BaseModel]:
    match kind:
        case InputKind.ELICITATION:
            return types.ElicitResult
        case InputKind.ROOTS:
            return types.ListRootsResult
        case InputKind.SAMPLING:
            has_tools = params.get("tools") or params.get("toolChoice")
            return types.CreateMessageResultWithTools if has_tools else types.CreateMessageResult


def _is_unreachable(error: MCPError) -> bool:
    """Return whether the SDK, and not the client, reports the error."""
    is_closed = (error.code, error.message) == (types.CONNECTION_CLOSED, "Connection closed")
    return isinstance(error, NoBackChannelError) or is_closed


class SessionStream(TaskStream):
    """Follows one task on the own stream of a session, which the client may not read."""

    def __init__(self, request: RequestContext, owner: Owner, streams: Streams) -> None:
        super().__init__(request, owner, streams)
        self._related_id, self._is_open = None, streams.owns_session(request)
        self._sent_status: object = None

    async def follow(self, seen: TaskRecord, delivery: Delivery) -> None:
        """Follow a task until it ends. The client has seen this state of it."""
        self._sent_status = (seen.status, seen.status_message)
        await self._follow(seen.task_id, delivery, lambda snapshot: snapshot.task.is_terminal)

    async def _send_news(self, task: TaskRecord, delivery: Delivery) -> None:
        """Send the status, and the rest unless a request of the session does."""
        status = (task.status, task.status_message)
        if status != self._sent_status:
            await self._notify(
                "notifications/tasks/status", wire.task_2025(task, self._runtime.store.clock())
            )
        self._sent_status = status
        if not delivery.open_requests:
            await super()._send_news(task, delivery)

    async def _ask(self, task_id: str, key: str, delivery: Delivery, follower: anyio.CancelScope) -> None:  # noqa: ARG002
        """Ask a client that only polls, as soon as it reads the stream; again if it stops reading."""
        is_asked = False
        with self._asking[key]:
            try:
                await delivery.polls_only.wait()
                while not is_asked:
                    while not await self._ping(PING_SECONDS):  # noqa: ASYNC110 (no event shows that it is read)
                        await anyio.sleep(PING_SECONDS)
                    async with delivery.turn(key), task_group() as group:
                        group.start_soon(self._cancel_without_reader, delivery, group.cancel_scope)
                        await self._ask_if_open(task_id, key)
                        is_asked = True
            except (MCPError, PerdureError) as error:
                log.debug("a question was not asked on a session's own stream: %s", error)

    async def _cancel_without_reader(self, delivery: Delivery, scope: anyio.CancelScope) -> None:
        """Cancel if the client, which just sent a request, does not answer a ping: its stream was closed.

        A client that sends nothing may be busy with the question.
        """
        with suppress(MCPError):
            await delivery.wait_for_request()
            while await self._ping(PING_SECONDS):
                await delivery.wait_for_request()
        scope.cancel()


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
