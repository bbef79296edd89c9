"""Making the tables: refusing what is not ours before touching it, creating, migrating.

Several processes may be at it at once: they take turns, and those who come later find it done.
"""

from __future__ import annotations

import logging
from typing import Protocol

import anyio
import asyncpg

from ..errors import CannotOpen, ForeignStorage, MissingSchema, NewerSchema, UnsafeServer
from .location import Location, parse
from .pool import FOR_EVER, Connections
from .statements import migrations, statement

log = logging.getLogger(__name__)

_FLOOR = 150_000
_TABLES = ["perdure_schema", "records", "counts", "totals", "news"]
_TAKE_TURNS = "SELECT pg_advisory_xact_lock(hashtextextended('perdure migrate ' || $1, 0))"
_STAND_IN = "SELECT set_config('search_path', $1, true)"


class _Fetch(Protocol):
    async def __call__(self, query: str, /, *values: object) -> list[asyncpg.Record]: ...


async def migrate(url: str) -> None:
    """Make the tables, or change them to the newest schema, and nothing else."""
    location = parse(url)
    connections = await Connections.open(location)
    try:
        await prepare(connections, may_migrate=True)
    finally:
        with anyio.CancelScope(shield=True):
            await connections.close()


async def prepare(
    connections: Connections, *, may_migrate: bool, steps: tuple[str, ...] | None = None
) -> None:
    """Leave behind a schema of the newest version, or refuse and leave it as it was."""
    location = connections.location
    steps = migrations() if steps is None else steps
    look = await _look(location, connections.read)
    _check_server(location, look)
    version = await _version(location, look, connections.read, len(steps))
    if version == len(steps):
        return
    if not may_migrate:
        reason = (
            f"its tables have schema {version}, this perdure needs {len(steps)}" if version else "no tables"
        )
        raise MissingSchema(location.name, reason, f"run: perdure migrate --url {location.name}")
    await _migrate(connections, steps)


async def _migrate(connections: Connections, steps: tuple[str, ...]) -> None:
    """Run the steps that this schema has not seen, all in one transaction."""
    location = connections.location
    async with connections.transaction() as session:
        await session.execute(_TAKE_TURNS, location.options.schema, timeout=FOR_EVER)
        look = await _look(location, session.fetch)  # another process may have been first
        version = await _version(location, look, session.fetch, len(steps))
        if not look["has_schema"]:
            await session.execute(f"CREATE SCHEMA {location.schema}")
        await session.execute(_STAND_IN, f"{location.schema}, pg_temp")
        for step in steps[version:]:
            await session.execute(step, timeout=FOR_EVER)


async def _look(location: Location, fetch: _Fetch) -> asyncpg.Record:
    [look] = await fetch(statement("look", location.schema), location.options.schema, _TABLES)
    return look


async def _version(location: Location, look: asyncpg.Record, fetch: _Fetch, newest: int) -> int:
    """The schema's version; 0 where there are no tables yet."""
    if not look["tables"]:
        return 0
    rows = await fetch(statement("version", location.schema)) if look["is_ours"] else []
    if not rows:
        names = ", ".join(look["tables"])
        raise ForeignStorage(location.name, f"others' tables stand there: {names}", "choose another schema")
    version: int = rows[0]["version"]
    if version > newest:
        reason = f"it has schema {version}, this perdure knows up to {newest}"
        raise NewerSchema(location.name, reason, "upgrade perdure")
    return version


def _check_server(location: Location, look: asyncpg.Record) -> None:
    if look["version"] < _FLOOR:
        reason = f"the server is PostgreSQL {look['version'] // 10_000}"
        raise CannotOpen(location.name, reason, "use PostgreSQL 15 or later")
    if look["encoding"] != "UTF8":
        reason = f"the database is encoded in {look['encoding']}"
        raise CannotOpen(location.name, reason, "use a database whose encoding is UTF8")
    if look["isolation"] != "read committed":
        reason = f"transactions are {look['isolation']} unless told otherwise, and a pooler lets nobody tell"
        remedy = "set default_transaction_isolation to 'read committed' for this user"
        raise CannotOpen(location.name, reason, remedy)
    _check_persistence(location, look)


def _check_persistence(location: Location, look: asyncpg.Record) -> None:
    if look["fsync"] != "on":
        reason = "the server does not flush its writes to the disk (fsync is off)"
        if location.options.persistence != "any":
            remedy = "set fsync = on, or write persistence=any to accept the loss"
            raise UnsafeServer(location.name, reason, remedy)
        log.warning("%s: %s, so acknowledged writes may be lost", location.name, reason)
    elif look["full_page_writes"] != "on" and location.options.persistence == "always":
        reason = "a power cut may damage its pages (full_page_writes is off)"
        raise UnsafeServer(
            location.name, reason, "set full_page_writes = on, or leave out persistence=always"
        )
