"""Builds the pages that `page` and `due` return: limits their size, and skips damaged records."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from .damaged_record import Damaged
from .records_and_changes import Record

log = logging.getLogger(__name__)

MAX_PAGE_BYTES = 8 * 1024 * 1024
"""The total size of bodies, in bytes, at which a page is full."""


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
    """Return the first records of `found`, until the page is full. Skip damaged records."""
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
