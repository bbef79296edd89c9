"""The attempts at a task: when a worker took it, and when and why it was given back unfinished.

They are held as canonical JSON, which a later version may tell more in. What is no history is read as none:
it is there to be looked at, and decides nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, UnsetType

from ..storage.clock import Timestamp
from ..storage.record import Micros
from . import codec

MAX_ATTEMPTS_KEPT = 10
"""The newest are kept."""
MAX_REASON_CHARACTERS = 200
"""Letters: attempts share the room of a record with what the task carries."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One time that a worker held the task. The last one ends with the task, or is still going on."""

    started_at: Timestamp = msgspec.field(name="begun_at")
    ended_at: Timestamp | None = None
    """When it was given back, or somebody found its worker gone."""
    reason: str | None = None
    """Why it did not end the task, in short; None where it let go until it is answered."""


_attempts = msgspec.json.Decoder(tuple[Attempt, ...])
_entries = msgspec.json.Decoder(list[dict[str, Any]])


def decode_attempts(raw: Raw | UnsetType) -> tuple[Attempt, ...]:
    """The newest attempts, those too that were not counted."""
    try:
        return () if isinstance(raw, UnsetType) else _attempts.decode(raw)
    except msgspec.MsgspecError:
        return ()


def start_attempt(raw: Raw | UnsetType, at: Micros) -> Raw:
    """The history with one more attempt."""
    return Raw(codec.encode([*_decode_entries(raw), {"begun_at": at}][-MAX_ATTEMPTS_KEPT:]))


def end_attempt(raw: Raw | UnsetType, at: Micros, reason: str | None) -> Raw | UnsetType:
    """The history when its last attempt is over, and the task is not."""
    entries = _decode_entries(raw)
    if not entries:  # an earlier version began it
        return raw
    entries[-1] |= (
        {"ended_at": at} if reason is None else {"ended_at": at, "reason": reason[:MAX_REASON_CHARACTERS]}
    )
    return Raw(codec.encode(entries))


def _decode_entries(raw: Raw | UnsetType) -> list[dict[str, Any]]:
    try:
        return [] if isinstance(raw, UnsetType) else _entries.decode(raw)
    except msgspec.MsgspecError:
        return []
