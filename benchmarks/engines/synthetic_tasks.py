"""A storage full of tasks that wait for a worker, each in the listings and in one lane of timers.

Every second task is Ana's, the others are those of twenty others, and by time they take turns. So a small
storage is to a large one as its beginning is to the whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack

from msgspec.structs import replace

from perdure.storage import Insert, Micros, Record, Storage, open_storage
from perdure.storage.clock import system_clock
from perdure.tasks import Owner
from perdure.tasks.edits import create, lane_of
from perdure.tasks.record import new_task_id
from perdure.tasks.snapshot import TASKS, new_snapshot

from ..workload import NEW, OWNERS, ROOMY
from .copies import copied

FUNCTION = "build_report"
LANE = lane_of(FUNCTION)
BATCH = 25
"""The most changes of a commit."""
TURNS = 40
"""Commits of which each has one task in as many that follow each other."""
STEP = TURNS * BATCH
"""What numbers of tasks are multiples of."""
CLIENTS = 2
"""So that the server has something to do while one of them puts its next commits together."""
IN_FLIGHT = 128
"""Commits of each."""


async def fill(url: str, number: int) -> None:
    """Store so many tasks, past the store, which would create them one by one."""
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
    began = system_clock() - number
    of_ana, *of_others = [_sample(owner, began) for owner in OWNERS[: 1 + TURNS // 2]]
    for start in range(began, began + number, STEP):
        for turn in range(TURNS):
            sample = of_ana if turn % 2 else of_others[turn // 2]
            yield [Insert(record=_waiting(sample, start + turn + TURNS * each)) for each in range(BATCH)]


def _sample(owner: Owner, now: Micros) -> Record:
    new = replace(NEW, function=FUNCTION)
    task = create(new, owner=owner, task_id=new_task_id(), now=now, config=ROOMY)
    return new_snapshot(task, ROOMY).record


def _waiting(sample: Record, order: Micros) -> Record:
    """It waits since it was created."""
    return replace(copied(sample, order), wake_at=order)
