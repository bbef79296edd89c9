"""Pages of a feed: how many rows each has, and the cursor of the next page."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import datetime
from heapq import nlargest
from typing import TypeAlias
from zlib import crc32

from .accounts import Account, Key, Knobs, Refusal, Row, Shown, key_of
from .times import iso, micros

Newest: TypeAlias = Callable[[Key | None, int], list[Row]]
"""So many rows below a key, newest first."""

_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


class Paging:
    """How feeds are cut into pages."""

    def __init__(self, knobs: Knobs, seed: int) -> None:
        self._knobs = knobs
        self._seed = seed

    def page(self, newest: Newest, limit: int, cursor: str | None) -> Shown:
        limit = checked(limit)
        try:
            below = None if cursor is None else self._read(cursor)
        except ValueError:
            return self._refused()
        rows = newest(below, limit + 1)
        taken = self._taken(rows, limit, cursor)
        if rows and taken == 0 and (empty := self._above(rows[0], below)) is not None:
            return Shown(rows=[], cursor=empty)
        taken = self._untied(newest, rows, taken or min(limit, len(rows)))
        part = rows[:taken]
        has_more = taken < len(rows) or taken >= limit
        return Shown(
            rows=[row for row in part if row.is_visible],
            cursor=self._cursor(part[-1].key) if has_more and part else None,
        )

    def _taken(self, rows: list[Row], limit: int, cursor: str | None) -> int:
        """How many rows a page takes. Chance decides, but the same question gets the same answer."""
        knobs, most = self._knobs, min(limit, len(rows))
        if not (knobs.empty_pages or knobs.short_pages) or most == 0:
            return most
        draw = crc32(f"{self._seed}:{cursor}:{limit}:{rows[0].cid}".encode())
        chance = draw % 10_007 / 10_007
        if chance < knobs.empty_pages:
            return 0
        return 1 + draw // 10_007 % most if chance < knobs.empty_pages + knobs.short_pages else most

    def _above(self, row: Row, below: Key | None) -> str | None:
        """The cursor of an empty page: new, and no further than the next row. None: there is no such."""
        key = (row.sort + 1000, "")
        return self._cursor(key) if below is None or key < below else None

    def _untied(self, newest: Newest, rows: list[Row], taken: int) -> int:
        """A cursor that is a time cannot lie between equal times. A page ends before them, or after all."""
        if self._knobs.cursors == "keyset" or self._knobs.splits_ties or not 0 < taken < len(rows):
            return taken
        end = taken
        while end > 0 and rows[end - 1].sort == rows[taken].sort:
            end -= 1
        if end > 0:
            return end
        rows[:] = newest((rows[0].sort + 1000, ""), 1 << 30)
        while end < len(rows) and rows[end].sort == rows[0].sort:
            end += 1
        return end

    def _cursor(self, key: Key) -> str:
        sort, cid = key
        return iso(sort) if self._knobs.cursors == "time" else f"{sort // 1000}__{cid}"

    def _read(self, cursor: str) -> Key:
        """Return the key below which the next page starts. Raise ValueError if the cursor is invalid."""
        if self._knobs.cursors == "time":
            if not _ISO.fullmatch(cursor):
                raise ValueError(cursor)
            return micros(datetime.fromisoformat(cursor)), ""
        millis, parted, cid = cursor.partition("__")
        if not parted:
            raise ValueError(cursor)
        return int(millis) * 1000, cid

    def _refused(self) -> Shown:
        match self._knobs.foreign:
            case "empty":
                return Shown(rows=[], cursor=None)
            case "malformed":
                raise Refusal(400, "InvalidRequest", "Malformed cursor")
            case "fails":
                raise Refusal(500, "InternalServerError", "Internal Server Error")


def newest_of_all(
    accounts: Sequence[Account], below: Key | None, count: int, *, with_reposts: bool = True
) -> list[Row]:
    """The newest rows of these accounts below a key, newest first."""
    if len(accounts) == 1 and with_reposts:
        return _newest_of(accounts[0].rows, below, count)
    parts = (
        [row for row in account.rows if not row.is_repost] if not with_reposts else account.rows
        for account in accounts
    )
    return nlargest(count, (row for rows in parts for row in _newest_of(rows, below, count)), key=key_of)


def _newest_of(rows: list[Row], below: Key | None, count: int) -> list[Row]:
    end = len(rows) if below is None else bisect_left(rows, below, key=key_of)
    return rows[max(0, end - count) : end][::-1]


def checked(limit: int) -> int:
    if not 1 <= limit <= 100:
        raise Refusal(400, "InvalidRequest", "limit must be between 1 and 100")
    return limit
