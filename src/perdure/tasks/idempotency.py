"""Idempotency keys: a create that is repeated, because its answer was lost, finds the first task.

A key is a small record in the owner's partition, committed together with the task, and forgotten after its
window. It is not tied to the task's end: a task that is gone leaves its key free for a new one.
"""

from __future__ import annotations

import msgspec
from msgspec import UnsetType

from ..storage import Address, Change, Insert, Micros, Record, Space
from ..storage.body import FORMAT_FIELD, BodyFormat
from ..storage.errors import StorageCorrupt
from . import codec
from .config import StoreConfig
from .errors import IdempotencyKeyReused, InvalidValue
from .owner import Owner
from .record import TaskId, TaskRecord

IDEMPOTENCY_KEYS = Space("idempotency")


class _KeyRecord(msgspec.Struct, frozen=True, tag_field=FORMAT_FIELD, tag=1):
    task_id: TaskId


_format = BodyFormat(_KeyRecord)


def check_key(key: str, owner: Owner, config: StoreConfig) -> None:
    if owner.is_anonymous:
        raise InvalidValue("idempotency_key", "needs an owner; anonymous callers share no keys")
    codec.check_name("idempotency_key", key, config.max_name_length)
    if "\0" in key:
        raise InvalidValue("idempotency_key", "must be text without NUL")


def key_address(partition: str, key: str) -> Address:
    return Address(IDEMPOTENCY_KEYS, partition, key)


def decode_task_id(record: Record) -> TaskId | None:
    """The task that a key stands for; none if the record is damaged, so that it is replaced.

    Raises NewerFormat if a newer version wrote it.
    """
    try:
        return _format.decode(record.key, record.body).task_id
    except StorageCorrupt:
        return None


def bind_key(address: Address, task: TaskRecord, before: Record | None, config: StoreConfig) -> Change:
    """Let a key stand for this task: for the first time, or in the place of one that is gone."""
    body = _format.encode(_KeyRecord(task.task_id))
    expires_at: Micros = task.created_at + config.idempotency_window_ms * 1000
    if before is not None:
        return before.replace_with(body=body, tag="", expires_at=expires_at)
    space, partition, key = address
    return Insert(
        record=Record(
            space=space,
            partition=partition,
            key=key,
            order=task.created_at,
            body=body,
            expires_at=expires_at,
        )
    )


def check_same_call(first: TaskRecord, again: TaskRecord) -> None:
    """Raise where a key is used for something else than the first time."""
    if _call_identity(first) != _call_identity(again):
        raise IdempotencyKeyReused


def _call_identity(task: TaskRecord) -> tuple[str, bytes | None]:
    """By canonical bytes: 1, 1.0 and true are equal in Python, and are not the same call."""
    params = task.params_json
    return task.original_method, None if isinstance(params, UnsetType) else bytes(params)
