"""How many tasks are active in the whole storage, asked no more often than the answer can have changed.

A storage that lags answers with what was true so many seconds ago. There an answer is kept for as long, with
what was created here since; it is only ever used to admit. Before anybody is refused, the storage is asked.
"""

from __future__ import annotations

import asyncio
import time

from ..storage import Micros, Storage
from .lifecycle import ACTIVE
from .snapshot import TASKS


class Total:
    """Knows the number for one storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._asking = asyncio.Lock()
        self._known = 0
        self._good_until = 0.0

    async def has_room(self, most: int, now: Micros) -> bool:
        """Whether one more may be created. If so, it is counted."""
        if not self._storage.lag:
            return await self._ask(now) < most
        if not self._is_known_to_be_below(most):
            async with self._asking:  # who waited here need not ask again
                if not self._is_known_to_be_below(most):
                    self._known = await self._ask(now)
                    self._good_until = time.monotonic() + self._storage.lag
        if self._known >= most:
            return False
        self._known += 1
        return True

    def _is_known_to_be_below(self, most: int) -> bool:
        return self._known < most and time.monotonic() < self._good_until

    async def _ask(self, now: Micros) -> int:
        counts = await self._storage.counts(TASKS, now=now)
        return sum(counts.get(status, 0) for status in ACTIVE)
