"""The DynamoDB engine: the seven verbs on one table, shared by any number of processes.

Within a partition every answer is the newest; across partitions it may be `lag` behind, as the table's global
indexes are. What is written is in `writing`, what is read in `reading` and `across`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ..contract import Engine, MaintenanceReport
from ..errors import StorageClosed
from ..record import (
    Address,
    Change,
    Committed,
    Guard,
    Micros,
    PageRequest,
    Purged,
    Record,
    Refused,
    Space,
    Tag,
)
from ..watch import Watch, WatchRegistry
from .counters import living, look
from .global_index import Across
from .location import parse
from .maintenance import maintain
from .reader import Reader
from .schema import check, connect, make
from .table import Table
from .writer import Writer

POLL_SECONDS = 1.0
"""Seconds between two wake-ups of everybody who watches: others may have committed something."""


async def open_engine(url: str) -> DynamoEngine:
    """Open the table that the URL names; it must be there."""
    table = Table(parse(url))
    try:
        await connect(table)
        await check(table)
    except BaseException:
        await table.close()
        raise
    return DynamoEngine(table)


async def migrate(url: str) -> None:
    """Make the table that the URL names, if it is not there."""
    table = Table(parse(url))
    try:
        await connect(table)
        await make(table)
    finally:
        await table.close()


class DynamoEngine(Engine):
    """An open table. Belongs to the event loop that opened it."""

    name = "dynamodb"
    lag = 2.0

    def __init__(self, table: Table) -> None:
        self._table = table
        self._watches = WatchRegistry(on_watched_changed=self._look_for_others)
        self._reader = Reader(table)
        self._across = Across(table, self._reader, self._watches.wake)
        self._writer = Writer(table, self._watches.wake)
        self._looking: asyncio.Task[None] | None = None
        self._verbs = _Verbs()

    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:
        with self._verbs:
            return await self._reader.get(addresses, now)

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        with self._verbs:
            return await self._writer.commit(changes, guard, now)

    async def page(self, request: PageRequest, *, now: Micros) -> list[Record]:
        with self._verbs:
            if request.partition is None:
                return await self._across.page(request, now)
            return await self._reader.page(request, request.partition, now)

    async def due(self, lane: str, *, until: Micros, limit: int, now: Micros) -> list[Record]:
        with self._verbs:
            return await self._across.due(lane, until, limit, now)

    async def counts(self, space: Space, partition: str | None, *, now: Micros) -> Mapping[Tag, int]:
        with self._verbs:
            if partition is None:
                return await self._across.counts(space, now)
            stored, overdue = await look(self._table, space, partition, now)
            return living(stored.counts, [each.tag for each in overdue])

    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        with self._verbs:
            return await self._across.purge(until, limit)

    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch:
        return self._watches.watch((space, partition, key))

    async def maintain(self, *, repair: bool) -> MaintenanceReport:
        with self._verbs:
            return await maintain(self._table, self._reader, repair=repair)

    async def close(self) -> None:
        self._watches.close()
        if self._looking is not None:
            self._looking.cancel()
        await self._verbs.finished()
        await self._writer.close()
        await self._reader.close()
        await self._table.close()

    def _look_for_others(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        is_needed = self._watches.is_watched and not self._watches.is_closed
        self._looking = asyncio.get_running_loop().create_task(self._wake_all()) if is_needed else None

    async def _wake_all(self) -> None:
        """Wake everybody now and then. It costs no request: who is woken reads what it wants to know, and
        those reads go together.
        """
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self._watches.wake_all()


class _Verbs:
    """The verbs under way, which `close` waits for."""

    def __init__(self) -> None:
        self._count = 0
        self._closed = False
        self._none = asyncio.Event()
        self._none.set()

    def __enter__(self) -> None:
        if self._closed:
            raise StorageClosed("this storage was closed")
        self._count += 1
        self._none.clear()

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self._none.set()

    async def finished(self) -> None:
        """Refuse further verbs, and wait for these."""
        self._closed = True
        await self._none.wait()
