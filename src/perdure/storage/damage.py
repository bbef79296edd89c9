"""Damaged records: `get` raises an error that names the record, listings log a warning and leave it out."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from .errors import StorageCorrupt
from .record import Address, Record

log = logging.getLogger(__name__)


class Damaged(msgspec.Struct, frozen=True):
    """A stored record that cannot be read, returned instead of the record."""

    address: Address
    reason: str

    def __str__(self) -> str:
        space, partition, key = self.address
        return f"the record {key!r} of partition {partition!r} in space {space!r} is damaged: {self.reason}"

    def error(self) -> StorageCorrupt:
        return StorageCorrupt(str(self))


def checked(found: Iterable[Record | Damaged | None]) -> list[Record | None]:
    """Return the records; raise StorageCorrupt if one of them is damaged."""
    records: list[Record | None] = []
    for each in found:
        if isinstance(each, Damaged):
            raise each.error()
        records.append(each)
    return records


def warn(damaged: Damaged) -> None:
    """Log that a listing leaves out this record."""
    log.warning("left out of a listing: %s", damaged)
