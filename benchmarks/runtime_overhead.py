"""What it costs to have a task run: an empty function, from submit to its end, against the two writes of it.

The floor creates a task, awaits an empty coroutine in an asyncio task and finishes: nobody who keeps a task
durable does less. It takes no lease, so it would lose the task with its process; the lease, which is measured
alone too, the run, and the telling of whoever waits are what lies between. The end is awaited in two ways:
with `Runtime.wait`, and through an executor that says when a run is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

import msgspec

from perdure.runtime import App, Executor, InProcessExecutor, Job, Runtime, RuntimeConfig
from perdure.runtime.lease import Holder, give_up, written
from perdure.storage import Change, Record, open_storage
from perdure.tasks import NewTask, Owner, Snapshot, Success, TaskId, TaskStore, edits
from tests import task_edits

from .report import Line, Target, at_least, per_second
from .timing import CPU, WALL, Clock, Contender, Seconds, race, ratio, spread
from .workload import ROOMY, owners

MANY = 64
"""Tasks in flight at once."""
SLOTS = RuntimeConfig(concurrency=2 * MANY)
"""Room for every task to begin where it is created, also while the run before it gives its slot back."""

CALL = NewTask(method="tools/call", params={"name": "nothing", "arguments": {}})
DONE = Success.of(None)


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much is run: tasks of one round alone (on SQLite, in memory) and with others, and rounds."""

    alone: int
    alone_in_memory: int
    together: int
    rounds: int


async def measure(folder: Path, effort: Effort) -> list[Line]:
    in_memory = await _measure("memory", "memory:", "memory:", effort, CPU)
    floor, subject = (f"sqlite:///{folder / name}.db?synchronous=full" for name in ("floor", "runtime"))
    return [*in_memory, *await _measure("SQLite", floor, subject, effort, WALL)]


async def _measure(engine: str, floor_url: str, url: str, effort: Effort, clock: Clock) -> list[Line]:
    async with await open_storage(floor_url) as storage, opened(url) as subject:
        floor = TaskStore(storage, ROOMY)
        alone = effort.alone_in_memory if engine == "memory" else effort.alone
        some = await race(_contenders(floor, subject, alone, 1), effort.rounds, clock)
        many = await race(_contenders(floor, subject, effort.together, MANY), effort.rounds, clock)
    return [
        *_lines(f"{engine} run, alone", alone, some),
        *_lines(f"{engine} run, {MANY} in flight", effort.together, many),
    ]


def _contenders(floor: TaskStore, subject: Subject, number: int, concurrency: int) -> list[Contender]:
    owner = owners()
    return [
        lambda: spread(lambda: least(floor, next(owner)), number, concurrency),
        lambda: spread(lambda: leased(floor, next(owner)), number, concurrency),
        lambda: spread(lambda: subject.told(next(owner)), number, concurrency),
        lambda: spread(lambda: subject.waited(next(owner)), number, concurrency),
    ]


def _lines(what: str, number: int, seconds: list[Seconds]) -> list[Line]:
    floor, leased, told, waited = seconds
    return [
        _line(f"{what}: two writes with a lease / two writes", number, floor, leased),
        _line(f"{what}: submit until it ended / two writes", number, floor, told, at_least(0.7)),
        _line(f"{what}: submit and wait / two writes", number, floor, waited, at_least(0.7)),
    ]


def _line(what: str, number: int, floor: Seconds, subject: Seconds, target: Target | None = None) -> Line:
    return Line(
        what=what,
        floor=per_second(number, median(floor)),
        subject=per_second(number, median(subject)),
        ratio=ratio(floor, subject),
        target=target,
    )


async def least(store: TaskStore, owner: Owner) -> None:
    """What a task that runs cannot do without."""
    created = await store.create(owner, CALL)
    await asyncio.create_task(nothing())
    await task_edits.finish(store, created, DONE)


async def leased(store: TaskStore, owner: Owner) -> None:
    """The same under a lease, which is taken with the first write and given up with the second."""
    holder = Holder("worker", 10**7, store.clock)
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


async def nothing() -> None:
    """The work."""


class Subject:
    """A runtime whose tasks are awaited in two ways."""

    def __init__(self, runtime: Runtime, ends: Ends) -> None:
        self._runtime = runtime
        self._ends = ends

    async def waited(self, owner: Owner) -> None:
        created = await self._runtime.submit("nothing", owner=owner)
        await self._runtime.wait(owner, created.task.task_id)

    async def told(self, owner: Owner) -> None:
        created = await self._runtime.submit("nothing", owner=owner)
        await self._ends.of(created.task.task_id)


@asynccontextmanager
async def opened(url: str, config: RuntimeConfig = SLOTS) -> AsyncGenerator[Subject]:
    ends = Ends()

    def executor(store: TaskStore, config: RuntimeConfig) -> Executor:
        return _Telling(store, config, ends)

    app = App(url, store=ROOMY, runtime=config, executor=executor)
    app.function()(nothing)
    async with app.open() as runtime:
        yield Subject(runtime, ends)


class Ends:
    """Whoever waits in this process for the end of a run."""

    def __init__(self) -> None:
        self._waiting: dict[TaskId, asyncio.Future[None]] = {}

    def of(self, task_id: TaskId) -> asyncio.Future[None]:
        end = self._waiting[task_id] = asyncio.get_running_loop().create_future()
        return end

    def tell(self, task_id: TaskId) -> None:
        end = self._waiting.pop(task_id, None)
        if end is not None:
            end.set_result(None)


class _Telling(InProcessExecutor):
    """Says when a run is over."""

    def __init__(self, store: TaskStore, config: RuntimeConfig, ends: Ends) -> None:
        super().__init__(store, config)
        self._ends = ends

    async def submit(self, job: Job) -> None:
        await super().submit(job)
        self._ends.tell(job.claim.snapshot.task.task_id)
