"""How fast workers empty a full queue, compared with one process that starts the same tasks without claims.

A worker here only claims: its executor counts. Each claim is one commit of the task and its lease. The
baseline starts the same tasks without leases, in batches of the same size. It neither searches for them nor
shares them.
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

from perdure.runtime import Executor, Job, Stop
from perdure.runtime.intake import MAX_CLAIMS_AT_ONCE
from perdure.storage import open_storage
from perdure.tasks import NewTask, Snapshot, TaskId, TaskStore
from perdure.tasks.edits import run_lane
from tests import task_edits

from .processes import ChildProcess, Link, ProcessGroup
from .report import ResultRow, per_second
from .timing import Seconds, ratio, spread
from .workload import ROOMY, open_runtime, owners

WORKERS = (1, 4, 16)
NEW = NewTask(method="tools/call", params={"name": "nothing", "arguments": {}}, function="nothing")
POLL_SECONDS = 0.005
"""Seconds between two checks whether everything is claimed."""
IDLE = 1.0
"""Seconds without a claim after which a worker considers the queue empty."""

Timed: TypeAlias = Callable[[str], Awaitable[float]]
"""Empties the queue at this URL and returns the seconds that it took."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks in the queue of one round, and the number of rounds."""

    tasks: int
    rounds: int


async def measure(folder: Path, workload: Workload) -> list[ResultRow]:
    full = folder / "queue.db"
    await _fill(full, workload.tasks)
    with ProcessGroup(max(WORKERS)) as processes:
        contenders: list[Timed] = [
            partial(_hold_all, tasks=workload.tasks),
            *(partial(_in_processes, processes[:number], workload.tasks) for number in WORKERS),
            *(partial(_in_one_process, number, workload.tasks) for number in WORKERS),
        ]
        baseline, *others = await _race(full, contenders, workload.rounds)
    hows = [f"{number} in {where}" for where in ("processes", "one process") for number in WORKERS]
    return [_row(how, workload, baseline, each) for how, each in zip(hows, others, strict=True)]


def _row(how: str, workload: Workload, baseline: Seconds, subject: Seconds) -> ResultRow:
    return ResultRow(
        what=f"SQLite claims, workers {how}: claims / holds",
        baseline=per_second(workload.tasks, median(baseline)),
        subject=per_second(workload.tasks, median(subject)),
        ratio=ratio(baseline, subject),
    )


async def _fill(path: Path, number: int) -> None:
    """Store queued tasks."""
    async with await open_storage(f"sqlite:///{path}?synchronous=normal") as storage:
        store, owner = TaskStore(storage, ROOMY, application="benchmarks"), owners()
        await spread(lambda: store.create(next(owner), NEW), number, 64)


async def _race(full: Path, contenders: Sequence[Timed], rounds: int) -> list[Seconds]:
    """Like `timing.race`, but each run has its own file and times itself."""
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


# The baseline


async def _hold_all(url: str, tasks: int) -> float:
    async with await open_storage(url) as storage:
        store = TaskStore(storage, ROOMY, application="benchmarks")
        now = store.clock()
        found = await storage.due(run_lane("benchmarks", "nothing"), until=now, limit=tasks, now=now)
        waiting = map(Snapshot.from_record, found)
        started = monotonic()
        await spread(lambda: task_edits.claim(store, next(waiting)), tasks, MAX_CLAIMS_AT_ONCE)
        return monotonic() - started


# The workers


class _Taking(Executor):
    """Counts claimed tasks instead of running them."""

    def __init__(self) -> None:
        self.taken = 0
        self.last = monotonic()

    async def submit(self, job: Job) -> None:  # noqa: ARG002
        self.taken += 1
        self.last = monotonic()

    def cancel(self, task_id: TaskId, why: Stop) -> None:
        """Nothing runs."""


async def _in_one_process(number: int, tasks: int, url: str) -> float:
    taking = [_Taking() for _ in range(number)]
    async with AsyncExitStack() as stack:
        runtimes = [
            await stack.enter_async_context(open_runtime(url, lambda _, each=each: each)) for each in taking
        ]
        started = monotonic()
        for runtime in runtimes:
            await stack.enter_async_context(runtime.running())
        while sum(each.taken for each in taking) < tasks:  # noqa: ASYNC110 - polling costs less than notifying
            await asyncio.sleep(POLL_SECONDS)
    return max(each.last for each in taking) - started


async def _in_processes(processes: Sequence[ChildProcess], tasks: int, url: str) -> float:
    """Block: the measuring process has nothing else to do."""
    for process in processes:
        process.start(_claim, url)
    for process in processes:
        process.receive()  # it is ready
    started = monotonic()
    for process in processes:
        process.send("go")
    results = [cast("tuple[int, float]", process.receive()) for process in processes]
    assert sum(taken for taken, _ in results) == tasks, results
    return max(last for _, last in results) - started


def _claim(link: Link, url: str) -> tuple[int, float]:
    """Claim until the queue is empty; return the number of claims and the time of the last. Runs in a child
    process.
    """
    return asyncio.run(_claim_until_empty(link, url))


async def _claim_until_empty(link: Link, url: str) -> tuple[int, float]:
    taking = _Taking()
    async with open_runtime(url, lambda _: taking) as runtime:
        link.send("ready")
        link.recv()
        taking.last = monotonic()
        async with runtime.running():
            while monotonic() - taking.last < IDLE:  # noqa: ASYNC110
                await asyncio.sleep(POLL_SECONDS)
    return taking.taken, taking.last
