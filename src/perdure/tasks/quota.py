"""How many tasks are active in the whole storage, asked no more often than the answer can have changed.

A storage that lags answers with what was true so many seconds ago. There an answer is kept for as long, with
what was created here since; it is only ever used to admit. Before anybody is refused, the storage is asked.
"""

from __future__ import annotations

import asyncio
import time

from ..storage import Micros, Storage
from .lifecycle import ACTIVE_STATUSES
from .snapshot import TASKS


class ActiveTaskQuota:
    """Knows the number for one storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._refresh_lock = asyncio.Lock()
        self._estimate = 0
        self._fresh_until = 0.0

    async def try_admit(self, maximum: int, now: Micros) -> bool:
        """Whether one more may be created. If so, it is counted."""
        if not self._storage.lag:
            return await self._count_active(now) < maximum
        if not self._estimate_admits(maximum):
            async with self._refresh_lock:  # who waited here need not ask again
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
