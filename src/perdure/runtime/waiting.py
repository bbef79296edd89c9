"""Waiting for what others write, in this process or another: wake-ups, and a look now and then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from random import uniform

from ..storage import Watch
from ..storage.errors import StorageBusy, StorageFailed, StorageUnavailable
from ..tasks import Owner, Snapshot, TaskStore
from ..tasks.errors import NotFound
from ..tasks.stored_task import TASKS
from ..tasks.task_record import is_task_id

MAX_FAILED_READS = 3
"""How many reads in a row may fail for a reason that is not known to pass."""


async def changed_within(watch: Watch, seconds: float) -> None:
    """Return at the next wake-up, or when the time is over."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await watch.changed()


async def states(
    store: TaskStore, owner: Owner, task_id: str, poll_interval: float
) -> AsyncGenerator[Snapshot]:
    """The task as it is, then each newer state that is seen, up to its end. NotFound when it is gone.

    States that come and go between two looks are not seen; the last one always is.
    """
    if not is_task_id(task_id):
        raise NotFound
    seen = failed = 0
    async with store.storage.watch(TASKS, store.partition_of(owner, task_id), task_id) as watch:
        while True:
            try:
                snapshot, failed = await look(store, owner, task_id), 0
            except StorageFailed:
                snapshot, failed = None, failed + 1
                if failed > MAX_FAILED_READS:
                    raise
            if snapshot is not None and snapshot.version > seen:
                seen = snapshot.version
                yield snapshot
                if snapshot.task.is_terminal:
                    return
            await changed_within(watch, poll_interval * uniform(0.5, 1.5))


async def look(store: TaskStore, owner: Owner, task_id: str) -> Snapshot | None:
    """The task, or none where the storage cannot say just now; the next look may succeed."""
    try:
        return await store.get(owner, task_id)
    except (StorageBusy, StorageUnavailable):
        return None
