"""The limits of the storage contract, and the argument checks that enforce them.

The limits are chosen so that every engine can support them. Order, key, partition and space together must fit
into a DynamoDB sort key of 1024 bytes, PostgreSQL cannot store NUL, and integers in Lua (in Redis) are exact
only up to 53 bits.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized

from .errors import InvalidArgument
from .records_and_changes import Change, Delete, Guard, LanePosition, Position, Record, Replace, Space

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
    check_length("changes", changes, MAX_CHANGES)
    total = sum(_check_change(change) for change in changes)
    if total > MAX_COMMIT_BYTES:
        reason = f"the bodies in a commit can have at most {MAX_COMMIT_BYTES} bytes in total, not {total}"
        raise InvalidArgument("changes", reason)
    if len(changes) == 1:
        return
    addresses = {change.address for change in changes}
    if len(addresses) < len(changes):
        raise InvalidArgument("changes", "a commit can contain only one change to each record")
    if len({address.partition for address in addresses}) > 1:
        raise InvalidArgument("changes", "all changes in a commit must be in the same partition")
    spaces = len({address.space for address in addresses})
    if spaces > MAX_SPACES:
        raise InvalidArgument("changes", f"a commit can use at most {MAX_SPACES} spaces, not {spaces}")


def check_guard(guard: Guard) -> None:
    check_text("space", guard.space, MAX_SPACE_BYTES)
    check_integer("max_count", guard.max_count)
    check_length("tags", guard.tags, MAX_GUARD_TAGS)
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
        raise InvalidArgument("after", f"must be a position in the partition {partition!r}")
    check_integer("after.order", position.order)
    check_text("after.key", position.key, MAX_KEY_BYTES)
    check_text("after.partition", position.partition, MAX_PARTITION_BYTES)


def check_lane_position(position: LanePosition) -> None:
    check_integer("after.wake_at", position.wake_at)
    check_text("after.key", position.key, MAX_KEY_BYTES)
    check_text("after.partition", position.partition, MAX_PARTITION_BYTES)
    check_text("after.space", position.space, MAX_SPACE_BYTES)


def check_length(field: str, items: Sized, maximum: int) -> None:
    if not 1 <= len(items) <= maximum:
        raise InvalidArgument(field, f"must contain 1 to {maximum} items, not {len(items)}")


def check_integer(field: str, number: int, minimum: int = 0, maximum: int = MAX_INTEGER) -> None:
    if type(number) is not int or not minimum <= number <= maximum:
        raise InvalidArgument(field, f"must be an integer from {minimum} to {maximum}, not {number!r}")


def check_text(field: str, text: object, maximum: int, minimum: int = 1) -> int:
    """Check the type, size and characters of `text`. Return its size in UTF-8 bytes."""
    if not isinstance(text, str):
        raise InvalidArgument(field, f"must be str, not {type(text).__name__}")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        reason = "contains an unpaired surrogate, which cannot be encoded as UTF-8"
        raise InvalidArgument(field, reason) from error
    if not minimum <= size <= maximum:
        raise InvalidArgument(field, f"must be {minimum} to {maximum} bytes long, not {size}")
    if "\0" in text:
        raise InvalidArgument(field, "contains a NUL character, which is not allowed")
    return size


def _check_change(change: Change) -> int:
    """Check a change. Return the size in bytes of the body that the change writes, or 0 for a delete."""
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
        raise InvalidArgument("after", "must have the same address and order as `before`")
    if after.version != before.version + 1:
        raise InvalidArgument("after.version", f"must be {before.version + 1}, not {after.version}")


def _check_record(record: Record) -> int:
    """Check the fields of a record, and return the size of the body in bytes."""
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
        raise InvalidArgument("lane", "set both lane and wake_at, or neither")
    return check_text("body", record.body, MAX_COMMIT_BYTES)
