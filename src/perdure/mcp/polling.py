"""How long to wait before looking at a task again: what a server advises, what a client does. All pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

import msgspec

from ..storage import Micros
from ..tasks import Status, TaskRecord
from ..tasks.config import MAX_POLL_INTERVAL_MS, MIN_POLL_INTERVAL_MS

PART_OF_AGE = 6
"""Looking again after a sixth of its age, a client learns of the end at most a sixth too late."""
DEFAULT_MS = 1000


def advised_interval(task: TaskRecord, now: Micros) -> int:
    """Milliseconds: short for a young task, longer as it ages, at most what is stored with it."""
    age = max(0, now - task.created_at) // 1000
    return max(MIN_POLL_INTERVAL_MS, min(age // PART_OF_AGE, task.poll_interval_ms))


class Wait(msgspec.Struct, frozen=True):
    """Look again after so many seconds."""

    seconds: float


class Answer(msgspec.Struct, frozen=True):
    """These questions are new: answer them, then look again at once."""

    keys: tuple[str, ...]


class Ended(msgspec.Struct, frozen=True):
    """There is nothing more to come."""


Decision: TypeAlias = Wait | Answer | Ended


def decide(
    status: Status, outstanding: Collection[str], answered: Collection[str], interval_ms: int | None
) -> Decision:
    """What a client does next, from what it just saw and which questions it has answered already."""
    if status.is_terminal:
        return Ended()
    new = tuple(key for key in outstanding if key not in answered)
    if new and status is Status.INPUT_REQUIRED:
        return Answer(new)
    advised = DEFAULT_MS if interval_ms is None else interval_ms
    return Wait(max(MIN_POLL_INTERVAL_MS, min(advised, MAX_POLL_INTERVAL_MS)) / 1000)
