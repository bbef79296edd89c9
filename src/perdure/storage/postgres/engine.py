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

from ..batcher import Grouping, own_copy
from ..contract import About, Engine, Maintenance, Watch
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
from .commit_group import Commit, Judged, decoded, encoded
from .errors import is_held_up, is_outrun
from .location import parse
from .notifications import Looking, News, Notified
from .pool import Connections
from .schema import prepare
from .statements import addresses_only, bounded, statement
from .upkeep import maintain

MOST_COMMITS = 128
MOST_BYTES = 4 * 1024 * 1024
MOST_GETS = 128
MOST_ADDRESSES = 500
GETS_AT_ONCE = 4
PARTS_AT_ONCE = 4
PURGE_TRIES = 10

_FIRST = Position(-1, "", "")
_LAST = Position(2**62, "", "")


async def open_engine(url: str) -> PostgresEngine:
    """Connect to the server that the URL names, making or migrating the tables."""
    location = parse(url)
    connections = await Connections.open(location)
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

    def __init__(self, connections: Connections) -> None:
        options = connections.location.options
        self._connections = connections
        self._news: News = (Notified if options.pooler is None else Looking)(connections)
        self._gets = Grouping(
            self._get_group,
            most=MOST_GETS,
            at_once=min(GETS_AT_ONCE, options.pool),
            weight=lambda asked: len(asked[0]),
            heaviest=MOST_ADDRESSES,
        )
        self._commits = Grouping(
            self._commit_group, most=MOST_COMMITS, weight=lambda commit: commit.weight, heaviest=MOST_BYTES
        )
        self._purges = Grouping(self._purge_each, most=1)

    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:
        return await self._gets.ask((addresses, now))

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        return await self._commits.ask(Commit(changes, guard, now))

    async def page(self, wanted: PageRequest, *, now: Micros) -> list[Record]:
        partition = "all" if wanted.partition is None else "partition"
        tag = "" if wanted.tag is None else "_tag"
        after = wanted.after or (_LAST if wanted.descending else _FIRST)
        name = f"page_{partition}{tag}{'_descending' * wanted.descending}"
        first = (wanted.space, wanted.partition or after.partition, after.order, after.key, now)
        last = () if wanted.tag is None else (wanted.tag,)
        return await self._read(name, lambda limit: (*first, limit, *last), wanted.limit, now)

    async def due(self, lane: str, *, until: Micros, limit: int, now: Micros) -> list[Record]:
        return await self._read("due", lambda limit: (lane, until, limit, now), limit, now)

    async def counts(self, space: Space, partition: str | None, *, now: Micros) -> Mapping[Tag, int]:
        if partition is None:
            rows = await self._connections.read(self._sql("counts_all"), space, now)
        else:
            rows = await self._connections.read(self._sql("counts_partition"), space, partition, now)
        return {row["tag"]: row["live"] for row in rows}

    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        return await self._purges.ask((until, limit))

    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch:
        return self._news.signals.watch((space, partition, key))

    async def maintain(self, *, repair: bool) -> Maintenance:
        return await maintain(self._connections, repair=repair)

    async def about(self) -> About:
        (row,) = await self._connections.read(self._sql("about"))
        return About(server=f"PostgreSQL {row['version']}", time=row["micros"])

    async def close(self) -> None:
        await self._news.close()
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
        asked, seen = limit, 0
        page = Page(limit)
        while True:
            rows = await self._connections.read(addresses_only(self._sql(name)), *values(asked))
            for row in rows[seen:]:
                page.add(await self._get_alone(Address(*row), now))
                if page.is_full:
                    return page.records
            if len(rows) < asked:
                return page.records
            asked, seen = 2 * asked, asked

    async def _get_alone(self, address: Address, now: Micros) -> Record | Damaged | None:
        try:
            ((found,),) = await self._get_together([((address,), now)])
        except StorageCorrupt as error:
            return Damaged(address, str(error))
        return found

    async def _get_group(
        self, group: Sequence[tuple[Sequence[Address], Micros]]
    ) -> Sequence[list[Record | None] | Exception]:
        try:
            return await self._get_together(group)
        except StorageCorrupt:  # one damaged record must not fail those who did not ask for it
            return [await self._get_each(addresses, now) for addresses, now in group]

    async def _get_each(self, addresses: Sequence[Address], now: Micros) -> list[Record | None] | Exception:
        try:
            return checked([await self._get_alone(address, now) for address in addresses])
        except StorageCorrupt as error:
            return error

    async def _get_together(
        self, group: Sequence[tuple[Sequence[Address], Micros]]
    ) -> list[list[Record | None]]:
        asked = [(*address, str(now)) for addresses, now in group for address in addresses]
        rows = await self._connections.read(self._sql("get"), *map(list, zip(*asked, strict=True)))
        found = {row["place"]: _record(row) for row in rows}
        answers = (found.get(place) for place in range(1, len(asked) + 1))
        return [list(islice(answers, len(addresses))) for addresses, _ in group]

    # Writing

    async def _commit_group(self, group: Sequence[Commit]) -> Sequence[Committed | Refused | Exception]:
        try:
            return await self._commit_together(group)
        except (StorageFull, StorageFailed, StorageBusy) as error:
            if len(group) == 1 or isinstance(error, OutcomeUnknown):
                raise
            if isinstance(error, StorageBusy):
                return await self._commit_apart(group, error)
        return [await self._commit_alone(commit) for commit in group]  # one must not fail its neighbours

    async def _commit_apart(
        self, group: Sequence[Commit], error: StorageBusy
    ) -> Sequence[Committed | Refused | Exception]:
        """Each partition by itself, where others hold one of several; all was rolled back."""
        parts: dict[str, list[int]] = {}
        for place, commit in enumerate(group):
            parts.setdefault(commit.partition, []).append(place)
        if len(parts) == 1 or not is_held_up(error):
            raise error
        results: dict[int, Committed | Refused | Exception] = {}
        turns = asyncio.Semaphore(PARTS_AT_ONCE)

        async def commit_part(places: Sequence[int]) -> None:
            async with turns:
                answers = await self._commit_part([group[place] for place in places])
            results.update(zip(places, answers, strict=True))

        await asyncio.gather(*map(commit_part, parts.values()))
        return [results[place] for place in range(len(group))]

    async def _commit_part(self, part: Sequence[Commit]) -> Sequence[Committed | Refused | Exception]:
        try:
            return await self._commit_together(part)
        except StorageError as error:
            return [own_copy(error) for _ in part]

    async def _commit_alone(self, commit: Commit) -> Committed | Refused | Exception:
        try:
            return (await self._commit_together([commit]))[0]
        except StorageError as error:
            return error

    async def _commit_together(self, group: Sequence[Commit]) -> list[Committed | Refused | StorageFailed]:
        addresses = [change.address for commit in group for change in commit.changes]
        [row] = await self._write("commit", addresses, *encoded(group))
        results = list(decoded(group, Judged(*row)))
        for commit, result in zip(group, results, strict=True):
            if isinstance(result, Committed):
                self._news.signals.wake(change.address for change in commit.changes)
        return results

    async def _purge_each(self, group: Sequence[tuple[Micros, int]]) -> list[list[Purged]]:
        return [await self._purge(until, limit) for until, limit in group]

    async def _purge(self, until: Micros, limit: int) -> list[Purged]:
        purged = [Purged(*row) for row in await self._purge_until_first(until, limit)]
        self._news.signals.wake(Address(each.space, each.partition, each.key) for each in purged)
        return purged

    async def _purge_until_first(self, until: Micros, limit: int) -> list[asyncpg.Record]:
        """Try again where others were first, and all was rolled back."""
        for _ in range(PURGE_TRIES - 1):
            try:
                return await self._write("purge", None, until, limit)
            except StorageBusy as error:
                if not is_outrun(error):
                    raise
        return await self._write("purge", None, until, limit)

    async def _write(
        self, name: str, addresses: Sequence[Address] | None, *values: object
    ) -> list[asyncpg.Record]:
        """Run a function of the schema that locks, writes and tells the others."""
        location = self._connections.location
        message = self._news.message(addresses)
        return await self._connections.write(
            self._sql(name), location.patience, location.channel, message, *values
        )

    def _sql(self, name: str) -> str:
        return statement(name, self._connections.location.schema)


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
