"""Finds damaged records and quarantines them: keeps them for inspection, but removes them from all queues.

A quarantined record has the tag CORRUPT_TAG, no timer and no expiry time. A record is not damaged if a newer
version of perdure wrote it, or if this process lacks the key to decrypt it. Such records are counted, but
never changed.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from .errors import NotReadableHere, PerdureError
from .records_and_changes import Committed, Micros, Position, Record, Space
from .storage import Storage

CORRUPT_TAG = "corrupt"
"""The tag (index label) of quarantined records."""
BATCH_SIZE = 500


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a record that is damaged and cannot be decoded."""

    space: Space
    key: str
    reason: str
    is_quarantined: bool
    """Whether the inspection that found this record has quarantined it."""

    def __str__(self) -> str:
        return f"{self.space} {self.key} is damaged: {self.reason}"


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """The result of inspecting all records of a space."""

    examined: int
    damaged: tuple[Damage, ...]
    """The damaged records, except those that were already quarantined before this inspection."""
    not_readable: int
    """Number of intact records that this process cannot read."""
    quarantined: int
    """Number of records that were already quarantined before this inspection."""


async def quarantine(storage: Storage, record: Record, *, now: Micros) -> bool:
    """Quarantine a damaged record. Return False if another client changed the record after it was read."""
    change = record.replace_with(body=record.body, tag=CORRUPT_TAG)
    return isinstance(await storage.commit([change], now=now), Committed)


async def inspect(
    storage: Storage, space: Space, read: Callable[[Record], object], *, repair: bool, now: Micros
) -> Inspection:
    """Decode every record of a space that is not quarantined yet. With `repair`, quarantine damaged records.

    `read` decodes a record. It must raise NotReadableHere if the record is intact but this process cannot
    read it, and any other PerdureError if the record is damaged.
    """
    examined = not_readable = quarantined = 0
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
            except NotReadableHere:
                not_readable += 1
            except PerdureError as error:
                moved = repair and await quarantine(storage, record, now=now)
                damaged.append(Damage(space=space, key=record.key, reason=str(error), is_quarantined=moved))
    return Inspection(
        examined=examined, damaged=tuple(damaged), not_readable=not_readable, quarantined=quarantined
    )
