"""Making the tables: refusing what is not ours before touching it, creating, migrating.

Several processes may be at it at once: they take turns, and those who come later find it done.
"""

from __future__ import annotations

import logging
from typing import Protocol

import anyio
import asyncpg

from ..errors import CannotOpen, ForeignStorage, MissingSchema, NewerSchema, UnsafeServer
from .location import Location, parse_url
from .pool import FULL_SCAN_TIMEOUT, ConnectionPool
from .statements import migrations, statement

log = logging.getLogger(__name__)

_MIN_VERSION = 150_000
_TABLES = ["perdure_schema", "records", "counts", "totals", "news"]
_LOCK_MIGRATION = "SELECT pg_advisory_xact_lock(hashtextextended('perdure migrate ' || $1, 0))"
_SET_SEARCH_PATH = "SELECT set_config('search_path', $1, true)"


class _Fetch(Protocol):
    async def __call__(self, query: str, /, *values: object) -> list[asyncpg.Record]: ...


async def migrate(url: str) -> None:
    """Make the tables, or change them to the newest schema, and nothing else."""
    location = parse_url(url)
    connections = await ConnectionPool.open(location)
    try:
        await prepare(connections, may_migrate=True)
    finally:
        with anyio.CancelScope(shield=True):
            await connections.close()


async def prepare(
    connections: ConnectionPool, *, may_migrate: bool, steps: tuple[str, ...] | None = None
) -> None:
    """Leave behind a schema of the newest version, or refuse and leave it as it was."""
    location = connections.location
    steps = migrations() if steps is None else steps
    look = await _inspect(location, connections.read)
    _check_server(location, look)
    version = await _schema_version(location, look, connections.read, len(steps))
    if version == len(steps):
        return
    if not may_migrate:
        reason = (
            f"its tables have schema {version}, this perdure needs {len(steps)}" if version else "no tables"
        )
        raise MissingSchema(
            location.display_name, reason, f"run: perdure migrate --url {location.display_name}"
        )
    await _migrate(connections, steps)


async def _migrate(connections: ConnectionPool, steps: tuple[str, ...]) -> None:
    """Run the steps that this schema has not seen, all in one transaction."""
    location = connections.location
    async with connections.transaction() as session:
        await session.execute(_LOCK_MIGRATION, location.options.schema, timeout=FULL_SCAN_TIMEOUT)
        look = await _inspect(location, session.fetch)  # another process may have been first
        version = await _schema_version(location, look, session.fetch, len(steps))
        if not look["has_schema"]:
            await session.execute(f"CREATE SCHEMA {location.quoted_schema}")
        await session.execute(_SET_SEARCH_PATH, f"{location.quoted_schema}, pg_temp")
        for step in steps[version:]:
            await session.execute(step, timeout=FULL_SCAN_TIMEOUT)


async def _inspect(location: Location, fetch: _Fetch) -> asyncpg.Record:
    [look] = await fetch(statement("look", location.quoted_schema), location.options.schema, _TABLES)
    return look


async def _schema_version(location: Location, look: asyncpg.Record, fetch: _Fetch, newest: int) -> int:
    """The schema's version; 0 where there are no tables yet."""
    if not look["tables"]:
        return 0
    rows = await fetch(statement("version", location.quoted_schema)) if look["is_ours"] else []
    if not rows:
        names = ", ".join(look["tables"])
        raise ForeignStorage(
            location.display_name, f"others' tables stand there: {names}", "choose another schema"
        )
    version: int = rows[0]["version"]
    if version > newest:
        reason = f"it has schema {version}, this perdure knows up to {newest}"
        raise NewerSchema(location.display_name, reason, "upgrade perdure")
    return version


def _check_server(location: Location, look: asyncpg.Record) -> None:
    if look["version"] < _MIN_VERSION:
        reason = f"the server is PostgreSQL {look['version'] // 10_000}"
        raise CannotOpen(location.display_name, reason, "use PostgreSQL 15 or later")
    if look["encoding"] != "UTF8":
        reason = f"the database is encoded in {look['encoding']}"
        raise CannotOpen(location.display_name, reason, "use a database whose encoding is UTF8")
    if look["isolation"] != "read committed":
        reason = f"transactions are {look['isolation']} unless told otherwise, and a pooler lets nobody tell"
        remedy = "set default_transaction_isolation to 'read committed' for this user"
        raise CannotOpen(location.display_name, reason, remedy)
    _check_persistence(location, look)


def _check_persistence(location: Location, look: asyncpg.Record) -> None:
    if look["fsync"] != "on":
        reason = "the server does not flush its writes to the disk (fsync is off)"
        if location.options.persistence != "any":
            remedy = "set fsync = on, or write persistence=any to accept the loss"
            raise UnsafeServer(location.display_name, reason, remedy)
        log.warning("%s: %s, so acknowledged writes may be lost", location.display_name, reason)
    elif look["full_page_writes"] != "on" and location.options.persistence == "always":
        reason = "a power cut may damage its pages (full_page_writes is off)"
        raise UnsafeServer(
            location.display_name, reason, "set full_page_writes = on, or leave out persistence=always"
        )
