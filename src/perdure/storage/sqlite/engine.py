"""The SQLite engine. It stores records in one file, which several processes can use at the same time.

The modules `writer` and `write_transaction` handle writes. `read_connections` and `row_decoder` handle reads.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence

from ..contract import Engine, MaintenanceReport, StorageInfo, counter_finding
from ..damaged_record import Damaged, checked
from ..page_builder import page_of
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
from ..watch import Watch, WatchRegistry
from .database import connect, page_statement, prepare_database, statement
from .errors import translate_errors
from .location import Location, parse_url
from .read_connections import Reader
from .row_decoder import read, wrong_counters
from .write_transaction import ALL_PARTITIONS
from .writer import Writer

_GET = statement("get")
_DUE = statement("due")
_COUNTS = statement("counts")
_MANY_EXPIRED = statement("many_expired")
_ALL = statement("all")
MAX_EXPIRED_INLINE = 100
"""With more expired records than this, `counts` runs in a thread and not in the event loop."""
VACUUM_PAGES = 500
"""Number of pages that each step of a vacuum frees. Each step locks the database for a few milliseconds."""


async def open_engine(url: str) -> SqliteEngine:
    """Open the file of a `sqlite:` URL. Create or migrate the file if necessary."""
    location = parse_url(url)
    with translate_errors(location.display_name):
        return SqliteEngine(location, *await asyncio.to_thread(_connect, location))


def _connect(location: Location) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    """Return a connection for writing and one for reading. Run this in a thread, because it can block."""
    prepare_database(location)
    writing = connect(location)
    try:
        return writing, connect(location)
    except BaseException:
        writing.close()
        raise


class SqliteEngine(Engine):
    """An open storage in a SQLite file. Use it only in the event loop that opened it."""

    name = "sqlite"

    def __init__(self, location: Location, writing: sqlite3.Connection, reading: sqlite3.Connection) -> None:
        self._location = location
        self._reader = Reader(location, reading)
        self._writer = Writer(location, writing)
        self._watches = WatchRegistry(on_watched_changed=self._update_polling)

    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:
        return await self._reader.run_inline(
            lambda db: [_fetch_record(db, address, now) for address in addresses], len(addresses)
        )

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        def wake(result: Committed | Refused) -> None:
            if isinstance(result, Committed):
                self._watches.wake_for(changes)

        return await self._writer.run(lambda transaction: transaction.commit(changes, guard, now), wake)

    async def page(self, request: PageRequest, *, now: Micros) -> list[Record]:
        sql = page_statement(
            one_partition=request.partition is not None,
            one_tag=request.tag is not None,
            descending=request.descending,
        )
        after = request.start
        values: dict[str, object] = {
            "space": request.space,
            "partition": request.partition or after.partition,
            "tag": request.tag,
            "order": after.order,
            "key": after.key,
            "now": now,
        }
        return await self._reader.run_in_pool(lambda db: _fetch_records(db, sql, values, request.limit))

    async def due(
        self, lane: str, *, after: LanePosition | None, until: Micros, limit: int, now: Micros
    ) -> list[Record]:
        position = (after or FIRST_LANE_POSITION)._asdict()
        values: dict[str, object] = {"lane": lane, "until": until, "now": now}
        values |= {f"after_{name}": value for name, value in position.items()}
        return await self._reader.run_in_pool(lambda db: _fetch_records(db, _DUE, values, limit))

    async def counts(self, space: Space, partition: str | None, *, now: Micros) -> Mapping[Tag, int]:
        """Count in the event loop or, if many records have expired, in a thread.

        Counting reads every expired record, so it can take a long time.
        """
        values: dict[str, object] = {"space": space, "partition": partition or ALL_PARTITIONS, "now": now}

        def count(db: sqlite3.Connection) -> Mapping[Tag, int]:
            return dict(db.execute(_COUNTS, values).fetchall())

        expired = {"now": now, "maximum": MAX_EXPIRED_INLINE}
        if await self._reader.run_inline(lambda db: db.execute(_MANY_EXPIRED, expired).fetchone(), rows=1):
            return await self._reader.run_in_pool(count)
        return await self._reader.run_inline(count, rows=1)

    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        def wake(purged: list[Purged]) -> None:
            self._watches.wake(each.address for each in purged)

        return await self._writer.run(lambda transaction: transaction.purge(until, limit), wake)

    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch:
        return self._watches.watch((space, partition, key))

    async def maintain(self, *, repair: bool) -> MaintenanceReport:
        with translate_errors(self._location.display_name):
            report = await asyncio.to_thread(_maintain, self._location)
        if repair:
            await self._writer.run(lambda transaction: transaction.repair_counters())
        return report

    async def info(self) -> StorageInfo:
        return StorageInfo(server=f"SQLite {sqlite3.sqlite_version}", path=self._location.display_name)

    async def close(self) -> None:
        self._watches.close()
        await self._writer.close()
        await self._reader.close()

    def _update_polling(self) -> None:
        self._writer.set_external_commit_callback(
            self._watches.wake_all if self._watches.is_watched else None
        )


def _fetch_record(db: sqlite3.Connection, address: Address, now: Micros) -> Record | None:
    space, partition, key = address
    values: dict[str, object] = {"space": space, "partition": partition, "key": key, "now": now}
    found = checked(read(db, _GET, values, list))
    return found[0] if found else None


def _fetch_records(db: sqlite3.Connection, sql: str, values: dict[str, object], limit: int) -> list[Record]:
    """Return a page of records. Stop fetching rows when the page is full."""
    return read(db, sql, values, lambda found: page_of(found, limit))


def _vacuum(db: sqlite3.Connection) -> None:
    """Release free pages to the file system, in steps, so that other clients can write between the steps."""
    free = _free_pages(db)
    while free:
        db.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")  # `execute` would free only one page
        before, free = free, _free_pages(db)
        if free >= before:  # other clients are freeing pages as fast, or the file has no incremental vacuum
            return


def _free_pages(db: sqlite3.Connection) -> int:
    return db.execute("PRAGMA freelist_count").fetchone()[0]


def _maintain(location: Location) -> MaintenanceReport:
    """Release free pages, checkpoint the write-ahead log, and check the file, records and counters."""
    size = location.path.stat().st_size
    db = connect(location, wait_for_locks=True)
    try:
        _vacuum(db)
        db.execute("PRAGMA optimize").fetchall()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        findings = [str(row[0]) for row in db.execute("PRAGMA quick_check").fetchall() if row[0] != "ok"]
        findings += read(db, _ALL, {}, lambda rows: [str(row) for row in rows if isinstance(row, Damaged)])
        for space, partition, tag, stored, actual in wrong_counters(db):
            findings.append(counter_finding(space, partition, tag, stored=stored, actual=actual))
    finally:
        db.close()
    reclaimed = max(0, size - location.path.stat().st_size)
    return MaintenanceReport(reclaimed_bytes=reclaimed, findings=tuple(findings))
