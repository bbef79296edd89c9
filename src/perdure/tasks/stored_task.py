"""Snapshots: tasks as they were read, together with their storage records."""

from __future__ import annotations

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from ..storage import Address, Record, Replace, Space, Tag
from . import edits, expiry_and_deadlines
from .canonical_json import check_size
from .config import StoreConfig
from .errors import CorruptRecord
from .lifecycle import Status
from .owner import partition_of
from .task_record import Success, TaskId, TaskRecord, decode_task, encode_task

TASKS = Space("tasks")
LEASES = Space("leases")
"""The storage space of leases. A lease has the same partition and key as its task."""
COMPLETED_WITH_ERROR = "completed_with_error"
"""The storage tag of completed tasks whose result reports an error. All other tags are statuses."""
LEASE_FORMAT = 1
"""The version of the format of stored leases."""
BOOKKEEPING_RESERVE_BYTES = 48 * 1024
"""Bytes by which a task may exceed its size limit to store attempts, messages and a short error."""


class Snapshot(msgspec.Struct, frozen=True):
    """A task as it was read. A write succeeds only if the stored record has not changed since."""

    task: TaskRecord
    record: Record

    @property
    def version(self) -> int:
        return self.record.version

    @classmethod
    def from_record(cls, record: Record) -> Snapshot:
        """Decode a storage record. Raise CorruptRecord or NewerFormat if it cannot be decoded."""
        task = decode_task(record.key, record.body)
        if (task.task_id, partition_of(task.owner, task.task_id)) != (record.key, record.partition):
            raise CorruptRecord(record.key, "the task id or owner in the record does not match its address")
        return cls(task, record)

    def replace_with(self, task: TaskRecord, config: StoreConfig) -> tuple[Snapshot, Replace]:
        """Return a snapshot of the changed task, and the storage change that must be committed."""
        lane, wake_at = edits.timer(task)
        reserve_bytes = 0 if _adds_content(self.task, task) else BOOKKEEPING_RESERVE_BYTES
        task, body = _encode(task, config, reserve_bytes)
        change = self.record.replace_with(
            body=body,
            tag=_tag(task),
            expires_at=expiry_and_deadlines.expires_at(task),
            lane=lane,
            wake_at=wake_at,
        )
        return Snapshot(task, change.after), change


def new_snapshot(task: TaskRecord, config: StoreConfig) -> Snapshot:
    """Return the snapshot of a new task, which is not stored yet."""
    lane, wake_at = edits.timer(task)
    task, body = _encode(task, config)
    record = Record(
        space=TASKS,
        partition=partition_of(task.owner, task.task_id),
        key=task.task_id,
        order=task.created_at,
        body=body,
        tag=_tag(task),
        expires_at=expiry_and_deadlines.expires_at(task),
        lane=lane,
        wake_at=wake_at,
    )
    return Snapshot(task, record)


def _tag(task: TaskRecord) -> Tag:
    return COMPLETED_WITH_ERROR if task.is_error else task.status.value


def tags_of(status: Status) -> tuple[Tag, ...]:
    """Return the tags under which tasks with this status are stored."""
    return (status.value, COMPLETED_WITH_ERROR) if status is Status.COMPLETED else (status.value,)


def task_address(partition: str, task_id: TaskId) -> Address:
    return Address(TASKS, partition, task_id)


def lease_address(task: Record) -> Address:
    return Address(LEASES, task.partition, task.key)


def _adds_content(before: TaskRecord, after: TaskRecord) -> bool:
    """Return whether the worker or the client may have added content. If so, the reserve must not be used."""
    return (
        after.variables_json is not before.variables_json
        or after.checkpoint_json is not before.checkpoint_json
        or after.inputs is not before.inputs
        or isinstance(after.outcome, Success)
    )


def _encode(task: TaskRecord, config: StoreConfig, reserve_bytes: int = 0) -> tuple[TaskRecord, str]:
    """Return the task and its encoded body. If the body is too large, the log and reports are removed."""
    max_bytes = config.max_record_size_bytes + reserve_bytes
    body = encode_task(task)
    if len(body) > max_bytes:
        task = replace(task, log_json=UNSET, reports_json=UNSET)
        body = encode_task(task)
    check_size("task", body, max_bytes)
    return task, body.decode()
