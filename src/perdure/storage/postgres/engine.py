"""The PostgreSQL engine. It stores records in one schema, which any number of clients can share.

A commit calls the SQL function `commit_group`, so it takes only one round trip. Concurrent commits share one
call, and concurrent reads by address share one query. The module `pool` handles lost connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import asyncpg

from ..contract import Engine, MaintenanceReport, StorageInfo, counter_finding
from ..damaged_record import Damaged, checked
from ..errors import (
    OutcomeUnknown,
    StorageBusy,
    StorageCorrupt,
    StorageError,
    StorageFailed,
    StorageFull,
)
from ..page_builder import MAX_PAGE_BYTES, Page
from ..records_and_changes import (
    FIRST_LANE_POSITION,
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
from ..request_batcher import Batcher, copy_error
from ..watch import Watch
from .commit_codec import CommitCall, CommitReply, decode_reply, encode_calls
from .location import parse_url
from .notifications import ChangeListener, NotifyListener, PollingListener
from .pool import FULL_SCAN_TIMEOUT, ConnectionPool
from .schema import addresses_only, limit_bytes, open_pool, page_statement, statement

MAX_COMMITS_PER_BATCH = 128
MAX_BATCH_BYTES = 4 * 1024 * 1024
MAX_GETS_PER_BATCH = 128
MAX_ADDRESSES_PER_BATCH = 500
MAX_CONCURRENT_GETS = 4
MAX_CONCURRENT_PARTITIONS = 4
MAX_PURGE_ATTEMPTS = 10
_LOCK_CONFLICTS = asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError


async def open_engine(url: str) -> PostgresEngine:
    """Connect to the server at `url`. Create or migrate the tables, unless the URL has `migrate=never`."""
    location = parse_url(url)
    return PostgresEngine(await open_pool(location, may_migrate=location.options.migrate == "auto"))


class PostgresEngine(Engine):
    """An open storage in one PostgreSQL schema. Use it only in the event loop that opened it."""

    name = "postgres"

    def __init__(self, pool: ConnectionPool) -> None:
        options = pool.location.options
        self._pool = pool
        self._listener: ChangeListener = (NotifyListener if options.pooler is None else PollingListener)(pool)
        self._gets = Batcher(
            self._get_with_fallback,
            max_items=MAX_GETS_PER_BATCH,
            max_concurrent=min(MAX_CONCURRENT_GETS, options.pool),
            weight=lambda request: len(request[0]),
            max_weight=MAX_ADDRESSES_PER_BATCH,
        )
        self._commits = Batcher(
            self._commit_with_fallback,
            max_items=MAX_COMMITS_PER_BATCH,
            weight=lambda commit: commit.body_size,
            max_weight=MAX_BATCH_BYTES,
        )
        self._purges = Batcher(self._purge_batch, max_items=1)

    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:
        return await self._gets.submit((addresses, now))

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        return await self._commits.submit(CommitCall(changes, guard, now))

    async def page(self, request: PageRequest, *, now: Micros) -> list[Record]:
        after = request.start
        sql = page_statement(
            self._pool.location.quoted_schema,
            one_partition=request.partition is not None,
            one_tag=request.tag is not None,
            descending=request.descending,
        )
        first = (request.space, request.partition or after.partition, after.order, after.key, now)
        last = () if request.tag is None else (request.tag,)
        return await self._read(sql, lambda limit: (*first, limit, *last), request.limit, now)

    async def due(
        self, lane: str, *, after: LanePosition | None, until: Micros, limit: int, now: Micros
    ) -> list[Record]:
        position = after or FIRST_LANE_POSITION
        return await self._read(
            self._sql("due"), lambda limit: (lane, until, limit, now, *position), limit, now
        )

    async def counts(self, space: Space, partition: str | None, *, now: Micros) -> Mapping[Tag, int]:
        if partition is None:
            rows = await self._pool.read(self._sql("counts_all"), space, now)
        else:
            rows = await self._pool.read(self._sql("counts_partition"), space, partition, now)
        return {row["tag"]: row["live"] for row in rows}

    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        return await self._purges.submit((until, limit))

    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch:
        return self._listener.watches.watch((space, partition, key))

    async def maintain(self, *, repair: bool) -> MaintenanceReport:
        return await _maintain(self._pool, repair=repair)

    async def info(self) -> StorageInfo:
        (row,) = await self._pool.read(self._sql("server_info"))
        return StorageInfo(server=f"PostgreSQL {row['version']}", time=row["micros"])

    async def close(self) -> None:
        await self._listener.close()
        await self._commits.close()
        await self._purges.close()
        await self._gets.close()
        await self._pool.close()

    # Reading

    async def _read(
        self, listing: str, values: Callable[[int], Sequence[object]], limit: int, now: Micros
    ) -> list[Record]:
        """Run the SQL statement `listing` with the arguments `values(limit)`, and return the records."""
        try:
            rows = await self._pool.read(limit_bytes(listing, MAX_PAGE_BYTES), *values(limit))
            return [_record(row) for row in rows]
        except StorageCorrupt:
            return await self._read_one_by_one(listing, values, limit, now)

    async def _read_one_by_one(
        self, listing: str, values: Callable[[int], Sequence[object]], limit: int, now: Micros
    ) -> list[Record]:
        """Read the records of `listing` one by one, and skip damaged records.

        This is necessary because a statement that reads several records fails if one of them is damaged.
        """
        count, seen = limit, 0
        page = Page(limit)
        while True:
            rows = await self._pool.read(addresses_only(listing), *values(count))
            for row in rows[seen:]:
                page.add(await self._get_single(Address(*row), now))
                if page.is_full:
                    return page.records
            if len(rows) < count:
                return page.records
            count, seen = 2 * count, count

    async def _get_single(self, address: Address, now: Micros) -> Record | Damaged | None:
        try:
            ((found,),) = await self._get_batch([((address,), now)])
        except StorageCorrupt as error:
            return Damaged(address, str(error))
        return found

    async def _get_with_fallback(
        self, batch: Sequence[tuple[Sequence[Address], Micros]]
    ) -> Sequence[list[Record | None] | Exception]:
        try:
            return await self._get_batch(batch)
        except StorageCorrupt:  # read separately, so that only calls that need a damaged record fail
            return [await self._get_each(addresses, now) for addresses, now in batch]

    async def _get_each(self, addresses: Sequence[Address], now: Micros) -> list[Record | None] | Exception:
        try:
            return checked([await self._get_single(address, now) for address in addresses])
        except StorageCorrupt as error:
            return error

    async def _get_batch(
        self, batch: Sequence[tuple[Sequence[Address], Micros]]
    ) -> list[list[Record | None]]:
        requested = [(*address, str(now)) for addresses, now in batch for address in addresses]
        rows = await self._pool.read(self._sql("get"), *map(list, zip(*requested, strict=True)))
        found = {row["number"]: _record(row) for row in rows}
        records = (found.get(number) for number in range(1, len(requested) + 1))
        return [list(islice(records, len(addresses))) for addresses, _ in batch]

    # Writing

    async def _commit_with_fallback(
        self, batch: Sequence[CommitCall]
    ) -> Sequence[Committed | Refused | Exception]:
        try:
            return await self._commit_batch(batch)
        except (StorageFull, StorageFailed, StorageBusy) as error:
            if len(batch) == 1 or isinstance(error, OutcomeUnknown):
                raise
            if isinstance(error, StorageBusy):
                return await self._commit_per_partition(batch, error)
        # Repeat the commits one by one, so that one commit does not make the others fail.
        return [result for commit in batch for result in await self._try_commit([commit])]

    async def _commit_per_partition(
        self, batch: Sequence[CommitCall], error: StorageBusy
    ) -> Sequence[Committed | Refused | Exception]:
        """Repeat a failed batch with one call per partition, because perhaps only one partition is locked.

        If `error` is not a lock conflict, or if there is only one partition, raise `error`.
        """
        partitions: dict[str, list[int]] = {}
        for index, commit in enumerate(batch):
            partitions.setdefault(commit.partition, []).append(index)
        if len(partitions) == 1 or not isinstance(error.__cause__, _LOCK_CONFLICTS):
            raise error
        results: dict[int, Committed | Refused | Exception] = {}
        slots = asyncio.Semaphore(MAX_CONCURRENT_PARTITIONS)

        async def commit_partition(indexes: Sequence[int]) -> None:
            async with slots:
                committed = await self._try_commit([batch[index] for index in indexes])
            results.update(zip(indexes, committed, strict=True))

        await asyncio.gather(*map(commit_partition, partitions.values()))
        return [results[index] for index in range(len(batch))]

    async def _try_commit(self, part: Sequence[CommitCall]) -> Sequence[Committed | Refused | StorageError]:
        """Run the commits in `part`. If the call fails, return a copy of the error for each commit."""
        try:
            return await self._commit_batch(part)
        except StorageError as error:
            return [copy_error(error) for _ in part]

    async def _commit_batch(self, batch: Sequence[CommitCall]) -> list[Committed | Refused | StorageFailed]:
        addresses = [change.address for commit in batch for change in commit.changes]
        [row] = await self._write("commit", addresses, *encode_calls(batch))
        results = list(decode_reply(batch, CommitReply(*row)))
        for commit, result in zip(batch, results, strict=True):
            if isinstance(result, Committed):
                self._listener.watches.wake_for(commit.changes)
        return results

    async def _purge_batch(self, batch: Sequence[tuple[Micros, int]]) -> list[list[Purged]]:
        return [await self._purge(until, limit) for until, limit in batch]

    async def _purge(self, until: Micros, limit: int) -> list[Purged]:
        purged = [Purged(*row) for row in await self._purge_with_retry(until, limit)]
        self._listener.watches.wake(each.address for each in purged)
        return purged

    async def _purge_with_retry(self, until: Micros, limit: int) -> list[asyncpg.Record]:
        """Run a purge. Repeat it if it was rolled back because of a concurrent transaction."""
        for _ in range(MAX_PURGE_ATTEMPTS - 1):
            try:
                return await self._write("purge", None, until, limit)
            except StorageBusy as error:
                if not isinstance(error.__cause__, asyncpg.SerializationError):
                    raise
        return await self._write("purge", None, until, limit)

    async def _write(
        self, name: str, addresses: Sequence[Address] | None, *values: object
    ) -> list[asyncpg.Record]:
        """Run the SQL statement `name`, which locks partitions, writes records and notifies clients."""
        location = self._pool.location
        message = self._listener.message(addresses)
        return await self._pool.write(
            self._sql(name), location.lock_timeout_setting, location.channel, message, *values
        )

    def _sql(self, name: str) -> str:
        return statement(name, self._pool.location.quoted_schema)


async def _maintain(pool: ConnectionPool, *, repair: bool) -> MaintenanceReport:
    """Compare all counters with the records, find damaged records, and update the statistics of the planner.

    With `repair`, also correct the counters, and block all writes in the meantime. PostgreSQL releases unused
    space by itself.
    """
    schema = pool.location.quoted_schema
    async with pool.transaction() as session:
        if repair:
            await session.execute(statement("repair_lock", schema))
        wrong = await session.fetch(statement("wrong_counters", schema), timeout=FULL_SCAN_TIMEOUT)
        if repair:
            counts = [row for row in wrong if row["partition"] is not None]
            totals = [row for row in wrong if row["partition"] is None]
            await session.executemany(
                statement("repair_count", schema),
                [(row["space"], row["partition"], row["tag"], row["counted"]) for row in counts],
            )
            await session.executemany(
                statement("repair_total", schema),
                [(row["space"], row["tag"], row["counted"] - row["stored"]) for row in totals],
            )
            await session.execute(statement("delete_zero_counts", schema))
        damaged = await session.fetch(statement("damaged", schema), timeout=FULL_SCAN_TIMEOUT)
        await session.execute(statement("analyze", schema), timeout=FULL_SCAN_TIMEOUT)
    unreadable = "its text cannot be read, or is not valid UTF-8"
    findings = [
        counter_finding(space, partition, tag, stored=stored, actual=actual)
        for space, partition, tag, stored, actual in wrong
    ]
    findings += [str(Damaged(Address(*row), unreadable)) for row in damaged]
    return MaintenanceReport(findings=tuple(findings))


def _record(row: asyncpg.Record) -> Record:
    return Record(
        space=row["space"],
        partition=row["partition"],
        key=row["key"],
        order=row["order"],
        body=row["body"],
        version=row["version"],
        tag=row["tag"],
        expires_at=row["expires_at"],
        lane=row["lane"],
        wake_at=row["wake_at"],
    )
