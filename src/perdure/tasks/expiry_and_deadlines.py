"""Computes when a task expires or is abandoned, and when its questions must be answered.

A task that no worker has ever started expires after its ttl (time to live). A started task does not expire
before it finishes, so that no work is lost. If a started task is released and no worker continues it within
`ABANDONED_AFTER`, it is marked as failed. A finished task is kept at least for its retention time. A task
without a ttl never expires and is never abandoned.
"""

from __future__ import annotations

from ..storage.records_and_changes import Micros
from ..storage.time_types import DAY
from .task_record import TaskRecord

ABANDONED_AFTER: Micros = 30 * DAY
"""How long a released task with a ttl can wait for a worker before it is marked as failed."""


def is_started(task: TaskRecord) -> bool:
    """Return whether a worker has ever claimed the task."""
    return task.is_claimed or task.attempts > 0 or task.released_at is not None


def expires_at(task: TaskRecord) -> Micros | None:
    """Return the time at which the task expires.

    None means that it never expires, or not before it finishes.
    """
    if task.finished_at is not None:
        return _result_expires_at(task, task.finished_at)
    if task.ttl_ms is None or is_started(task):
        return None
    return task.created_at + task.ttl_ms * 1000


def _result_expires_at(task: TaskRecord, finished_at: Micros) -> Micros | None:
    if task.ttl_ms is None or task.retention_ms is None:
        return None
    reported = _extended_ttl(task, task.ttl_ms, finished_at)  # this ttl may have been reported to a client
    return max(task.created_at + reported * 1000, finished_at + task.retention_ms * 1000)


def is_abandoned(task: TaskRecord, now: Micros) -> bool:
    """Return whether the task was released and has waited longer than `ABANDONED_AFTER` for a worker."""
    if task.is_terminal or task.is_claimed or task.released_at is None or task.ttl_ms is None:
        return False
    answered_at = max((asked.answered_at or 0 for asked in task.inputs.values()), default=0)
    due = max(task.released_at, task.run_at or 0, question_deadline(task) or 0, answered_at)
    return due + ABANDONED_AFTER <= now


def question_deadline(task: TaskRecord) -> Micros | None:
    """Return the earliest deadline of the unanswered questions, or None if none of them has a deadline."""
    deadlines = (asked.deadline_at for asked in task.outstanding.values())
    return min((deadline for deadline in deadlines if deadline is not None), default=None)


def is_past_deadline(task: TaskRecord, now: Micros) -> bool:
    """Return whether the task is active and the deadline of an unanswered question has passed."""
    deadline = None if task.is_terminal else question_deadline(task)
    return deadline is not None and deadline <= now


def client_ttl_ms(task: TaskRecord, now: Micros) -> int | None:
    """Return the ttl that is reported to clients, in milliseconds from the creation of the task.

    For a finished task, it ends when the task expires. A client may stop waiting when the reported ttl has
    passed. For a started task that has not finished, the reported ttl is therefore a multiple of the
    original one that ends in the future. None means that the task never expires.
    """
    if task.finished_at is not None:
        expires = expires_at(task)
        return None if expires is None else -((task.created_at - expires) // 1000)
    return None if task.ttl_ms is None else _extended_ttl(task, task.ttl_ms, now)


def _extended_ttl(task: TaskRecord, ttl: int, now: Micros) -> int:
    if not is_started(task):
        return ttl
    age = max(0, now - task.created_at)
    return ttl * (1 - (-age // (ttl * 1000)))
