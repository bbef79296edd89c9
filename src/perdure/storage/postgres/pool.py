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
from asyncpg.connect_utils import SessionAttribute

from ..errors import StorageClosed, StorageError, StorageUnavailable
from .errors import DRIVER_ERRORS, as_connect_error, as_storage_error, is_connection_lost, is_read_only
from .location import Location

if TYPE_CHECKING:
    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
    Session: TypeAlias = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]

CONNECT_TIMEOUT = 10.0
"""Seconds for each host."""
CLOSE_TIMEOUT = 5.0
CLIENT_TIMEOUT_MARGIN = 10.0
"""Seconds beyond the server's own timeout after which we take it for gone."""
FULL_SCAN_TIMEOUT = 86_400.0
"""Seconds for a statement that goes through whole tables."""
_PLANNER_SETTINGS = {"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_sort": "off", "jit": "off"}
"""There is an index for all that we ask; of a new table the planner does not know that it pays.

Where there is no other way, servers before 18 take what is switched off to cost a fortune, and compile it.
"""
_LONG_TRANSACTION_SETTINGS = """
    SET LOCAL statement_timeout = 0;
    SET LOCAL enable_seqscan = on;
    SET LOCAL enable_sort = on
"""


class _ConnectArguments(TypedDict):
    timeout: float
    command_timeout: float | None
    statement_cache_size: int
    server_settings: dict[str, str]
    target_session_attrs: SessionAttribute


def _connect_arguments(location: Location) -> _ConnectArguments:
    """What every connection begins with. A pooler knows no settings, and no statements that stay prepared."""
    seconds = location.options.statement_timeout
    target = SessionAttribute.read_write if location.requires_read_write else SessionAttribute.primary
    if location.options.pooler is not None:
        return _ConnectArguments(
            timeout=CONNECT_TIMEOUT,
            command_timeout=seconds or None,
            statement_cache_size=0,
            server_settings={},
            target_session_attrs=target,
        )
    return _ConnectArguments(
        timeout=CONNECT_TIMEOUT,
        command_timeout=seconds + CLIENT_TIMEOUT_MARGIN if seconds else None,
        statement_cache_size=100,
        server_settings={
            "statement_timeout": f"{round(seconds * 1000)}ms",
            "idle_in_transaction_session_timeout": "60s",
            "default_transaction_isolation": "read committed",
            **_PLANNER_SETTINGS,
        },
        target_session_attrs=target,
    )


class ConnectionPool:
    """Belongs to one event loop."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._in_use = 0
        self._all_released = asyncio.Event()
        self._connecting: set[asyncio.Task[Connection]] = set()
        self._long_running: set[asyncio.Timeout] = set()
        self._closed = False
        self._pool: Pool = asyncpg.create_pool(
            min_size=0, max_size=location.options.pool, connect=self.connect, reset=_skip_reset
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
        task = asyncio.ensure_future(_connect(self.location))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_terminate_unused)
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
        """A session in a transaction that may take its time, though not much more of it once we close."""
        async with self._acquire_tracked() as session:
            try:
                async with self._cancel_after_close(), session.transaction():
                    await session.execute(_LONG_TRANSACTION_SETTINGS)
                    await session.execute(
                        "SELECT set_config('lock_timeout', $1, true)", self.location.lock_timeout_setting
                    )
                    yield session
            except DRIVER_ERRORS as error:
                raise await self._storage_error(error, was_sent=True) from error

    async def close(self) -> None:
        """Wait for what is under way, then close every connection. What takes its time is stopped."""
        self._closed = True
        for limit in self._long_running:
            limit.reschedule(asyncio.get_running_loop().time() + CLOSE_TIMEOUT)
        while self._in_use:
            self._all_released.clear()
            await self._all_released.wait()
        if self._connecting:
            await asyncio.wait(self._connecting, timeout=CLOSE_TIMEOUT)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._pool.close()

    async def _run(self, sql: str, values: Sequence[object], *, is_write: bool) -> list[asyncpg.Record]:
        async with self._acquire_tracked() as session:
            try:
                return await session.fetch(sql, *values)
            except DRIVER_ERRORS as error:
                raise await self._storage_error(error, was_sent=is_write) from error

    async def _storage_error(self, error: Exception, *, was_sent: bool) -> StorageError:
        """The error to raise. A session that may only read may be one of a standby, and so may its like."""
        if is_read_only(error):
            await self._pool.expire_connections()
        return as_storage_error(error, self.location, was_sent=was_sent)

    @asynccontextmanager
    async def _cancel_after_close(self) -> AsyncGenerator[None]:
        """Stop the block, and whatever the server does for it, some time after `close` was called."""
        limit = asyncio.timeout(None)
        self._long_running.add(limit)
        try:
            async with limit:
                yield
        except TimeoutError as error:
            if limit.expired():
                raise StorageClosed(f"{self.location.display_name} was closed") from error
            raise
        finally:
            self._long_running.discard(limit)

    @asynccontextmanager
    async def _acquire_tracked(self) -> AsyncGenerator[Session]:
        if self._closed:
            raise StorageClosed(f"{self.location.display_name} was closed")
        self._in_use += 1
        try:
            session = await self._acquire()
            try:
                yield session
            finally:
                with suppress(*DRIVER_ERRORS):  # it is closed then, and replaced by the next who asks
                    await self._pool.release(session, timeout=CLOSE_TIMEOUT)
        finally:
            self._in_use -= 1
            if not self._in_use:
                self._all_released.set()

    async def _acquire(self) -> Session:
        try:
            return await self._pool.acquire()
        except DRIVER_ERRORS as error:
            raise as_connect_error(error, self.location) from error


async def _connect(location: Location) -> Connection:
    """A connection to the first host that is there and is no standby. The driver has one timeout for all."""
    *others, last = location.dsns
    for dsn in others:
        try:
            return await asyncpg.connect(dsn, **_connect_arguments(location))
        except DRIVER_ERRORS as error:
            if not is_connection_lost(error):
                raise
    return await asyncpg.connect(last, **_connect_arguments(location))


async def _skip_reset(_: object) -> None:
    """Instead of the driver's own reset, which would cost a round trip to undo what we never do."""


def _terminate_unused(task: asyncio.Task[Connection]) -> None:
    """Nobody waits for this connection any more."""
    if not task.cancelled() and task.exception() is None:
        task.result().terminate()
