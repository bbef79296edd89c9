"""Manages the connections for reading. In WAL mode, they see the newest commit and do not wait for writers.

A read of a few rows takes less time than a switch to another thread, so it runs in the event loop. A read of
many rows runs in a small thread pool.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from .database import connect
from .errors import is_busy, translate_errors
from .location import Location

T = TypeVar("T")

POOL_THREADS = 2
MAX_INLINE_LOOKUPS = 8
"""Maximum number of lookups in a call that runs in the event loop. Larger calls run in the thread pool."""


class Reader:
    """Runs reads. A reader has one connection for the event loop, and one for each thread of its pool."""

    def __init__(self, location: Location, loop_connection: sqlite3.Connection) -> None:
        self._location = location
        self._loop_connection = loop_connection
        self._thread_local = threading.local()
        self._connections = [loop_connection]
        self._pool = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="perdure-sqlite-reader")

    async def run_inline(self, read: Callable[[sqlite3.Connection], T], rows: int) -> T:
        """Run `read` in the event loop.

        If `rows` exceeds MAX_INLINE_LOOKUPS or the database is locked, run `read` in the thread pool instead.
        """
        if rows > MAX_INLINE_LOOKUPS:
            return await self.run_in_pool(read)
        try:
            return read(self._loop_connection)
        except sqlite3.Error as error:
            if is_busy(error):  # another process is recovering the log: wait for it in a thread
                return await self.run_in_pool(read)
            with translate_errors(self._location.display_name):
                raise

    async def run_in_pool(self, read: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._in_thread, read)

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown)
        for db in self._connections:
            db.close()

    def _in_thread(self, read: Callable[[sqlite3.Connection], T]) -> T:
        with translate_errors(self._location.display_name):
            return read(self._thread_connection())

    def _thread_connection(self) -> sqlite3.Connection:
        db: sqlite3.Connection | None = getattr(self._thread_local, "db", None)
        if db is None:
            db = self._thread_local.db = connect(self._location, wait_for_locks=True)
            self._connections.append(db)
        return db
