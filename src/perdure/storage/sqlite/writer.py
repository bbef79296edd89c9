"""The writer: one thread that owns the only connection that writes, and commits in groups.

Whatever is waiting when a transaction begins shares it, and with it the one flush to disk; each job has its
own result. Where the group fails, each of its jobs is tried again alone, so that one too large for the disk
does not fail its neighbours. A result is handed over only after COMMIT returned.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Generic, TypeAlias, TypeVar, cast

from ..batcher import copy_error
from ..errors import StorageBusy, StorageClosed
from .database import execute_when_unlocked
from .errors import translate_errors
from .location import Location
from .transaction import Transaction

T = TypeVar("T")

MAX_JOBS_PER_TRANSACTION = 256
"""The most jobs of one transaction, so that other processes get their turn."""
POLL_SECONDS = 0.04
"""Seconds between two looks for commits of other processes, while somebody watches."""


class _Job(Generic[T]):
    """A piece of a transaction, maybe run more than once, and the future of whoever waits for it."""

    def __init__(
        self, work: Callable[[Transaction], T], on_result: Callable[[T], None], future: asyncio.Future[T]
    ) -> None:
        self.work = work
        self.on_result = on_result
        self.future = future

    def resolve(self, result: T | Exception) -> None:
        """In the event loop, once the result is on disk. The caller may have stopped waiting."""
        if not isinstance(result, Exception):
            self.on_result(result)
        if self.future.done():
            return
        if isinstance(result, Exception):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


_AnyJob: TypeAlias = _Job[object]
_JobResult: TypeAlias = tuple[_AnyJob, object]


class Writer:
    """Belongs to the event loop that made it."""

    def __init__(self, location: Location, db: sqlite3.Connection) -> None:
        self._location = location
        self._db = db
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_AnyJob] = []
        self._queue: SimpleQueue[list[_AnyJob]] = SimpleQueue()  # an empty list: look at the flags
        self._closed = False
        self._on_external_commit: Callable[[], None] | None = None
        self._data_version = 0  # never the first that is read: a first watch begins with a wake-up
        self._thread = threading.Thread(target=self._run, name="perdure-sqlite-writer", daemon=True)
        self._thread.start()

    async def run(
        self, work: Callable[[Transaction], T], on_result: Callable[[T], None] = lambda _: None
    ) -> T:
        """Run a piece of work in a transaction, shared with others; return when it is on disk.

        `then` is called with the result in any case, also if the caller no longer waits.
        """
        if self._closed:
            raise StorageClosed(f"{self._location.display_name} was closed")
        future: asyncio.Future[T] = self._loop.create_future()
        if not self._waiting:
            self._loop.call_soon(self._enqueue)
        self._waiting.append(cast("_AnyJob", _Job(work, on_result, future)))
        return await future

    def _enqueue(self) -> None:
        """Give the thread at once what this turn of the event loop has brought together.

        Job by job, the thread would wake for the first and commit it alone, in competition with the loop for
        the interpreter while the others are still being made.
        """
        jobs, self._waiting = self._waiting, []
        self._queue.put(jobs)

    def set_external_commit_callback(self, on_external_commit: Callable[[], None] | None) -> None:
        """Call this in the event loop when another process has committed; None: no longer."""
        self._on_external_commit = on_external_commit
        self._queue.put([])

    async def close(self) -> None:
        """Finish what was asked for, then stop."""
        if not self._closed:
            self._enqueue()  # first, or the thread might see the flag and an empty queue, and leave
            self._closed = True
            self._queue.put([])
        await asyncio.to_thread(self._thread.join)

    # In the writer's thread

    def _run(self) -> None:
        try:
            while not (self._closed and self._queue.empty()):
                jobs = self._next_jobs()
                for start in range(0, len(jobs), MAX_JOBS_PER_TRANSACTION):
                    batch = jobs[start : start + MAX_JOBS_PER_TRANSACTION]
                    self._call_in_loop(partial(_deliver_results, self._run_batch(batch)))
                if (callback := self._on_external_commit) is not None:
                    self._check_data_version(callback)
        finally:
            self._db.close()

    def _next_jobs(self) -> list[_AnyJob]:
        """What is waiting now, or the first to come."""
        jobs: list[_AnyJob] = []
        with suppress(Empty):
            jobs += self._queue.get(timeout=POLL_SECONDS if self._on_external_commit else None)
            while len(jobs) < MAX_JOBS_PER_TRANSACTION:
                jobs += self._queue.get_nowait()
        return jobs

    def _run_batch(self, batch: Sequence[_AnyJob]) -> list[_JobResult]:
        try:
            with translate_errors(self._location.display_name):
                return list(zip(batch, self._transact(batch), strict=True))
        except StorageBusy as error:
            return [
                (job, copy_error(error)) for job in batch
            ]  # all have waited; alone, each would wait again
        except Exception as error:  # whatever it is, somebody waits for it
            if len(batch) > 1:
                return [results for job in batch for results in self._run_batch([job])]
            return [(batch[0], error)]

    def _transact(self, batch: Sequence[_AnyJob]) -> list[object]:
        execute_when_unlocked(self._db, "BEGIN IMMEDIATE", self._location)
        try:
            transaction = Transaction(self._db)
            results = [job.work(transaction) for job in batch]
            transaction.flush()
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # SQLite ends it by itself on some failures
                self._db.execute("ROLLBACK")
            raise
        return results

    def _call_in_loop(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more

    def _check_data_version(self, callback: Callable[[], None]) -> None:
        try:
            version = self._read_data_version()
        except sqlite3.Error:
            return  # locked for recovery, or damaged: the next commit will tell
        if version != self._data_version:
            self._data_version = version
            self._call_in_loop(callback)

    def _read_data_version(self) -> int:
        """A number that changes when another connection commits, and not when this one does."""
        return self._db.execute("PRAGMA data_version").fetchone()[0]


def _deliver_results(results: Sequence[_JobResult]) -> None:
    for job, result in results:
        job.resolve(result)
