"""Recovers tasks whose worker is lost, or whose client waits in a process that is lost.

A lease counts as lost only if it has expired by the clock *and* was not renewed while this process observed
it for some time, measured by a monotonic clock. So a replica whose clock is wrong by an hour does not claim
the tasks of other replicas: it observes that they renew their leases.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from random import shuffle, uniform

from ..storage import Address, Committed, Delete, Micros, Position, Record, Storage
from ..storage.errors import NotReadableHere, StorageCorrupt, StorageError
from ..storage.time_types import to_seconds
from ..tasks import Owner, Snapshot, Status, TaskId, TaskStore
from ..tasks.application_name import application_of
from ..tasks.edits import AttemptEnd
from ..tasks.errors import CorruptRecord, NotFound, TaskError, TerminalTask
from ..tasks.task_snapshot import TASKS
from . import lease as leases
from . import telemetry
from .attendance import Attendant, Attendants, cancel_unattended
from .claims import REFUSED, read_or_quarantine
from .config import RuntimeConfig
from .deadline import edit_with_lease
from .endings import Unfinished, run_again_or_end
from .function import Function
from .lane import ERROR_PAUSE, Lane

log = logging.getLogger("perdure.runtime")

BATCH = 200
LOST = Unfinished(reason="the worker was lost while it ran the task", end=AttemptEnd.INTERRUPTED)


class LeaseObserver:
    """Finds expired leases that were observed for a number of seconds and not renewed in that time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: dict[Address, tuple[int, float]] = {}
        self._observed_at = 0.0

    @property
    def has_expired_leases(self) -> bool:
        """Whether the last observation found expired leases."""
        return bool(self._seen)

    def not_renewed(self, expired: Sequence[Record], at: float) -> list[Record]:
        """Return the leases that were observed for long enough and have not changed in the meantime.

        `expired` contains all leases that have expired now. Others are forgotten. `at` is the time by the
        monotonic clock of the observer.
        """
        if at - self._observed_at > 2 * self._seconds:  # this process was late, and others may have been, too
            self.reset()
        self._observed_at = at
        seen: dict[Address, tuple[int, float]] = {}
        for lease in expired:
            version, since = self._seen.get(lease.address, (lease.version, at))
            seen[lease.address] = (lease.version, since if version == lease.version else at)
        self._seen = seen  # without leases that are no longer expired
        return [lease for lease in expired if at - seen[lease.address][1] >= self._seconds]

    def reset(self) -> None:
        """Forget all observations: what delayed this process may also delay processes that renew leases."""
        self._seen = {}


class Recovery:
    """Recovers the tasks of lost workers and processes. Every worker does this for its application."""

    def __init__(
        self,
        store: TaskStore,
        functions: Mapping[str, Function],
        config: RuntimeConfig,
        is_ours: Callable[[Record], bool],
        attendants: Attendants,
    ) -> None:
        self._store = store
        self._attendants = attendants
        self._functions = functions
        self._is_ours = is_ours
        self._heartbeat = to_seconds(config.heartbeat_interval)
        self._observer = LeaseObserver(1.5 * to_seconds(config.heartbeat_interval))
        self._claims = Lane(store.storage, leases.expiry_lane(store.application))
        self._attendances = Lane(store.storage, leases.attendance_lane(store.application))

    async def look(self) -> None:
        """Wait, and then recover the tasks whose leases have expired and were not renewed.

        Lost processes come first: until they are handled, the claims on their tasks are left as they are.
        """
        longest = 0.5 if self._observer.has_expired_leases else 1.0
        await asyncio.sleep(self._heartbeat * longest * uniform(0.5, 1))
        now = self._store.clock()
        attendances = await self._attendances.due(now, BATCH)
        claims = await self._claims.due(now, BATCH)
        lost = self._observer.not_renewed([*attendances, *claims], asyncio.get_running_loop().time())
        shuffle(lost)  # other workers do the same
        lost.sort(key=leases.is_attendance, reverse=True)
        for lease in lost:
            if not self._is_ours(lease):  # else the task runs here, and its heartbeat is late
                await self._recover(lease)

    async def _recover(self, lease: Record) -> None:
        """Handle a lost lease. If it cannot be handled, log the error."""
        is_attendance = leases.is_attendance(lease)
        kind, lane = ("process", self._attendances) if is_attendance else ("task", self._claims)
        try:
            if is_attendance:
                await end_attended(lease, self._store)
            else:
                await recover(lease, self._store, self._functions, self._attendants)
        except NotReadableHere as error:
            log.warning("leaving the recovery of %s %s to other workers: %s", kind, lease.key, error)
            lane.skip(lease)
        except (TaskError, StorageCorrupt):
            log.exception("could not handle the expired lease of %s %s", kind, lease.key)
            lane.skip(lease, ERROR_PAUSE)  # it must not block the other leases
        except StorageError:
            self._observer.reset()
            raise


async def recover(
    lease: Record, store: TaskStore, functions: Mapping[str, Function], attendants: Attendants
) -> Snapshot | None:
    """Release the task of a lost claim, so that another worker runs it again, or end it. Return the task.

    The options of its function decide whether the task is run again. If its client waits in a process that
    is lost, the task is cancelled. Return None if the task is left unchanged, because that process may be
    lost but is not marked as lost yet, because another worker was faster, or because the task is not claimed.
    In the last case, delete the lease. Raise NotReadableHere if a newer version of perdure wrote the task or
    the lease, or a key is missing. Both are then left unchanged.
    """
    leases.read(lease)
    found = await store.storage.get(leases.task_of(lease), now=store.clock())
    snapshot = None if found is None else await read_or_quarantine(found, store)
    if snapshot is None or snapshot.task.is_terminal or not snapshot.task.is_claimed:
        await _remove(lease, store.storage, store.clock())
        return None
    attendant = await attendants.find(snapshot.task)
    if attendant is Attendant.LATE:
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
        "task %s (owner %s): worker %s was lost in attempt %d; the task is now %s",
        after.task.task_id,
        after.task.owner.digest,
        leases.holder_of(lease),
        snapshot.task.attempts,
        after.task.status if after.task.is_terminal else "waiting to be run again",
    )
    telemetry.recovered(after.task)
    return after


async def _remove(lease: Record, storage: Storage, now: Micros) -> None:
    """Delete the lease of a lost process, or a lease whose task no worker has claimed."""
    await storage.commit([Delete(before=lease)], now=now)


# Processes in which clients wait


async def end_attended(lease: Record, store: TaskStore) -> None:
    """Mark the lease of a process that did not renew it: as suspected, or as lost if it is suspected already.

    If the process is lost, cancel the tasks that its clients wait for, whether they run or not, and delete
    the lease. Do nothing if the process has renewed the lease. Raise NotReadableHere if a key is missing. In
    that case, nothing was written, and other workers handle the lease.
    """
    attended = await _attended_by(lease.key, store)
    if lease.tag != leases.LOST:
        is_suspected = lease.tag == leases.SUSPECTED
        mark = leases.mark(lease, leases.LOST if is_suspected else leases.SUSPECTED)
        outcome = await store.storage.commit([mark], now=store.clock())
        if not is_suspected or not isinstance(outcome, Committed):
            return
        lease = mark.after
        attended = await _attended_by(lease.key, store)  # some tasks may have been created before the mark
    count = 0
    for owner, task_id in attended:
        count += await _end_as_cancelled(owner, task_id, lease.key, store)
    if count:
        tasks = "1 task" if count == 1 else f"{count} tasks"
        log.warning("process %s was lost; cancelled %s that its clients were waiting for", lease.key, tasks)
    else:
        log.info("process %s was lost; none of its clients was waiting for a task", lease.key)
    await _remove(lease, store.storage, store.clock())


async def _attended_by(process: str, store: TaskStore) -> list[tuple[Owner, TaskId]]:
    """Return the unfinished tasks whose clients wait in this process.

    Tasks that are damaged, or were written by a newer version of perdure, are omitted. Raise NotReadableHere
    if a key is missing.
    """
    found: list[tuple[Owner, TaskId]] = []
    for status in (Status.WORKING, Status.INPUT_REQUIRED):
        after: Position | None = None
        while records := await store.storage.page(
            TASKS, tag=status.value, after=after, limit=BATCH, now=store.clock()
        ):
            after = records[-1].position
            for record in records:
                if application_of(record.partition) == store.application and _names(record, process):
                    with suppress(CorruptRecord):
                        task = Snapshot.from_record(record, store.keys).task
                        found.append((task.owner, task.task_id))
    return found


def _names(record: Record, process: str) -> bool:
    try:
        return Snapshot.head_of(record).task.attended_by == process
    except (CorruptRecord, NotReadableHere):
        return False


async def _end_as_cancelled(owner: Owner, task_id: TaskId, process: str, store: TaskStore) -> bool:
    async def cancel(read: Snapshot) -> Snapshot | None:
        if read.task.attended_by != process:  # the call was handed over
            return None
        return await edit_with_lease(store, read, cancel_unattended)

    with suppress(TerminalTask, NotFound, CorruptRecord):
        ended = await store.update(owner, task_id, cancel)
        if ended is not None:
            telemetry.ended(ended.task)
            return True
    return False
