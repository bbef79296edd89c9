"""Fails tasks whose questions were not answered in time, and released tasks that no worker has continued.

Every worker does this for its application. A storage lane lists the questions of unclaimed tasks by their
deadline. To find released tasks, each worker reads the oldest active tasks about once an hour.
"""

from __future__ import annotations

import asyncio
import logging
from random import uniform

from ..storage import Position, Record
from ..storage.errors import NotReadableHere
from ..storage.time_types import to_seconds
from ..tasks import Snapshot, Status, StoreConfig, TaskRecord, TaskStore, expiry_and_deadlines
from ..tasks.application_name import application_of
from ..tasks.edits import deadline_lane
from ..tasks.errors import ClaimLost, ConcurrentModification
from ..tasks.store import Edit
from ..tasks.task_snapshot import TASKS, lease_address
from . import lease as leases
from . import telemetry
from .claims import REFUSED, read_or_quarantine
from .config import RuntimeConfig
from .endings import end_task, end_unanswered, expiry_of
from .lane import Lane

log = logging.getLogger("perdure.runtime")

BATCH = 200
CHECKS_PER_PURGE = 6
"""How many times deadlines are checked in the time between two purges."""
AUDIT_SECONDS = 3600.0
"""The average time between two audits by one worker."""


class Deadlines:
    """Fails the tasks of an application that are past their deadline."""

    def __init__(self, store: TaskStore, config: RuntimeConfig) -> None:
        self._store = store
        self._interval = to_seconds(config.purge_interval) / CHECKS_PER_PURGE
        self._questions = Lane(store.storage, deadline_lane(store.application))

    async def check_questions(self) -> None:
        """Wait, and then fail the unclaimed tasks whose questions are past their deadline."""
        await asyncio.sleep(self._interval * uniform(0.5, 1.5))
        await self.end_unanswered()

    async def audit(self) -> None:
        """Wait for about an hour, and then fail the tasks that no worker has started again for a month."""
        await asyncio.sleep(AUDIT_SECONDS * uniform(0.5, 1.5))
        await self.end_abandoned()

    async def end_unanswered(self) -> None:
        for record in await self._questions.due(self._store.clock(), BATCH):
            await self._end(record, end_unanswered)

    async def end_abandoned(self) -> None:
        """Fail the tasks that no worker has started again for a month. Only tasks of this age are read."""
        for status in (Status.WORKING, Status.INPUT_REQUIRED):
            after: Position | None = None
            while records := await self._oldest(status, after):
                for record in records:
                    if application_of(record.partition) == self._store.application:
                        await self._end(record, _end_abandoned)
                after = records[-1].position

    async def _oldest(self, status: Status, after: Position | None) -> list[Record]:
        now = self._store.clock()
        records = await self._store.storage.page(TASKS, tag=status.value, after=after, limit=BATCH, now=now)
        return [record for record in records if record.order + expiry_and_deadlines.ABANDONED_AFTER <= now]

    async def _end(self, record: Record, edit: Edit) -> None:
        try:
            snapshot = await read_or_quarantine(record, self._store)
            if snapshot is None or snapshot.task.is_claimed:
                return
            ended = await edit_with_lease(self._store, snapshot, edit)
        except NotReadableHere:
            self._questions.skip(record)
            return
        except REFUSED:  # another process ended, answered or claimed it
            return
        if ended.task.is_terminal:
            log.warning("task %s failed: %s", ended.task.task_id, ended.task.status_message)
            telemetry.ended(ended.task)


def _end_abandoned(task: TaskRecord, now: int, config: StoreConfig) -> TaskRecord:
    failure = expiry_of(task, now)
    return task if failure is None else end_task(task, failure, now, config)


async def edit_with_lease(store: TaskStore, snapshot: Snapshot, edit: Edit) -> Snapshot:
    """Edit a task from outside of its run, and free or delete its lease in the same commit.

    Raise ConcurrentModification if a worker has claimed the task, or renewed its lease, in the meantime.
    """
    lease = await store.storage.get(lease_address(snapshot.record), now=store.clock())
    if lease is not None:
        leases.read(lease)  # raises NewerFormat: a lease of a newer version is left as it is
    try:
        return await store.edit(
            snapshot, edit, lease=lambda after: None if lease is None else leases.give_up(lease, after)
        )
    except ClaimLost as error:
        raise ConcurrentModification(snapshot.version, snapshot.version + 1) from error
