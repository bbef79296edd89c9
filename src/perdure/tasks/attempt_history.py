"""The attempt history of a task: when each attempt started, and when and why it failed or was interrupted.

The history is stored as JSON, and later versions of perdure may add fields to it. It is only for display, so
a history that cannot be decoded is treated as empty.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Raw, UnsetType

from ..storage.records_and_changes import Micros
from ..storage.time_types import Timestamp
from . import canonical_json

MAX_ATTEMPTS_KEPT = 10
MAX_REASON_CHARACTERS = 200
"""Longer reasons are cut to this length, because the history counts toward the size of the task."""

T = TypeVar("T")


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to run a task."""

    started_at: Timestamp = msgspec.field(name="begun_at")
    ended_at: Timestamp | None = None
    """When the task was released, by its worker or, if that worker was lost, by another one. `None` if the
    attempt is still running or has finished the task."""
    reason: str | None = None
    """Why the attempt failed or was interrupted. None if neither happened."""
    worker: str | None = None
    """The worker that made the attempt. None if an earlier version of perdure stored the attempt."""


_attempts_decoder = msgspec.json.Decoder(tuple[Attempt, ...])
_entries_decoder = msgspec.json.Decoder(list[dict[str, Any]])


def decode_attempts(raw: Raw | UnsetType) -> tuple[Attempt, ...]:
    """Return the stored attempts, oldest first.

    They include attempts that `TaskRecord.attempts` does not count, such as those that ended with a question.
    """
    return _decode(raw, _attempts_decoder) or ()


def start_attempt(raw: Raw | UnsetType, at: Micros, worker: str | None = None) -> Raw:
    """Return the history with a new attempt added. If the history is full, drop its oldest attempt."""
    entries = _decode(raw, _entries_decoder) or []
    started: dict[str, Any] = {"begun_at": at} if worker is None else {"begun_at": at, "worker": worker}
    return Raw(canonical_json.encode([*entries, started][-MAX_ATTEMPTS_KEPT:]))


def end_attempt(raw: Raw | UnsetType, at: Micros, reason: str | None) -> Raw | UnsetType:
    """Return the history with the end time and the reason added to its newest attempt."""
    entries = _decode(raw, _entries_decoder)
    if not entries:  # an earlier version of perdure, which kept no history, started the attempt
        return raw
    end: dict[str, Any] = {"ended_at": at}
    if reason is not None:
        end["reason"] = reason[:MAX_REASON_CHARACTERS]
    entries[-1] |= end
    return Raw(canonical_json.encode(entries))


def _decode(raw: Raw | UnsetType, decoder: msgspec.json.Decoder[T]) -> T | None:
    try:
        return None if isinstance(raw, UnsetType) else decoder.decode(raw)
    except msgspec.MsgspecError:
        return None
