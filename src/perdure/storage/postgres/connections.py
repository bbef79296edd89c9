"""Connections to the server: a pool, what may be tried again on it, and the end of it.

A read that meets a dead connection is tried once more on a fresh one. A write is sent once. Nothing here, or
in what is sent, leaves anything behind in a session, so a pooler may exchange the session at will.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Self, TypeAlias, TypedDict

import asyncpg

from ..errors import StorageClosed, StorageUnavailable
from .failures import DRIVER_ERRORS, as_opening_error, as_storage_error
from .location import Location

if TYPE_CHECKING:
    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
    Session: TypeAlias = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]

CONNECT_TIMEOUT = 10.0
CLOSE_TIMEOUT = 5.0
GRACE = 10.0
"""Seconds beyond the server's own timeout after which we take it for gone."""
_ONLY_INDEXES = {"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_sort": "off", "jit": "off"}
"""There is an index for all that we ask; of a new table the planner does not know that it pays.

Where there is no other way, servers before 18 take what is switched off to cost a fortune, and compile it.
"""
_TAKE_YOUR_TIME = """
    SET LOCAL statement_timeout = 0;
    SET LOCAL enable_seqscan = on;
    SET LOCAL enable_sort = on
"""


class _Settings(TypedDict):
    timeout: float
    command_timeout: float | None
    statement_cache_size: int
    server_settings: dict[str, str]


def _settings(location: Location) -> _Settings:
    """What every connection begins with. A pooler knows no settings, and no statements that stay prepared."""
    seconds = location.options.statement_timeout
    if location.options.pooler is not None:
        return _Settings(
            timeout=CONNECT_TIMEOUT,
            command_timeout=seconds or None,
            statement_cache_size=0,
            server_settings={},
        )
    return _Settings(
        timeout=CONNECT_TIMEOUT,
        command_timeout=seconds + GRACE if seconds else None,
        statement_cache_size=100,
        server_settings={
            "statement_timeout": f"{round(seconds * 1000)}ms",
            "idle_in_transaction_session_timeout": "60s",
            "default_transaction_isolation": "read committed",
            **_ONLY_INDEXES,
        },
    )


class Connections:
    """Belongs to one event loop."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._lent = 0
        self._all_back = asyncio.Event()
        self._connecting: set[asyncio.Task[Connection]] = set()
        self._closed = False
        self._pool: Pool = asyncpg.create_pool(
            min_size=0, max_size=location.options.pool, connect=self.connect, reset=_leave_as_it_is
        )

    @classmethod
    async def open(cls, location: Location) -> Self:
        """A pool that connects when somebody asks for a connection."""
        opened = cls(location)
        await opened._pool
        return opened

    async def connect(self, *_: object, **__: object) -> Connection:
        """A connection of one's own. The pool calls this too, with arguments that are not needed.

        The driver cannot be stopped well in the middle of this, so it goes on without a caller who has gone.
        """
        task = asyncio.ensure_future(asyncpg.connect(self.location.dsn, **_settings(self.location)))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_hang_up)
            raise

    async def read(self, sql: str, *values: object) -> list[asyncpg.Record]:
        try:
            return await self._run(sql, values, is_write=False)
        except StorageUnavailable as error:
            if isinstance(error.__cause__, TimeoutError):
                raise
        await self._pool.expire_connections()
        return await self._run(sql, values, is_write=False)

    async def write(self, sql: str, *values: object) -> list[asyncpg.Record]:
        """Run a statement that is a transaction of its own."""
        return await self._run(sql, values, is_write=True)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Session]:
        """A session in a transaction that may take its time."""
        async with self._lend() as session:
            try:
                async with session.transaction():
                    await session.execute(_TAKE_YOUR_TIME)
                    await session.execute(
                        "SELECT set_config('lock_timeout', $1, true)", self.location.patience
                    )
                    yield session
            except DRIVER_ERRORS as error:
                raise as_storage_error(error, self.location, was_sent=True) from error

    async def close(self) -> None:
        """Wait for what is under way, then close every connection."""
        self._closed = True
        while self._lent:
            self._all_back.clear()
            await self._all_back.wait()
        if self._connecting:
            await asyncio.wait(self._connecting, timeout=CLOSE_TIMEOUT)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._pool.close()

    async def _run(self, sql: str, values: Sequence[object], *, is_write: bool) -> list[asyncpg.Record]:
        async with self._lend() as session:
            try:
                return await session.fetch(sql, *values)
            except DRIVER_ERRORS as error:
                raise as_storage_error(error, self.location, was_sent=is_write) from error

    @asynccontextmanager
    async def _lend(self) -> AsyncGenerator[Session]:
        if self._closed:
            raise StorageClosed(f"{self.location.name} was closed")
        self._lent += 1
        try:
            session = await self._acquire()
            try:
                yield session
            finally:
                with suppress(*DRIVER_ERRORS):  # it is closed then, and replaced by the next who asks
                    await self._pool.release(session)
        finally:
            self._lent -= 1
            if not self._lent:
                self._all_back.set()

    async def _acquire(self) -> Session:
        try:
            return await self._pool.acquire()
        except DRIVER_ERRORS as error:
            raise as_opening_error(error, self.location) from error


async def _leave_as_it_is(_: object) -> None:
    """Instead of the driver's own reset, which would cost a round trip to undo what we never do."""


def _hang_up(task: asyncio.Task[Connection]) -> None:
    """Nobody waits for this connection any more."""
    if not task.cancelled() and task.exception() is None:
        task.result().terminate()
