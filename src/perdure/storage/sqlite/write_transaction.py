"""Runs `commit` and `purge` in a SQLite transaction that many calls share.

Each commit is accepted or refused before anything is written, so a refused commit needs no rollback. The
changes to counters are added up and written once, at the end of the transaction.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from ..records_and_changes import (
    Accepted,
    Change,
    Committed,
    Delete,
    Guard,
    Insert,
    InsertIfAbsent,
    Kept,
    Micros,
    Purged,
    Record,
    RecordState,
    Refused,
    Replace,
    Space,
    Tag,
    accepted_results,
    decide,
    guard_delta,
    is_live,
    tag_deltas,
)
from .database import statement
from .row_decoder import text_or_none, wrong_counters

_FIND = statement("find")
_INSERT = statement("insert")
_REPLACE = statement("replace")
_DELETE = statement("delete")
_EXPIRED = statement("expired")
_EXPIRED_PARTITION = statement("expired_partition")
_COUNT = statement("count")
_ADD_COUNT = statement("add_count")
_DELETE_ZERO_COUNT = statement("delete_zero_count")

ALL_PARTITIONS = ""
"""The partition name used in counters that span all partitions. It is safe because no record can have an
empty partition name.
"""


class _StoredRow(NamedTuple):
    """The columns of a stored record that a commit needs. The record can be live or expired."""

    id: int
    expires_at: Micros | None
    version: int
    order: Micros
    tag: Tag

    def state(self, now: Micros) -> RecordState | None:
        """Return the state of the record, or None if it has expired at `now`."""
        return RecordState(self.version, self.order, self.tag) if is_live(self.expires_at, now) else None


_ExpiredRow: TypeAlias = tuple[int, Space, str, str, Tag | None]  # id, space, partition, key, tag


class Transaction:
    """Writes records between BEGIN and COMMIT. Call `flush` before COMMIT to write the counters."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._deltas: Counter[tuple[Space, str, Tag]] = Counter()
        self._counted: dict[tuple[Space, str, Tag], int] = {}

    def commit(self, changes: Sequence[Change], guard: Guard | None, now: Micros) -> Committed | Refused:
        found = [self._find(change) for change in changes]
        results = tuple(
            decide(change, None if stored is None else stored.state(now))
            for change, stored in zip(changes, found, strict=True)
        )
        accepted = accepted_results(results)
        if accepted is None:
            return Refused(results)
        if guard is not None:
            partition = changes[0].address.partition
            delta = guard_delta(guard, changes, accepted, now)
            if delta > 0 and self._guarded_count(guard, partition) + delta > guard.max_count:
                self._delete_expired(_EXPIRED_PARTITION, (now, partition))
                guard_count = self._guarded_count(guard, partition) + delta
                if guard_count > guard.max_count:
                    return Refused(results, guard_count=guard_count)
                found = [self._find(change) for change in changes]  # some may have been deleted
        for change, stored, result in zip(changes, found, accepted, strict=True):
            self._apply(change, stored, result)
        return Committed(accepted)

    def purge(self, until: Micros, limit: int) -> list[Purged]:
        return self._delete_expired(_EXPIRED, (until, limit))

    def repair_counters(self) -> None:
        for space, partition, tag, stored, actual in wrong_counters(self._db):
            self._deltas[space, partition, tag] += actual - stored

    def flush(self) -> None:
        """Write the changed counters to the database."""
        changed = [(*scope, delta) for scope, delta in self._deltas.items() if delta]
        self._db.executemany(_ADD_COUNT, changed)
        self._db.executemany(_DELETE_ZERO_COUNT, [row[:3] for row in changed if row[3] < 0])

    def _find(self, change: Change) -> _StoredRow | None:
        row = self._db.execute(_FIND, change.address).fetchone()
        return None if row is None else _StoredRow(*row)

    def _apply(self, change: Change, stored: _StoredRow | None, result: Accepted | Kept) -> None:
        if isinstance(result, Kept):
            return
        row = stored.id if stored else None
        match change:
            case Insert(record=record) | InsertIfAbsent(record=record):
                self._insert(record, stored)
            case Replace(after=new):
                values = new.body, new.version, new.tag, new.expires_at, new.lane, new.wake_at, row
                self._db.execute(_REPLACE, values)
            case Delete():
                self._db.execute(_DELETE, (row,))
        for space, tag, delta in tag_deltas(change, result):
            self._add_delta(space, change.address.partition, tag, delta)

    def _insert(self, record: Record, expired: _StoredRow | None) -> None:
        if expired is not None:
            self._db.execute(_DELETE, (expired.id,))
            self._add_delta(record.space, record.partition, expired.tag, -1)
        self._db.execute(_INSERT, msgspec.structs.astuple(record))  # the columns are the fields, in order

    def _delete_expired(self, sql: str, values: tuple[object, ...]) -> list[Purged]:
        """Delete the expired records that the SELECT statement `sql` finds, and return them."""
        with text_or_none(self._db):
            rows: list[_ExpiredRow] = self._db.execute(sql, values).fetchall()
        self._db.executemany(_DELETE, [row[:1] for row in rows])
        for _, space, partition, _, tag in rows:
            if tag is not None:  # None means that the tag is damaged; `repair_counters` corrects its counter
                self._add_delta(space, partition, tag, -1)
        return [Purged(space, partition, key, tag or "") for _, space, partition, key, tag in rows]

    # Counting

    def _add_delta(self, space: Space, partition: str, tag: Tag, delta: int) -> None:
        self._deltas[space, partition, tag] += delta
        self._deltas[space, ALL_PARTITIONS, tag] += delta

    def _guarded_count(self, guard: Guard, partition: str) -> int:
        """Return the number of stored records that the guard counts, including expired records."""
        return sum(self._current_count((guard.space, partition, tag)) for tag in guard.tags)

    def _current_count(self, scope: tuple[Space, str, Tag]) -> int:
        """Return the value of a counter, including changes of this transaction that are not written yet."""
        before = self._counted.get(scope)
        if before is None:
            row = self._db.execute(_COUNT, scope).fetchone()
            before = self._counted[scope] = row[0] if row else 0
        return before + self._deltas[scope]
