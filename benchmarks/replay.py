"""Records the SQL that the store sends for a lifecycle, so that it can be sent again without the store.

A lifecycle runs in memory; each of its commits also runs through the SQLite engine's `Transaction` on a
scratch database that records every statement. So the baseline cannot drift from what the engine does.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias, cast

import msgspec

from perdure.storage import Change, Committed, Guard, Micros, Refused, Space, Storage
from perdure.storage.memory import MemoryEngine
from perdure.storage.sqlite.database import migrations, statement
from perdure.storage.sqlite.write_transaction import Transaction
from perdure.tasks import TaskStore

from .workload import COMMITS_PER_LIFECYCLE, ROOMY, owners, run_lifecycle

Value: TypeAlias = str | int | None
Sent: TypeAlias = tuple[str, tuple[Value, ...]]
Scope: TypeAlias = tuple[Space, str, str]
Deltas: TypeAlias = Counter[Scope]

_GET = statement("get")
_REPLACE = statement("replace")
_ADD_COUNT = statement("add_count")
_DELETE_ZERO_COUNT = statement("delete_zero_count")


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One commit as SQL: it reads the record, counts for the guard if there is one, and writes."""

    find: Sent
    counts: tuple[Sent, ...]
    write: str
    values: tuple[Value, ...]
    """The values of a replace without the row's id, which only the read returns."""
    moves: tuple[tuple[Scope, int], ...]
    """By how much each counter changes."""


class Lifecycle(msgspec.Struct, frozen=True, gc=False):
    """The commits of a task, and the read after them."""

    steps: tuple[Step, ...]
    read: dict[str, Value]


def play(db: sqlite3.Connection, step: Step) -> None:
    """Send the statements of a commit, except those of the counters."""
    found = db.execute(*step.find).fetchone()
    for count in step.counts:
        db.execute(*count).fetchone()
    db.execute(step.write, (*step.values, found[0]) if found else step.values)


def read(db: sqlite3.Connection, lifecycle: Lifecycle) -> Sequence[object]:
    """Read the task."""
    return db.execute(_GET, lifecycle.read).fetchall()


def count(deltas: Deltas, step: Step) -> None:
    """Add up how a commit changes the counters."""
    for scope, by in step.moves:
        deltas[scope] += by


def flush(db: sqlite3.Connection, deltas: Deltas) -> None:
    """Write the counters, once per transaction, as the engine does."""
    moved = [(*scope, by) for scope, by in deltas.items() if by]
    db.executemany(_ADD_COUNT, moved)
    db.executemany(_DELETE_ZERO_COUNT, [row[:3] for row in moved if row[3] < 0])


async def write_down(number: int) -> list[Lifecycle]:
    """Record lifecycles, each of a new task."""
    engine = _Noting()
    store = TaskStore(Storage(engine), ROOMY, application="benchmarks")
    lifecycles: list[Lifecycle] = []
    for owner, _ in zip(owners(), range(number), strict=False):
        record = (await run_lifecycle(store, owner)).record
        steps = tuple(engine.steps[-COMMITS_PER_LIFECYCLE:])
        now = record.order  # any time before it expires
        looked_up = {"space": record.space, "partition": record.partition, "key": record.key, "now": now}
        lifecycles.append(Lifecycle(steps, looked_up))
    return lifecycles


class _Scribe:
    """A connection that records what is sent through it."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(":memory:", isolation_level=None)
        for migration in migrations():
            for each in migration:
                self._db.execute(each)
        self.sent: list[Sent] = []
        self.moved: list[tuple[Space, str, str, int]] = []

    def execute(self, sql: str, values: Sequence[Value]) -> sqlite3.Cursor:
        self.sent.append((sql, _plain(values)))
        return self._db.execute(sql, values)

    def executemany(self, sql: str, rows: Sequence[tuple[Space, str, str, int]]) -> None:
        if sql == _ADD_COUNT:
            self.moved = [(space, partition, str(tag), by) for space, partition, tag, by in rows]
        self._db.executemany(sql, rows)

    def step(self) -> Step:
        """Return what was sent since the last call."""
        find, *counts, (write, values) = self.sent
        moves = tuple((row[:3], row[3]) for row in self.moved)
        self.sent, self.moved = [], []
        values = values[:-1] if write == _REPLACE else values
        return Step(find=find, counts=tuple(counts), write=write, values=values, moves=moves)


class _Noting(MemoryEngine):
    """A memory engine that also records the SQL that the SQLite engine would have sent."""

    def __init__(self) -> None:
        super().__init__()
        self._scribe = _Scribe()
        self.steps: list[Step] = []

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        transaction = Transaction(cast("sqlite3.Connection", self._scribe))
        transaction.commit(changes, guard, now)
        transaction.flush()
        self.steps.append(self._scribe.step())
        return await super().commit(changes, guard=guard, now=now)


def _plain(values: Sequence[Value]) -> tuple[Value, ...]:
    """Replace enums by plain strings, as hand-written code would send them."""
    return tuple(str(value) if isinstance(value, str) else value for value in values)
