"""What it costs to run a task: an empty function, from submit to its end, compared with the two writes.

The baseline creates a task, awaits an empty coroutine in an asyncio task and finishes the task: the minimum
for a durable task. It takes no lease, so the task would be lost with its process. The difference is the
lease, which is also measured alone, the run, and notifying those that wait. The end is awaited in two ways:
with `Runtime.wait`, and through an executor that reports the end of a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

import msgspec

from perdure.runtime import InProcessExecutor, Job, Runtime, RuntimeConfig
from perdure.runtime.lease import Holder, give_up, written
from perdure.storage import Change, Record, open_storage
from perdure.tasks import NewTask, Owner, Snapshot, Success, TaskId, TaskStore, edits
from tests import task_edits

from .report import ResultRow, Target, at_least, per_second
from .timing import CPU, WALL, Clock, Contender, Seconds, race, ratio, spread
from .workload import ROOMY, nothing, open_runtime, owners

MANY = 64
"""The number of concurrent tasks."""
SLOTS = RuntimeConfig(concurrency=2 * MANY)
"""Enough slots for each task to start where it is created, even before the previous run has released its
slot.
"""

CALL = NewTask(method="tools/call", params={"name": "nothing", "arguments": {}})
DONE = Success.of(None)


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks per round, one by one (on SQLite, in memory) and concurrently, and the number of rounds."""

    alone: int
    alone_in_memory: int
    together: int
    rounds: int


async def measure(folder: Path, workload: Workload) -> list[ResultRow]:
    in_memory = await _measure("memory", "memory:", "memory:", workload, CPU)
    baseline, subject = (f"sqlite:///{folder / name}.db?synchronous=full" for name in ("baseline", "runtime"))
    return [*in_memory, *await _measure("SQLite", baseline, subject, workload, WALL)]


async def _measure(
    engine: str, floor_url: str, url: str, workload: Workload, clock: Clock
) -> list[ResultRow]:
    async with await open_storage(floor_url) as storage, opened(url) as subject:
        baseline = TaskStore(storage, ROOMY, application="benchmarks")
        alone = workload.alone_in_memory if engine == "memory" else workload.alone
        some = await race(_contenders(baseline, subject, alone, 1), workload.rounds, clock)
        many = await race(_contenders(baseline, subject, workload.together, MANY), workload.rounds, clock)
    return [
        *_rows(f"{engine} run, alone", alone, some),
        *_rows(f"{engine} run, {MANY} in flight", workload.together, many),
    ]


def _contenders(baseline: TaskStore, subject: Subject, number: int, concurrency: int) -> list[Contender]:
    owner = owners()
    return [
        lambda: spread(lambda: least(baseline, next(owner)), number, concurrency),
        lambda: spread(lambda: leased(baseline, next(owner)), number, concurrency),
        lambda: spread(lambda: subject.text(next(owner)), number, concurrency),
        lambda: spread(lambda: subject.waited(next(owner)), number, concurrency),
    ]


def _rows(what: str, number: int, seconds: list[Seconds]) -> list[ResultRow]:
    baseline, leased, text, waited = seconds
    return [
        _row(f"{what}: two writes with a lease / two writes", number, baseline, leased),
        _row(f"{what}: submit until it ended / two writes", number, baseline, text, at_least(0.7)),
        _row(f"{what}: submit and wait / two writes", number, baseline, waited, at_least(0.7)),
    ]


def _row(
    what: str, number: int, baseline: Seconds, subject: Seconds, target: Target | None = None
) -> ResultRow:
    return ResultRow(
        what=what,
        baseline=per_second(number, median(baseline)),
        subject=per_second(number, median(subject)),
        ratio=ratio(baseline, subject),
        target=target,
    )


async def least(store: TaskStore, owner: Owner) -> None:
    """Do the minimum for a task that runs."""
    created = await store.create(owner, CALL)
    await asyncio.create_task(nothing())
    await task_edits.finish(store, created, DONE)


async def leased(store: TaskStore, owner: Owner) -> None:
    """Do the same with a lease, which the first write takes and the second releases."""
    holder = Holder("worker", "benchmarks", 10**7, store.clock)
    leases: list[Record] = []

    def take(first: Snapshot) -> Change:
        change = holder.take(first, None)
        leases.append(written(change))
        return change

    created = await store.create(owner, CALL, lease=take)
    await asyncio.create_task(nothing())
    await store.edit(
        created,
        lambda task, now, config: edits.finish(task, DONE, now=now, config=config),
        lease=lambda ended: give_up(leases[0], ended),
    )


class Subject:
    """A runtime whose tasks are awaited in two ways."""

    def __init__(self, runtime: Runtime, ends: Ends) -> None:
        self._runtime = runtime
        self._ends = ends

    async def waited(self, owner: Owner) -> None:
        created = await self._runtime.submit("nothing", owner=owner)
        await self._runtime.wait(owner, created.task.task_id)

    async def text(self, owner: Owner) -> None:
        created = await self._runtime.submit("nothing", owner=owner)
        await self._ends.of(created.task.task_id)


@asynccontextmanager
async def opened(url: str, config: RuntimeConfig = SLOTS) -> AsyncGenerator[Subject]:
    ends = Ends()
    opening = open_runtime(url, lambda store: _ReportingExecutor(store, config, ends), config)
    async with opening as runtime, runtime.running():
        yield Subject(runtime, ends)


class Ends:
    """Those that wait in this process for the end of a run."""

    def __init__(self) -> None:
        self._waiting: dict[TaskId, asyncio.Future[None]] = {}

    def of(self, task_id: TaskId) -> asyncio.Future[None]:
        end = self._waiting[task_id] = asyncio.get_running_loop().create_future()
        return end

    def notify(self, task_id: TaskId) -> None:
        end = self._waiting.pop(task_id, None)
        if end is not None:
            end.set_result(None)


class _ReportingExecutor(InProcessExecutor):
    """An executor that reports when a run has ended."""

    def __init__(self, store: TaskStore, config: RuntimeConfig, ends: Ends) -> None:
        super().__init__(store, config)
        self._ends = ends

    async def submit(self, job: Job) -> None:
        await super().submit(job)
        self._ends.notify(job.claim.snapshot.task.task_id)
