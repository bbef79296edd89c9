"""The writing verbs, within one transaction of the writer's connection.

Many commits share a transaction. Each is judged first and written only when nothing in it is refused, so
none ever needs to be undone alone. The counters are added up over the whole transaction and written once.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from ..record import (
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
    tag_deltas,
)
from .rows import recount, text_or_none
from .statements import statement

_FIND = statement("find")
_INSERT = statement("insert")
_REPLACE = statement("replace")
_DELETE = statement("delete")
_OVERDUE = statement("overdue")
_OVERDUE_PARTITION = statement("overdue_partition")
_COUNT = statement("count")
_ADD_COUNT = statement("add_count")
_DROP_ZERO_COUNT = statement("drop_zero_count")

ALL_PARTITIONS = ""
"""The partition under which the counters hold the sum of all. No record can have it."""


class _StoredRow(NamedTuple):
    """What stands at an address, expired or not."""

    id: int
    expires_at: Micros | None
    version: int
    order: Micros
    tag: Tag

    def state(self, now: Micros) -> RecordState | None:
        """What a change meets here: nothing, if it has expired."""
        is_live = self.expires_at is None or now < self.expires_at
        return RecordState(self.version, self.order, self.tag) if is_live else None


_ExpiredRow: TypeAlias = tuple[int, Space, str, str, Tag | None]  # id, space, partition, key, tag


class Transaction:
    """Between BEGIN and COMMIT. Call `flush` before the latter."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._deltas: Counter[tuple[Space, str, Tag]] = Counter()
        self._counted: dict[tuple[Space, str, Tag], int] = {}

    def commit(self, changes: Sequence[Change], guard: Guard | None, now: Micros) -> Committed | Refused:
        found = [self._find(change) for change in changes]
        results = tuple(
            decide(change, None if at is None else at.state(now))
            for change, at in zip(changes, found, strict=True)
        )
        accepted = accepted_results(results)
        if accepted is None:
            return Refused(results)
        if guard is not None:
            partition = changes[0].address.partition
            delta = guard_delta(guard, changes, accepted, now)
            if delta > 0 and self._guarded_count(guard, partition) + delta > guard.max_count:
                self._purge_partition(partition, now)
                guard_count = self._guarded_count(guard, partition) + delta
                if guard_count > guard.max_count:
                    return Refused(results, guard_count=guard_count)
                found = [self._find(change) for change in changes]  # some of it may just have been purged
        for change, at, result in zip(changes, found, accepted, strict=True):
            self._apply(change, at, result)
        return Committed(accepted)

    def purge(self, until: Micros, limit: int) -> list[Purged]:
        with text_or_none(self._db):
            rows: list[_ExpiredRow] = self._db.execute(_OVERDUE, (until, limit)).fetchall()
        return self._delete_rows(rows)

    def repair_counters(self) -> None:
        """Make every counter say what there is."""
        for space, partition, tag, stored, counted in recount(self._db):
            self._deltas[space, partition, tag] += counted - stored

    def flush(self) -> None:
        """Write the counters that moved."""
        moved = [(*scope, by) for scope, by in self._deltas.items() if by]
        self._db.executemany(_ADD_COUNT, moved)
        self._db.executemany(_DROP_ZERO_COUNT, [row[:3] for row in moved if row[3] < 0])

    def _find(self, change: Change) -> _StoredRow | None:
        row = self._db.execute(_FIND, change.address).fetchone()
        return None if row is None else _StoredRow(*row)

    def _apply(self, change: Change, at: _StoredRow | None, result: Accepted | Kept) -> None:
        if isinstance(result, Kept):
            return
        match change:
            case Insert(record=record) | InsertIfAbsent(record=record):
                self._insert(record, at)
            case Replace(after=after):
                self._replace(after, at)
            case Delete():
                self._delete(at)
        for space, tag, by in tag_deltas(change, result):
            self._add_delta(space, change.address.partition, tag, by)

    def _insert(self, record: Record, expired: _StoredRow | None) -> None:
        if expired is not None:
            self._delete(expired)
            self._add_delta(record.space, record.partition, expired.tag, -1)
        self._db.execute(
            _INSERT,
            (
                record.space,
                record.partition,
                record.key,
                record.order,
                record.body,
                record.version,
                record.tag,
                record.expires_at,
                record.lane,
                record.wake_at,
            ),
        )

    def _replace(self, after: Record, at: _StoredRow | None) -> None:
        row = at.id if at else None
        self._db.execute(
            _REPLACE,
            (after.body, after.version, after.tag, after.expires_at, after.lane, after.wake_at, row),
        )

    def _delete(self, at: _StoredRow | None) -> None:
        self._db.execute(_DELETE, (at.id if at else None,))

    def _delete_rows(self, rows: Sequence[_ExpiredRow]) -> list[Purged]:
        self._db.executemany(_DELETE, [row[:1] for row in rows])
        for _, space, partition, _, tag in rows:
            if tag is not None:  # else it is damaged, and `recount` decides
                self._add_delta(space, partition, tag, -1)
        return [Purged(space, partition, key, tag or "") for _, space, partition, key, tag in rows]

    # Counting

    def _add_delta(self, space: Space, partition: str, tag: Tag, by: int) -> None:
        self._deltas[space, partition, tag] += by
        self._deltas[space, ALL_PARTITIONS, tag] += by

    def _purge_partition(self, partition: str, now: Micros) -> None:
        with text_or_none(self._db):
            rows: list[_ExpiredRow] = self._db.execute(_OVERDUE_PARTITION, (now, partition)).fetchall()
        self._delete_rows(rows)

    def _guarded_count(self, guard: Guard, partition: str) -> int:
        """How many records of the guarded tags are stored, expired ones included."""
        return sum(self._current_count((guard.space, partition, tag)) for tag in guard.tags)

    def _current_count(self, scope: tuple[Space, str, Tag]) -> int:
        """A counter as it stands within this transaction; the table has it as it was before."""
        before = self._counted.get(scope)
        if before is None:
            row = self._db.execute(_COUNT, scope).fetchone()
            before = self._counted[scope] = row[0] if row else 0
        return before + self._deltas[scope]
