"""The limit on the number of active tasks in the whole storage.

The counts of some storages lag behind by a few seconds. A count of such a storage is reused until it is older
than that lag, and tasks that this process creates in the meantime are added to it. A task is refused only
if a new count confirms that the limit is reached.
"""

from __future__ import annotations

import asyncio
import time

from ..storage import Micros, Storage
from .lifecycle import ACTIVE_STATUSES
from .stored_task import TASKS


class GlobalTaskLimit:
    """Limits the number of active tasks in a storage. Between two counts, the number is estimated."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._refresh_lock = asyncio.Lock()
        self._estimate = 0
        self._fresh_until = 0.0

    async def try_admit(self, maximum: int, now: Micros) -> bool:
        """Return whether one more task can be created. If so, add it to the estimate."""
        if not self._storage.lag:
            return await self._count_active(now) < maximum
        if not self._estimate_admits(maximum):
            async with self._refresh_lock:  # while a caller waited here, another one may have counted
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
