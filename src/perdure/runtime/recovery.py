"""Recovery: what becomes of tasks whose worker is gone, or the process in which their clients wait.

Live work is never touched.

A lease is taken only when its end has come by the clock *and* it has not been extended for as long as this
process has looked at it, by its own stopwatch. So a replica whose clock is wrong by an hour does not take the
work of the others: it sees them extend their leases.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from random import shuffle, uniform

from ..storage import Address, Committed, Delete, Micros, Position, Record, Storage
from ..storage.errors import NotReadableHere, StorageError
from ..storage.time_types import to_seconds
from ..tasks import Snapshot, Status, TaskRecord, TaskStore
from ..tasks.edits import AttemptEnd
from ..tasks.errors import CorruptRecord, NotFound, TaskError, TerminalTask
from ..tasks.stored_task import TASKS
from . import lease as leases
from . import telemetry
from .attendance import Attendant, cancel_unattended, find_attendant
from .claiming import REFUSED, read_or_quarantine
from .config import RuntimeConfig
from .deadline import edit_with_lease
from .endings import Unfinished, run_again_or_end
from .function import Function
from .lane import Lane

log = logging.getLogger("perdure.runtime")

BATCH = 200
LOST = Unfinished(reason="the worker was lost while it ran the task", end=AttemptEnd.INTERRUPTED)


class Patience:
    """Which leases have stood still for so many seconds while we looked."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: dict[Address, tuple[int, float]] = {}
        self._looked_at = 0.0

    @property
    def is_tried(self) -> bool:
        """Whether there are leases that we wait for."""
        return bool(self._seen)

    def worn_out(self, expired: Sequence[Record], at: float) -> list[Record]:
        """Those of these leases that were the same when they were first seen, long enough ago."""
        if at - self._looked_at > 2 * self._seconds:  # we were late ourselves, and so may others have been
            self.start_over()
        self._looked_at = at
        seen: dict[Address, tuple[int, float]] = {}
        for lease in expired:
            version, since = self._seen.get(lease.address, (lease.version, at))
            seen[lease.address] = (lease.version, since if version == lease.version else at)
        self._seen = seen  # what is no longer overdue is forgotten
        return [lease for lease in expired if at - seen[lease.address][1] >= self._seconds]

    def start_over(self) -> None:
        """Forget what was seen: what kept us from looking or writing may keep others from renewing."""
        self._seen = {}


class Recovery:
    """What every worker does for the others of its application."""

    def __init__(
        self,
        store: TaskStore,
        functions: Mapping[str, Function],
        config: RuntimeConfig,
        is_ours: Callable[[Record], bool],
        process: str,
    ) -> None:
        self._store = store
        self._process = process
        self._functions = functions
        self._is_ours = is_ours
        self._heartbeat = to_seconds(config.heartbeat_interval)
        self._patience = Patience(1.5 * to_seconds(config.heartbeat_interval))
        self._expired = Lane(store.storage, leases.expiry_lane(store.application), BATCH)

    async def look(self) -> None:
        """After a while, see which leases ran out, and recover those of which nobody was heard."""
        longest = 0.5 if self._patience.is_tried else 1.0
        await asyncio.sleep(self._heartbeat * longest * uniform(0.5, 1))
        now = self._store.clock()
        lost = self._patience.worn_out(await self._expired.due(now), asyncio.get_running_loop().time())
        shuffle(lost)  # others do the same
        lost.sort(key=leases.is_attendance, reverse=True)
        for lease in lost:
            if self._is_ours(lease):  # it runs here, and is late with its heartbeat
                continue
            try:
                if leases.is_attendance(lease):
                    await end_attended(lease, self._store)
                else:
                    await recover(lease, self._store, self._functions, self._process)
            except NotReadableHere as error:
                log.warning("task %s is left to other workers: %s", lease.key, error)
                self._expired.leave(lease)
            except TaskError:
                log.exception("task %s cannot be recovered", lease.key)
            except StorageError:
                self._patience.start_over()
                raise


async def recover(
    lease: Record, store: TaskStore, functions: Mapping[str, Function], process: str
) -> Snapshot | None:
    """Fail the task of a lease that ran out, or put it back into its queue, as its function wants.

    A task is cancelled if the process in which its client waited is lost, and left alone while that process
    is late. None where there was nothing to do, or somebody else did it. Raises NotReadableHere if a newer
    version wrote the task or the lease, or a key is missing; both are left as they are.
    """
    leases.read(lease)
    found = await store.storage.get(leases.task_of(lease), now=store.clock())
    snapshot = None if found is None else await read_or_quarantine(found, store)
    if snapshot is None or snapshot.task.is_terminal or not snapshot.task.is_claimed:
        await _remove(lease, store.storage, store.clock())
        return None
    attendant = await find_attendant(snapshot.task, store, process)
    if attendant is Attendant.SILENT:
        return None
    function = functions.get(snapshot.task.function or "")
    with telemetry.recovering(snapshot.task):
        try:
            after = await store.edit(
                snapshot,
                cancel_unattended if attendant is Attendant.LOST else run_again_or_end(function, LOST),
                lease=lambda following: leases.give_up(lease, following),
            )
        except REFUSED:
            return None
    log.warning(
        "task %s of %s: worker %s was lost in attempt %d; the task is now %s",
        after.task.task_id,
        after.task.owner.digest,
        leases.holder_of(lease),
        snapshot.task.attempts,
        after.task.status if after.task.is_terminal else "waiting to be run again",
    )
    telemetry.recovered(after.task)
    return after


async def _remove(lease: Record, storage: Storage, now: Micros) -> None:
    """A lease of a lost process, or without a task that is worked on: it was deleted, or ended by others."""
    await storage.commit([Delete(before=lease)], now=now)


# Processes in which clients wait


async def end_attended(lease: Record, store: TaskStore) -> None:
    """Mark the lease of a silent process, first as suspected, then as lost.

    Then cancel its tasks, wherever they run or wait, and remove the lease. Nothing is done if the process has
    renewed the lease. Raises NotReadableHere if a key is missing; then the lease is left to other workers.
    """
    if lease.tag != leases.LOST:
        is_suspected = lease.tag == leases.SUSPECTED
        mark = leases.mark(lease, leases.LOST if is_suspected else leases.SUSPECTED)
        outcome = await store.storage.commit([mark], now=store.clock())
        if not is_suspected or not isinstance(outcome, Committed):
            return
        lease = mark.after
    count = 0
    for status in (Status.WORKING, Status.INPUT_REQUIRED):
        after: Position | None = None
        while records := await store.storage.page(
            TASKS, tag=status.value, after=after, limit=BATCH, now=store.clock()
        ):
            for record in records:
                count += await _end_if_attended(record, lease.key, store)
            after = records[-1].position
    log.warning("process %s was lost; %d tasks were cancelled for which clients waited", lease.key, count)
    await _remove(lease, store.storage, store.clock())


async def _end_if_attended(record: Record, process: str, store: TaskStore) -> bool:
    try:
        task = Snapshot.head_of(record).task
    except (CorruptRecord, NotReadableHere):
        return False
    return task.attended_by == process and await _end_as_cancelled(task, process, store)


async def _end_as_cancelled(task: TaskRecord, process: str, store: TaskStore) -> bool:
    async def cancel(read: Snapshot) -> Snapshot | None:
        if read.task.attended_by != process:  # it was handed over
            return None
        return await edit_with_lease(store, read, cancel_unattended)

    with suppress(TerminalTask, NotFound, CorruptRecord):
        ended = await store.update(task.owner, task.task_id, cancel)
        if ended is not None:
            telemetry.ended(ended.task)
            return True
    return False
