"""Reading, beside the writer and without waiting for it: in WAL mode each statement sees the newest commit.

A look-up by key takes less time than handing it to a thread, so it is done in the event loop's own thread;
what may read many rows goes to a small pool.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from .database import connect
from .errors import is_busy, translated
from .location import Location

T = TypeVar("T")

THREADS = 2
MOST_INLINE = 8
"""Look-ups that are done in the event loop at once; more of them go to the pool."""


class Reader:
    """Connections for reading: one for the event loop, one for each thread of the pool."""

    def __init__(self, location: Location, own: sqlite3.Connection) -> None:
        self._location = location
        self._own = own
        self._of_thread = threading.local()
        self._connections = [self._own]
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="perdure-sqlite-reader")

    async def look_up(self, read: Callable[[sqlite3.Connection], T], rows: int) -> T:
        """Run a read of a few rows by key, here if that is quick and nobody holds the file."""
        if rows > MOST_INLINE:
            return await self.run(read)
        try:
            return read(self._own)
        except sqlite3.Error as error:
            if is_busy(error):  # the log is being recovered: wait for that elsewhere
                return await self.run(read)
            with translated(self._location.name):
                raise

    async def run(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run a read in the pool."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._in_thread, read)

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown)
        for db in self._connections:
            db.close()

    def _in_thread(self, read: Callable[[sqlite3.Connection], T]) -> T:
        with translated(self._location.name):
            return read(self._connection_of_thread())

    def _connection_of_thread(self) -> sqlite3.Connection:
        db: sqlite3.Connection | None = getattr(self._of_thread, "db", None)
        if db is None:
            db = self._of_thread.db = connect(self._location, patient=True)
            self._connections.append(db)
        return db
