"""Whole lifecycles of tasks on a SQLite file, flushed to disk, compared with the same SQL sent without the
store.

There are two baselines. One goes through the engine's writer thread and shares transactions as the store
does, so the difference is the store and the engine's code around its SQL. The other is a blocking loop: the
time that SQLite itself takes for these statements, in transactions of the same size.
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
from perdure.storage.sqlite.read_connections import Reader
from perdure.storage.sqlite.write_transaction import Transaction
from perdure.storage.sqlite.writer import Writer
from perdure.tasks import TaskStore

from .replay import Deltas, Lifecycle, Step, count, flush, play, read, write_down
from .report import ResultRow, at_least, per_second
from .timing import Contender, Seconds, race, ratio, spread
from .workload import COMMITS_PER_LIFECYCLE, ROOMY, owners, run_lifecycle

MANY = 64
"""The number of concurrent lifecycles."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The lifecycles per round, one by one and concurrently, and the number of rounds."""

    alone: int
    together: int
    rounds: int

    @property
    def lifecycles(self) -> int:
        """The total of one contender, including the rounds for warming up."""
        return (self.alone + self.together) * (self.rounds + 1)


async def measure(folder: Path, workload: Workload) -> list[ResultRow]:
    """Measure lifecycles one by one, concurrent lifecycles, and the gain from sharing a flush."""
    lifecycles = await write_down(workload.lifecycles)
    gc.collect()
    gc.freeze()  # keep the garbage collector away from what was prepared for the baselines
    async with (
        _store(folder / "store.db") as store,
        _ThroughWriter(folder / "through.db", lifecycles) as through,
        _BlockingLoop(folder / "blocking.db", lifecycles) as blocking,
    ):
        alone = await race(_contenders(store, through, blocking, workload.alone, 1), workload.rounds)
        together = await race(_contenders(store, through, blocking, workload.together, MANY), workload.rounds)
    gc.unfreeze()
    _check_alike(folder)
    return [
        *_rows("alone", workload.alone, alone),
        *_rows(f"{MANY} in flight", workload.together, together),
        _gain(workload, alone[0], together[0]),
    ]


def _contenders(
    store: TaskStore, through: _ThroughWriter, blocking: _BlockingLoop, number: int, concurrency: int
) -> list[Contender]:
    owner = owners()
    return [
        lambda: spread(lambda: run_lifecycle(store, next(owner)), number, concurrency),
        lambda: spread(through.run_lifecycle, number, concurrency),
        lambda: blocking.run_lifecycle(number, concurrency),
    ]


def _check_alike(folder: Path) -> None:
    """Check that the baselines have written the same as the store."""
    found: set[tuple[object, ...]] = set()
    for path in folder.glob("*.db"):
        with closing(sqlite3.connect(path)) as db:
            counted = db.execute("SELECT tag, n FROM counts WHERE partition = ''").fetchall()
            written = db.execute("SELECT tag, count(*), sum(version) FROM records GROUP BY tag").fetchall()
            found.add((*counted, *written))
    assert len(found) == 1, found


def _rows(how: str, number: int, seconds: Sequence[Seconds]) -> list[ResultRow]:
    """Compare throughputs: the ratios are the inverse of those of the seconds."""
    store, through, blocking = (per_second(number, median(each)) for each in seconds)
    return [
        ResultRow(
            what=f"SQLite life, {how}: store / its SQL through the writer",
            baseline=through,
            subject=store,
            ratio=ratio(seconds[1], seconds[0]),
            target=at_least(0.6),
        ),
        ResultRow(
            what=f"SQLite life, {how}: store / its SQL in a blocking loop",
            baseline=blocking,
            subject=store,
            ratio=ratio(seconds[2], seconds[0]),
        ),
    ]


def _gain(workload: Workload, alone: Seconds, together: Seconds) -> ResultRow:
    slow, fast = median(alone) / workload.alone, median(together) / workload.together
    return ResultRow(
        what=f"SQLite group commit: commits with {MANY} in flight / alone",
        baseline=per_second(COMMITS_PER_LIFECYCLE, slow),
        subject=per_second(COMMITS_PER_LIFECYCLE, fast),
        ratio=slow / fast,
    )


@asynccontextmanager
async def _store(path: Path) -> AsyncGenerator[TaskStore]:
    async with await open_storage(f"sqlite:///{path}?synchronous=full") as storage:
        yield TaskStore(storage, ROOMY, application="benchmarks")


class _ThroughWriter:
    """Sends the SQL of lifecycles through the engine's writer and reader."""

    def __init__(self, path: Path, lifecycles: Sequence[Lifecycle]) -> None:
        location = Location(path=path)
        prepare_database(location)
        self._writer = Writer(location, connect(location))
        self._reader = Reader(location, connect(location))
        self._lifecycles = iter(lifecycles)

    async def run_lifecycle(self) -> None:
        lifecycle = next(self._lifecycles)
        for step in lifecycle.steps:
            await self._writer.run(partial(_commit, step))
        await self._reader.run_inline(partial(read, lifecycle=lifecycle), rows=1)

    async def __aenter__(self) -> _ThroughWriter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._writer.close()
        await self._reader.close()


def _commit(step: Step, transaction: Transaction) -> None:
    """Send a commit's SQL directly; the transaction adds up the counters and writes them."""
    play(transaction._db, step)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    count(transaction._deltas, step)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


class _BlockingLoop:
    """Sends the SQL of lifecycles in a blocking loop."""

    def __init__(self, path: Path, lifecycles: Sequence[Lifecycle]) -> None:
        location = Location(path=path)
        prepare_database(location)
        self._writing = connect(location)
        self._reading = connect(location)
        self._lifecycles = iter(lifecycles)

    async def run_lifecycle(self, number: int, together: int) -> None:
        for _ in range(number // together):
            self._run(list(islice(self._lifecycles, together)))

    def _run(self, lifecycles: Sequence[Lifecycle]) -> None:
        for steps in zip(*(lifecycle.steps for lifecycle in lifecycles), strict=True):
            _transact(self._writing, steps)
        for lifecycle in lifecycles:
            read(self._reading, lifecycle)

    async def __aenter__(self) -> _BlockingLoop:
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
