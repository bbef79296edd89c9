"""Clients that look at a task more often than they are told to.

The protocols let a server slow them down. Here the answer is held for a quarter of a second, or until the
task has changed: a client in a hurry learns of the end no later, and with fewer requests. One that does as it
is told is never held.
"""

from __future__ import annotations

import time
from collections import OrderedDict

HOLD = 0.25
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

    def is_early(self, task_id: str, interval_ms: int) -> bool:
        """Whether somebody was told less than an interval ago."""
        told = self._told.get(task_id)
        return told is not None and time.monotonic() < told + interval_ms / 1000
