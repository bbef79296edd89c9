"""A stored record that cannot be read.

For a damaged record, `get` raises an error. `page` and `due` skip the record and log a warning.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .errors import StorageCorrupt
from .records_and_changes import Address, Record


class Damaged(msgspec.Struct, frozen=True):
    """A stored record that cannot be read. Engines use it internally instead of a Record."""

    address: Address
    reason: str

    def __str__(self) -> str:
        space, partition, key = self.address
        return f"the record {key!r} of partition {partition!r} in space {space!r} is damaged: {self.reason}"

    def error(self) -> StorageCorrupt:
        return StorageCorrupt(str(self))


def checked(found: Iterable[Record | Damaged | None]) -> list[Record | None]:
    """Return the items of `found` as a list. Raise StorageCorrupt if any of them is a damaged record."""
    records: list[Record | None] = []
    for each in found:
        if isinstance(each, Damaged):
            raise each.error()
        records.append(each)
    return records
