"""Pages: the caller limits the number of records, and this module the number of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .damage import Damaged, warn
from .record import Record

MAX_PAGE_BYTES = 8 * 1024 * 1024
"""The size of bodies after which no further record is added to a page."""


class Page:
    """A page that is being filled."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.records: list[Record] = []
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self.records) >= self._limit or self.bytes >= MAX_PAGE_BYTES

    def add(self, found: Record | Damaged | None) -> None:
        """Add a record. A damaged one is left out, with a warning."""
        if isinstance(found, Record):
            self.records.append(found)
            self.bytes += _size(found.body)
        elif found is not None:
            warn(found)


def page_of(found: Iterable[Record | Damaged | None], limit: int) -> list[Record]:
    """Return the first of these records. No more are read than fit into a page."""
    page = Page(limit)
    for each in found:
        page.add(each)
        if page.is_full:
            break
    return page.records


def is_last_page(records: Sequence[Record], limit: int) -> bool:
    """Return whether these records, which `page` returned for this limit, are the last ones."""
    return len(records) < limit and sum(_size(record.body) for record in records) < MAX_PAGE_BYTES


def _size(body: str) -> int:
    return len(body) if body.isascii() else len(body.encode())
