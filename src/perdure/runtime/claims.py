"""Claims queued tasks, so that only one worker runs each of them."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from contextlib import suppress

from ..storage import Change, Micros, Record
from ..storage.errors import StorageFailed
from ..storage.inspection_and_quarantine import quarantine
from ..tasks import Snapshot, StoreConfig, TaskRecord, TaskStore, edits, expiry_and_deadlines
from ..tasks.errors import ClaimLost, ConcurrentModification, CorruptRecord, NotFound
from ..tasks.store import Edit
from ..tasks.task_snapshot import lease_address
from . import lease as leases
from . import telemetry
from .attendance import Attendant, Attendants, cancel_unattended
from .config import RuntimeConfig
from .endings import end_task, refusal_to_start, unless_cancelled
from .function import Function
from .hold import Claim, find_out
from .lease import Holder

log = logging.getLogger("perdure.runtime")


class Claimer:
    """Claims tasks for one worker."""

    def __init__(self, store: TaskStore, config: RuntimeConfig, name: str | None = None) -> None:
        self.name = f"{name or f'{socket.gethostname()}-{os.getpid()}'}-{secrets.token_hex(6)}"
        self._store = store
        self._lasts: Micros = round(config.lease * 1_000_000)
        self._claims = 0
        self.attendants = Attendants(store, config, self.name)

    def new_holder(self) -> Holder:
        """Return the holder of a new claim. Its name is unique, and marks the lease of this claim."""
        self._claims += 1
        name = f"{self.name}#{self._claims}"
        return Holder(name, self._store.application, self._lasts, self._store.clock)

    async def claim(self, waiting: Record, function: Function) -> Claim | None:
        """Claim a queued task. Return None if it must not be run any more and was ended instead.

        Raise one of `REFUSED` if another worker was faster or the task no longer exists. Raise
        NotReadableHere if a newer version of perdure wrote the task or its lease, or a key is missing. In
        that case, both are left unchanged. Raise AttendantLate if the process in which the client of the
        task waits may be lost.
        """
        snapshot = await read_or_quarantine(waiting, self._store)
        if snapshot is None:
            raise NotFound
        with telemetry.claiming(snapshot.task):
            start = await self._start_of(snapshot.task, function)
            if not expiry_and_deadlines.is_started(snapshot.task):  # then there is no lease to take over
                with suppress(ClaimLost):
                    return await self._claim(snapshot, start, None)
            before = await self._store.storage.get(lease_address(snapshot.record), now=self._store.clock())
            if before is not None and before.tag == leases.HELD:
                raise ClaimLost  # another worker was faster
            if before is not None:
                leases.read(before)
            return await self._claim(snapshot, start, before)

    async def _start_of(self, task: TaskRecord, function: Function) -> Edit:
        match await self.attendants.find(task):
            case Attendant.LOST:
                return cancel_unattended
            case Attendant.LATE if expiry_and_deadlines.is_started(task):
                raise AttendantLate
            case _:
                return _begin(function, self.name)

    async def _claim(self, snapshot: Snapshot, start: Edit, before: Record | None) -> Claim | None:
        holder = self.new_holder()
        taken: list[Record] = []

        def lease(following: Snapshot) -> Change | None:
            if not following.task.is_claimed:
                return None if before is None else leases.give_up(before, following)
            change = holder.take(following, before)
            taken.append(leases.written(change))
            return change

        try:
            claimed = await self._store.edit(snapshot, start, lease=lease)
        except StorageFailed:  # if the claim was stored after all, no other worker would run the task
            found = await find_out(Claim(snapshot, taken[0], holder), self._store) if taken else None
            if found is None:
                raise
            self._note(snapshot, found.snapshot)
            return found
        if not taken:
            return None
        self._note(snapshot, claimed)
        return Claim(claimed, taken[0], holder)

    def _note(self, waiting: Snapshot, claimed: Snapshot) -> None:
        now = claimed.task.last_updated_at
        telemetry.claimed(claimed.task, waiting.record.wake_at or now, now)


class AttendantLate(Exception):
    """Raised by a claim that must be repeated later: the process in which the client waits may be lost."""


REFUSED = (ConcurrentModification, ClaimLost, NotFound)
"""The errors that a claim raises if another worker was faster, or if the task no longer exists."""


async def read_or_quarantine(record: Record, store: TaskStore) -> Snapshot | None:
    """Return the task of a record. If the record is damaged, quarantine it and return None."""
    try:
        return Snapshot.from_record(record, store.keys)
    except CorruptRecord:
        log.exception("a task record is damaged and cannot be read; quarantining it")
        await quarantine(store.storage, record, now=store.clock())
        return None


def _begin(function: Function, worker: str) -> Edit:
    """Return an edit that claims a task, or ends it if it was cancelled or must not be started again."""

    def edit(task: TaskRecord, now: Micros, config: StoreConfig) -> TaskRecord:
        refusal = refusal_to_start(function, task, now)
        if refusal is not None:
            return end_task(task, refusal, now, config)
        return edits.claim(task, worker=worker, now=now)

    return unless_cancelled(edit)
