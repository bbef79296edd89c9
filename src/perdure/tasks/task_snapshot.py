"""`Snapshot`: a task as it was read, together with its storage record."""

from __future__ import annotations

from functools import partial

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from ..storage import Address, Micros, Record, Replace, Space, Storage, Tag
from ..storage.body_format import number_of
from ..storage.errors import CannotOpen
from . import edits, expiry_and_deadlines
from .body_encryption import decrypt_body, encrypt_body, key_missing
from .canonical_json import check_size
from .config import StoreConfig
from .encryption import Keyring
from .errors import CorruptRecord
from .lifecycle import Status
from .owner import partition_of
from .task_record import TASK_FORMAT, Success, TaskId, TaskRecord, decode_task, encode_task

TASKS = Space("tasks")
LEASES = Space("leases")
"""The storage space of leases. A lease is the record that a worker renews while it runs a task. It has the
same partition and key as the task."""
COMPLETED_WITH_ERROR = "completed_with_error"
"""The storage tag (index label) of a completed task whose result reports an error. Other tasks have their
status as the tag, unless they are quarantined."""
LEASE_FORMAT = 1
"""The version of the format of stored leases."""
BOOKKEEPING_RESERVE_BYTES = 48 * 1024
"""Maximum number of bytes by which a task can exceed its size limit, so that attempts, messages and an error
can still be stored."""
NO_KEYS = Keyring()
"""An empty keyring, which is sufficient for tasks that are not encrypted."""


async def check_format(storage: Storage, *, now: Micros) -> None:
    """Raise CannotOpen if the oldest task in this storage was written by a development version of perdure.

    The running version would not find such tasks, because development versions stored them in other
    partitions.
    """
    for oldest in await storage.page(TASKS, limit=1, now=now):
        number = number_of(oldest.body)
        if number is not None and number < TASK_FORMAT:
            reason = f"its tasks have format {number}, which only development versions of perdure wrote"
            remedy = f"use a new storage, because this version reads only format {TASK_FORMAT}"
            raise CannotOpen(storage.name, reason, remedy)


class Snapshot(msgspec.Struct, frozen=True):
    """A task as it was read or written.

    The next write succeeds only if the record has not changed since then.
    """

    task: TaskRecord
    record: Record

    @property
    def version(self) -> int:
        return self.record.version

    @classmethod
    def from_record(cls, record: Record, keys: Keyring | None = NO_KEYS) -> Snapshot:
        """Decode a storage record. If `keys` is None, do not decrypt it (see `head_of`).

        Raise CorruptRecord, NewerFormat or KeyMissing if the record cannot be read.
        """
        task = decode_task(record.key, record.body)
        if (task.task_id, _partition(task)) != (record.key, record.partition):
            raise CorruptRecord(
                record.key,
                "the task id, owner or application does not match the key and partition of the record",
            )
        if (task.ciphertexts or task.is_encrypted or task.credentials_json is not UNSET) and keys is not None:
            task = decode_task(record.key, decrypt_body(task, record.body, record.version, keys))
        return cls(task, record)

    @classmethod
    def head_of(cls, record: Record) -> Snapshot:
        """Decode only the fields that are not encrypted.

        If the task has encrypted fields, the resulting snapshot cannot be changed and written back. Raise
        CorruptRecord or NewerFormat if the record cannot be read.
        """
        return cls.from_record(record, None)

    def replace_with(
        self, task: TaskRecord, config: StoreConfig, keys: Keyring = NO_KEYS
    ) -> tuple[Snapshot, Replace]:
        """Return a snapshot of the changed task, and the storage change that stores it when committed."""
        lane, wake_at = edits.timer(task)
        reserve_bytes = 0 if _adds_content(self.task, task) else BOOKKEEPING_RESERVE_BYTES
        task, body = _encode(task, config, self.version + 1, keys, reserve_bytes)
        change = self.record.replace_with(
            body=body,
            tag=_tag(task),
            expires_at=expiry_and_deadlines.expires_at(task),
            lane=lane,
            wake_at=wake_at,
        )
        return Snapshot(task, change.after), change


def new_snapshot(task: TaskRecord, config: StoreConfig, keys: Keyring = NO_KEYS) -> Snapshot:
    """Return a snapshot of a new task, which has not been stored yet."""
    lane, wake_at = edits.timer(task)
    task, body = _encode(task, config, 1, keys)
    record = Record(
        space=TASKS,
        partition=_partition(task),
        key=task.task_id,
        order=task.created_at,
        body=body,
        tag=_tag(task),
        expires_at=expiry_and_deadlines.expires_at(task),
        lane=lane,
        wake_at=wake_at,
    )
    return Snapshot(task, record)


def _partition(task: TaskRecord) -> str:
    return partition_of(task.application, task.owner, task.task_id)


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
    """Return whether a change may have added content from the worker or the client.

    Such a change must respect the size limit. Other changes can exceed it by up to
    BOOKKEEPING_RESERVE_BYTES.
    """
    return (
        after.variables_json is not before.variables_json
        or after.checkpoint_json is not before.checkpoint_json
        or after.inputs is not before.inputs
        or isinstance(after.outcome, Success)
    )


def _encode(
    task: TaskRecord, config: StoreConfig, version: int, keys: Keyring, reserve_bytes: int = 0
) -> tuple[TaskRecord, str]:
    """Return the task and its encoded body. If the body is too large, remove the log and the reports."""
    max_bytes = config.max_record_size_bytes + reserve_bytes
    is_plain = not (task.is_encrypted or task.ciphertexts) and task.credentials_json is UNSET
    encode = encode_task if is_plain else partial(_encode_encrypted, version=version, keys=keys)
    body = encode(task)
    if len(body) > max_bytes:
        task = replace(task, log_json=UNSET, reports_json=UNSET)
        body = encode(task)
    check_size("task", body, max_bytes)
    return task, body.decode()


def _encode_encrypted(task: TaskRecord, *, version: int, keys: Keyring) -> bytes:
    if task.ciphertexts:
        raise key_missing(task)
    return encrypt_body(task, encode_task(task), version, keys)
