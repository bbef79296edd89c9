"""The limit on the active tasks of the whole storage.

Some storages have a lag: their counts are a few seconds old. Such a count is reused for the time of the lag,
increased by the tasks that were created here since then. It can only admit a task: before a task is refused,
the storage counts again.
"""

from __future__ import annotations

import asyncio
import time

from ..storage import Micros, Storage
from .lifecycle import ACTIVE_STATUSES
from .task_snapshot import TASKS


class GlobalTaskLimit:
    """The number of active tasks in a storage, estimated between two counts."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._refresh_lock = asyncio.Lock()
        self._estimate = 0
        self._fresh_until = 0.0

    async def try_admit(self, maximum: int, now: Micros) -> bool:
        """Return whether one more task is within the maximum. If it is, the task is counted."""
        if not self._storage.lag:
            return await self._count_active(now) < maximum
        if not self._estimate_admits(maximum):
            async with self._refresh_lock:  # a caller that waited here may find a fresh count
                if not self._estimate_admits(maximum):
                    self._estimate = await self._count_active(now)
                    self._fresh_until = time.monotonic() + self._storage.lag
        if self._estimate >= maximum:
            return False
        self._estimate += 1
        return True

    def _estimate_admits(self, maximum: int) -> bool:
        return self._estimate < maximum and time.monotonic() < self._fresh_until

    async def _count_active(self, now: Micros) -> int:
        counts = await self._storage.counts(TASKS, now=now)
        return sum(counts.get(status, 0) for status in ACTIVE_STATUSES)
