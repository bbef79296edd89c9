"""The SQLite engine: the seven verbs on one file, safe with several processes.

Writes go through `writer`, reads through `reader`; what is written is in `transaction`.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from ..contract import About, Engine, Maintenance, Watch
from ..damage import Damaged, checked
from ..page import page_of
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
from ..watch import Signals
from .database import connect, prepare
from .errors import translated
from .location import Location, parse
from .reader import Reader
from .rows import read, recount
from .statements import statement
from .transaction import ALL
from .writer import Writer

_GET = statement("get")
_DUE = statement("due")
_COUNTS = statement("counts")
_ALL = statement("all")
_PAGES = {
    (one_partition, one_tag, descending): statement(
        f"page_{'partition' if one_partition else 'all'}{'_tag' * one_tag}{'_descending' * descending}"
    )
    for one_partition in (False, True)
    for one_tag in (False, True)
    for descending in (False, True)
}
VACUUM_PAGES = 500
"""Pages that one step of a vacuum moves while it holds the lock: 2 MB, some milliseconds."""
_FIRST = Position(-1, "", "")
_LAST = Position(2**62, "", "")


async def open_engine(url: str) -> SqliteEngine:
    """Open the file that the URL names, creating or migrating it."""
    location = parse(url)
    with translated(location.name):
        return SqliteEngine(location, *await asyncio.to_thread(_connect, location))


def _connect(location: Location) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    """Connections to write and to read with. May wait for other processes, so not in the event loop."""
    prepare(location)
    writing = connect(location)
    try:
        return writing, connect(location)
    except BaseException:
        writing.close()
        raise


class SqliteEngine(Engine):
    """An open file. Belongs to the event loop that opened it."""

    name = "sqlite"

    def __init__(self, location: Location, writing: sqlite3.Connection, reading: sqlite3.Connection) -> None:
        self._location = location
        self._reader = Reader(location, reading)
        self._writer = Writer(location, writing)
        self._signals = Signals(on_interest=self._look_for_others)

    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:
        def read(db: sqlite3.Connection) -> list[Record | None]:
            return [_get(db, address, now) for address in addresses]

        return await self._reader.look_up(read, len(addresses))

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        def wake(result: Committed | Refused) -> None:
            if isinstance(result, Committed):
                self._signals.wake(change.address for change in changes)

        return await self._writer.run(lambda transaction: transaction.commit(changes, guard, now), wake)

    async def page(self, wanted: PageRequest, *, now: Micros) -> list[Record]:
        sql = _PAGES[wanted.partition is not None, wanted.tag is not None, wanted.descending]
        after = wanted.after or (_LAST if wanted.descending else _FIRST)
        values: dict[str, object] = {
            "space": wanted.space,
            "partition": wanted.partition or after.partition,
            "tag": wanted.tag,
            "order": after.order,
            "key": after.key,
            "now": now,
        }
        return await self._reader.run(lambda db: _records(db, sql, values, wanted.limit))

    async def due(self, lane: str, *, until: Micros, limit: int, now: Micros) -> list[Record]:
        values: dict[str, object] = {"lane": lane, "until": until, "now": now}
        return await self._reader.run(lambda db: _records(db, _DUE, values, limit))

    async def counts(self, space: Space, partition: str | None, *, now: Micros) -> Mapping[Tag, int]:
        values: dict[str, object] = {"space": space, "partition": partition or ALL, "now": now}
        return await self._reader.run(lambda db: dict(db.execute(_COUNTS, values).fetchall()))

    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        def wake(purged: list[Purged]) -> None:
            self._signals.wake(Address(each.space, each.partition, each.key) for each in purged)

        return await self._writer.run(lambda transaction: transaction.purge(until, limit), wake)

    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch:
        return self._signals.watch((space, partition, key))

    async def maintain(self, *, repair: bool) -> Maintenance:
        with translated(self._location.name):
            maintenance = await asyncio.to_thread(_maintain, self._location)
        if repair:
            await self._writer.run(lambda transaction: transaction.recount())
        return maintenance

    async def about(self) -> About:
        return About(server=f"SQLite {sqlite3.sqlite_version}", place=self._location.name)

    async def close(self) -> None:
        self._signals.close()
        await self._writer.close()
        await self._reader.close()

    def _look_for_others(self) -> None:
        self._writer.look_for_others(self._signals.wake_all if self._signals.is_watched else None)


def _get(db: sqlite3.Connection, address: Address, now: Micros) -> Record | None:
    space, partition, key = address
    values: dict[str, object] = {"space": space, "partition": partition, "key": key, "now": now}
    found = checked(read(db, _GET, values, list))
    return found[0] if found else None


def _records(db: sqlite3.Connection, sql: str, values: dict[str, object], limit: int) -> list[Record]:
    """Return a page. No more rows are fetched than fit into it."""
    return read(db, sql, values, lambda found: page_of(found, limit))


def _vacuum(db: sqlite3.Connection) -> None:
    """Return free pages to the file system, in steps, so that writers get their turn in between."""
    free = _free_pages(db)
    while free:
        db.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")  # `execute` would free one page only
        before, free = free, _free_pages(db)
        if free >= before:  # others free pages as quickly, or the file was made without this kind of vacuum
            return


def _damaged_in(found: Iterable[Record | Damaged]) -> list[str]:
    return [str(each) for each in found if isinstance(each, Damaged)]


def _free_pages(db: sqlite3.Connection) -> int:
    return db.execute("PRAGMA freelist_count").fetchone()[0]


def _maintain(location: Location) -> Maintenance:
    """Fold the log into the file, give free pages back, and compare everything with everything."""
    size = location.path.stat().st_size
    db = connect(location, patient=True)
    try:
        _vacuum(db)
        db.execute("PRAGMA optimize").fetchall()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        findings = [str(row[0]) for row in db.execute("PRAGMA quick_check").fetchall() if row[0] != "ok"]
        findings += read(db, _ALL, {}, _damaged_in)
        for space, partition, tag, stored, counted in recount(db):
            scope = f"{partition}/{space}" if partition else space
            findings.append(f"the counter of {scope} tagged {tag!r} says {stored}, there are {counted}")
    finally:
        db.close()
    reclaimed = max(0, size - location.path.stat().st_size)
    return Maintenance(reclaimed_bytes=reclaimed, findings=tuple(findings))
