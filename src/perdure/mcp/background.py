"""The runtime behind a server: open as long as some lifespan of the server is, however many there are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager

import anyio

from ..runtime import App, Runtime
from .refusals import not_running

log = logging.getLogger("perdure.mcp")


class Background:
    """Opened with the first lifespan and closed with the last, in a task that belongs to none of them."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._users = 0
        self._changing = anyio.Lock()
        self._runtime: Runtime | None = None
        self._serving: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()
        self._beside: set[asyncio.Task[None]] = set()

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

    def beside(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Do this until it is done or the runtime closes."""
        doing = asyncio.create_task(work)
        self._beside.add(doing)
        doing.add_done_callback(self._beside.discard)
        return doing

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
        for doing in self._beside:
            doing.cancel()
        self._leave.set()
        try:
            if serving is not None:
                await serving
        finally:
            self._runtime = None

    async def _serve(self, opened: asyncio.Future[Runtime]) -> None:
        try:
            async with self._app.open() as runtime:
                opened.set_result(runtime)
                await self._leave.wait()
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)
