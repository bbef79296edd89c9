"""`Storage`: the contract as the rest of perdure uses it. It checks arguments, once, for every engine.

The limits are the least that the five engines have in common: order, key, partition and space fit together
into a DynamoDB sort key of 1024 bytes, a PostgreSQL text holds no NUL, a Lua number 53 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import anyio

from .contract import About, Engine, Maintenance, Watch
from .errors import InvalidArgument, StorageClosed, StorageError
from .record import (
    Address,
    Change,
    Committed,
    Delete,
    Done,
    Guard,
    Micros,
    PageRequest,
    Position,
    Purged,
    Record,
    Refused,
    Replace,
    Space,
    Tag,
)

MOST_ADDRESSES = 100
MOST_CHANGES = 25
MOST_RECORDS = 1000
MOST_SPACES = 8
MOST_GUARD_TAGS = 16
MOST_BYTES = 2 * 1024 * 1024
MOST_SPACE_BYTES = 16
MOST_PARTITION_BYTES = 512
MOST_KEY_BYTES = 256
MOST_TAG_BYTES = 64
MOST_LANE_BYTES = 256
MOST_NUMBER = 2**53 - 1


class Storage:
    """An open storage. Use it as a context manager, or `close` it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._closed = False
        self._write_error: StorageError | None = None

    @property
    def write_error(self) -> StorageError | None:
        """The error of the last write, if it failed and nothing was written since."""
        return self._write_error

    @property
    def name(self) -> str:
        """Which engine this is, for people and for logs; nothing may depend on it."""
        return self._engine.name

    @property
    def lag(self) -> float:
        """Seconds that the verbs across partitions may be behind."""
        return self._engine.lag

    async def get(self, address: Address, *, now: Micros) -> Record | None:
        """The newest committed record at this address, or none."""
        return (await self.get_many((address,), now=now))[0]

    async def get_many(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:
        """The same for up to 100 addresses, of any partitions, in their order."""
        self._check_open()
        _check_count("addresses", len(addresses), MOST_ADDRESSES)
        _check_number("now", now)
        for address in addresses:
            _check_names(*address)
        return await self._engine.get(addresses, now=now)

    async def commit(
        self, changes: Sequence[Change], *, now: Micros, guard: Guard | None = None
    ) -> Committed | Refused:
        """Write all these changes of one partition, or none of them."""
        self._check_open()
        _check_number("now", now)
        _check_changes(changes)
        if guard is not None:
            _check_guard(guard)
        try:
            answer = await self._engine.commit(changes, guard=guard, now=now)
        except StorageError as error:
            self._note_failure(error)
            raise
        if self._write_error is not None and _has_written(answer):
            self._write_error = None
        return answer

    async def page(
        self,
        space: Space,
        partition: str | None = None,
        *,
        limit: int,
        now: Micros,
        after: Position | None = None,
        tag: Tag | None = None,
        descending: bool = False,
    ) -> list[Record]:
        """Up to `limit` records strictly after a position, of one partition or of all.

        They are fewer at the end, and after 8 MiB of bodies: `is_last_page` says which it is.
        """
        self._check_open()
        _check_scope(space, partition)
        _check_count("limit", limit, MOST_RECORDS)
        _check_number("now", now)
        if tag is not None:
            _check_text("tag", tag, MOST_TAG_BYTES, least=0)
        if after is not None:
            _check_position(after, partition)
        wanted = PageRequest(
            space=space, partition=partition, after=after, limit=limit, tag=tag, descending=descending
        )
        return await self._engine.page(wanted, now=now)

    async def due(self, lane: str, *, until: Micros, limit: int, now: Micros) -> list[Record]:
        """Up to `limit` records of a lane whose `wake_at` has come, earliest first; fewer after 8 MiB."""
        self._check_open()
        _check_text("lane", lane, MOST_LANE_BYTES)
        _check_number("until", until)
        _check_number("now", now)
        _check_count("limit", limit, MOST_RECORDS)
        return await self._engine.due(lane, until=until, limit=limit, now=now)

    async def counts(self, space: Space, partition: str | None = None, *, now: Micros) -> Mapping[Tag, int]:
        """How many live records there are of each tag."""
        self._check_open()
        _check_scope(space, partition)
        _check_number("now", now)
        return await self._engine.counts(space, partition, now=now)

    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        """Remove up to `limit` records that had expired by `until`, and tell which."""
        self._check_open()
        _check_number("until", until)
        _check_count("limit", limit, MOST_RECORDS)
        try:
            purged = await self._engine.purge(until=until, limit=limit)
        except StorageError as error:
            self._note_failure(error)
            raise
        if purged:
            self._write_error = None
        return purged

    def watch(self, space: Space, partition: str | None = None, key: str | None = None) -> Watch:
        """Wake-ups for one record, for a partition of a space, or for the whole space."""
        self._check_open()
        _check_scope(space, partition)
        if key is not None:
            if partition is None:
                raise InvalidArgument("key", "is watched within a partition; name the partition too")
            _check_text("key", key, MOST_KEY_BYTES)
        return self._engine.watch(space, partition, key)

    async def maintain(self, *, repair: bool = False) -> Maintenance:
        """Give back room that is no longer used, and look for damage; count anew if asked to."""
        self._check_open()
        return await self._engine.maintain(repair=repair)

    async def about(self) -> About:
        """What keeps the records: the name, version and clock of a server. Nothing may depend on it."""
        self._check_open()
        return await self._engine.about()

    async def close(self) -> None:
        """Release everything, even while the caller is being stopped."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            await self._engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _note_failure(self, error: StorageError) -> None:
        if not isinstance(error, StorageClosed):
            self._write_error = error

    def _check_open(self) -> None:
        if self._closed:
            raise StorageClosed("this storage was closed")


def _has_written(answer: Committed | Refused) -> bool:
    return isinstance(answer, Committed) and any(isinstance(each, Done) for each in answer.answers)


def _check_changes(changes: Sequence[Change]) -> None:
    _check_count("changes", len(changes), MOST_CHANGES)
    total = sum(_check_change(change) for change in changes)
    if total > MOST_BYTES:
        raise InvalidArgument("changes", f"hold {total} bytes of bodies; a commit takes {MOST_BYTES}")
    if len(changes) == 1:
        return
    addresses = {change.address for change in changes}
    if len(addresses) < len(changes):
        raise InvalidArgument("changes", "name one record twice; a commit changes a record once")
    if len({address.partition for address in addresses}) > 1:
        raise InvalidArgument("changes", "span partitions; a commit is atomic within one")
    if len(changes) > MOST_SPACES < len({address.space for address in addresses}):
        raise InvalidArgument("changes", f"span more than {MOST_SPACES} spaces")


def _check_change(change: Change) -> int:
    """The bytes of the body that this change writes."""
    if isinstance(change, Delete):
        _check_names(*change.address)
        return 0
    if isinstance(change, Replace):
        _check_replace(change.before, change.after)
        return _check_record(change.after)
    return _check_record(change.record)


def _check_replace(before: Record, after: Record) -> None:
    same_place = (
        after.key == before.key and after.partition == before.partition and after.space == before.space
    )
    if not same_place or after.order != before.order:
        raise InvalidArgument("after", "moves the record; address and order are fixed at birth")
    if after.version != before.version + 1:
        raise InvalidArgument("after.version", f"is {after.version}, not {before.version} + 1")


def _check_record(record: Record) -> int:
    """The bytes of its body."""
    _check_names(record.space, record.partition, record.key)
    _check_number("order", record.order)
    _check_number("version", record.version, least=1)
    _check_text("tag", record.tag, MOST_TAG_BYTES, least=0)
    if record.expires_at is not None:
        _check_number("expires_at", record.expires_at, least=1)
    if record.lane is not None and record.wake_at is not None:
        _check_text("lane", record.lane, MOST_LANE_BYTES)
        _check_number("wake_at", record.wake_at)
    elif record.lane is not record.wake_at:
        raise InvalidArgument("lane", "and wake_at come together or not at all")
    return _check_text("body", record.body, MOST_BYTES)


def _check_guard(guard: Guard) -> None:
    _check_text("space", guard.space, MOST_SPACE_BYTES)
    _check_number("at_most", guard.at_most)
    _check_count("tags", len(guard.tags), MOST_GUARD_TAGS)
    for tag in guard.tags:
        _check_text("tags", tag, MOST_TAG_BYTES, least=0)


def _check_names(space: Space, partition: str, key: str) -> None:
    _check_text("space", space, MOST_SPACE_BYTES)
    _check_text("partition", partition, MOST_PARTITION_BYTES)
    _check_text("key", key, MOST_KEY_BYTES)


def _check_scope(space: Space, partition: str | None) -> None:
    _check_text("space", space, MOST_SPACE_BYTES)
    if partition is not None:
        _check_text("partition", partition, MOST_PARTITION_BYTES)


def _check_position(position: Position, partition: str | None) -> None:
    if partition not in (None, position.partition):
        raise InvalidArgument("after", "is a place in another partition")
    _check_number("after.order", position.order)
    _check_text("after.key", position.key, MOST_KEY_BYTES)
    _check_text("after.partition", position.partition, MOST_PARTITION_BYTES)


def _check_count(field: str, count: int, most: int) -> None:
    if type(count) is not int or not 1 <= count <= most:
        raise InvalidArgument(field, f"must be an integer from 1 to {most}, not {count!r}")


def _check_number(field: str, number: int, least: int = 0) -> None:
    if type(number) is not int or not least <= number <= MOST_NUMBER:
        raise InvalidArgument(field, f"must be an integer from {least} to {MOST_NUMBER}, not {number!r}")


def _check_text(field: str, text: object, most: int, least: int = 1) -> int:
    """The bytes of this text in UTF-8."""
    if not isinstance(text, str):
        raise InvalidArgument(field, f"must be text, not {type(text).__name__}")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(field, "holds a lone surrogate, which UTF-8 cannot express") from error
    if not least <= size <= most:
        raise InvalidArgument(field, f"must be {least} to {most} bytes, not {size}")
    if "\0" in text:
        raise InvalidArgument(field, "holds a NUL character, which PostgreSQL cannot store")
    return size
