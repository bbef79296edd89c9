"""Being told when a task changes, instead of asking now and then: `subscriptions/listen` of 2026-07-28.

A push only wakes: what the task is, is read from the server. Where a server serves no such stream, or it
breaks, the client goes on asking.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from mcp.client import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import EmptyResult, RequestParams
from mcp_types import Request as WireRequest
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from ...tasks.config import MAX_POLL_INTERVAL_MS


class ListenParams(RequestParams):
    notifications: dict[str, list[str]]


class ListenRequest(WireRequest[ListenParams, str]):
    method: str = "subscriptions/listen"
    params: ListenParams


class Pushed(BaseModel):
    """What a notification says, as far as it wakes anybody."""

    model_config = ConfigDict(alias_generator=to_camel)

    task_id: str


class Pushes:
    """The notifications of one client, and who waits for them."""

    def __init__(self) -> None:
        self._waking: dict[str, anyio.Event] = {}
        self._listening: set[str] = set()

    async def arrived(self, pushed: Pushed) -> None:
        if pushed.task_id in self._waking:
            self._waking[pushed.task_id].set()

    @asynccontextmanager
    async def of(self, session: ClientSession, task_id: str) -> AsyncGenerator[None]:
        """Hear of this task within the block."""
        self._waking[task_id] = anyio.Event()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._listen, session, task_id)
                yield
                group.cancel_scope.cancel()
        finally:
            del self._waking[task_id]

    async def wait(self, task_id: str, seconds: float) -> None:
        """Until the task is said to have changed; where nobody would say so, for so many seconds."""
        longest = MAX_POLL_INTERVAL_MS / 1000 if task_id in self._listening else seconds
        with anyio.move_on_after(longest):
            await self._waking[task_id].wait()
        self._waking[task_id] = anyio.Event()

    async def _listen(self, session: ClientSession, task_id: str) -> None:
        request = ListenRequest(params=ListenParams(notifications={"taskIds": [task_id]}))
        self._listening.add(task_id)
        try:
            await session.send_request(request, EmptyResult)
        except MCPError:
            pass  # then it is asked for
        finally:
            self._listening.discard(task_id)
            self._waking[task_id].set()
