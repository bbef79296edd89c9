"""Synthetic tasks by the million: copies of a few that the store has written, each with its own id and time.

`fill` stores queued tasks, each in the listings and in one lane of timers. Every second task is Ana's, the
others belong to twenty other owners, in turn by time. So a small storage is a scaled-down large one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import count, cycle
from typing import TypeAlias

from msgspec.structs import replace

from perdure.storage import (
    Change,
    Committed,
    Guard,
    Insert,
    Micros,
    Record,
    Refused,
    Replace,
    Storage,
    open_storage,
)
from perdure.storage.memory import MemoryEngine
from perdure.storage.time_types import system_clock
from perdure.tasks import Owner, TaskStore
from perdure.tasks.edits import create, run_lane
from perdure.tasks.task_record import new_task_id
from perdure.tasks.task_snapshot import TASKS, new_snapshot

from ..workload import COMMITS_PER_LIFECYCLE, NEW, OWNERS, ROOMY, run_lifecycle

FUNCTION = "build_report"
LANE = run_lane("benchmarks", FUNCTION)
BATCH = 25
"""The maximum number of changes per commit."""
TURNS = 40
"""Each commit has one of this many consecutive tasks."""
STEP = TURNS * BATCH
"""Numbers of tasks are multiples of this."""
CLIENTS = 2
"""More than one, so that the server is busy while a client prepares its next commits."""
IN_FLIGHT = 128
"""Concurrent commits of each client."""


async def fill(url: str, number: int) -> None:
    """Store tasks directly, because the store would create them one by one."""
    assert number % STEP == 0, number
    batches = _batches(number)

    async def share(client: Storage) -> None:
        for batch in batches:
            await client.commit(batch, now=batch[0].record.order)

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await open_storage(url)) for _ in range(CLIENTS)]
        await asyncio.gather(*(share(client) for client in clients for _ in range(IN_FLIGHT)))
        counts = await clients[0].counts(TASKS, now=system_clock())
        assert sum(counts.values()) == number, counts


def _batches(number: int) -> Iterator[list[Insert]]:
    started = system_clock() - number
    of_ana, *of_others = [_sample(owner, started) for owner in OWNERS[: 1 + TURNS // 2]]
    for start in range(started, started + number, STEP):
        for turn in range(TURNS):
            sample = of_ana if turn % 2 else of_others[turn // 2]
            yield [Insert(record=_queued(sample, start + turn + TURNS * each)) for each in range(BATCH)]


def _sample(owner: Owner, now: Micros) -> Record:
    new = replace(NEW, function=FUNCTION)
    task = create(new, application="benchmarks", owner=owner, task_id=new_task_id(), now=now, config=ROOMY)
    return new_snapshot(task, ROOMY).record


def _queued(sample: Record, order: Micros) -> Record:
    """Return a copy that is queued since its creation."""
    return replace(copy_for_new_task(sample, order), wake_at=order)


# Lifecycles

Lifecycle: TypeAlias = tuple[Record, ...]
"""The record that each commit of a task writes, in order."""


async def lifecycles() -> Iterator[Lifecycle]:
    """Yield lifecycles of tasks, of each owner in turn, forever: byte for byte what the store would write."""
    engine = _RecordingEngine()
    store = TaskStore(Storage(engine), ROOMY, application="benchmarks")
    for owner in OWNERS:
        await run_lifecycle(store, owner)
    recorded = [
        tuple(engine.written[start : start + COMMITS_PER_LIFECYCLE])
        for start in range(0, len(engine.written), COMMITS_PER_LIFECYCLE)
    ]
    return map(_copy, cycle(recorded), count(system_clock()))


def copy_for_new_task(record: Record, order: Micros) -> Record:
    """Return a copy of the record for another task."""
    return _with_key(record, new_task_id(), order)


def _copy(lifecycle: Lifecycle, order: Micros) -> Lifecycle:
    key = new_task_id()
    return tuple(_with_key(record, key, order) for record in lifecycle)


def _with_key(record: Record, key: str, order: Micros) -> Record:
    """Return the record with another key. All ids have the same length, and so have the bodies."""
    return replace(record, key=key, order=order, body=record.body.replace(record.key, key))


class _RecordingEngine(MemoryEngine):
    """A memory engine that also lists what it has written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[Record] = []

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        for change in changes:
            assert isinstance(change, (Insert, Replace))
            self.written.append(change.record if isinstance(change, Insert) else change.after)
        return await super().commit(changes, guard=guard, now=now)
