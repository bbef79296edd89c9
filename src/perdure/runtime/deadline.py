"""Deadlines: ending tasks that wait for what no longer comes. Every worker does this for its application.

Questions of unclaimed tasks wait in one lane for their deadline. Started tasks that no worker started again
for a month are found by reading the oldest active tasks about once an hour.
"""

from __future__ import annotations

import asyncio
import logging
from random import uniform

from ..storage import Position, Record
from ..storage.errors import NotReadableHere
from ..storage.time_types import to_seconds
from ..tasks import Snapshot, Status, StoreConfig, TaskRecord, TaskStore, expiry_and_deadlines
from ..tasks.application import application_of
from ..tasks.edits import deadline_lane
from ..tasks.errors import ClaimLost, ConcurrentModification
from ..tasks.store import Edit
from ..tasks.stored_task import TASKS, lease_address
from . import lease as leases
from . import telemetry
from .claiming import REFUSED, read_or_quarantine
from .config import RuntimeConfig
from .endings import end_task, end_unanswered, expiry_of
from .lane import Lane

log = logging.getLogger("perdure.runtime")

BATCH = 200
CHECKS_PER_SWEEP = 6
"""How many times deadlines are checked in the time between two sweeps."""
AUDIT_SECONDS = 3600.0
"""Between two audits of one worker, about."""


class Deadlines:
    """Ends overdue tasks."""

    def __init__(self, store: TaskStore, config: RuntimeConfig) -> None:
        self._store = store
        self._interval = to_seconds(config.purge_interval) / CHECKS_PER_SWEEP
        self._questions = Lane(store.storage, deadline_lane(store.application), BATCH)

    async def check_questions(self) -> None:
        """After a while, fail the unclaimed tasks whose questions are past their deadline."""
        await asyncio.sleep(self._interval * uniform(0.5, 1.5))
        await self.end_unanswered()

    async def audit(self) -> None:
        """After about an hour, fail the started tasks that no worker has started again for a month."""
        await asyncio.sleep(AUDIT_SECONDS * uniform(0.5, 1.5))
        await self.end_abandoned()

    async def end_unanswered(self) -> None:
        for record in await self._questions.due(self._store.clock()):
            await self._end(record, end_unanswered)

    async def end_abandoned(self) -> None:
        """Read the active tasks that are old enough, oldest first."""
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
            self._questions.leave(record)
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
    """Edit a task as somebody else than its worker, and give up the lease in the same commit.

    Raises ConcurrentModification if a worker has claimed it, or extended its lease, meanwhile.
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
