"""The limits of the contract, and the checks of arguments that enforce them.

All five engines can keep these limits: order, key, partition and space fit into a DynamoDB sort key of 1024
bytes, PostgreSQL text cannot contain NUL, and Lua numbers are exact up to 53 bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from .errors import InvalidArgument
from .record import Change, Delete, Guard, Position, Record, Replace, Space

MAX_ADDRESSES = 100
MAX_CHANGES = 25
MAX_PAGE_RECORDS = 1000
MAX_SPACES = 8
MAX_GUARD_TAGS = 16
MAX_COMMIT_BYTES = 2 * 1024 * 1024
MAX_SPACE_BYTES = 16
MAX_PARTITION_BYTES = 512
MAX_KEY_BYTES = 256
MAX_TAG_BYTES = 64
MAX_LANE_BYTES = 256
MAX_INTEGER = 2**53 - 1


def check_changes(changes: Sequence[Change]) -> None:
    check_count("changes", len(changes), MAX_CHANGES)
    total = sum(_check_change(change) for change in changes)
    if total > MAX_COMMIT_BYTES:
        raise InvalidArgument("changes", f"have bodies of {total} bytes; a commit allows {MAX_COMMIT_BYTES}")
    if len(changes) == 1:
        return
    addresses = {change.address for change in changes}
    if len(addresses) < len(changes):
        raise InvalidArgument("changes", "contain two changes to the same record; a commit allows one")
    if len({address.partition for address in addresses}) > 1:
        raise InvalidArgument("changes", "must all be in one partition")
    spaces = len({address.space for address in addresses})
    if spaces > MAX_SPACES:
        raise InvalidArgument("changes", f"use {spaces} spaces; a commit allows {MAX_SPACES}")


def check_guard(guard: Guard) -> None:
    check_text("space", guard.space, MAX_SPACE_BYTES)
    check_integer("max_count", guard.max_count)
    check_count("tags", len(guard.tags), MAX_GUARD_TAGS)
    for tag in guard.tags:
        check_text("tags", tag, MAX_TAG_BYTES, minimum=0)


def check_address(space: Space, partition: str, key: str) -> None:
    check_text("space", space, MAX_SPACE_BYTES)
    check_text("partition", partition, MAX_PARTITION_BYTES)
    check_text("key", key, MAX_KEY_BYTES)


def check_space(space: Space, partition: str | None) -> None:
    check_text("space", space, MAX_SPACE_BYTES)
    if partition is not None:
        check_text("partition", partition, MAX_PARTITION_BYTES)


def check_position(position: Position, partition: str | None) -> None:
    if partition not in (None, position.partition):
        raise InvalidArgument("after", "is a position in another partition")
    check_integer("after.order", position.order)
    check_text("after.key", position.key, MAX_KEY_BYTES)
    check_text("after.partition", position.partition, MAX_PARTITION_BYTES)


def check_count(field: str, count: int, maximum: int) -> None:
    if type(count) is not int or not 1 <= count <= maximum:
        raise InvalidArgument(field, f"must be an integer from 1 to {maximum}, not {count!r}")


def check_integer(field: str, number: int, minimum: int = 0) -> None:
    if type(number) is not int or not minimum <= number <= MAX_INTEGER:
        raise InvalidArgument(field, f"must be an integer from {minimum} to {MAX_INTEGER}, not {number!r}")


def check_text(field: str, text: object, maximum: int, minimum: int = 1) -> int:
    """Check a string, and return its size in UTF-8, in bytes."""
    if not isinstance(text, str):
        raise InvalidArgument(field, f"must be str, not {type(text).__name__}")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        reason = "contains an unpaired surrogate, which cannot be encoded as UTF-8"
        raise InvalidArgument(field, reason) from error
    if not minimum <= size <= maximum:
        raise InvalidArgument(field, f"must be {minimum} to {maximum} bytes, not {size}")
    if "\0" in text:
        raise InvalidArgument(field, "contains a NUL character, which is not allowed")
    return size


def _check_change(change: Change) -> int:
    """Check a change, and return the size of the body that it writes."""
    if isinstance(change, Delete):
        check_address(*change.address)
        return 0
    if isinstance(change, Replace):
        _check_replace(change.before, change.after)
        return _check_record(change.after)
    return _check_record(change.record)


def _check_replace(before: Record, after: Record) -> None:
    same_address = (
        after.key == before.key and after.partition == before.partition and after.space == before.space
    )
    if not same_address or after.order != before.order:
        raise InvalidArgument("after", "must have the same address and order as `before`; they never change")
    if after.version != before.version + 1:
        raise InvalidArgument("after.version", f"must be {before.version + 1}, not {after.version}")


def _check_record(record: Record) -> int:
    """Check a record, and return the size of its body."""
    check_address(record.space, record.partition, record.key)
    check_integer("order", record.order)
    check_integer("version", record.version, minimum=1)
    check_text("tag", record.tag, MAX_TAG_BYTES, minimum=0)
    if record.expires_at is not None:
        check_integer("expires_at", record.expires_at, minimum=1)
    if record.lane is not None and record.wake_at is not None:
        check_text("lane", record.lane, MAX_LANE_BYTES)
        check_integer("wake_at", record.wake_at)
    elif record.lane is not record.wake_at:
        raise InvalidArgument("lane", "lane and wake_at must both be set, or neither")
    return check_text("body", record.body, MAX_COMMIT_BYTES)
