"""Being told when a task changes, instead of asking now and then: `subscriptions/listen` of 2026-07-28.

A push only wakes: what the task is, is read from the server. Where a server serves no such stream, or it
breaks, the client goes on asking.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from mcp.client import ClientSession
from mcp_types import EmptyResult, RequestParams
from mcp_types import Request as WireRequest
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from ...tasks.config import MAX_POLL_INTERVAL_MS
from ..beside import beside

log = logging.getLogger("perdure.mcp")


class ListenParams(RequestParams):
    notifications: dict[str, list[str]]


class ListenRequest(WireRequest[ListenParams, str]):
    method: str = "subscriptions/listen"
    params: ListenParams


class Pushed(BaseModel):
    """What a notification says, as far as it wakes anybody."""

    model_config = ConfigDict(alias_generator=to_camel)

    task_id: str


class Waker:
    """Wakes one who waits for a task."""

    def __init__(self) -> None:
        self._changed = anyio.Event()
        self.is_told = False
        """Whether the server says so when the task changes. It has, at least once: it begins by saying."""

    def wake(self) -> None:
        self._changed.set()

    async def wait(self, seconds: float) -> None:
        """Until the task is said to have changed; where nobody would say so, for so many seconds."""
        with anyio.move_on_after(MAX_POLL_INTERVAL_MS / 1000 if self.is_told else seconds):
            await self._changed.wait()
        self._changed = anyio.Event()


class Pushes:
    """The notifications of one client, and who waits for them."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, set[Waker]] = defaultdict(set)

    async def arrived(self, pushed: Pushed) -> None:
        for waker in self._waiting.get(pushed.task_id, ()):
            waker.is_told = True
            waker.wake()

    @asynccontextmanager
    async def of(self, session: ClientSession, task_id: str) -> AsyncGenerator[Waker]:
        """Hear of this task within the block."""
        waker = Waker()
        self._waiting[task_id].add(waker)
        try:
            async with beside(_listen(session, task_id, waker)):
                yield waker
        finally:
            self._waiting[task_id].discard(waker)
            if not self._waiting[task_id]:
                del self._waiting[task_id]


async def _listen(session: ClientSession, task_id: str, waker: Waker) -> None:
    request = ListenRequest(params=ListenParams(notifications={"taskIds": [task_id]}))
    try:
        await session.send_request(request, EmptyResult)
    except Exception as error:  # whatever it is, the task can be asked for
        log.debug("the server tells nothing of task %s: %s", task_id, error)
    finally:
        waker.is_told = False
        waker.wake()
