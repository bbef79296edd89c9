"""Progress, coalesced: a function may report as often as it likes, the storage hears a few times a second.

The first report is written at once, later ones when their time has come, and the last one always: at the
latest together with the task's end.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from ..storage import Micros
from ..storage.errors import PerdureError, StorageError
from ..tasks import Progress, StoreConfig, TaskRecord, edits
from ..tasks.canonical_json import check_text

if TYPE_CHECKING:
    from .run import Run


class Reporter:
    """What a run has to say. Belongs to one event loop."""

    def __init__(self, run: Run, interval: float) -> None:
        self._run = run
        self._interval = interval
        self._last = float("-inf")
        self._pending: tuple[str | None, Progress | None] | None = None
        self._applied: tuple[str | None, Progress | None] | None = None
        self._flush: asyncio.Task[None] | None = None

    async def report(self, message: str | None, progress: Progress | None) -> None:
        if message is not None:
            check_text("status_message", message, self._run.limits.max_message_length)
        earlier = self._pending or (None, None)
        self._pending = (
            earlier[0] if message is None else message,
            earlier[1] if progress is None else progress,
        )
        wait = self._last + self._interval - asyncio.get_running_loop().time()
        if self._flush is not None:
            return
        if wait <= 0:
            with suppress(StorageError):  # it stays pending, and is written with whatever is written next
                await self.write()
        else:
            self._flush = asyncio.create_task(self._write_later(wait))

    async def write(self) -> None:
        """Write what is pending now."""
        if self._pending is not None:
            await self._run.write(lambda task, _now, _config: task)

    def apply(self, task: TaskRecord, now: Micros, config: StoreConfig) -> TaskRecord:
        """The task with what is pending. Every write of the run passes through here."""
        if self._pending is None:
            return task
        self._applied = self._pending
        message, progress = self._pending
        return edits.report(task, message=message, progress=progress, now=now, config=config)

    def written(self) -> None:
        """What was applied is stored now."""
        if self._applied is not None:
            if self._pending is self._applied:  # else more was said meanwhile
                self._pending = None
            self._applied = None
            self._last = asyncio.get_running_loop().time()

    def close(self) -> None:
        if self._flush is not None:
            self._flush.cancel()

    async def _write_later(self, wait: float) -> None:
        await asyncio.sleep(wait)
        self._flush = None
        with suppress(PerdureError):
            await self.write()
