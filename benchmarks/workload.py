"""The task that all benchmarks use: about 1 KB of JSON, and its lifecycle."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count

from perdure.runtime import App, Executor, Runtime, RuntimeConfig
from perdure.storage import Record, open_storage
from perdure.storage.time_types import system_clock
from perdure.tasks import NewTask, Owner, Progress, Snapshot, StoreConfig, Success, TaskStore
from perdure.tasks.edits import create
from perdure.tasks.task_record import new_task_id
from perdure.tasks.task_snapshot import new_snapshot
from tests import task_edits

ROOMY = StoreConfig(max_tasks=0, max_tasks_per_owner=10**6)
"""Quotas that are checked, as in production, but refuse nothing here."""

OWNERS = tuple(Owner.user("https://issuer.example", f"user-{number}") for number in range(50))
ANA = OWNERS[0]

NEW = NewTask(
    method="tools/call",
    params={
        "name": "build_report",
        "arguments": {
            "year": 2026,
            "sections": [f"section {number} of the yearly report" for number in range(12)],
            "notes": "Everything that the customer said about it. " * 5,
        },
    },
    meta={"progressToken": 17, "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
)

COMMITS_PER_LIFECYCLE = 4
"""A create, two updates and a finish; then a read."""


_BEGAN = system_clock()


def record(number: int) -> Record:
    """Return the record of a new task of Ana; a greater number is a later task."""
    task = create(
        NEW, application="benchmarks", owner=ANA, task_id=new_task_id(), now=_BEGAN + number, config=ROOMY
    )
    return new_snapshot(task, ROOMY).record


def owners() -> Iterator[Owner]:
    """Yield the owners in turn, forever."""
    return (OWNERS[number % len(OWNERS)] for number in count())


async def run_lifecycle(store: TaskStore, owner: Owner) -> Snapshot:
    """Create a task, update it twice, finish it, and read it."""
    read = await store.create(owner, NEW)
    read = await task_edits.report(store, read, message="collecting", progress=Progress(done=3, total=12))
    read = await task_edits.set_variables(
        store, read, {"page": 3, "rows": [1, 2, 3], "cursor": "abcdef0123456789"}
    )
    read = await task_edits.finish(
        store, read, Success.of({"content": [{"type": "text", "text": "12 pages"}]})
    )
    return await store.get(owner, read.task.task_id)


async def nothing() -> None:
    """Do nothing: an empty task."""


@asynccontextmanager
async def open_runtime(
    url: str, executor: Callable[[TaskStore], Executor], config: RuntimeConfig = RuntimeConfig()
) -> AsyncGenerator[Runtime]:
    """Open a runtime with another executor, whose only function is `nothing`. It does not work yet."""
    app = App(url, application="benchmarks")
    app.function(nothing)
    async with await open_storage(url) as storage:
        store = TaskStore(storage, ROOMY, application="benchmarks")
        yield Runtime(store, app.functions, config, executor=executor(store))
