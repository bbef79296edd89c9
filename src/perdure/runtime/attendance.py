"""Attendance cancels tasks whose clients waited for them in a process that stopped or was lost.

The call of a client that does not support tasks waits for its task in one process, and no other client knows
this task. The task names the process in `attended_by`. The process has a lease of its own, which it renews
only while such calls wait. When the process stops or is lost, the tasks whose clients wait in it are
cancelled and are not run again.

A lost process is recognized like a lost worker: its lease has expired by the clock, and was not renewed while
a worker observed it. Then the worker marks the lease as suspected. If the process still does not renew the
lease, although the storage accepts writes, the lease is marked as lost. From then on, the process must use
another name.

If a task has never run, a worker starts it as long as the lease of the process exists and is not marked as
lost. If the task has run before, a worker starts it only if the process is present: its lease has not
expired, or the worker has observed a renewal within the last heartbeat. Otherwise, the process may be lost
although no worker has marked its lease as lost yet. One renewal counts for all tasks of the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from enum import Enum, auto
from random import uniform
from typing import TYPE_CHECKING

import anyio
import msgspec

from ..storage import Address, Committed, Delete, Micros, Record
from ..storage.errors import OutcomeUnknown, PerdureError, StorageError
from ..storage.time_types import to_seconds
from ..tasks import Owner, StoreConfig, TaskRecord, TaskStore, edits
from ..tasks.errors import NotFound, TerminalTask
from . import lease as leases
from .config import RuntimeConfig
from .waits import retry_busy

if TYPE_CHECKING:
    from .runtime import Runtime

log = logging.getLogger("perdure.runtime")

WRITE_ATTEMPTS = 5
REMOVAL_SECONDS = 5.0
"""Maximum number of seconds that a process spends on removing its lease when it stops."""
CANCEL_SECONDS = 5.0
"""Maximum number of seconds to spend on cancelling a task that no client knows. The limit is short, because
the server may be stopping."""
DOUBT_DELAYS = (0.5, 2.0, 5.0, 15.0, 30.0)
"""Seconds between the attempts to cancel a task if it is unknown whether the task was stored. The storage may
still store the task for a while after it has reported that the task does not exist.
"""


class Attendance:
    """The lease of this process, for the tasks that its clients wait for."""

    def __init__(self, store: TaskStore, config: RuntimeConfig, process: str) -> None:
        self.process = process
        """The name of the process, which its tasks contain in `attended_by`."""
        self._first_name = process
        self._names = 1
        self._store = store
        self._interval = to_seconds(config.heartbeat_interval)
        # one heartbeat shorter than the leases of claims, so that it expires no later than they do
        self._lasts: Micros = round((config.lease - self._interval) * 1_000_000)
        self._lease: Record | None = None
        self._lock = anyio.Lock()
        self._calls = 0
        self._is_stopped = False
        self._has_abandoned_task = False
        self._has_lease = asyncio.Event()

    @asynccontextmanager
    async def waiting(self) -> AsyncGenerator[str]:
        """Keep the lease while a call waits in this block. Yield the process name, for `attended_by`."""
        self._calls += 1
        try:
            async with self._lock:
                if self._lease is None or (self._lease.wake_at or 0) <= self._store.clock():
                    await self._renew()
            yield self.process
        finally:
            self._calls -= 1
            if self._is_stopped and not self._calls:
                await self._remove_at_end()

    def abandon_task(self) -> None:
        """Let the lease expire, so that workers cancel a task that this process could not cancel."""
        self._has_abandoned_task = True

    async def keep(self) -> None:
        """Renew the lease while calls wait, and remove it when none waits. Run until cancelled."""
        self._is_stopped = False
        try:
            pause = self._interval
            while True:
                await self._has_lease.wait()
                await anyio.sleep(pause * uniform(0.8, 1))
                pause = self._interval if await self._renew_or_remove() else self._interval / 4
        finally:
            self._is_stopped = True
            if not self._calls:  # else the last call removes the lease, when its task has ended
                await self._remove_at_end()

    async def _renew_or_remove(self) -> bool:
        try:
            async with self._lock:
                await (self._renew() if self._calls else self._remove())
        except StorageError as error:
            log.warning("process %s could not renew or remove its lease: %s", self.process, error)
            return False
        except Exception:
            log.exception("process %s could not renew or remove its lease", self.process)
            return False
        return True

    async def _renew(self) -> None:
        """Write the lease. Try again if the outcome is unknown, or another process has changed the lease."""
        self._has_lease.set()
        attempts = 0
        while True:
            now = self._store.clock()
            change = leases.attend(
                self.process, self._store.application, self._lease, until=now + self._lasts, now=now
            )
            try:
                if isinstance(await self._store.storage.commit([change], now=now), Committed):
                    self._lease = leases.written(change)
                    return
            except OutcomeUnknown:
                attempts += 1
                if attempts == WRITE_ATTEMPTS:
                    raise
            self._lease = await self._read()
            if self._lease is not None and self._lease.tag == leases.LOST:
                log.warning(
                    "process %s did not renew its lease in time; "
                    "the tasks that its clients are waiting for are cancelled",
                    self.process,
                )
                self._take_new_name()

    def _take_new_name(self) -> None:
        """Use a new name from now on. Workers handle the lease and the tasks of the old name."""
        self._names += 1
        self.process = f"{self._first_name}~{self._names}"
        self._lease = None

    async def _remove_at_end(self) -> None:
        with anyio.move_on_after(REMOVAL_SECONDS, shield=True), suppress(StorageError):
            await self._remove()

    async def _remove(self) -> None:
        if self._has_abandoned_task:
            self._has_abandoned_task = False
            self._has_lease.clear()
            self._take_new_name()
            return
        while (found := await self._read()) is not None:  # a renewal that failed may be stored after all
            if isinstance(
                await self._store.storage.commit([Delete(before=found)], now=self._store.clock()), Committed
            ):
                break
        self._has_lease.clear()
        self._lease = None

    async def _read(self) -> Record | None:
        address = leases.attendance_address(self.process)
        return await self._store.storage.get(address, now=self._store.clock())


class Attendant(Enum):
    """The state of a process in which a client waits for its task."""

    PRESENT = auto()
    LATE = auto()
    """Its lease has expired, and no renewal was observed within the last heartbeat, so it may be lost."""
    LOST = auto()


class Attendants:
    """The processes in which clients wait, as one worker observes them."""

    def __init__(self, store: TaskStore, config: RuntimeConfig, process: str) -> None:
        self._store = store
        self._process = process
        heartbeat, poll = to_seconds(config.heartbeat_interval), to_seconds(config.queue_poll_interval)
        self._max_age = 2 * max(2 * heartbeat, poll)
        """Seconds after which the version of a lease is forgotten. This is longer than the time between two
        reads: a worker polls the queue after up to 1.5 intervals, and skips a task for one heartbeat."""
        self._heartbeat = heartbeat
        self._expired: dict[Address, _Seen] = {}
        """The leases that have expired by our clock, as they were last read."""

    async def find(self, task: TaskRecord) -> Attendant:
        """Return the state of the process in which the client of a task waits.

        If the clock of that process is far behind ours, its lease always looks expired. Then only a renewal
        shows that the process is present.
        """
        if task.attended_by in (None, self._process):
            return Attendant.PRESENT
        now, at = self._store.clock(), asyncio.get_running_loop().time()
        lease = await self._store.storage.get(leases.attendance_address(task.attended_by), now=now)
        if lease is None or lease.tag == leases.LOST:
            return Attendant.LOST
        if (lease.wake_at or 0) > now:
            return Attendant.PRESENT
        self._expired = {
            address: seen for address, seen in self._expired.items() if at - seen.read_at <= self._max_age
        }
        seen = self._observe(lease, at)
        is_renewed = seen.renewed_at is not None and at - seen.renewed_at <= self._heartbeat
        return Attendant.PRESENT if is_renewed else Attendant.LATE

    def _observe(self, lease: Record, at: float) -> _Seen:
        state, before = (lease.order, lease.version), self._expired.get(lease.address)
        if before is None or lease.tag == leases.SUSPECTED:
            seen = _Seen(state, at, None)
        elif state > before.state:
            seen = _Seen(state, at, at)
        else:  # reads may overtake each other
            seen = _Seen(before.state, at, before.renewed_at)
        self._expired[lease.address] = seen
        return seen


class _Seen(msgspec.Struct, frozen=True):
    """The latest observation of a lease."""

    state: tuple[Micros, int]
    """When the lease was inserted, and its version."""
    read_at: float
    """When the lease was last read, by the clock of the event loop."""
    renewed_at: float | None
    """When a renewal was last observed. None if none was, or if the process has been suspected since then."""


def cancel_unattended(task: TaskRecord, now: Micros, config: StoreConfig) -> TaskRecord:
    """Cancel a task for which no client waits anymore."""
    message = "the server process that the client was connected to was lost or has stopped"
    return edits.cancel(task, message=message, now=now, config=config)


async def cancel_abandoned(
    runtime: Runtime, owner: Owner, task_id: str, *, at_once: bool = False
) -> bool | None:
    """Cancel a task that no client knows, even if the caller is cancelled.

    With `at_once`, end the task directly instead of asking its run to end it. Return True if the task has
    ended or will end, False if it does not exist, or None if it could not be cancelled now.
    """
    cancel = runtime.cancel_now if at_once else runtime.cancel
    try:
        with anyio.CancelScope(shield=True), anyio.fail_after(CANCEL_SECONDS), suppress(TerminalTask):
            await retry_busy(lambda: cancel(owner, task_id))
    except NotFound:
        return False
    except (PerdureError, TimeoutError) as error:
        reason = str(error) or "the storage is busy"
        log.warning("could not cancel task %s, for which no client waits: %s", task_id, reason)
        runtime.attendance.abandon_task()
        return None
    return True


async def cancel_if_created(runtime: Runtime, owner: Owner, task_id: str) -> None:
    """Cancel a task that no client knows, and of which it is unknown whether it was or will be stored.

    Try again after each of `DOUBT_DELAYS` until the task is found. While the storage is down, keep trying. If
    the caller is cancelled because the server stops, try once more.
    """
    delays = iter(DOUBT_DELAYS)
    while True:
        # at once, because its run may not have registered with the executor yet
        is_cancelled = await cancel_abandoned(runtime, owner, task_id, at_once=True)
        delay = DOUBT_DELAYS[-1] if is_cancelled is None else next(delays, None)
        if is_cancelled or delay is None:
            return
        try:
            await anyio.sleep(delay)
        except anyio.get_cancelled_exc_class():
            await cancel_abandoned(runtime, owner, task_id, at_once=True)
            raise
