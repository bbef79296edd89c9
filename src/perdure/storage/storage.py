"""`Storage`: the class through which the rest of perdure uses an engine. It checks all arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import anyio

from .contract import Engine, MaintenanceReport, StorageInfo
from .errors import InvalidArgument, StorageClosed, StorageError
from .limits import (
    MAX_ADDRESSES,
    MAX_KEY_BYTES,
    MAX_LANE_BYTES,
    MAX_PAGE_RECORDS,
    MAX_TAG_BYTES,
    check_address,
    check_changes,
    check_guard,
    check_integer,
    check_lane_position,
    check_length,
    check_position,
    check_space,
    check_text,
)
from .records_and_changes import (
    Accepted,
    Address,
    Change,
    Committed,
    Guard,
    LanePosition,
    Micros,
    PageRequest,
    Position,
    Purged,
    Record,
    Refused,
    Space,
    Tag,
)
from .watch import Watch


class Storage:
    """An open storage, as returned by `open_storage`. Use it as an async context manager, or call `close`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._closed = False
        self._write_error: StorageError | None = None

    @property
    def write_error(self) -> StorageError | None:
        """The error of the last failed write. None if no write has failed, or if a later write succeeded."""
        return self._write_error

    @property
    def name(self) -> str:
        """The name of the engine, for display and logs. Code must not depend on the name."""
        return self._engine.name

    @property
    def lag(self) -> float:
        """Maximum number of seconds until a commit is visible to reads that span all partitions."""
        return self._engine.lag

    async def get(self, address: Address, *, now: Micros) -> Record | None:
        """Return the newest committed live record at `address`, or None if there is no such record."""
        return (await self.get_many((address,), now=now))[0]

    async def get_many(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:
        """Return the live record, or None, for each address.

        There can be up to 100 addresses, in any partitions.
        """
        self._check_open()
        check_length("addresses", addresses, MAX_ADDRESSES)
        check_integer("now", now)
        for address in addresses:
            check_address(*address)
        return await self._engine.get(addresses, now=now)

    async def commit(
        self, changes: Sequence[Change], *, now: Micros, guard: Guard | None = None
    ) -> Committed | Refused:
        """Write either all of the changes or none of them. All changes must be in the same partition."""
        self._check_open()
        check_integer("now", now)
        check_changes(changes)
        if guard is not None:
            check_guard(guard)
        try:
            result = await self._engine.commit(changes, guard=guard, now=now)
        except StorageError as error:
            self._note_failure(error)
            raise
        if self._write_error is not None and _has_written(result):
            self._write_error = None
        return result

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
        """Return up to `limit` live records after the position `after`, from one partition or from all.

        With `tag`, return only records that have this tag. A page has fewer than `limit` records if the
        listing ends, or if the bodies reach 8 MiB in total. `is_last_page` distinguishes the two cases.
        """
        self._check_open()
        check_space(space, partition)
        check_integer("limit", limit, 1, MAX_PAGE_RECORDS)
        check_integer("now", now)
        if tag is not None:
            check_text("tag", tag, MAX_TAG_BYTES, minimum=0)
        if after is not None:
            check_position(after, partition)
        request = PageRequest(
            space=space, partition=partition, after=after, limit=limit, tag=tag, descending=descending
        )
        return await self._engine.page(request, now=now)

    async def due(
        self, lane: str, *, until: Micros, limit: int, now: Micros, after: LanePosition | None = None
    ) -> list[Record]:
        """Return up to `limit` live records of a lane (timer queue) with `wake_at <= until`, earliest first.

        With `after`, return only records after this position. Return fewer records if their bodies reach 8
        MiB in total.
        """
        self._check_open()
        check_text("lane", lane, MAX_LANE_BYTES)
        check_integer("until", until)
        check_integer("now", now)
        check_integer("limit", limit, 1, MAX_PAGE_RECORDS)
        if after is not None:
            check_lane_position(after)
        return await self._engine.due(lane, after=after, until=until, limit=limit, now=now)

    async def counts(self, space: Space, partition: str | None = None, *, now: Micros) -> Mapping[Tag, int]:
        """Return the number of live records for each tag, in one partition or across all partitions."""
        self._check_open()
        check_space(space, partition)
        check_integer("now", now)
        return await self._engine.counts(space, partition, now=now)

    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        """Delete up to `limit` records with `expires_at <= until`. Return their addresses and tags."""
        self._check_open()
        check_integer("until", until)
        check_integer("limit", limit, 1, MAX_PAGE_RECORDS)
        try:
            purged = await self._engine.purge(until=until, limit=limit)
        except StorageError as error:
            self._note_failure(error)
            raise
        if purged:
            self._write_error = None
        return purged

    def watch(
        self,
        space: Space,
        partition: str | None = None,
        key: str | None = None,
        *,
        only_lanes: bool = False,
    ) -> Watch:
        """Return a watch that wakes when a record, a partition of a space, or a whole space changes.

        With `only_lanes`, the watch ignores the changes of this client after which the record is in no lane
        (timer queue). Purges and changes by other clients may still wake it. With DynamoDB, which does not
        report changes, every watch wakes at regular intervals.
        """
        self._check_open()
        check_space(space, partition)
        if key is not None:
            if partition is None:
                raise InvalidArgument("key", "a watch on a key requires a partition; pass `partition` too")
            check_text("key", key, MAX_KEY_BYTES)
        watch = self._engine.watch(space, partition, key)
        watch.only_lanes = only_lanes
        return watch

    async def maintain(self, *, repair: bool = False) -> MaintenanceReport:
        """Release unused space and check for damage.

        With `repair`, also correct wrong counters and indexes.
        """
        self._check_open()
        return await self._engine.maintain(repair=repair)

    async def info(self) -> StorageInfo:
        """Return facts about the server or file, for display. Code must not depend on them."""
        self._check_open()
        return await self._engine.info()

    async def close(self) -> None:
        """Close the storage and release all resources, even if the caller is cancelled while waiting."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            await self._engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _note_failure(self, error: StorageError) -> None:
        if not isinstance(error, StorageClosed):
            self._write_error = error

    def _check_open(self) -> None:
        if self._closed:
            raise StorageClosed("this storage is closed")


def _has_written(result: Committed | Refused) -> bool:
    return isinstance(result, Committed) and any(isinstance(each, Accepted) for each in result.results)
