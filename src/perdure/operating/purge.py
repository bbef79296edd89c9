"""Removing tasks: those whose time is over, and those that ended long ago, if an operator wants that too."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from ..storage import Micros, Position
from ..tasks import Snapshot, TaskStore
from ..tasks.snapshot import TASKS
from .listing import read
from .stats import ENDED, expired_in
from .views import TAGS

PAGE = 200


class Purge(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed, or would be."""

    expired: int
    """Tasks whose time was over."""
    ended: int
    """Tasks that had ended before the time that was named."""
    dry_run: bool


async def purge(store: TaskStore, *, ended_before: Micros | None, dry_run: bool) -> Purge:
    """Remove what has expired and, where a time is named, every task that had ended by then."""
    expired = await expired_in(store.storage, store.clock()) if dry_run else await _sweep(store)
    ended = 0
    if ended_before is not None:
        async for snapshot in _ended_before(store, ended_before):
            ended += dry_run or await store.delete(snapshot.task.owner, snapshot.task.task_id)
    return Purge(expired=expired, ended=ended, dry_run=dry_run)


async def _sweep(store: TaskStore) -> int:
    now, removed, more = store.clock(), 0, True
    while more:
        swept = await store.purge(now=now)
        removed += len(swept.task_ids)
        more = swept.more
    return removed


async def _ended_before(store: TaskStore, time: Micros) -> AsyncIterator[Snapshot]:
    """Every task that had ended by then: the oldest first, up to those that did not even begin by then."""
    for tag in (tag for status in ENDED for tag in TAGS[status]):
        after: Position | None = None
        while records := await store.storage.page(TASKS, after=after, limit=PAGE, tag=tag, now=store.clock()):
            after = records[-1].position
            for snapshot in map(read, records):
                if snapshot is not None and (snapshot.task.finished_at or time + 1) <= time:
                    yield snapshot
            if after.order > time:
                break
