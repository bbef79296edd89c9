"""Leases: small records beside the tasks. Each names the claim on a task, and the time when it expires.

The version of a lease is the fencing token: every write of a worker replaces or deletes the lease that the
worker wrote last, in one commit with the task, so a worker that lost its claim cannot change anything. The
lease is kept until the task ends, and is free while no worker runs the task. If it were deleted and inserted
again instead, its versions would start from the beginning.

A process in which clients wait for tasks has a lease of its own, its attendance: see `attendance`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..storage import Address, Delete, Insert, Micros, Record, Replace
from ..storage.body_format import FORMAT_FIELD, BodyFormat
from ..storage.errors import NewerFormat, StorageCorrupt
from ..tasks import Snapshot
from ..tasks.application_name import escape_application
from ..tasks.task_snapshot import LEASE_FORMAT, LEASES, TASKS

HELD = "held"
FREE = "free"
ATTENDING = "attending"
"""The tag of the lease of a process."""
SUSPECTED = "suspected"
"""The tag of the lease of a process that did not renew it in time."""
LOST = "lost"
"""The tag of a suspected lease that was still not renewed. It is never renewed again."""


class Lease(msgspec.Struct, frozen=True, omit_defaults=True, tag_field=FORMAT_FIELD, tag=LEASE_FORMAT):
    """The body of the record of a lease. A free lease has no holder."""

    holder: str | None = None
    until: Micros | None = None


_format = BodyFormat(Lease)


def expiry_lane(application: str) -> str:
    """Return the lane that lists the leases of an application by the time when they expire."""
    return f"leases/{escape_application(application)}"


def task_of(lease: Record) -> Address:
    return Address(TASKS, lease.partition, lease.key)


class Holder(msgspec.Struct, frozen=True):
    """One claim of one worker. Its name is unique."""

    name: str
    application: str
    lasts: Micros
    """How long the lease lasts after each write."""
    clock: Callable[[], Micros]

    def take(self, task: Snapshot, before: Record | None) -> Insert | Replace:
        """Return the change that claims a task: it inserts a lease, or replaces a free or expired one."""
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
        """Return the change that renews a lease."""
        until = self.clock() + self.lasts
        lane = expiry_lane(self.application)
        return lease.replace_with(body=_body(Lease(self.name, until)), tag=HELD, lane=lane, wake_at=until)

    def holds(self, lease: Record | None) -> bool:
        """Return whether a stored lease belongs to this claim."""
        try:
            return lease is not None and holder_of(lease) == self.name
        except NewerFormat:
            return False


def attendance_address(process: str) -> Address:
    return Address(LEASES, f"process::{process}", process)


def attendance_lane(application: str) -> str:
    """Return the lane that lists the leases of the processes of an application by the time when they expire.

    It is separate from the lane of claims. There, many expired claims of tasks that wait for a lost process
    to be handled could hide the lease of this process.
    """
    return f"attendances/{escape_application(application)}"


def is_attendance(lease: Record) -> bool:
    """Return whether a lease is that of a process, and not of a claim."""
    return lease.tag in (ATTENDING, SUSPECTED, LOST)


def attend(
    process: str, application: str, before: Record | None, *, until: Micros, now: Micros
) -> Insert | Replace:
    """Return the change that creates or renews the lease of a process."""
    body, lane = _body(Lease(process, until)), attendance_lane(application)
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
    """Return the change that marks the lease of a process as suspected or lost."""
    return lease.replace_with(body=lease.body, tag=tag, lane=lease.lane, wake_at=lease.wake_at)


def give_up(lease: Record, task: Snapshot) -> Replace | Delete:
    """Return the change that frees the lease of a released task, or deletes that of an ended task."""
    if task.task.is_terminal:
        return Delete(before=lease)
    return lease.replace_with(body=_body(Lease()), tag=FREE, expires_at=task.record.expires_at)


def written(change: Insert | Replace) -> Record:
    """Return the lease after a change."""
    return change.record if isinstance(change, Insert) else change.after


def read(lease: Record) -> Lease:
    """Return the body of a lease, or an empty one if it is damaged.

    Raise NewerFormat if a newer version of perdure wrote it.
    """
    try:
        return _format.decode(lease.key, lease.body)
    except StorageCorrupt:
        return Lease()


def holder_of(lease: Record) -> str | None:
    """Return the name of the claim that a lease belongs to."""
    return read(lease).holder


def _body(lease: Lease) -> str:
    return _format.encode(lease)
