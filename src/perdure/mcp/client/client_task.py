"""`ClientTask`: one task on a server, which a client reads, waits for, answers and cancels.

It can be saved as text and resumed by another client, also after a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import anyio
import msgspec
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult

from ...storage.time_types import Duration
from ...tasks import Status
from .connection import BUSY_RETRY_DELAY, Backoff, ChangeSignal, Connector, Subscriptions
from .errors import ClientTaskError, ConnectionLost, InvalidTaskResponse, WaitTimeout
from .protocols import CallbackRefused, Protocol2026, TaskProtocol, TaskState, is_retryable

T = TypeVar("T")
log = logging.getLogger("perdure.mcp")


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


class ClientTask:
    """One task of a server, as its client sees it.

    If the server answered the call at once, without a task, it has already ended, and its id is empty.
    """

    def __init__(self, connector: Connector, subscriptions: Subscriptions | None, saved: SavedTask) -> None:
        self._connector = connector
        self._subscriptions = subscriptions
        self._saved = saved
        self._answers: dict[str, Any] = {}
        """Answers of callbacks that the server has not acknowledged."""
        self._answered: set[str] = set()
        self._trouble: ConnectionLost | None = None

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
        """Read the task."""
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
        delays, until the timeout; then WaitTimeout is raised, and the task keeps running. Also raises
        TaskWasCancelled, and what the call would have raised.
        """

        async def observe(state: TaskState) -> None:
            if on_state is not None:
                on_state(state)

        if self._saved.result is not None:
            return _ended_state(self._saved.result).outcome
        seconds = to_seconds(timeout)
        with anyio.move_on_after(seconds):
            return await self._connector.run_repeatedly(
                lambda protocol: self.follow(protocol, observe), self.note_lost
            )
        raise WaitTimeout(seconds or 0, self.id) from self._trouble

    def note_lost(self, error: ConnectionLost) -> bool:
        """Keep why the connection was lost, for WaitTimeout. The task can always be followed again."""
        error.task_id = self.id
        self._trouble = error
        return True

    async def follow(
        self, protocol: TaskProtocol, observe: Callable[[TaskState], Awaitable[None]]
    ) -> CallToolResult:
        """Wait without a timeout, on one connection."""

        async def until_ended(signal: ChangeSignal) -> CallToolResult:
            return await self._until_ended(protocol, signal, observe)

        try:
            if self._subscriptions is None or not isinstance(protocol, Protocol2026):
                result = await until_ended(ChangeSignal())
            else:
                result = await self._subscriptions.run(protocol.session, self.id, until_ended)
            if not result.is_error:
                await protocol.validate_result(self.tool, result)
        except Exception as error:
            self._name_task_in(error)
            raise
        return result

    async def _until_ended(
        self, protocol: TaskProtocol, signal: ChangeSignal, observe: Callable[[TaskState], Awaitable[None]]
    ) -> CallToolResult:
        busy = Backoff(BUSY_RETRY_DELAY)
        while True:
            try:
                state = await protocol.get(self.id)
                self._connector.backoff.reset()
                await observe(state)
                has_answered = await self._answer_by_callbacks(protocol, state)
            except MCPError as error:
                if isinstance(error, CallbackRefused) or not is_retryable(error):
                    raise
                await anyio.sleep(busy.next_delay())
                continue
            is_asking = state.status is Status.INPUT_REQUIRED and protocol.asks_on_result_stream
            if state.status.is_terminal or is_asking:
                result = await protocol.result(state)
                if result is not None:
                    return result
                await anyio.sleep(busy.next_delay())
            else:
                busy.reset()
                if not has_answered:
                    await signal.wait(state.poll_delay)

    async def _answer_by_callbacks(self, protocol: TaskProtocol, state: TaskState) -> bool:
        """Answer new questions, each once: an answer that the server may not have is sent again as it is."""
        keys = state.unanswered(self._answered)
        if not keys or protocol.asks_on_result_stream:
            return False
        asked = {key: state.questions[key] for key in keys if key not in self._answers}
        self._answers |= await protocol.answer_by_callbacks(asked)
        await protocol.answer(self.id, {key: self._answers[key] for key in keys})
        self._answered.update(keys)
        for key in keys:
            del self._answers[key]
        return True

    async def _send(self, work: Callable[[TaskProtocol], Awaitable[T]]) -> T:
        """Send one request. A connection that was lost earlier is opened again, once."""
        attempts = 0

        def may_repeat(error: ConnectionLost) -> bool:
            nonlocal attempts
            attempts += 1
            return self.note_lost(error) and attempts == 1

        try:
            return await self._connector.run_repeatedly(work, may_repeat)
        except ClientTaskError as error:
            error.task_id = error.task_id or self.id
            raise

    def _name_task_in(self, error: Exception) -> None:
        if isinstance(error, ClientTaskError):
            error.task_id = error.task_id or self.id
        else:
            error.add_note(f"task id: {self.id}")


class ProgressReporter:
    """Calls a progress callback when the progress of a task has changed."""

    def __init__(self, callback: ProgressFnT | None) -> None:
        self._callback = callback
        self._last: tuple[Any, ...] | None = None

    async def __call__(self, state: TaskState) -> None:
        if self._callback is None or state.progress is None or "done" not in state.progress:
            return
        progress = (state.progress["done"], state.progress.get("total"), state.status_message)
        if progress == self._last:
            return
        self._last = progress
        try:
            await self._callback(*progress)
        except Exception:  # as the SDK does: the callback is not part of the call
            log.exception("the progress callback raised an error")


def _ended_state(result: dict[str, Any]) -> TaskState:
    now = datetime.now(UTC).isoformat()
    return TaskState(task_id="", status=Status.COMPLETED, created_at=now, last_updated_at=now, result=result)


def to_seconds(duration: Duration | None) -> float | None:
    return duration.total_seconds() if isinstance(duration, timedelta) else duration
