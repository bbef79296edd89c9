"""Quarantine: a record that cannot be read is kept for people to see, in no queue and under no status.

A record of a newer version is not damaged. It is counted here, and never changed.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from .errors import NewerFormat, PerdureError
from .port import Storage
from .record import Committed, Micros, Position, Record, Space

CORRUPT_TAG = "corrupt"
"""The tag of quarantined records."""
BATCH_SIZE = 500


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """A record that cannot be read."""

    space: Space
    key: str
    reason: str
    is_quarantined: bool
    """Whether it has been quarantined by now."""

    def __str__(self) -> str:
        return f"{self.space} {self.key} is damaged: {self.reason}"


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """What an inspection found."""

    examined: int
    damaged: tuple[Damage, ...]
    """Without what was quarantined before."""
    newer: int
    """Records that a newer version of perdure wrote."""
    quarantined: int
    """Records that were quarantined before."""


async def quarantine(storage: Storage, record: Record, *, now: Micros) -> bool:
    """Take a damaged record out of its queue. Return False if it was changed meanwhile."""
    change = record.replace_with(body=record.body, tag=CORRUPT_TAG)
    return isinstance(await storage.commit([change], now=now), Committed)


async def inspect(
    storage: Storage, space: Space, read: Callable[[Record], object], *, repair: bool, now: Micros
) -> Inspection:
    """Read every record of a space, and quarantine the damaged ones if asked to.

    `read` raises NewerFormat for a record of a newer version, and any other PerdureError for a damaged one.
    """
    examined = newer = quarantined = 0
    damaged: list[Damage] = []
    after: Position | None = None
    while records := await storage.page(space, after=after, limit=BATCH_SIZE, now=now):
        examined += len(records)
        after = records[-1].position
        for record in records:
            if record.tag == CORRUPT_TAG:
                quarantined += 1
                continue
            try:
                read(record)
            except NewerFormat:
                newer += 1
            except PerdureError as error:
                moved = repair and await quarantine(storage, record, now=now)
                damaged.append(Damage(space=space, key=record.key, reason=str(error), is_quarantined=moved))
    return Inspection(examined=examined, damaged=tuple(damaged), newer=newer, quarantined=quarantined)
