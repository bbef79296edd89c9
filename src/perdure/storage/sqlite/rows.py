"""Rows as records. Text that is not UTF-8 damages its own record, and no other.

The module that speaks to SQLite raises an error for a row with such text and ends the statement. So a
statement that met one is run once more, with a text factory of our own, which costs more.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from ..damage import Damaged
from ..record import Address, Record, Space, Tag
from .errors import is_undecodable
from .statements import statement

T = TypeVar("T")

_RECOUNT = statement("recount")


def read(
    db: sqlite3.Connection,
    sql: str,
    values: Mapping[str, object],
    take: Callable[[Iterator[Record | Damaged]], T],
) -> T:
    """Return what `take` makes of the rows of a statement. It need not take all of them."""
    try:
        with closing(_records(db, sql, values)) as found:
            return take(found)
    except sqlite3.Error as error:
        if not is_undecodable(error):
            raise
    with text_or_none(db), closing(_records(db, sql, values)) as found:
        return take(found)


def recount(db: sqlite3.Connection) -> list[tuple[Space, str, Tag, int, int]]:
    """Return the counters that disagree with the records they count: space, partition, tag, stored, counted.

    Records whose tag is damaged are not counted.
    """
    with text_or_none(db):
        return [row for row in db.execute(_RECOUNT).fetchall() if None not in row]


def _records(db: sqlite3.Connection, sql: str, values: Mapping[str, object]) -> Generator[Record | Damaged]:
    """Yield the rows. A half-read statement holds its snapshot, and the log with it: close this generator."""
    with closing(db.execute(sql, values)) as cursor:
        for row in cursor:
            yield _record(row)


def _record(row: tuple[Any, ...]) -> Record | Damaged:
    space, partition, key, order, body, version, tag, expires_at, lane, wake_at = row
    if body is None or tag is None or (lane is None) != (wake_at is None):
        return Damaged(Address(space, partition, key), "its text is not UTF-8")
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
    """Let text that is not UTF-8 be read as None."""
    db.text_factory = _decoded
    try:
        yield
    finally:
        db.text_factory = str


def _decoded(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
