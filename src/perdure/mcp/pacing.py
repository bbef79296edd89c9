"""Clients that look at a task more often than they are told to.

The protocols let a server slow them down. Here the answer is held for the rest of the interval, a tenth of a
second at most, or until the task has changed: a client in a hurry learns of the end no later, and with fewer
requests. One that does as it is told is never held.
"""

from __future__ import annotations

import time
from collections import OrderedDict

LONGEST = 0.1
MOST_REMEMBERED = 8192


class Pacing:
    """When clients were last told of a task, by this process."""

    def __init__(self) -> None:
        self._told: OrderedDict[str, float] = OrderedDict()

    def told(self, task_id: str) -> None:
        self._told[task_id] = time.monotonic()
        self._told.move_to_end(task_id)
        if len(self._told) > MOST_REMEMBERED:
            self._told.popitem(last=False)

    def rest(self, task_id: str, interval_ms: int) -> float:
        """Seconds that are left of the interval which somebody was told to wait; 0 where nobody was."""
        told = self._told.get(task_id)
        if told is None:
            return 0.0
        return min(LONGEST, max(0.0, told + interval_ms / 1000 - time.monotonic()))
