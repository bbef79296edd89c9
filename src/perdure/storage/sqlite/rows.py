"""Convert rows to records. Text that is not UTF-8 damages only its own record.

For a row with such text, the `sqlite3` module raises an error and ends the statement. The statement is then
run again with a text factory of our own, which is slower.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from ..read_results import Damaged
from ..record import Address, Record, Space, Tag
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
    """Run a statement and pass its records to `take`, which need not read all of them; return its result."""
    try:
        with closing(_records(db, sql, values)) as found:
            return take(found)
    except sqlite3.Error as error:
        if not is_undecodable(error):
            raise
    with text_or_none(db), closing(_records(db, sql, values)) as found:
        return take(found)


def wrong_counters(db: sqlite3.Connection) -> list[tuple[Space, str, Tag, int, int]]:
    """Return the counters that do not match the records: space, partition, tag, stored, actual.

    Records whose tag is damaged are not counted.
    """
    with text_or_none(db):
        return [row for row in db.execute(_WRONG_COUNTERS).fetchall() if None not in row]


def _records(db: sqlite3.Connection, sql: str, values: Mapping[str, object]) -> Generator[Record | Damaged]:
    """Yield the records. The caller must close the generator: until then the log cannot be truncated."""
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
    """Within this context, read text that is not UTF-8 as None."""
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
