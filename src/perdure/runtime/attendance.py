"""Attendance: the process in which clients wait for tasks that no other client knows.

The call of a client without tasks waits for its task in one process, which the task names in `attended_by`.
That process has a lease of its own, which it renews only while it has such calls. When the process is lost or
stops, its tasks are cancelled and are not run again. A lost process is recognized like a lost worker: its
lease has run out by the clock, and was not renewed for as long as the observer has looked at it. Then an
observer marks the lease as suspected. If the process still does not renew it, although the storage takes
writes, the lease is marked as lost. From then on the process needs another name.

A task that never ran is started as long as that lease exists. One that did run is started by another process
only if the lease has not run out: else the process may be lost, and was not declared so yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from enum import Enum, auto
from random import uniform

import anyio

from ..storage import Committed, Delete, Micros, Record
from ..storage.errors import OutcomeUnknown, StorageError
from ..storage.time_types import to_seconds
from ..tasks import StoreConfig, TaskRecord, TaskStore, edits
from . import lease as leases
from .config import RuntimeConfig

log = logging.getLogger("perdure.runtime")

WRITE_ATTEMPTS = 5
REMOVAL_SECONDS = 5.0
"""How long a process that stops may take to remove its lease."""


class Attendance:
    """The attendance of this process."""

    def __init__(self, store: TaskStore, config: RuntimeConfig, process: str) -> None:
        self.process = process
        """The name of the process, as tasks have it in `attended_by`."""
        self._first_name = process
        self._names = 1
        self._store = store
        self._interval = to_seconds(config.heartbeat_interval)
        # shorter by a heartbeat than the leases of claims: when one of those has run out, this one has too
        self._lasts: Micros = round((config.lease - self._interval) * 1_000_000)
        self._lease: Record | None = None
        self._lock = anyio.Lock()
        self._calls = 0
        self._is_stopped = False
        self._has_abandoned_task = False
        self._has_lease = asyncio.Event()

    @asynccontextmanager
    async def waiting(self) -> AsyncGenerator[str]:
        """Attend tasks in this block, which yields the name of the process for them."""
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
        """Let workers cancel a task that this process could not cancel: its lease runs out."""
        self._has_abandoned_task = True

    async def keep(self) -> None:
        """Renew the lease while calls wait, and remove it afterwards. Never returns."""
        self._is_stopped = False
        try:
            pause = self._interval
            while True:
                await self._has_lease.wait()
                await anyio.sleep(pause * uniform(0.8, 1))
                pause = self._interval if await self._renew_or_remove() else self._interval / 4
        finally:
            self._is_stopped = True
            if not self._calls:  # else the last call does it, when its task has ended
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
        """Write the lease. That is repeated if its outcome is unknown, or others have changed the lease."""
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
                log.warning("process %s was declared lost: its waiting calls are cancelled", self.process)
                self._take_new_name()

    def _take_new_name(self) -> None:
        """Leave the lease and the tasks of the old name to the workers."""
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
        while (found := await self._read()) is not None:  # a renewal may have been written unnoticed
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
    """What is known of the process that waits for a task."""

    PRESENT = auto()
    SILENT = auto()
    """It is late, and may be lost."""
    LOST = auto()


async def find_attendant(task: TaskRecord, store: TaskStore, process: str) -> Attendant:
    """Return what is known of the process that waits for a task. `process` is the one that asks."""
    if task.attended_by in (None, process):
        return Attendant.PRESENT
    now = store.clock()
    lease = await store.storage.get(leases.attendance_address(task.attended_by), now=now)
    if lease is None or lease.tag == leases.LOST:
        return Attendant.LOST
    return Attendant.PRESENT if (lease.wake_at or 0) > now else Attendant.SILENT


def cancel_unattended(task: TaskRecord, now: Micros, config: StoreConfig) -> TaskRecord:
    """Cancel a task for which no client waits any more."""
    message = "the process in which its client waited was lost or has stopped"
    return edits.cancel(task, message=message, now=now, config=config)
