"""The pool of connections to the server: timeouts, retries and closing.

A read that finds its connection lost is repeated once on a new one. A write is sent once. No call leaves any
state in a session, so a pooler may switch sessions between calls.
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
"""Seconds to connect to each host."""
CLOSE_TIMEOUT = 5.0
CLIENT_TIMEOUT_MARGIN = 10.0
"""Seconds after the server's own timeout, after which the connection is considered lost."""
FULL_SCAN_TIMEOUT = 86_400.0
"""Seconds for a statement that scans whole tables."""
_PLANNER_SETTINGS = {"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_sort": "off", "jit": "off"}
"""Every query has an index, which the planner would not use on a table without statistics.

`jit` is off because servers before 18 estimate a very high cost for a disabled plan, and would compile it.
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
    """Return the arguments to connect with. A pooler supports neither settings nor prepared statements."""
    is_pooled = location.options.pooler is not None
    seconds = location.options.statement_timeout
    settings = {
        "statement_timeout": f"{round(seconds * 1000)}ms",
        "idle_in_transaction_session_timeout": "60s",
        "default_transaction_isolation": "read committed",
        **_PLANNER_SETTINGS,
    }
    return _ConnectArguments(
        timeout=CONNECT_TIMEOUT,
        command_timeout=seconds + (0 if is_pooled else CLIENT_TIMEOUT_MARGIN) if seconds else None,
        statement_cache_size=0 if is_pooled else 100,
        server_settings={} if is_pooled else settings,
        target_session_attrs=(
            SessionAttribute.read_write if location.requires_read_write else SessionAttribute.primary
        ),
    )


class ConnectionPool:
    """A pool of connections to one server. It belongs to one event loop."""

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
        """Create a pool, which connects on first use."""
        opened = cls(location)
        await opened._pool
        return opened

    async def connect(self, *_: object, **__: object) -> Connection:
        """Return a new connection outside the pool. The pool calls this too, with arguments that are ignored.

        Connecting continues if the caller is cancelled, because the driver does not handle that cleanly.
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
        """Run a statement in its own transaction."""
        return await self._run(sql, values, is_write=True)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Session]:
        """Return a session in a long transaction. It is cancelled some seconds after `close` is called."""
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
        """Wait for the calls in flight, cancel long transactions, and close every connection."""
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
        """Return the error to raise.

        After a read-only error, all connections are replaced, because the server may have become a standby.
        """
        if is_read_only(error):
            await self._pool.expire_connections()
        return as_storage_error(error, self.location, was_sent=was_sent)

    @asynccontextmanager
    async def _cancel_after_close(self) -> AsyncGenerator[None]:
        """Cancel the block, both here and on the server, CLOSE_TIMEOUT seconds after `close` is called."""
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
            session = await self._acquire()
            try:
                yield session
            finally:
                with suppress(*DRIVER_ERRORS):  # then it is closed, and the next call opens another
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
    """Connect to the first host that is reachable and not a standby, with a timeout for each host."""
    *others, last = location.dsns
    for dsn in others:
        try:
            return await asyncpg.connect(dsn, **_connect_arguments(location))
        except DRIVER_ERRORS as error:
            if not is_connection_lost(error):
                raise
    return await asyncpg.connect(last, **_connect_arguments(location))


async def _skip_reset(_: object) -> None:
    """Do nothing. It replaces the driver's reset, a round trip that would have nothing to undo here."""


def _terminate_unused(task: asyncio.Task[Connection]) -> None:
    """Close a connection whose caller has stopped waiting."""
    if not task.cancelled() and task.exception() is None:
        task.result().terminate()
