"""Damaged records: an error that names the record for a caller that asked for it, a warning in listings."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeGuard

import msgspec

from .errors import StorageCorrupt
from .record import Address, Record

log = logging.getLogger(__name__)


class Damaged(msgspec.Struct, frozen=True):
    """A stored record that cannot be read, in the place of the record."""

    address: Address
    reason: str

    def __str__(self) -> str:
        space, partition, key = self.address
        return f"the record {key!r} of partition {partition!r} in space {space!r} is damaged: {self.reason}"

    def error(self) -> StorageCorrupt:
        return StorageCorrupt(str(self))


def checked(found: Iterable[Record | Damaged | None]) -> list[Record | None]:
    """Return what was found by address; raise StorageCorrupt if a record among it is damaged."""
    records: list[Record | None] = []
    for each in found:
        if isinstance(each, Damaged):
            raise each.error()
        records.append(each)
    return records


def bounded(found: Iterable[Record | Damaged | None], limit: int) -> list[Record]:
    """Return the first records of a listing, up to `limit`. Damaged ones are left out, with a warning."""
    return list(islice(intact(found), limit))


def intact(found: Iterable[Record | Damaged | None]) -> Iterator[Record]:
    """Yield the records, and log a warning for each damaged one."""
    for each in found:
        if isinstance(each, Record):
            yield each
        elif each is not None:
            log.warning("left out of a listing: %s", each)


def is_intact(found: Record | Damaged | None) -> TypeGuard[Record]:
    """Return whether this is a record; log a warning if it is a damaged one."""
    return any(intact((found,)))
