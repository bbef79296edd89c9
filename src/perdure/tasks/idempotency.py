"""Idempotency keys: a client that repeats a call with the same key gets the task of the first call.

A key is a small record in the partition of the owner. It is stored in the same commit as the task, and
expires after a configured time. If the task no longer exists, the key can be used for a new task.
"""

from __future__ import annotations

import msgspec
from msgspec import UnsetType

from ..storage import Address, Change, Insert, Micros, Record, Space
from ..storage.body_format import FORMAT_FIELD, BodyFormat
from ..storage.errors import StorageCorrupt
from .canonical_json import canonical, check_name
from .config import StoreConfig
from .errors import IdempotencyKeyReused, InvalidValue
from .owner import Owner
from .task_record import TaskId, TaskRecord

IDEMPOTENCY_KEYS = Space("idempotency")


class _KeyRecord(msgspec.Struct, frozen=True, tag_field=FORMAT_FIELD, tag=1):
    task_id: TaskId


_format = BodyFormat(_KeyRecord)


def check_key(key: str, owner: Owner, config: StoreConfig) -> None:
    if owner.is_anonymous:
        raise InvalidValue("idempotency_key", "cannot be used by an anonymous caller; authenticate first")
    check_name("idempotency_key", key, config.max_name_length)
    if "\0" in key:
        raise InvalidValue("idempotency_key", "must not contain NUL characters")


def key_address(partition: str, key: str) -> Address:
    return Address(IDEMPOTENCY_KEYS, partition, key)


def decode_task_id(record: Record) -> TaskId | None:
    """Return the id of the task to which a key is bound, or None if the record of the key is damaged.

    Raise NewerFormat if a newer version of perdure wrote the record.
    """
    try:
        return _format.decode(record.key, record.body).task_id
    except StorageCorrupt:
        return None


def bind_key(address: Address, task: TaskRecord, before: Record | None, config: StoreConfig) -> Change:
    """Return the storage change that binds a key to this task.

    `before` is the stored record of the key, if any.
    """
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


def check_same_call(existing: TaskRecord, new: TaskRecord) -> None:
    """Raise IdempotencyKeyReused if the two tasks have different methods or parameters."""
    if _call_identity(existing) != _call_identity(new):
        raise IdempotencyKeyReused


def _call_identity(task: TaskRecord) -> tuple[str, bytes | None]:
    # The parameters are compared as bytes: 1, 1.0 and True are equal in Python, but different in JSON.
    params = task.params_json
    return task.original_method, None if isinstance(params, UnsetType) else canonical(params)
