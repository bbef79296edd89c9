"""Writes the progress reports and log entries of a run in batches, a few times a second.

The first report is written at once, later ones after an interval, and the last one at the latest together
with the end of the attempt. Each write includes all reports since the previous write, so that a client that
waits receives each of them.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from ..storage import Micros
from ..storage.errors import PerdureError, StorageError
from ..tasks import LogEntry, Progress, StoreConfig, TaskRecord, edits
from ..tasks.canonical_json import check_text
from ..tasks.task_log import MAX_LOG_ENTRIES, MAX_REPORTS_KEPT, Report

if TYPE_CHECKING:
    from .run import Run

T = TypeVar("T")


class Reporter:
    """The reports and log entries of a run that are not stored yet. Belongs to one event loop."""

    def __init__(self, run: Run, interval: float) -> None:
        self._run = run
        self._interval = interval
        self._last = float("-inf")
        self._message: str | None = None
        self._progress: Progress | None = None
        self._reports: _Unwritten[Report] = _Unwritten(MAX_REPORTS_KEPT)
        self._log: _Unwritten[LogEntry] = _Unwritten(MAX_LOG_ENTRIES)
        self._is_applied = False
        """Whether the current write includes everything that was reported."""
        self._flush: asyncio.Task[None] | None = None

    async def report(self, message: str | None, progress: Progress | None) -> None:
        if message is not None:
            check_text("status_message", message, self._run.limits.max_message_length)
        self._message = self._message if message is None else message
        if progress is not None:
            self._progress = progress
            self._reports.add(Report(done=progress.done, total=progress.total, message=message))
        self._is_applied = False
        await self._write_soon()

    async def log(self, entry: LogEntry) -> None:
        """Add an entry to the log. A failure to write it is not an error of the function."""
        self._log.add(entry)
        with suppress(PerdureError):
            await self._write_soon()

    @property
    def _is_pending(self) -> bool:
        return self._message is not None or self._progress is not None or bool(self._log.entries)

    async def _write_soon(self) -> None:
        wait = self._last + self._interval - asyncio.get_running_loop().time()
        if self._flush is not None:
            return
        if wait <= 0:
            with suppress(StorageError):  # the next write of the run includes it
                await self.write()
        else:
            self._flush = asyncio.create_task(self._write_later(wait))

    async def write(self) -> None:
        """Write the reports and log entries that are not stored yet."""
        if self._is_pending:
            await self._run.write(lambda task, _now, _config: task)

    def apply(self, task: TaskRecord, now: Micros, config: StoreConfig) -> TaskRecord:
        """Return the task with the reports and log entries that are not stored yet.

        Every write of the run calls this.
        """
        if self._log.entries:
            entries, skipped = self._log.apply()
            task = edits.log(task, entries, skipped=skipped, config=config)
        if self._message is None and self._progress is None:
            return task
        self._is_applied = True
        reports, _ = self._reports.apply()
        return edits.report(
            task, message=self._message, progress=self._progress, reports=reports, now=now, config=config
        )

    def written(self) -> None:
        """Remove the reports and log entries that the last write has stored."""
        if not self._is_pending:
            return
        self._log.written()
        self._reports.written()
        if self._is_applied:  # else more was reported in the meantime
            self._message = self._progress = None
        self._last = asyncio.get_running_loop().time()

    def close(self) -> None:
        if self._flush is not None:
            self._flush.cancel()

    async def _write_later(self, wait: float) -> None:
        await asyncio.sleep(wait)
        self._flush = None
        with suppress(PerdureError):
            await self.write()


class _Unwritten(Generic[T]):
    """The newest entries that have not been written yet."""

    def __init__(self, maximum: int) -> None:
        self.entries: list[T] = []
        self._maximum = maximum
        self._skipped = 0
        """The number of older entries that were dropped."""
        self._applied = 0
        """The number of entries in the current write, including the dropped ones."""

    def add(self, entry: T) -> None:
        self.entries.append(entry)
        if len(self.entries) > self._maximum:
            del self.entries[0]
            self._skipped += 1

    def apply(self) -> tuple[list[T], int]:
        """Return the entries to write, and how many before them were dropped."""
        self._applied = self._skipped + len(self.entries)
        return self.entries, self._skipped

    def written(self) -> None:
        """Remove the entries that the last write has stored."""
        del self.entries[: max(0, self._applied - self._skipped)]
        self._skipped = max(0, self._skipped - self._applied)
        self._applied = 0
