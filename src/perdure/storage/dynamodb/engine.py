"""The DynamoDB engine, which stores all records in one table. Several processes can share the table.

Reads within a partition return the newest records. Reads across partitions use global indexes, which may be
up to `lag` seconds out of date. `writer` implements commits. `partition_reader` and `cross_partition_reader`
implement reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ..call_tracker import CallTracker
from ..contract import Engine, MaintenanceReport
from ..records_and_changes import (
    Address,
    Change,
    Committed,
    Guard,
    LanePosition,
    Micros,
    PageRequest,
    Purged,
    Record,
    Refused,
    Space,
    Tag,
)
from ..watch import Watch, WatchRegistry
from .consistency_repair import maintain
from .counters import read_with_expired, subtract_expired
from .cross_partition_reader import CrossPartitionReader
from .location import parse_url
from .partition_reader import PartitionReader
from .table_client import Table
from .table_setup import check_table, create_table
from .writer import Writer

POLL_SECONDS = 1.0
"""Number of seconds between two wake-ups of all watches. DynamoDB does not report changes, so callers that
wait for a change are woken at regular intervals, and read again.
"""


async def open_engine(url: str) -> DynamoEngine:
    """Open the DynamoDB table that `url` names. The table must exist."""
    table = Table(parse_url(url))
    try:
        await table.connect()
        await check_table(table)
    except BaseException:
        await table.close()
        raise
    return DynamoEngine(table)


async def migrate(url: str) -> None:
    """Create the DynamoDB table that `url` names, if it does not exist."""
    table = Table(parse_url(url))
    try:
        await table.connect()
        await create_table(table)
    finally:
        await table.close()


class DynamoEngine(Engine):
    """An open storage on DynamoDB. Use it only in the event loop that opened it."""

    name = "dynamodb"
    lag = 2.0

    def __init__(self, table: Table) -> None:
        self._table = table
        self._watches = WatchRegistry(on_watched_changed=self._update_waker)
        self._reader = PartitionReader(table)
        self._cross_partition = CrossPartitionReader(table, self._reader, self._watches.wake)
        self._writer = Writer(table, self._watches.wake)
        self._waker: asyncio.Task[None] | None = None
        self._calls = CallTracker()

    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:
        with self._calls:
            return await self._reader.get(addresses, now)

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        with self._calls:
            return await self._writer.commit(changes, guard, now)

    async def page(self, request: PageRequest, *, now: Micros) -> list[Record]:
        with self._calls:
            if request.partition is None:
                return await self._cross_partition.page(request, now)
            return await self._reader.page(request, request.partition, now)

    async def due(
        self, lane: str, *, after: LanePosition | None, until: Micros, limit: int, now: Micros
    ) -> list[Record]:
        with self._calls:
            return await self._cross_partition.due(lane, after, until, limit, now)

    async def counts(self, space: Space, partition: str | None, *, now: Micros) -> Mapping[Tag, int]:
        with self._calls:
            if partition is None:
                return await self._cross_partition.counts(space, now)
            stored, expired = await read_with_expired(self._table, space, partition, now)
            return subtract_expired(stored.counts, [each.tag for each in expired])

    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        with self._calls:
            return await self._cross_partition.purge(until, limit)

    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch:
        return self._watches.watch((space, partition, key))

    async def maintain(self, *, repair: bool) -> MaintenanceReport:
        with self._calls:
            return await maintain(self._table, self._reader, repair=repair)

    async def close(self) -> None:
        self._watches.close()
        if self._waker is not None:
            self._waker.cancel()
        await self._calls.drain()
        await self._writer.close()
        await self._reader.close()
        await self._table.close()

    def _update_waker(self) -> None:
        if self._waker is not None:
            self._waker.cancel()
        is_needed = self._watches.is_watched and not self._watches.is_closed
        self._waker = asyncio.get_running_loop().create_task(self._wake_all()) if is_needed else None

    async def _wake_all(self) -> None:
        """Wake all watches once a second.

        Because all watches wake together, their callers read at the same time, and the reads share requests.
        """
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self._watches.wake_all()
