"""How fast workers empty a queue that was filled before, against as many plain holds by one process.

A worker here claims and does nothing else: its executor counts. Each claim is one commit of the task and its
lease. The floor takes the same tasks into work without leases, as many at a time as a worker claims at once,
and need not look for them, nor share them with anybody.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic
from typing import TypeAlias, cast

import msgspec

from perdure.runtime import App, Executor, Job, Stop
from perdure.runtime.intake import AT_ONCE
from perdure.storage import open_storage
from perdure.tasks import NewTask, Snapshot, TaskId, TaskStore
from perdure.tasks.edits import lane_of
from tests import task_edits

from .processes import Crew, Link, Mate
from .report import Line, per_second
from .runtime_overhead import nothing
from .timing import Seconds, ratio, spread
from .workload import ROOMY, owners

WORKERS = (1, 4, 16)
NEW = NewTask(method="tools/call", params={"name": "nothing", "arguments": {}}, function="nothing")
LOOK = 0.005
"""Seconds between two looks whether all is claimed."""
IDLE = 1.0
"""Seconds without a claim after which a worker believes that the queue is empty."""

Timed: TypeAlias = Callable[[str], Awaitable[float]]
"""Empties the queue of the file at this URL, and says how many seconds that took."""


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much is run: tasks in the queue of one round, and rounds."""

    tasks: int
    rounds: int


async def measure(folder: Path, effort: Effort) -> list[Line]:
    full = folder / "queue.db"
    await _fill(full, effort.tasks)
    with Crew(max(WORKERS)) as mates:
        contenders: list[Timed] = [
            partial(_hold_all, tasks=effort.tasks),
            *(partial(_in_processes, mates[:number], effort.tasks) for number in WORKERS),
            *(partial(_in_one_process, number, effort.tasks) for number in WORKERS),
        ]
        floor, *others = await _race(full, contenders, effort.rounds)
    hows = [f"{number} in {where}" for where in ("processes", "one process") for number in WORKERS]
    return [_line(how, effort, floor, each) for how, each in zip(hows, others, strict=True)]


def _line(how: str, effort: Effort, floor: Seconds, subject: Seconds) -> Line:
    return Line(
        what=f"SQLite claims, workers {how}: claims / holds",
        floor=per_second(effort.tasks, median(floor)),
        subject=per_second(effort.tasks, median(subject)),
        ratio=ratio(floor, subject),
    )


async def _fill(path: Path, number: int) -> None:
    """Tasks that wait for a worker."""
    async with await open_storage(f"sqlite:///{path}?synchronous=normal") as storage:
        store, owner = TaskStore(storage, ROOMY), owners()
        await spread(lambda: store.create(next(owner), NEW), number, 64)


async def _race(full: Path, contenders: Sequence[Timed], rounds: int) -> list[Seconds]:
    """As `measure.race`, but each run has a file of its own, and times itself."""
    seconds: list[Seconds] = [[] for _ in contenders]
    for number in range(rounds + 1):
        order = list(enumerate(contenders))
        for index, contender in reversed(order) if number % 2 else order:
            path = full.with_name("emptied.db")
            shutil.copy(full, path)
            seconds[index].append(await contender(f"sqlite:///{path}?synchronous=full"))
            for each in full.parent.glob("emptied.db*"):
                each.unlink()
    return [each[1:] for each in seconds]  # the first round was for warming up


# The floor


async def _hold_all(url: str, tasks: int) -> float:
    async with await open_storage(url) as storage:
        store = TaskStore(storage, ROOMY)
        now = store.clock()
        found = await storage.due(lane_of("nothing"), until=now, limit=tasks, now=now)
        waiting = map(Snapshot.from_record, found)
        began = monotonic()
        await spread(lambda: task_edits.claim(store, next(waiting)), tasks, AT_ONCE)
        return monotonic() - began


# The workers


class _Taking(Executor):
    """Notes that a task was claimed, and leaves it at that."""

    def __init__(self) -> None:
        self.taken = 0
        self.last = monotonic()

    async def submit(self, job: Job) -> None:  # noqa: ARG002
        self.taken += 1
        self.last = monotonic()

    def cancel(self, task_id: TaskId, why: Stop) -> None:
        """Nothing runs."""


def _app(url: str, taking: _Taking) -> App:
    app = App(url, store=ROOMY, executor=lambda _store, _config: taking)
    app.function()(nothing)
    return app


async def _in_one_process(number: int, tasks: int, url: str) -> float:
    taking = [_Taking() for _ in range(number)]
    async with AsyncExitStack() as stack:
        runtimes = [await stack.enter_async_context(_app(url, each).open(work=False)) for each in taking]
        began = monotonic()
        for runtime in runtimes:
            await stack.enter_async_context(runtime.running())
        while sum(each.taken for each in taking) < tasks:  # noqa: ASYNC110 - a look costs less than telling
            await asyncio.sleep(LOOK)
    return max(each.last for each in taking) - began


async def _in_processes(mates: Sequence[Mate], tasks: int, url: str) -> float:
    """The measuring process only waits, so it may as well block."""
    for mate in mates:
        mate.begin(_claim, url)
    for mate in mates:
        mate.hear()  # it is ready
    began = monotonic()
    for mate in mates:
        mate.tell("go")
    results = [cast("tuple[int, float]", mate.hear()) for mate in mates]
    assert sum(taken for taken, _ in results) == tasks, results
    return max(last for _, last in results) - began


def _claim(link: Link, url: str) -> tuple[int, float]:
    """In a process of the crew: claim until there is nothing left; how many, and when the last."""
    return asyncio.run(_claim_until_empty(link, url))


async def _claim_until_empty(link: Link, url: str) -> tuple[int, float]:
    taking = _Taking()
    async with _app(url, taking).open(work=False) as runtime:
        link.send("ready")
        link.recv()
        taking.last = monotonic()
        async with runtime.running():
            while monotonic() - taking.last < IDLE:  # noqa: ASYNC110
                await asyncio.sleep(LOOK)
    return taking.taken, taking.last
