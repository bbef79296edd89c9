"""`SharedContext`: a context manager with several users, which enter and leave it in any order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio


class SharedContext:
    """A context that is entered for its first user and left after its last.

    It is entered and left in an asyncio task of its own, which the last user awaits. A task group, for
    example, can be left only by the task that entered it, and the first user is not always the last.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[object]]) -> None:
        self._make = make
        self._users = 0
        self._lock = anyio.Lock()
        self._hosting: asyncio.Task[None] | None = None
        self._stop = anyio.Event()

    @asynccontextmanager
    async def use(self) -> AsyncGenerator[None]:
        async with self._lock:
            if not self._users:
                await self._enter()
            self._users += 1
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                async with self._lock:
                    self._users -= 1
                    if not self._users:
                        await self._leave()

    async def _enter(self) -> None:
        entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stop = anyio.Event()
        self._hosting = asyncio.create_task(self._host(entered))
        try:
            await asyncio.wait([entered])  # this wait does not cancel `entered`
            entered.result()
        except BaseException:
            if not entered.done():
                self._hosting.cancel()
            with anyio.CancelScope(shield=True):
                await self._leave()
            if entered.done():
                entered.exception()  # else asyncio logs that it was never retrieved
            raise

    async def _leave(self) -> None:
        hosting, self._hosting = self._hosting, None
        self._stop.set()
        if hosting is not None:
            await hosting

    async def _host(self, entered: asyncio.Future[None]) -> None:
        try:
            async with self._make():
                entered.set_result(None)
                await self._stop.wait()
        except (Exception, asyncio.CancelledError) as error:
            if entered.done():
                raise
            # as an error, because the users that wait for it are not cancelled themselves
            is_cancelled = isinstance(error, asyncio.CancelledError)
            entered.set_exception(
                RuntimeError("the start of the tasks was cancelled") if is_cancelled else error
            )
