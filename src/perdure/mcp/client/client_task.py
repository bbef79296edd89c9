"""`ClientTask`: one task on a server, to be looked at, waited for, answered and cancelled.

It can be saved as text and resumed by another client, after a restart.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult

from ...tasks import Status
from ..polling import Answer, Ended, Wait, decide
from .dialects import Dialect, may_be_repeated
from .pushes import Pushes, Waker
from .states import TaskState

BUSY_PAUSE = 1.0
"""Seconds until a server that says it is busy is asked again."""


class SavedTask(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a `ClientTask` that is saved."""

    task_id: str
    tool: str


class ClientTask:
    """One task, seen through one connection."""

    def __init__(self, dialect: Dialect, pushes: Pushes | None, saved: SavedTask) -> None:
        self._dialect = dialect
        self._pushes = pushes
        self._saved = saved
        self._answered: set[str] = set()

    @property
    def task_id(self) -> str:
        return self._saved.task_id

    @property
    def tool(self) -> str:
        return self._saved.tool

    def save(self) -> str:
        """Return the task as text, which gives access to the task: keep it as you keep a password."""
        return msgspec.json.encode(self._saved).decode()

    async def status(self) -> TaskState:
        """The task as it is now."""
        return await self._dialect.get(self.task_id)

    async def answer(self, answers: Mapping[str, Any]) -> None:
        """Answer what the task asked, by key, instead of the client's callbacks."""
        await self._dialect.answer(self.task_id, answers)
        self._answered.update(answers)

    async def cancel(self) -> None:
        """Have the task end. It may take a moment, and may come too late."""
        await self._dialect.cancel(self.task_id)

    async def wait(
        self,
        timeout: float | None = None,  # noqa: ASYNC109
        on_state: Callable[[TaskState], None] | None = None,
    ) -> CallToolResult:
        """The result, as the call would have returned it. What the task asks, the client's callbacks answer.

        `on_state` is given every state that the task is seen in. Raises TimeoutError after so many seconds,
        and leaves the task as it is; what else can go wrong is what the call would have raised, and
        WasCancelled.
        """
        with anyio.fail_after(timeout):
            async with self._hearing() as waker:
                ended = await self._until_ended(waker, on_state or _overlook)
            result = await self._dialect.outcome(ended)
        if not result.is_error:
            await self._dialect.session.validate_tool_result(self.tool, result)
        return result

    async def _until_ended(self, waker: Waker, on_state: Callable[[TaskState], None]) -> TaskState:
        while True:
            try:
                state = await self.status()
            except MCPError as error:
                if not may_be_repeated(error):
                    raise
                await waker.wait(BUSY_PAUSE)
                continue
            on_state(state)
            match decide(state.status, state.input_requests, self._answered, state.poll_interval_ms):
                case Ended():
                    return state
                case Answer(keys=keys):
                    questions = {key: asked for key, asked in state.questions.items() if key in keys}
                    await self.answer(await self._dialect.ask_callbacks(questions))
                case Wait(seconds=seconds):
                    if state.status is Status.INPUT_REQUIRED and self._dialect.asks_with_the_result:
                        return state
                    await waker.wait(seconds)

    @asynccontextmanager
    async def _hearing(self) -> AsyncGenerator[Waker]:
        if self._pushes is None:
            yield Waker()
            return
        async with self._pushes.of(self._dialect.session, self.task_id) as waker:
            yield waker


def _overlook(_: TaskState) -> None:
    """What is done with a state that nobody wants to see."""
