"""Claiming: taking a task from the queue of its function, so that nobody else does."""

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
from ..tasks.stored_task import lease_address
from . import lease as leases
from . import telemetry
from .attendance import Attendant, cancel_unattended, find_attendant
from .config import RuntimeConfig
from .endings import end_task, refusal_to_start, unless_cancelled
from .function import Function
from .hold import Claim, find_out
from .lease import Holder

log = logging.getLogger("perdure.runtime")


class Claimer:
    """Makes claims in the name of one worker."""

    def __init__(self, store: TaskStore, config: RuntimeConfig, name: str | None = None) -> None:
        self.name = f"{name or f'{socket.gethostname()}-{os.getpid()}'}-{secrets.token_hex(6)}"
        self._store = store
        self._lasts: Micros = round(config.lease * 1_000_000)
        self._claims = 0

    def new_holder(self) -> Holder:
        """For one claim. No other has its name, so who finds it in a lease knows that it is theirs."""
        self._claims += 1
        name = f"{self.name}#{self._claims}"
        return Holder(name, self._store.application, self._lasts, self._store.clock)

    async def claim(self, waiting: Record, function: Function) -> Claim | None:
        """Claim a task that waits. None where another was quicker, or the task was not to be run any more.

        Raises NotReadableHere if a newer version wrote the task or its lease, or a key is missing; both are
        left as they are. Raises AttendantSilent if the process in which its client waits may be lost.
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
                raise ClaimLost  # another was quicker
            if before is not None:
                leases.read(before)
            return await self._claim(snapshot, start, before)

    async def _start_of(self, task: TaskRecord, function: Function) -> Edit:
        match await find_attendant(task, self._store, self.name):
            case Attendant.LOST:
                return cancel_unattended
            case Attendant.SILENT if expiry_and_deadlines.is_started(task):
                raise AttendantSilent
            case _:
                return _begin(function)

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
        except StorageFailed:  # but it may have been written, and then nobody else would know
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


class AttendantSilent(Exception):
    """Raised by a claim that is to be repeated a little later."""


REFUSED = (ConcurrentModification, ClaimLost, NotFound)
"""What a claim raises where another was quicker."""


async def read_or_quarantine(record: Record, store: TaskStore) -> Snapshot | None:
    """The task of a record in the queue, or of a lease; None if it is damaged, and was quarantined."""
    try:
        return Snapshot.from_record(record, store.keys)
    except CorruptRecord:
        log.exception("a record in the queue, or with a lease, is damaged, and is quarantined")
        await quarantine(store.storage, record, now=store.clock())
        return None


def _begin(function: Function) -> Edit:
    """Count an attempt before it starts; or end a task that is cancelled or may not be started again."""

    def edit(task: TaskRecord, now: Micros, config: StoreConfig) -> TaskRecord:
        refusal = refusal_to_start(function, task, now)
        return edits.claim(task, now=now) if refusal is None else end_task(task, refusal, now, config)

    return unless_cancelled(edit)
