"""The attempts at a task: when a worker claimed it, and when and why the worker released it unfinished.

They are stored as JSON, to which a later version may add fields. A list that cannot be read counts as empty,
because it is only shown to people and decides nothing.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Raw, UnsetType

from ..storage.record import Micros
from ..storage.time_units import Timestamp
from . import canonical_json

MAX_ATTEMPTS_KEPT = 10
MAX_REASON_CHARACTERS = 200
"""Maximum length of a reason: attempts share the size limit of the record with the contents of the task."""

T = TypeVar("T")


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at the task. If it has no end, it is still running, or it finished the task."""

    started_at: Timestamp = msgspec.field(name="begun_at")
    ended_at: Timestamp | None = None
    """When the worker released the task, or when another worker did so because the first one was lost."""
    reason: str | None = None
    """Why the attempt did not finish the task; None if it released the task to wait for answers."""


_attempts_decoder = msgspec.json.Decoder(tuple[Attempt, ...])
_entries_decoder = msgspec.json.Decoder(list[dict[str, Any]])


def decode_attempts(raw: Raw | UnsetType) -> tuple[Attempt, ...]:
    """Return the newest attempts. The list includes attempts that `TaskRecord.attempts` does not count."""
    return _decode(raw, _attempts_decoder) or ()


def start_attempt(raw: Raw | UnsetType, at: Micros) -> Raw:
    """Return the list with a new attempt at its end. A full list loses its oldest attempt."""
    entries = _decode(raw, _entries_decoder) or []
    return Raw(canonical_json.encode([*entries, {"begun_at": at}][-MAX_ATTEMPTS_KEPT:]))


def end_attempt(raw: Raw | UnsetType, at: Micros, reason: str | None) -> Raw | UnsetType:
    """Return the list after its last attempt ended without finishing the task."""
    entries = _decode(raw, _entries_decoder)
    if not entries:  # an earlier version, which kept no list, started the attempt
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
