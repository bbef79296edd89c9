"""The limit on the number of active tasks in the whole storage.

Normally, the tasks are counted before each new task is created. In some storages, however, counts can be a
few seconds out of date. The maximum delay is the *lag* of the storage. In such a storage, a count is reused
until it is older than the lag, and the reused count is increased by one for each task that this process
creates. Tasks that have finished since are still included, so a task is refused only if a new count also
reaches the limit.
"""

from __future__ import annotations

import asyncio
import time

from ..storage import Micros, Storage
from .lifecycle import ACTIVE_STATUSES
from .task_snapshot import TASKS


class GlobalTaskLimit:
    """Limits the number of active tasks in a storage.

    If the counts of the storage lag, the number is estimated.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._refresh_lock = asyncio.Lock()
        self._estimate = 0
        self._fresh_until = 0.0

    async def try_admit(self, maximum: int, now: Micros) -> bool:
        """Return whether one more task can be created. If so, count it in the estimate, if one is used."""
        if not self._storage.lag:
            return await self._count_active(now) < maximum
        if not self._estimate_admits(maximum):
            async with self._refresh_lock:  # another caller may have counted while this one waited
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
