"""Streams that follow a task: its questions, progress and log entries reach the client on them.

- `TaskStream`: a request that waits for a task, which is `tasks/result` of 2025-11-25 or the call of a client
  without tasks.
- `SessionStream`: the own stream of a session of 2025-11-25 that created the task, or polls it.

The streams of one session share a `Session`, which records what the session has received. So a question is
open on only one of them at a time, and progress only increases.
"""

from __future__ import annotations

import logging
from contextlib import aclosing, suppress
from functools import partial
from typing import cast
from weakref import WeakValueDictionary

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.server.connection import allowed_log_levels
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from pydantic import ValidationError

from ..runtime.task_group import task_group
from ..runtime.waits import retry_busy
from ..storage.errors import PerdureError
from ..tasks import LogLevel, Owner, TaskRecord
from ..tasks.errors import MalformedAnswer, TerminalTask
from ..tasks.inputs import Input, InputError
from ..tasks.task_log import LOG_LEVELS, Report
from . import wire
from .adapters import connection_of
from .errors import retryable
from .streams import RawMessage, Streams, notification
from .wire import JsonObject, RequestContext, as_object

log = logging.getLogger("perdure.mcp")

MAX_ASKS = 3
"""Maximum number of times that a client is asked the same question if its answers are malformed."""
TRANSPORT_KEEP_ALIVE_SECONDS = 15.0
"""Seconds without a message after which the SDK's HTTP transports themselves send a comment."""
PING_SECONDS = 5.0
"""Seconds within which a client must answer a ping on the session's own stream, and until the next ping."""
KEEP_ALIVE_METHOD = "notifications/perdure/keepAlive"
SESSION_STATE_KEY = "perdure"


class Delivery:
    """What one session has received of one task."""

    def __init__(self, task: TaskRecord) -> None:
        self.progress_token: str | int | None = None
        """The progress token of the call that created the task, if this session made the call."""
        self.open_requests = 0
        """Number of requests of the session that follow the task. If 0, the session's own stream is used."""
        self.polls_only = anyio.Event()
        """Set when the client polls again after it saw a question, so it does not wait for the result."""
        self._reports, self._log = task.reports.total, task.log.total
        self._progress: float | None = None
        self._questions: dict[str, anyio.Lock] = {}
        self._has_polled = False
        self._request_seen = anyio.Event()

    def turn(self, key: str) -> anyio.Lock:
        """Return the lock of a question, which is open on one stream of the session at a time."""
        return self._questions.setdefault(key, anyio.Lock())

    def poll(self) -> None:
        """Record that the session has polled the task while the task asks a question."""
        if self._has_polled and not self.open_requests:
            self.polls_only.set()
        self._has_polled = True
        self.check_reader()

    def check_reader(self) -> None:
        """Let the session's own stream check whether the client still reads it. The client sent a request."""
        self._request_seen.set()

    async def wait_for_request(self) -> None:
        self._request_seen = anyio.Event()
        await self._request_seen.wait()

    def restart(self, log_entries: int) -> None:
        """Deliver all reports from the start of the task, because the client does not know the task.

        Of the log, it has received so many entries.
        """
        self._reports, self._log = 0, log_entries
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
            elif increasing and report.done == self._progress and report.message is not None:
                increasing[-1] = report  # the message was set after the value
        return increasing

    def take_log(self, task: TaskRecord) -> list[JsonObject]:
        """Return the new log entries as the parameters of `notifications/message`."""
        entries, self._log = task.log.after(self._log), task.log.total
        return [wire.log_message(entry) for entry in entries]


class Session:
    """The state of one connection. At 2026-07-28, that is a single request, and before, a session."""

    def __init__(self) -> None:
        self.level: LogLevel = LOG_LEVELS[0]
        """The lowest level of the log entries that the client wants."""
        self.followed: dict[str, anyio.CancelScope] = {}
        """By id, the tasks that are followed on the session's own stream until their scope is cancelled."""
        self._deliveries: WeakValueDictionary[str, Delivery] = WeakValueDictionary()

    @staticmethod
    def of(request: RequestContext) -> Session:
        connection = connection_of(request)
        session = connection.state.get(SESSION_STATE_KEY)
        if session is None:
            session = connection.state[SESSION_STATE_KEY] = Session()
            connection.exit_stack.callback(session._end)
        return session

    def _end(self) -> None:
        for scope in self.followed.values():
            scope.cancel()

    def delivery(self, task: TaskRecord) -> Delivery:
        """Return what the session has received of a task. All streams of the session share this object."""
        return self._deliveries.setdefault(task.task_id, Delivery(task))

    def set_level(self, level: object) -> None:
        """Remember what the client has set with `logging/setLevel`."""
        self.level = level if level in LOG_LEVELS else self.level


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
        """Whether the client knows the task. If so, every message names the task."""
        self._is_open = not names_task or request.session.can_send_request
        """Whether anything can be sent on this stream. With `json_response=True`, a request has no stream
        before its answer, so the session's own stream is used."""
        self._related_id: types.RequestId | None = request.request_id
        self._asking: dict[str, anyio.CancelScope] = {}
        self._sent_at = anyio.current_time()

    async def wait(self, task_id: str, *, at_most: float | None = None) -> TaskRecord:
        """Return the task when it `is_over`, or after `at_most` seconds. Meanwhile, ask its questions."""
        with anyio.move_on_after(at_most):
            task = await self._read(task_id)
            delivery = self._session.delivery(task)
            if not self._names_task:
                delivery.restart(wire.received_log_entries(self._request))
            if not self._is_open:
                follow_in_session(self._request, task, self._streams).polls_only.set()
            delivery.open_requests += self._is_open
            try:
                async with task_group() as group:
                    group.start_soon(self._keep_alive)
                    return await self._follow(task_id, delivery)
            finally:
                delivery.open_requests -= self._is_open
        return await self._read(task_id)

    async def _read(self, task_id: str) -> TaskRecord:
        return (await retry_busy(lambda: self._runtime.get(self._owner, task_id))).task

    def is_over(self, task: TaskRecord) -> bool:
        """Return whether the request that waits for the task can be answered."""
        return task.is_terminal or bool(self.round_of(task))

    def round_of(self, task: TaskRecord) -> dict[str, Input]:
        """Return the questions that end a round of this call. Only calls of 2026-07-28 have rounds."""
        return self.questions(task) if self._request.protocol_version == wire.PROTOCOL_2026 else {}

    def reachable_questions(self, task: TaskRecord) -> dict[str, Input]:
        """Return the questions that can be sent: in a round of the call, or on a stream before its answer."""
        return self.questions(task) if self._request.session.can_send_request else self.round_of(task)

    def questions(self, task: TaskRecord) -> dict[str, Input]:
        """Return the outstanding questions that the client of this request can be asked."""
        can = wire.capabilities_of(self._request)
        return {key: asked for key, asked in task.questions.items() if asked.capability in can}

    async def _follow(self, task_id: str, delivery: Delivery) -> TaskRecord:
        """Send news of the task until `is_over`. Raise MCPError if the server stops before that."""
        ended: TaskRecord | None = None
        with self._streams.open():
            async with task_group() as group, aclosing(self._runtime.watch(self._owner, task_id)) as states:
                async for snapshot in states:
                    task = snapshot.task
                    if self._is_open:
                        await self._send_news(task, delivery)
                    if self.is_over(task):
                        ended = task
                        break
                    if self._is_open:
                        self._update_questions(task, delivery, group)
        if ended is None:
            raise retryable("the server is stopping; send the request again")
        return ended

    # Notifications

    async def _send_news(self, task: TaskRecord, delivery: Delivery) -> None:
        """Send new progress, and the new log entries that the client wants."""
        for report in delivery.take_reports(task):
            await self._send_progress(task, report, delivery.progress_token)
        requested = allowed_log_levels(self._request.protocol_version, self._request.meta)
        wanted = requested & set(LOG_LEVELS[LOG_LEVELS.index(self._session.level) :])
        for entry in delivery.take_log(task):
            if entry["level"] in wanted:
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

        The SDK does that at its own interval, so this is needed only for a shorter interval. At 2026-07-28,
        servers cannot send pings. They send a notification that clients do not know, and so ignore.
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
            await self._send_request("ping", None, timeout)
        except MCPError as error:
            if _is_unreachable(error):
                raise
            return error.code != types.REQUEST_TIMEOUT
        return True

    async def _send_request(
        self,
        method: str,
        params: JsonObject | None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> JsonObject:
        self._sent_at = anyio.current_time()
        request = cast("types.ServerRequest", RawMessage(method=method, params=params))
        metadata = ServerMessageMetadata(related_request_id=self._related_id)
        result = await self._request.session.send_request(request, wire.RawResult, timeout, metadata)
        return result.root

    # Questions

    def _update_questions(self, task: TaskRecord, delivery: Delivery, group: TaskGroup) -> None:
        """Ask new questions. Withdraw those that were answered elsewhere."""
        questions = self.questions(task)
        for key in questions.keys() - self._asking.keys():
            self._asking[key] = anyio.CancelScope()
            group.start_soon(self._ask, task.task_id, key, delivery)
        for key in self._asking.keys() - questions.keys():
            self._asking[key].cancel()

    async def _ask(self, task_id: str, key: str, delivery: Delivery) -> None:
        """Ask a question, as soon as no other stream of the session is asking it."""
        with self._asking[key]:
            delivery.check_reader()
            async with delivery.turn(key):
                await self._ask_if_open(task_id, key)

    async def _ask_if_open(self, task_id: str, key: str) -> None:
        task = await self._read(task_id)
        if key not in task.outstanding:
            return
        failure = await self._ask_until_valid(task, key)
        if failure is not None:
            with suppress(TerminalTask):
                await retry_busy(lambda: self._runtime.fail_question(self._owner, task_id, key, failure))

    async def _ask_until_valid(self, task: TaskRecord, key: str) -> InputError | None:
        """Ask the client. Ask again if its answer is malformed.

        Return None if the answer is stored or the client can be asked on another stream. Otherwise, return
        the error that the tool receives as the answer.
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
        """Return the client's answer. `reason` is why its previous answer was rejected, or empty."""
        asked = task.inputs[key]
        question = wire.input_request(asked)
        params = self._with_task(as_object(question.get("params")), task)
        if reason and "message" in params:
            params["message"] = f"{params['message']}\n\n({reason})"
        return await self._send_request(question["method"], params or None)


def _is_unreachable(error: MCPError) -> bool:
    """Return whether the SDK, and not the client, reports the error."""
    is_closed = (error.code, error.message) == (types.CONNECTION_CLOSED, "Connection closed")
    return isinstance(error, NoBackChannelError) or is_closed


class SessionStream(TaskStream):
    """Follows one task on the own stream of a session. It is possible that no client reads this stream."""

    def __init__(self, request: RequestContext, owner: Owner, streams: Streams) -> None:
        super().__init__(request, owner, streams)
        self._related_id, self._is_open = None, streams.owns_session(request)
        self._sent_status: object = None

    async def follow(self, seen: TaskRecord, delivery: Delivery, scope: anyio.CancelScope) -> None:
        """Follow a task until it ends or the scope is cancelled. The client has seen the state `seen`."""
        self._sent_status = (seen.status, seen.status_message)
        try:
            with scope:
                await self._follow(seen.task_id, delivery)
        except Exception as error:  # whatever a transport raises if its client has left
            log.debug("a session is no longer notified of changes to task %s: %s", seen.task_id, error)
        finally:
            del self._session.followed[seen.task_id]

    async def _send_news(self, task: TaskRecord, delivery: Delivery) -> None:
        """Send the status. Also send progress and log entries, unless a request of the session sends them."""
        status = (task.status, task.status_message)
        if status != self._sent_status:
            await self._notify(
                "notifications/tasks/status", wire.task_2025(task, self._runtime.store.clock())
            )
        self._sent_status = status
        if not delivery.open_requests:
            await super()._send_news(task, delivery)

    async def _ask(self, task_id: str, key: str, delivery: Delivery) -> None:
        """Ask a client that only polls, as soon as it reads the stream. Ask again if it stops reading."""
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
                log.debug("could not ask a question on the stream of the session: %s", error)

    async def _cancel_without_reader(self, delivery: Delivery, scope: anyio.CancelScope) -> None:
        """Cancel `scope` if the client has just sent a request, but its stream was closed.

        In that case, it does not answer a ping. A client that sends nothing may be busy with the question.
        """
        with suppress(MCPError):
            await delivery.wait_for_request()
            while await self._ping(PING_SECONDS):
                await delivery.wait_for_request()
        scope.cancel()


def follow_in_session(
    request: RequestContext, task: TaskRecord, streams: Streams, token: str | int | None = None
) -> Delivery:
    """Follow a task on the own stream of a session, unless that is done already.

    `token` is the progress token of the call that created the task.
    """
    session = Session.of(request)
    delivery = session.delivery(task)
    if task.task_id not in session.followed:
        delivery.progress_token = token
        scope = session.followed[task.task_id] = anyio.CancelScope()
        streams.start_soon(SessionStream(request, task.owner, streams).follow, task, delivery, scope)
    return delivery
