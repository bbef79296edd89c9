"""`ClientTask`: one task on a server, which a client reads, waits for, answers and cancels.

It can be saved as text and resumed by another client, also after a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar
from weakref import WeakSet

import anyio
import msgspec
from mcp_types import CallToolResult

from ...storage.time_types import Duration, to_seconds
from ...tasks import Status
from ..errors import ClientTaskError, InvalidTaskResponse, WaitTimeout
from ..wire import PROTOCOL_2025
from .connection import Connection
from .protocols import MAX_POLL_DELAY, TaskProtocol, TaskState, answer_by_callbacks

T = TypeVar("T")
log = logging.getLogger("perdure.mcp")

STREAM_PAUSE = 1.0
"""Seconds before a stream that the server has ended is opened again."""


class SavedTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The text form of a `ClientTask`. `result` is for a call that the server answered at once."""

    task_id: str
    tool: str
    result: dict[str, Any] | None = None

    @classmethod
    def of(cls, tool: str, started: str | CallToolResult) -> SavedTask:
        """Return the task of a call that was answered with the id of a task, or with its result."""
        if isinstance(started, str):
            return cls(task_id=started, tool=tool)
        result = started.model_dump(by_alias=True, mode="json", exclude_none=True)
        return cls(task_id="", tool=tool, result=result)

    @classmethod
    def read(cls, text: str) -> SavedTask:
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise InvalidTaskResponse(f"the text is not a saved task: {error}") from error


class Wakeup:
    """Ends the delay between two polls early when the task changes."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self._changed = anyio.Event()
        self._is_notified = False
        """Whether the server sends notifications. If it does, it sends the first one at once."""
        self.error: Exception | None = None
        """Why there is no stream on which the server could notify or ask."""

    def set(self, *, is_notified: bool) -> None:
        self._is_notified = is_notified
        self._changed.set()

    async def wait(self, seconds: float) -> None:
        """Wait for a change. If the server sends no notifications, wait only for `seconds`."""
        with anyio.move_on_after(MAX_POLL_DELAY if self._is_notified else seconds):
            await self._changed.wait()
        self._changed = anyio.Event()


class ClientTask:
    """One task of a server, as its client sees it.

    If the server answered the call without creating a task, this task has already ended, and its id is empty.
    """

    def __init__(
        self, connect: Callable[[], Connection], wakeups: WeakSet[Wakeup] | None, saved: SavedTask
    ) -> None:
        """`connect` returns the connections for requests. With `wakeups`, the server notifies of changes."""
        self._connect = connect
        self._wakeups = wakeups
        self._saved = saved
        self._answers: dict[str, Any] = {}
        """Answers of callbacks. They are sent again unchanged until the server has acknowledged them."""
        self._answered: set[str] = set()

    @property
    def id(self) -> str:
        return self._saved.task_id

    @property
    def tool(self) -> str:
        return self._saved.tool

    def save(self) -> str:
        """Return the task as text. The text gives access to the task: protect it like a password."""
        return msgspec.json.encode(self._saved).decode()

    async def status(self) -> TaskState:
        """Read the state of the task from the server."""
        if self._saved.result is not None:
            return _ended_state(self._saved.result)
        return await self._send(lambda protocol: protocol.get(self.id))

    async def answer(self, answers: Mapping[str, Any]) -> None:
        """Answer questions of the task by key, instead of the client's callbacks."""
        if self._saved.result is None:
            await self._send(lambda protocol: protocol.answer(self.id, answers))
            self._answered.update(answers)

    async def cancel(self) -> None:
        """Cancel the task, unless it has ended."""
        if self._saved.result is None:
            await self._send(lambda protocol: protocol.cancel(self.id))

    async def wait(
        self,
        timeout: Duration | None = None,  # noqa: ASYNC109
        *,
        on_state: Callable[[TaskState], None] | None = None,
    ) -> CallToolResult:
        """Wait for the result of the call. The client's callbacks answer what the task asks.

        `on_state` is called with every state that is read. A lost connection is opened again, with growing
        delays, until the timeout. After the timeout, raise WaitTimeout, and do not cancel the task. Also
        raise TaskWasCancelled, and the errors that the call would have raised.
        """

        async def observe(state: TaskState) -> None:
            if on_state is not None:
                on_state(state)

        connection, seconds = self._connect(), None if timeout is None else to_seconds(timeout)
        with anyio.move_on_after(seconds):
            async with connection:
                return await self.follow(connection, observe)
        raise WaitTimeout(seconds or 0, self.id) from connection.trouble

    async def follow(
        self, connection: Connection, observe: Callable[[TaskState], Awaitable[None]]
    ) -> CallToolResult:
        """Wait without a timeout, on a connection that is opened again whenever it is lost."""
        if self._saved.result is not None:
            return _ended_state(self._saved.result).outcome
        with self._named_in_errors():
            ended = await self._until_ended(connection, observe)
            result = (await connection.repeat(lambda protocol: protocol.read_result(ended))).outcome
            if not result.is_error:
                await connection.repeat(
                    lambda protocol: protocol.session.validate_tool_result(self.tool, result)
                )
            return result

    async def _until_ended(
        self, connection: Connection, observe: Callable[[TaskState], Awaitable[None]]
    ) -> TaskState:
        """Poll the task until it has ended.

        Meanwhile, a stream is read. At 2026-07-28, this is done on request, for notifications. At 2025-11-25,
        it is done as soon as the task asks, because the questions are sent on the stream.
        """
        asks_on_stream = connection.own.protocol_version == PROTOCOL_2025
        wakeup, has_stream = Wakeup(self.id), False
        while True:
            state = await connection.repeat(lambda protocol: protocol.get(self.id))
            await observe(state)
            if state.status.is_terminal:
                return state
            is_asking = state.status is Status.INPUT_REQUIRED
            if is_asking and asks_on_stream and wakeup.error is not None:
                raise wakeup.error
            if not has_stream and (is_asking if asks_on_stream else self._wakeups is not None):
                connection.start(lambda: self._read_streams(connection, wakeup))
                has_stream = True
            if asks_on_stream or not await self._answer_by_callbacks(connection, state):
                await wakeup.wait(state.poll_delay)

    async def _read_streams(self, connection: Connection, wakeup: Wakeup) -> None:
        if self._wakeups is not None:
            self._wakeups.add(wakeup)

        async def read(protocol: TaskProtocol) -> None:
            try:
                await protocol.read_stream(self.id)
            finally:
                wakeup.set(is_notified=False)  # until the next notification, the task is polled

        try:
            while True:
                await connection.repeat(read)
                await anyio.sleep(STREAM_PAUSE)
        except Exception as error:  # the task can be polled, unless it asks on the stream
            log.debug("cannot read the stream of task %s: %s", self.id, error)
            wakeup.error = error

    async def _answer_by_callbacks(self, connection: Connection, state: TaskState) -> bool:
        """Answer new questions. Each callback is called once. If an answer may be lost, it is sent again."""
        keys = state.unanswered(self._answered)
        if not keys:
            return False
        asked = {key: state.questions[key] for key in keys if key not in self._answers}
        self._answers |= await answer_by_callbacks(connection.own, asked)
        answers = {key: self._answers[key] for key in keys}
        await connection.repeat(lambda protocol: protocol.answer(self.id, answers))
        self._answered.update(keys)
        return True

    async def _send(self, request: Callable[[TaskProtocol], Awaitable[T]]) -> T:
        with self._named_in_errors():
            async with self._connect() as connection:
                return await connection.send(request)

    @contextmanager
    def _named_in_errors(self) -> Generator[None]:
        try:
            yield
        except ClientTaskError as error:
            error.task_id = error.task_id or self.id
            raise
        except Exception as error:
            error.add_note(f"task id: {self.id}")
            raise


def _ended_state(result: dict[str, Any]) -> TaskState:
    now = datetime.now(UTC).isoformat()
    return TaskState(task_id="", status=Status.COMPLETED, created_at=now, last_updated_at=now, result=result)
