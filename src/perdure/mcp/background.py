"""The runtime behind a server: open as long as some lifespan of the server is, however many there are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import TaskGroup

from ..runtime import App, Runtime
from .refusals import not_running
from .streams import OpenStreams, StatusNotifier

log = logging.getLogger("perdure.mcp")


class Background:
    """Opened with the first lifespan and closed with the last, in a task that belongs to none of them."""

    def __init__(self, app: App, keep_alive: float) -> None:
        self._app = app
        self._keep_alive = keep_alive
        self.streams = OpenStreams(keep_alive)
        self._notifier: StatusNotifier | None = None
        self._group: TaskGroup | None = None
        self._users = 0
        self._changing = anyio.Lock()
        self._runtime: Runtime | None = None
        self._serving: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()

    @property
    def runtime(self) -> Runtime:
        if self._runtime is None:
            raise not_running()
        return self._runtime

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Runtime]:
        async with self._changing:
            if not self._users:
                await self._start()
            self._users += 1
        try:
            yield self.runtime
        finally:
            with anyio.CancelScope(shield=True):
                async with self._changing:
                    self._users -= 1
                    if not self._users:
                        await self._stop()

    @property
    def notifier(self) -> StatusNotifier:
        if self._notifier is None:
            raise not_running()
        return self._notifier

    def start_soon(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        """Do this until it is done or the runtime closes. It must not raise."""
        if self._group is None:
            raise not_running()
        self._group.start_soon(work, *arguments)

    async def _start(self) -> None:
        opened: asyncio.Future[Runtime] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._serving = asyncio.create_task(self._serve(opened))
        try:
            self._runtime = await asyncio.shield(opened)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._stop()
            raise

    async def _stop(self) -> None:
        serving, self._serving = self._serving, None
        self.streams.close()
        self._leave.set()
        try:
            if serving is not None:
                await serving
        finally:
            self._runtime = None

    async def _serve(self, opened: asyncio.Future[Runtime]) -> None:
        try:
            async with self._app.open() as runtime, anyio.create_task_group() as group:
                self.streams = OpenStreams(self._keep_alive)
                self._notifier = StatusNotifier(runtime, self.streams, group)
                self._group = group
                opened.set_result(runtime)
                await self._leave.wait()
                group.cancel_scope.cancel()
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)
