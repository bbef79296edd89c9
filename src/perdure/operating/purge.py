"""Deletes expired records and, on request, tasks that finished before a given time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from ..storage import Micros
from ..tasks import Snapshot, TaskStore
from ..tasks.listing import read_task
from ..tasks.stored_task import TASKS
from .listing import iterate_records
from .stats import FINISHED_STATUSES, count_expired
from .views import TAGS


class PurgeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The number of tasks that a purge deleted or, in a dry run, would delete."""

    expired: int
    finished: int
    """Number of tasks that had not expired but finished by the given time."""
    dry_run: bool


async def purge(store: TaskStore, *, finished_before: Micros | None, dry_run: bool) -> PurgeReport:
    """Delete expired records, and tasks that finished by `finished_before`. A dry run only counts them."""
    expired = await count_expired(store.storage, store.clock()) if dry_run else await _purge_expired(store)
    finished = 0
    if finished_before is not None:
        async for snapshot in _finished_before(store, finished_before):
            finished += dry_run or await store.delete(snapshot.task.owner, snapshot.task.task_id)
    return PurgeReport(expired=expired, finished=finished, dry_run=dry_run)


async def _purge_expired(store: TaskStore) -> int:
    now, count, has_more = store.clock(), 0, True
    while has_more:
        purged = await store.purge(now=now)
        count += len(purged.task_ids)
        has_more = purged.more
    return count


async def _finished_before(store: TaskStore, time: Micros) -> AsyncIterator[Snapshot]:
    """Yield the tasks that finished by a given time, grouped by status, oldest first."""
    for tag in (tag for status in FINISHED_STATUSES for tag in TAGS[status]):
        async for record in iterate_records(store.storage, TASKS, tag=tag, now=store.clock()):
            if record.order > time:
                break
            snapshot = read_task(record)
            if isinstance(snapshot, Snapshot) and (snapshot.task.finished_at or time + 1) <= time:
                yield snapshot
