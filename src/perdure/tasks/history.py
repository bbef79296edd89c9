"""The attempts at a task: when a worker took it, and when and why it was given back unfinished.

They are held as canonical JSON, which a later version may tell more in. What is no history is read as none:
it is there to be looked at, and decides nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, UnsetType

from ..storage.record import Micros
from . import codec

MOST = 10
"""The newest are kept."""
MOST_REASON = 200
"""Letters: attempts share the room of a record with what the task carries."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One time that a worker held the task. The last one ends with the task, or is still going on."""

    begun_at: Micros
    ended_at: Micros | None = None
    """When it was given back, or somebody found its worker gone."""
    reason: str | None = None
    """Why it did not end the task, in short; None where it let go until it is answered."""


_attempts = msgspec.json.Decoder(tuple[Attempt, ...])
_entries = msgspec.json.Decoder(list[dict[str, Any]])


def read(raw: Raw | UnsetType) -> tuple[Attempt, ...]:
    """The newest attempts, those too that were not counted."""
    try:
        return () if isinstance(raw, UnsetType) else _attempts.decode(raw)
    except msgspec.MsgspecError:
        return ()


def begin(raw: Raw | UnsetType, at: Micros) -> Raw:
    """The history with one more attempt."""
    return Raw(codec.encode([*_entries_of(raw), {"begun_at": at}][-MOST:]))


def give_back(raw: Raw | UnsetType, at: Micros, reason: str | None) -> Raw | UnsetType:
    """The history when its last attempt is over, and the task is not."""
    entries = _entries_of(raw)
    if not entries:  # an earlier version began it
        return raw
    entries[-1] |= {"ended_at": at} if reason is None else {"ended_at": at, "reason": reason[:MOST_REASON]}
    return Raw(codec.encode(entries))


def _entries_of(raw: Raw | UnsetType) -> list[dict[str, Any]]:
    try:
        return [] if isinstance(raw, UnsetType) else _entries.decode(raw)
    except msgspec.MsgspecError:
        return []
