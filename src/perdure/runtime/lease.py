"""The lease: who works on a task, and until when. A small record beside the task, pure functions on it.

A process in which clients wait for tasks has a lease of its own, its attendance: see `attendance`.

Its version is the fencing token: every write of a worker replaces or removes the very lease that the worker
last wrote, in one commit with the task, so a worker that lost it can change nothing. The record is kept while
the task lives (free, when nobody holds it), because a version begins anew with a record that is born again.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..storage import Address, Delete, Insert, Micros, Record, Replace
from ..storage.body_format import FORMAT_FIELD, BodyFormat
from ..storage.errors import NewerFormat, StorageCorrupt
from ..tasks import Snapshot
from ..tasks.application import escape_application
from ..tasks.stored_task import LEASE_FORMAT, LEASES, TASKS

HELD = "held"
FREE = "free"
ATTENDING = "attending"
"""The tag of the lease of a process."""
SUSPECTED = "suspected"
"""The tag of such a lease that was not renewed in time."""
LOST = "lost"
"""The tag of such a lease whose process did not take it back. It is never renewed again."""


class Lease(msgspec.Struct, frozen=True, omit_defaults=True, tag_field=FORMAT_FIELD, tag=LEASE_FORMAT):
    """What the record says."""

    holder: str | None = None
    until: Micros | None = None


_format = BodyFormat(Lease)


def expiry_lane(application: str) -> str:
    """Return the lane in which the held leases of an application wait for their end."""
    return f"leases/{escape_application(application)}"


def task_of(lease: Record) -> Address:
    return Address(TASKS, lease.partition, lease.key)


class Holder(msgspec.Struct, frozen=True):
    """One claim of one worker. No two claims have the same name."""

    name: str
    application: str
    lasts: Micros
    """How long a lease of it lasts from each write on."""
    clock: Callable[[], Micros]

    def take(self, task: Snapshot, before: Record | None) -> Insert | Replace:
        """Hold the task: for the first time, or in the place of a lease that is free or ran out."""
        if before is not None:
            return self.extend(before)
        until = self.clock() + self.lasts
        record = Record(
            space=LEASES,
            partition=task.record.partition,
            key=task.record.key,
            order=task.record.order,
            body=_body(Lease(self.name, until)),
            tag=HELD,
            lane=expiry_lane(self.application),
            wake_at=until,
        )
        return Insert(record=record)

    def extend(self, lease: Record) -> Replace:
        """The heartbeat."""
        until = self.clock() + self.lasts
        lane = expiry_lane(self.application)
        return lease.replace_with(body=_body(Lease(self.name, until)), tag=HELD, lane=lane, wake_at=until)

    def holds(self, lease: Record | None) -> bool:
        """Whether a lease, as it was found, is this claim's."""
        try:
            return lease is not None and holder_of(lease) == self.name
        except NewerFormat:
            return False


def attendance_address(process: str) -> Address:
    return Address(LEASES, f"process::{process}", process)


def is_attendance(lease: Record) -> bool:
    """Whether it is the lease of a process, and not of a claim."""
    return lease.tag in (ATTENDING, SUSPECTED, LOST)


def attend(
    process: str, application: str, before: Record | None, *, until: Micros, now: Micros
) -> Insert | Replace:
    """Write the attendance of a process, or renew it."""
    body, lane = _body(Lease(process, until)), expiry_lane(application)
    if before is not None:
        return before.replace_with(body=body, tag=ATTENDING, lane=lane, wake_at=until)
    address = attendance_address(process)
    record = Record(
        space=address.space,
        partition=address.partition,
        key=address.key,
        order=now,
        body=body,
        tag=ATTENDING,
        lane=lane,
        wake_at=until,
    )
    return Insert(record=record)


def mark(lease: Record, tag: str) -> Replace:
    """Mark the lease of a process as suspected or lost."""
    return lease.replace_with(body=lease.body, tag=tag, lane=lease.lane, wake_at=lease.wake_at)


def give_up(lease: Record, task: Snapshot) -> Replace | Delete:
    """Free the lease of a task that was released; delete it if the task has ended."""
    if task.task.is_terminal:
        return Delete(before=lease)
    return lease.replace_with(body=_body(Lease()), tag=FREE, expires_at=task.record.expires_at)


def written(change: Insert | Replace) -> Record:
    """The lease after such a change."""
    return change.record if isinstance(change, Insert) else change.after


def read(lease: Record) -> Lease:
    """What it says; nothing if it is damaged. Raises NewerFormat if a newer version wrote it."""
    try:
        return _format.decode(lease.key, lease.body)
    except StorageCorrupt:
        return Lease()


def holder_of(lease: Record) -> str | None:
    """The name of the claim that holds it."""
    return read(lease).holder


def _body(lease: Lease) -> str:
    return _format.encode(lease)
