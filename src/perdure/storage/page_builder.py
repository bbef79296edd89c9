"""Limits the size of pages, and handles damaged records in the results of reads.

For a damaged record, `get` raises an error. `page` and `due` skip the record and log a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import msgspec

from .errors import StorageCorrupt
from .records_and_changes import Address, Record

log = logging.getLogger(__name__)

MAX_PAGE_BYTES = 8 * 1024 * 1024
"""A page is full when the total size of its bodies reaches this number of bytes."""


class Damaged(msgspec.Struct, frozen=True):
    """Describes a stored record that cannot be read. Engines use it internally in place of a Record."""

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


class Page:
    """Collects records until a page is full."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.records: list[Record] = []
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self.records) >= self._limit or self.bytes >= MAX_PAGE_BYTES

    def add(self, found: Record | Damaged | None) -> None:
        """Add a record to the page. If the record is damaged, skip it and log a warning."""
        if isinstance(found, Record):
            self.records.append(found)
            self.bytes += _size(found.body)
        elif found is not None:
            log.warning("skipped a damaged record in a listing: %s", found)


def page_of(found: Iterable[Record | Damaged | None], limit: int) -> list[Record]:
    """Return the first records of `found`, up to a full page. Skip damaged records."""
    page = Page(limit)
    for each in found:
        page.add(each)
        if page.is_full:
            break
    return page.records


def is_last_page(records: Sequence[Record], limit: int) -> bool:
    """Return whether `records` is the last page of a listing that is read in pages of `limit` records."""
    return len(records) < limit and sum(_size(record.body) for record in records) < MAX_PAGE_BYTES


def _size(body: str) -> int:
    return len(body) if body.isascii() else len(body.encode())
