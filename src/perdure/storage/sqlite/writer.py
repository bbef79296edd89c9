"""The writer: a thread that owns the only connection for writing, and runs jobs, such as commits and purges.

All jobs that are waiting when a transaction starts share the transaction and one flush to disk. If the
transaction fails, each job is repeated in its own transaction, unless the database was locked. Therefore a
job that does not fit on the disk does not make other jobs fail. Each job has its own result, which is
delivered after COMMIT has returned.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, TypeAlias, TypeVar, cast

from ..errors import StorageBusy, StorageClosed
from ..request_batcher import batched, copy_error, resolve
from .database import execute_when_unlocked
from .errors import translate_errors
from .location import Location
from .write_transaction import Transaction

T = TypeVar("T")

MAX_JOBS_PER_TRANSACTION = 256
"""Maximum number of jobs in a transaction. Other processes can write between two transactions."""
POLL_SECONDS = 0.04
"""Number of seconds between two checks for commits by other processes, while a watch is open."""


class _Job(NamedTuple, Generic[T]):
    """Work to do in a transaction, and the future for its result. `work` may be called more than once."""

    work: Callable[[Transaction], T]
    on_result: Callable[[T], None]
    future: asyncio.Future[T]


_AnyJob: TypeAlias = _Job[object]
_JobResult: TypeAlias = tuple[_AnyJob, object]


class Writer:
    """Runs jobs in the writer thread. Use it only in the event loop that created it."""

    def __init__(self, location: Location, db: sqlite3.Connection) -> None:
        self._location = location
        self._db = db
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_AnyJob] = []
        self._queue: SimpleQueue[list[_AnyJob]] = SimpleQueue()  # an empty list only wakes the thread
        self._closed = False
        self._on_external_commit: Callable[[], None] | None = None
        self._data_version = 0  # never a real version, so the first watch wakes at once
        self._thread = threading.Thread(target=self._run, name="perdure-sqlite-writer", daemon=True)
        self._thread.start()

    async def run(
        self, work: Callable[[Transaction], T], on_result: Callable[[T], None] = lambda _: None
    ) -> T:
        """Run `work` in a transaction that other jobs may share. Return the result of `work` after COMMIT.

        `on_result` is called with the result, even if the caller has stopped waiting.
        """
        if self._closed:
            raise StorageClosed(f"{self._location.display_name} is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        if not self._waiting:
            self._loop.call_soon(self._enqueue)
        self._waiting.append(cast("_AnyJob", _Job(work, on_result, future)))
        return await future

    def _enqueue(self) -> None:
        """Pass all waiting jobs to the writer thread at once.

        If they were passed one by one, the thread would commit the first job separately. It would also
        compete for the GIL with the event loop, which is still creating the other jobs.
        """
        jobs, self._waiting = self._waiting, []
        self._queue.put(jobs)

    def set_external_commit_callback(self, on_external_commit: Callable[[], None] | None) -> None:
        """Set the function that is called in the event loop when another process commits.

        If `on_external_commit` is None, stop polling.
        """
        self._on_external_commit = on_external_commit
        self._queue.put([])

    async def close(self) -> None:
        """Finish the jobs in the queue, then stop the thread."""
        if not self._closed:
            self._enqueue()  # before the flag is set: otherwise, the thread could stop without these jobs
            self._closed = True
            self._queue.put([])
        await asyncio.to_thread(self._thread.join)

    # The methods below run in the writer thread.

    def _run(self) -> None:
        try:
            while not (self._closed and self._queue.empty()):
                jobs = self._next_jobs()
                for batch in batched(jobs, MAX_JOBS_PER_TRANSACTION):
                    self._call_in_loop(partial(_deliver_results, self._run_batch(batch)))
                if (callback := self._on_external_commit) is not None:
                    self._check_data_version(callback)
        finally:
            self._db.close()

    def _next_jobs(self) -> list[_AnyJob]:
        """Return the waiting jobs. If there are none, wait until a job arrives or it is time to poll."""
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
        except StorageBusy as error:  # do not repeat the jobs: each would wait for the lock again
            return [(job, copy_error(error)) for job in batch]
        except Exception as error:  # catch every error, because callers are waiting for a result
            if len(batch) > 1:
                return [result for job in batch for result in self._run_batch([job])]
            return [(batch[0], error)]

    def _transact(self, batch: Sequence[_AnyJob]) -> list[object]:
        execute_when_unlocked(self._db, "BEGIN IMMEDIATE", self._location)
        try:
            transaction = Transaction(self._db)
            results = [job.work(transaction) for job in batch]
            transaction.flush()
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # after some errors SQLite has already rolled back
                self._db.execute("ROLLBACK")
            raise
        return results

    def _call_in_loop(self, callback: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed, so no caller is waiting
            self._loop.call_soon_threadsafe(callback)

    def _check_data_version(self, callback: Callable[[], None]) -> None:
        """Call `callback` if another connection has committed. Commits by this thread are not reported."""
        with suppress(sqlite3.Error):  # for example, the file is damaged; the next commit reports this
            (version,) = self._db.execute("PRAGMA data_version").fetchone()
            if version != self._data_version:
                self._data_version = version
                self._call_in_loop(callback)


def _deliver_results(results: Sequence[_JobResult]) -> None:
    for job, result in results:
        if not isinstance(result, Exception):
            job.on_result(result)
        resolve(job.future, result)
