"""The attempt history of a task: when attempts started, and when and why unsuccessful ones ended.

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
"""Longer reasons are cut to this many characters, because the history counts toward the size of the task."""

T = TypeVar("T")


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to run a task. An attempt without `ended_at` is still running, or it finished the task."""

    started_at: Timestamp = msgspec.field(name="begun_at")
    ended_at: Timestamp | None = None
    """When the task was released by its worker or, if that worker was lost, by another one."""
    reason: str | None = None
    """Why the attempt failed or was interrupted. None otherwise."""


_attempts_decoder = msgspec.json.Decoder(tuple[Attempt, ...])
_entries_decoder = msgspec.json.Decoder(list[dict[str, Any]])


def decode_attempts(raw: Raw | UnsetType) -> tuple[Attempt, ...]:
    """Return the stored attempts, oldest first. Some of them may not be counted in `TaskRecord.attempts`."""
    return _decode(raw, _attempts_decoder) or ()


def start_attempt(raw: Raw | UnsetType, at: Micros) -> Raw:
    """Return the history with a new attempt added. If the history is full, the oldest attempt is dropped."""
    entries = _decode(raw, _entries_decoder) or []
    return Raw(canonical_json.encode([*entries, {"begun_at": at}][-MAX_ATTEMPTS_KEPT:]))


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
