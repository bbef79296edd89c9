"""Quarantine: a record that cannot be decoded is kept for people to inspect, in no queue and in no count.

A record that a newer version wrote is not damaged. It is counted here, but never changed.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from .errors import NewerFormat, PerdureError
from .record import Committed, Micros, Position, Record, Space
from .storage import Storage

CORRUPT_TAG = "corrupt"
"""The tag of quarantined records."""
BATCH_SIZE = 500


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """A record that cannot be decoded."""

    space: Space
    key: str
    reason: str
    is_quarantined: bool
    """Whether this inspection quarantined the record."""

    def __str__(self) -> str:
        return f"{self.space} {self.key} is damaged: {self.reason}"


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an inspection."""

    examined: int
    damaged: tuple[Damage, ...]
    """The records that cannot be decoded, without those that were quarantined before."""
    newer: int
    """The number of records that a newer version of perdure wrote."""
    quarantined: int
    """The number of records that were quarantined before."""


async def quarantine(storage: Storage, record: Record, *, now: Micros) -> bool:
    """Give a damaged record the tag of quarantined records. Return False if it was changed meanwhile."""
    change = record.replace_with(body=record.body, tag=CORRUPT_TAG)
    return isinstance(await storage.commit([change], now=now), Committed)


async def inspect(
    storage: Storage, space: Space, read: Callable[[Record], object], *, repair: bool, now: Micros
) -> Inspection:
    """Decode every record of a space and, with `repair`, quarantine the damaged ones.

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
