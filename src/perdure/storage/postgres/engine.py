"""The PostgreSQL engine: the seven verbs, each one statement, on a schema that any number of clients share.

What a commit does is a function of the schema, `commit_group` in the migrations, so that it takes one round
trip; commits that come together go together, and so do reads by address. `connections` says what happens
when the server goes away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import anyio
import asyncpg

from ..batcher import Batcher, copy_error
from ..contract import Engine, MaintenanceReport, StorageInfo
from ..damage import Damaged, checked
from ..errors import (
    OutcomeUnknown,
    StorageBusy,
    StorageCorrupt,
    StorageError,
    StorageFailed,
    StorageFull,
)
from ..page import MAX_PAGE_BYTES, Page
from ..record import (
    Address,
    Change,
    Committed,
    Guard,
    Micros,
    PageRequest,
    Position,
    Purged,
    Record,
    Refused,
    Space,
    Tag,
)
from ..watch import Watch
from .commit_group import CommitCall, CommitReply, decode_reply, encode_calls
from .errors import is_lock_conflict, is_serialization_failure
from .location import parse_url
from .notifications import ChangeListener, NotifyListener, PollingListener
from .pool import ConnectionPool
from .schema import prepare
from .statements import addresses_only, bounded, statement
from .upkeep import maintain

MAX_COMMITS_PER_BATCH = 128
MAX_BATCH_BYTES = 4 * 1024 * 1024
MAX_GETS_PER_BATCH = 128
MAX_ADDRESSES_PER_BATCH = 500
MAX_CONCURRENT_GETS = 4
MAX_CONCURRENT_PARTITIONS = 4
MAX_PURGE_ATTEMPTS = 10

_FIRST = Position(-1, "", "")
_LAST = Position(2**62, "", "")


async def open_engine(url: str) -> PostgresEngine:
    """Connect to the server that the URL names, making or migrating the tables."""
    location = parse_url(url)
    connections = await ConnectionPool.open(location)
    try:
        await prepare(connections, may_migrate=location.options.migrate == "auto")
    except BaseException:
        with anyio.CancelScope(shield=True):
            await connections.close()
        raise
    return PostgresEngine(connections)


class PostgresEngine(Engine):
    """A client of one schema. Belongs to the event loop that opened it."""

    name = "postgres"

    def __init__(self, connections: ConnectionPool) -> None:
        options = connections.location.options
        self._connections = connections
        self._listener: ChangeListener = (NotifyListener if options.pooler is None else PollingListener)(
            connections
        )
        self._gets = Batcher(
            self._get_with_fallback,
            max_items=MAX_GETS_PER_BATCH,
            max_concurrent=min(MAX_CONCURRENT_GETS, options.pool),
            weight=lambda requested: len(requested[0]),
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
        partition = "all" if request.partition is None else "partition"
        tag = "" if request.tag is None else "_tag"
        after = request.after or (_LAST if request.descending else _FIRST)
        name = f"page_{partition}{tag}{'_descending' * request.descending}"
        first = (request.space, request.partition or after.partition, after.order, after.key, now)
        last = () if request.tag is None else (request.tag,)
        return await self._read(name, lambda limit: (*first, limit, *last), request.limit, now)

    async def due(self, lane: str, *, until: Micros, limit: int, now: Micros) -> list[Record]:
        return await self._read("due", lambda limit: (lane, until, limit, now), limit, now)

    async def counts(self, space: Space, partition: str | None, *, now: Micros) -> Mapping[Tag, int]:
        if partition is None:
            rows = await self._connections.read(self._sql("counts_all"), space, now)
        else:
            rows = await self._connections.read(self._sql("counts_partition"), space, partition, now)
        return {row["tag"]: row["live"] for row in rows}

    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        return await self._purges.submit((until, limit))

    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch:
        return self._listener.watches.watch((space, partition, key))

    async def maintain(self, *, repair: bool) -> MaintenanceReport:
        return await maintain(self._connections, repair=repair)

    async def info(self) -> StorageInfo:
        (row,) = await self._connections.read(self._sql("about"))
        return StorageInfo(server=f"PostgreSQL {row['version']}", time=row["micros"])

    async def close(self) -> None:
        await self._listener.close()
        await self._commits.close()
        await self._purges.close()
        await self._gets.close()
        await self._connections.close()

    # Reading

    async def _read(
        self, name: str, values: Callable[[int], Sequence[object]], limit: int, now: Micros
    ) -> list[Record]:
        """Return a listing; `values` are those of its statement, for a limit."""
        try:
            rows = await self._connections.read(bounded(self._sql(name), MAX_PAGE_BYTES), *values(limit))
            return [_record(row) for row in rows]
        except StorageCorrupt:
            return await self._read_one_by_one(name, values, limit, now)

    async def _read_one_by_one(
        self, name: str, values: Callable[[int], Sequence[object]], limit: int, now: Micros
    ) -> list[Record]:
        """Return a listing without the damaged records, any of which fails the statement that reads it."""
        requested, seen = limit, 0
        page = Page(limit)
        while True:
            rows = await self._connections.read(addresses_only(self._sql(name)), *values(requested))
            for row in rows[seen:]:
                page.add(await self._get_single(Address(*row), now))
                if page.is_full:
                    return page.records
            if len(rows) < requested:
                return page.records
            requested, seen = 2 * requested, requested

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
        except StorageCorrupt:  # one damaged record must not fail those who did not ask for it
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
        rows = await self._connections.read(self._sql("get"), *map(list, zip(*requested, strict=True)))
        found = {row["place"]: _record(row) for row in rows}
        answers = (found.get(index) for index in range(1, len(requested) + 1))
        return [list(islice(answers, len(addresses))) for addresses, _ in batch]

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
        return [await self._commit_single(commit) for commit in batch]  # one must not fail its neighbours

    async def _commit_per_partition(
        self, batch: Sequence[CommitCall], error: StorageBusy
    ) -> Sequence[Committed | Refused | Exception]:
        """Each partition by itself, where others hold one of several; all was rolled back."""
        parts: dict[str, list[int]] = {}
        for index, commit in enumerate(batch):
            parts.setdefault(commit.partition, []).append(index)
        if len(parts) == 1 or not is_lock_conflict(error):
            raise error
        results: dict[int, Committed | Refused | Exception] = {}
        turns = asyncio.Semaphore(MAX_CONCURRENT_PARTITIONS)

        async def commit_partition(indexes: Sequence[int]) -> None:
            async with turns:
                answers = await self._commit_partition([batch[index] for index in indexes])
            results.update(zip(indexes, answers, strict=True))

        await asyncio.gather(*map(commit_partition, parts.values()))
        return [results[index] for index in range(len(batch))]

    async def _commit_partition(
        self, part: Sequence[CommitCall]
    ) -> Sequence[Committed | Refused | Exception]:
        try:
            return await self._commit_batch(part)
        except StorageError as error:
            return [copy_error(error) for _ in part]

    async def _commit_single(self, commit: CommitCall) -> Committed | Refused | Exception:
        try:
            return (await self._commit_batch([commit]))[0]
        except StorageError as error:
            return error

    async def _commit_batch(self, batch: Sequence[CommitCall]) -> list[Committed | Refused | StorageFailed]:
        addresses = [change.address for commit in batch for change in commit.changes]
        [row] = await self._write("commit", addresses, *encode_calls(batch))
        results = list(decode_reply(batch, CommitReply(*row)))
        for commit, result in zip(batch, results, strict=True):
            if isinstance(result, Committed):
                self._listener.watches.wake(change.address for change in commit.changes)
        return results

    async def _purge_batch(self, batch: Sequence[tuple[Micros, int]]) -> list[list[Purged]]:
        return [await self._purge(until, limit) for until, limit in batch]

    async def _purge(self, until: Micros, limit: int) -> list[Purged]:
        purged = [Purged(*row) for row in await self._purge_with_retry(until, limit)]
        self._listener.watches.wake(Address(each.space, each.partition, each.key) for each in purged)
        return purged

    async def _purge_with_retry(self, until: Micros, limit: int) -> list[asyncpg.Record]:
        """Try again where others were first, and all was rolled back."""
        for _ in range(MAX_PURGE_ATTEMPTS - 1):
            try:
                return await self._write("purge", None, until, limit)
            except StorageBusy as error:
                if not is_serialization_failure(error):
                    raise
        return await self._write("purge", None, until, limit)

    async def _write(
        self, name: str, addresses: Sequence[Address] | None, *values: object
    ) -> list[asyncpg.Record]:
        """Run a function of the schema that locks, writes and tells the others."""
        location = self._connections.location
        message = self._listener.message(addresses)
        return await self._connections.write(
            self._sql(name), location.lock_timeout_setting, location.channel, message, *values
        )

    def _sql(self, name: str) -> str:
        return statement(name, self._connections.location.quoted_schema)


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
