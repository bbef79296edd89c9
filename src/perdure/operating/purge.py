"""Deletes expired records and, on request, tasks that finished before a given time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec

from ..storage import Micros, Storage
from ..tasks import Snapshot, TaskRecord, TaskStore
from ..tasks.listing import read_task
from ..tasks.store import PURGE_BATCH_SIZE
from ..tasks.task_snapshot import TASKS
from .listing import iterate_records
from .stats import FINISHED_STATUSES, count_expired
from .views import TAGS


class PurgeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The number of tasks that a purge deleted or, in a dry run, would delete."""

    expired: int
    finished: int
    """Number of tasks that had finished by the given time but had not expired."""
    dry_run: bool


async def purge(
    storage: Storage,
    open_store: Callable[[str], TaskStore],
    *,
    finished_before: Micros | None,
    dry_run: bool,
    now: Micros,
) -> PurgeReport:
    """Delete expired records and, if `finished_before` is set, all tasks that finished by that time.

    With `dry_run`, only count them. `open_store` returns the task store of the application with the given
    name.
    """
    expired = await (count_expired(storage, now) if dry_run else _purge_expired(storage, now))
    finished = 0
    if finished_before is not None:
        async for task in _finished_before(storage, finished_before, now):
            finished += dry_run or await open_store(task.application).delete(task.owner, task.task_id)
    return PurgeReport(expired=expired, finished=finished, dry_run=dry_run)


async def _purge_expired(storage: Storage, now: Micros) -> int:
    count, has_more = 0, True
    while has_more:
        purged = await storage.purge(until=now, limit=PURGE_BATCH_SIZE)
        count += sum(each.space == TASKS for each in purged)
        has_more = len(purged) == PURGE_BATCH_SIZE
    return count


async def _finished_before(storage: Storage, time: Micros, now: Micros) -> AsyncIterator[TaskRecord]:
    """Yield the tasks that finished by a given time, grouped by status, oldest first."""
    for tag in (tag for status in FINISHED_STATUSES for tag in TAGS[status]):
        async for record in iterate_records(storage, TASKS, tag=tag, now=now):
            if record.order > time:
                break
            read = read_task(record, Snapshot.head_of)
            if isinstance(read, Snapshot) and (read.task.finished_at or time + 1) <= time:
                yield read.task
