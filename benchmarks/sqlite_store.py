"""Whole lives of tasks on a SQLite file, flushed to disk, against the same SQL sent without the store.

There are two floors. The one goes through the engine's own writer thread and shares transactions as the
store does, so what lies between is the store and the engine's code around its SQL. The other is a blocking
loop: what SQLite itself takes for these statements, in transactions of the same size.
"""

from __future__ import annotations

import gc
import sqlite3
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median

import msgspec

from perdure.storage import open_storage
from perdure.storage.sqlite.database import connect, prepare_database
from perdure.storage.sqlite.location import Location
from perdure.storage.sqlite.reader import Reader
from perdure.storage.sqlite.transaction import Transaction
from perdure.storage.sqlite.writer import Writer
from perdure.tasks import TaskStore

from .replay import Deltas, Life, Step, count, flush, play, read, write_down
from .report import Line, at_least, per_second
from .timing import Contender, Seconds, race, ratio, spread
from .workload import COMMITS_OF_LIFE, ROOMY, live, owners

MANY = 64
"""Lives in flight at once."""


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much is run: lives of one round alone and with others, and rounds."""

    alone: int
    together: int
    rounds: int

    @property
    def lives(self) -> int:
        """All that one contender lives, the rounds for warming up included."""
        return (self.alone + self.together) * (self.rounds + 1)


async def measure(folder: Path, effort: Effort) -> list[Line]:
    """The lives alone, the lives together, and how much sharing a flush gains."""
    lives = await write_down(effort.lives)
    gc.collect()
    gc.freeze()  # what was prepared for the floors is nothing that the store should be searching for garbage
    async with (
        _store(folder / "store.db") as store,
        _Through(folder / "through.db", lives) as through,
        _Bare(folder / "bare.db", lives) as bare,
    ):
        alone = await race(_contenders(store, through, bare, effort.alone, 1), effort.rounds)
        together = await race(_contenders(store, through, bare, effort.together, MANY), effort.rounds)
    gc.unfreeze()
    _check_alike(folder)
    return [
        *_lines("alone", effort.alone, alone),
        *_lines(f"{MANY} in flight", effort.together, together),
        _gain(effort, alone[0], together[0]),
    ]


def _contenders(
    store: TaskStore, through: _Through, bare: _Bare, number: int, concurrency: int
) -> list[Contender]:
    owner = owners()
    return [
        lambda: spread(lambda: live(store, next(owner)), number, concurrency),
        lambda: spread(through.live, number, concurrency),
        lambda: bare.live(number, concurrency),
    ]


def _check_alike(folder: Path) -> None:
    """A floor that left something else behind than the store did would have measured something else."""
    found: set[tuple[object, ...]] = set()
    for path in folder.glob("*.db"):
        with closing(sqlite3.connect(path)) as db:
            counted = db.execute("SELECT tag, n FROM counts WHERE partition = ''").fetchall()
            written = db.execute("SELECT tag, count(*), sum(version) FROM records GROUP BY tag").fetchall()
            found.add((*counted, *written))
    assert len(found) == 1, found


def _lines(how: str, number: int, seconds: Sequence[Seconds]) -> list[Line]:
    """A life's throughput is the inverse of its seconds, so the ratios turn round."""
    store, through, bare = (per_second(number, median(each)) for each in seconds)
    return [
        Line(
            what=f"SQLite life, {how}: store / its SQL through the writer",
            floor=through,
            subject=store,
            ratio=ratio(seconds[1], seconds[0]),
            target=at_least(0.6),
        ),
        Line(
            what=f"SQLite life, {how}: store / its SQL in a blocking loop",
            floor=bare,
            subject=store,
            ratio=ratio(seconds[2], seconds[0]),
        ),
    ]


def _gain(effort: Effort, alone: Seconds, together: Seconds) -> Line:
    slow, fast = median(alone) / effort.alone, median(together) / effort.together
    return Line(
        what=f"SQLite group commit: commits with {MANY} in flight / alone",
        floor=per_second(COMMITS_OF_LIFE, slow),
        subject=per_second(COMMITS_OF_LIFE, fast),
        ratio=slow / fast,
    )


@asynccontextmanager
async def _store(path: Path) -> AsyncGenerator[TaskStore]:
    async with await open_storage(f"sqlite:///{path}?synchronous=full") as storage:
        yield TaskStore(storage, ROOMY)


class _Through:
    """The SQL of lives, through the engine's writer and reader."""

    def __init__(self, path: Path, lives: Sequence[Life]) -> None:
        location = Location(path=path)
        prepare_database(location)
        self._writer = Writer(location, connect(location))
        self._reader = Reader(location, connect(location))
        self._lives = iter(lives)

    async def live(self) -> None:
        life = next(self._lives)
        for step in life.steps:
            await self._writer.run(partial(_commit, step))
        await self._reader.run_inline(partial(read, life=life), rows=1)

    async def __aenter__(self) -> _Through:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._writer.close()
        await self._reader.close()


def _commit(step: Step, transaction: Transaction) -> None:
    """Send a commit's SQL past the transaction's code, which adds the counters up and writes them."""
    play(transaction._db, step)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    count(transaction._deltas, step)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


class _Bare:
    """The SQL of lives, in a loop that blocks."""

    def __init__(self, path: Path, lives: Sequence[Life]) -> None:
        location = Location(path=path)
        prepare_database(location)
        self._writing = connect(location)
        self._reading = connect(location)
        self._lives = iter(lives)

    async def live(self, number: int, together: int) -> None:
        for _ in range(number // together):
            self._live(list(islice(self._lives, together)))

    def _live(self, lives: Sequence[Life]) -> None:
        for steps in zip(*(life.steps for life in lives), strict=True):
            _transact(self._writing, steps)
        for life in lives:
            read(self._reading, life)

    async def __aenter__(self) -> _Bare:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writing.close()
        self._reading.close()


def _transact(db: sqlite3.Connection, steps: Sequence[Step]) -> None:
    deltas: Deltas = Counter()
    db.execute("BEGIN IMMEDIATE")
    for step in steps:
        play(db, step)
        count(deltas, step)
    flush(db, deltas)
    db.execute("COMMIT")
