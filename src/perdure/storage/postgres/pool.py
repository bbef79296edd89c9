"""The pool of connections to the server. It handles timeouts, retries and closing.

If the connection is lost during a read, the read is repeated once, on a new connection. A write is sent only
once. No call leaves any state in a session, so a pooler can use a different session for each call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Self, TypeAlias

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from ..errors import StorageClosed, StorageError, StorageUnavailable
from .errors import DRIVER_ERRORS, as_connect_error, as_storage_error, is_connection_lost
from .location import Location

if TYPE_CHECKING:
    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
    Session: TypeAlias = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]

CONNECT_TIMEOUT = 10.0
"""Maximum number of seconds for connecting to a host."""
CLOSE_TIMEOUT = 5.0
CLIENT_TIMEOUT_MARGIN = 10.0
"""Number of seconds by which the client's timeout exceeds the server's, so the server's expires first."""
FULL_SCAN_TIMEOUT = 86_400.0
"""Maximum number of seconds for a statement that scans whole tables."""
_PLANNER_SETTINGS = {"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_sort": "off", "jit": "off"}
"""Settings that make the query planner use indexes, even on a table without statistics.

`jit` is off because PostgreSQL before version 18 assigns a very high cost to a plan with a disabled
operation, and would therefore JIT-compile the plan.
"""
_LONG_TRANSACTION_SETTINGS = """
    SET LOCAL statement_timeout = 0;
    SET LOCAL enable_seqscan = on;
    SET LOCAL enable_sort = on
"""


class ConnectionPool:
    """A pool of connections to one server. Use it in only one event loop."""

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
        """Create a pool. It connects when it is first used."""
        opened = cls(location)
        await opened._pool
        return opened

    async def connect(self, *_: object, **__: object) -> Connection:
        """Return a new connection. asyncpg's pool also calls this method, with arguments that are ignored.

        If the caller is cancelled, the connection is still opened and then closed, because the driver does
        not handle cancellation cleanly.
        """
        task = asyncio.ensure_future(_connect(self.location, self.location.dsns))
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
        """Run a statement that writes, in its own transaction. The statement is never sent twice."""
        return await self._run(sql, values, is_write=True)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Session]:
        """Start a transaction without a time limit, and yield its session.

        If the pool is closed during the transaction, the transaction is cancelled after CLOSE_TIMEOUT
        seconds.
        """
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
        """Wait for running calls, cancel long transactions after a timeout, and close all connections."""
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
        if isinstance(error, asyncpg.ReadOnlySQLTransactionError):  # the server may have become a standby
            await self._pool.expire_connections()
        return as_storage_error(error, self.location, was_sent=was_sent)

    @asynccontextmanager
    async def _cancel_after_close(self) -> AsyncGenerator[None]:
        """When `close` is called, give the code in this context CLOSE_TIMEOUT seconds, and then cancel it.

        The server then cancels the running statement, too.
        """
        limit = asyncio.timeout(None)
        self._long_running.add(limit)
        try:
            async with limit:
                yield
        except TimeoutError as error:
            if limit.expired():
                raise StorageClosed(f"{self.location.display_name} is closed") from error
            raise
        finally:
            self._long_running.discard(limit)

    @asynccontextmanager
    async def _acquire_tracked(self) -> AsyncGenerator[Session]:
        if self._closed:
            raise StorageClosed(f"{self.location.display_name} is closed")
        self._in_use += 1
        try:
            try:
                session = await self._pool.acquire()
            except DRIVER_ERRORS as error:
                raise as_connect_error(error, self.location) from error
            try:
                yield session
            finally:
                with suppress(*DRIVER_ERRORS):  # after an error, the pool closes the connection
                    await self._pool.release(session, timeout=CLOSE_TIMEOUT)
        finally:
            self._in_use -= 1
            if not self._in_use:
                self._all_released.set()


async def _connect(location: Location, dsns: Sequence[str]) -> Connection:
    """Connect to the first host that is reachable and not a standby. Each host has its own timeout.

    Session settings and prepared statements are not used with a pooler, which does not support them.
    """
    is_pooled = location.options.pooler is not None
    seconds = location.options.statement_timeout
    settings = {
        "statement_timeout": f"{round(seconds * 1000)}ms",
        "idle_in_transaction_session_timeout": "60s",
        "default_transaction_isolation": "read committed",
        **_PLANNER_SETTINGS,
    }
    role = SessionAttribute.read_write if location.requires_read_write else SessionAttribute.primary
    dsn, *others = dsns
    try:
        return await asyncpg.connect(
            dsn,
            timeout=CONNECT_TIMEOUT,
            command_timeout=seconds + (0 if is_pooled else CLIENT_TIMEOUT_MARGIN) if seconds else None,
            statement_cache_size=0 if is_pooled else 100,
            server_settings={} if is_pooled else settings,
            target_session_attrs=role,
        )
    except DRIVER_ERRORS as error:
        if not others or not is_connection_lost(error):
            raise
    return await _connect(location, others)


async def _skip_reset(_: object) -> None:
    """Do nothing. The driver's own reset would cost a round trip, and there is no session state to reset."""


def _terminate_unused(task: asyncio.Task[Connection]) -> None:
    """Close the connection that `task` opened for a caller that was cancelled."""
    if not task.cancelled() and task.exception() is None:
        task.result().terminate()
