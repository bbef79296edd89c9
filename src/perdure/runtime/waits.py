"""Waits for changes that any process writes, by notifications and by polling."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from random import uniform
from typing import TypeVar

from ..storage import Watch
from ..storage.errors import NotReadableHere, PerdureError, StorageBusy, StorageFailed, StorageUnavailable
from ..tasks import Owner, Snapshot, TaskStore
from ..tasks.errors import NotFound
from ..tasks.task_record import is_task_id
from ..tasks.task_snapshot import TASKS

T = TypeVar("T")
log = logging.getLogger("perdure.runtime")

BUSY_DELAYS = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 10.0)
"""Seconds before each repetition of a call while the storage is busy."""
MAX_FAILED_READS = 3
"""Maximum number of consecutive reads that fail with StorageFailed, whose cause may be permanent."""


async def changed_within(watch: Watch, seconds: float) -> None:
    """Return at the next notification, or after a number of seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await watch.changed()


async def states(
    store: TaskStore, owner: Owner, task_id: str, poll_interval: float
) -> AsyncGenerator[Snapshot]:
    """Yield the current state of a task, and each newer state that is read, until the task has ended.

    States between two reads are skipped, but never the last one. Raise NotFound if the task does not exist.
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
    """Return the task, or None if the storage cannot be read now; the next read may succeed."""
    try:
        return await store.get(owner, task_id)
    except (StorageBusy, StorageUnavailable):
        return None


async def retry_busy(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call, and repeat it for a while if the storage is busy."""
    for delay in BUSY_DELAYS:
        try:
            return await call()
        except PerdureError as error:
            if not error.retryable or isinstance(error, NotReadableHere):  # waiting does not make it readable
                raise
            log.info("%s; trying again in %s seconds", error, delay)
        await asyncio.sleep(delay)
    return await call()
