"""Converts rows to records. A row with invalid UTF-8 becomes `Damaged` and does not affect other rows.

When the `sqlite3` module reads a row with invalid UTF-8, it raises an error and ends the statement. The
statement is then run again with a slower text factory, which returns None for invalid text.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from ..damaged_record import Damaged
from ..records_and_changes import Address, Record, Space, Tag
from .database import statement
from .errors import is_undecodable

T = TypeVar("T")

_WRONG_COUNTERS = statement("wrong_counters")


def read(
    db: sqlite3.Connection,
    sql: str,
    values: Mapping[str, object],
    take: Callable[[Iterator[Record | Damaged]], T],
) -> T:
    """Run the statement `sql`, pass an iterator over the records to `take`, and return the result of `take`.

    If a record is damaged, run the statement again, and call `take` a second time.
    """
    try:
        with closing(_records(db, sql, values)) as found:
            return take(found)
    except sqlite3.Error as error:
        if not is_undecodable(error):
            raise
    with text_or_none(db), closing(_records(db, sql, values)) as found:
        return take(found)


def wrong_counters(db: sqlite3.Connection) -> list[tuple[Space, str, Tag, int, int]]:
    """Return `(space, partition, tag, stored, actual)` for each counter that does not match the records.

    Records with a damaged tag are ignored.
    """
    with text_or_none(db):
        return [row for row in db.execute(_WRONG_COUNTERS).fetchall() if None not in row]


def _records(db: sqlite3.Connection, sql: str, values: Mapping[str, object]) -> Generator[Record | Damaged]:
    """Yield the records. The caller must close the generator, so that SQLite can truncate its log."""
    with closing(db.execute(sql, values)) as cursor:
        for row in cursor:
            yield _record(row)


def _record(row: tuple[Any, ...]) -> Record | Damaged:
    space, partition, key, order, body, version, tag, expires_at, lane, wake_at = row
    if body is None or tag is None or (lane is None) != (wake_at is None):
        return Damaged(Address(space, partition, key), "its text is not valid UTF-8")
    return Record(
        space=space,
        partition=partition,
        key=key,
        order=order,
        body=body,
        version=version,
        tag=tag,
        expires_at=expires_at,
        lane=lane,
        wake_at=wake_at,
    )


@contextmanager
def text_or_none(db: sqlite3.Connection) -> Generator[None]:
    """Within this context, read text that is not valid UTF-8 as None."""
    db.text_factory = _decode_or_none
    try:
        yield
    finally:
        db.text_factory = str


def _decode_or_none(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
