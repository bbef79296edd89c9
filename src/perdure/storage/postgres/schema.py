"""Checks the server, creates and migrates the tables, and loads the SQL statements.

Each SQL statement is in its own file, `sql/<name>.sql`. If several processes migrate the same tables at the
same time, the first process does the work, and the others wait until it has finished.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib.resources import files
from typing import Protocol

import anyio
import asyncpg

from ..errors import CannotOpen, ForeignStorage, MissingSchema, NewerSchema, UnsafeServer
from .location import Location, parse_url
from .pool import FULL_SCAN_TIMEOUT, ConnectionPool

log = logging.getLogger(__name__)

_PACKAGE = files(__package__ or "")
_MIN_VERSION = 150_000
_TABLES = ["perdure_schema", "records", "counts", "totals", "news"]
_LOCK_MIGRATION = "SELECT pg_advisory_xact_lock(hashtextextended('perdure migrate ' || $1, 0))"
_SET_SEARCH_PATH = "SELECT set_config('search_path', $1, true)"


class _Fetch(Protocol):
    async def __call__(self, query: str, /, *values: object) -> list[asyncpg.Record]: ...


async def migrate(url: str) -> None:
    """Create the tables, or migrate them to the newest schema."""
    pool = await open_pool(parse_url(url), may_migrate=True)
    with anyio.CancelScope(shield=True):
        await pool.close()


async def open_pool(location: Location, *, may_migrate: bool) -> ConnectionPool:
    """Connect to the server. If `may_migrate` is True, create or migrate the tables if necessary."""
    pool = await ConnectionPool.open(location)
    try:
        await prepare_schema(pool, may_migrate=may_migrate)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await pool.close()
        raise
    return pool


async def prepare_schema(
    pool: ConnectionPool, *, may_migrate: bool, steps: tuple[str, ...] | None = None
) -> None:
    """Create or migrate the tables if necessary. If `may_migrate` is False, raise MissingSchema instead.

    Tests can pass other migrations as `steps`. None means the migrations of this version of perdure.
    """
    location = pool.location
    steps = migrations() if steps is None else steps
    found = await _inspect(location, pool.read)
    _check_server(location, found)
    version = await _schema_version(location, found, pool.read, len(steps))
    if version == len(steps):
        return
    if not may_migrate:
        reason = "the tables do not exist"
        if version:
            needed = f"but this version of perdure needs {len(steps)}"
            reason = f"the tables have schema version {version}, {needed}"
        remedy = f"run: perdure migrate --url {location.display_name}"
        raise MissingSchema(location.display_name, reason, remedy)
    await _migrate(pool, steps)


async def _migrate(pool: ConnectionPool, steps: tuple[str, ...]) -> None:
    """Run all migrations that have not run yet, in one transaction."""
    location = pool.location
    async with pool.transaction() as session:
        await session.execute(_LOCK_MIGRATION, location.options.schema, timeout=FULL_SCAN_TIMEOUT)
        found = await _inspect(location, session.fetch)  # again: another process may have migrated the schema
        version = await _schema_version(location, found, session.fetch, len(steps))
        if not found["has_schema"]:
            await session.execute(f"CREATE SCHEMA {location.quoted_schema}")
        await session.execute(_SET_SEARCH_PATH, f"{location.quoted_schema}, pg_temp")
        for step in steps[version:]:
            await session.execute(step, timeout=FULL_SCAN_TIMEOUT)


async def _inspect(location: Location, fetch: _Fetch) -> asyncpg.Record:
    [found] = await fetch(statement("inspect", location.quoted_schema), location.options.schema, _TABLES)
    return found


async def _schema_version(location: Location, found: asyncpg.Record, fetch: _Fetch, newest: int) -> int:
    """Return the schema version, or 0 if there are no tables. Raise an error if the tables cannot be used."""
    if not found["tables"]:
        return 0
    rows = await fetch(statement("version", location.quoted_schema)) if found["is_ours"] else []
    if not rows:
        names = ", ".join(found["tables"])
        reason = f"the schema contains tables of another application: {names}"
        raise ForeignStorage(location.display_name, reason, "use another schema: add schema=NAME to the URL")
    version: int = rows[0]["version"]
    if version > newest:
        reason = f"its schema version is {version}, but this version of perdure supports up to {newest}"
        raise NewerSchema(location.display_name, reason, "upgrade perdure")
    return version


def _check_server(location: Location, found: asyncpg.Record) -> None:
    if found["version"] < _MIN_VERSION:
        reason = f"the server runs PostgreSQL {found['version'] // 10_000}, which is too old"
        raise CannotOpen(location.display_name, reason, "use PostgreSQL 15 or later")
    if found["encoding"] != "UTF8":
        reason = f"the encoding of the database is {found['encoding']}"
        raise CannotOpen(location.display_name, reason, "use a database whose encoding is UTF8")
    if found["isolation"] != "read committed":
        isolation = f"default_transaction_isolation is {found['isolation']}"
        reason = f"{isolation}, and perdure cannot change this through a pooler"
        remedy = "set default_transaction_isolation to 'read committed' for this user"
        raise CannotOpen(location.display_name, reason, remedy)
    _check_persistence(location, found)


def _check_persistence(location: Location, found: asyncpg.Record) -> None:
    if found["fsync"] != "on":
        reason = "the server does not flush its writes to the disk (fsync is off)"
        if location.options.persistence != "any":
            remedy = "set fsync = on, or add persistence=any to the URL to accept this risk"
            raise UnsafeServer(location.display_name, reason, remedy)
        log.warning("%s: %s; acknowledged writes can be lost", location.display_name, reason)
    elif found["full_page_writes"] != "on" and location.options.persistence == "always":
        reason = "a power cut can damage the server's data (full_page_writes is off)"
        remedy = "set full_page_writes = on, or remove persistence=always from the URL"
        raise UnsafeServer(location.display_name, reason, remedy)


# SQL


@cache
def statement(name: str, schema: str) -> str:
    """Return the SQL statement `name` for the tables in `schema`, which must already be quoted."""
    return (_PACKAGE / "sql" / f"{name}.sql").read_text(encoding="utf-8").replace("{schema}", schema)


@cache
def page_statement(schema: str, *, one_partition: bool, one_tag: bool, descending: bool) -> str:
    """Return the statement that reads a page. `migrations/0001.sql` explains which index it uses."""
    order = '"order" + 0' if one_tag else '"order"'
    columns = [order, "key"] if one_partition else [order, "key", "partition"]
    scope = "space = $1 AND partition = $2" if one_partition else "space || '' = $1"
    parts = {
        "scope": f"{scope} AND tag = $7" if one_tag else scope,
        "columns": ", ".join(columns),
        "comparison": "<" if descending else ">",
        "position": "$3, $4" if one_partition else "$3, $4, $2",
        "ordering": ", ".join(f"{column} DESC" if descending else column for column in columns),
    }
    sql = statement("page", "{schema}")
    for name, text in {**parts, "schema": schema}.items():  # the schema is last: its name can contain braces
        sql = sql.replace(f"{{{name}}}", text)
    return sql


def limit_bytes(listing: str, maximum: int) -> str:
    """Return a statement that reads `listing` until the total size of the bodies reaches `maximum` bytes.

    This is fast, because the server knows the size of a body without reading it.
    """
    sums = "sum(octet_length(body)) OVER (ROWS UNBOUNDED PRECEDING) AS bytes"
    page = f"SELECT *, {sums} FROM ({listing}) AS listed"  # noqa: S608 - `listing` is a packaged statement
    return f"SELECT * FROM ({page}) AS page WHERE bytes - octet_length(body) < {maximum:d}"  # noqa: S608


def addresses_only(listing: str) -> str:
    """Return a statement that reads only the addresses of the records in `listing`."""
    _, rest = listing.split("\n", 1)
    return f"SELECT space, partition, key\n{rest}"


def migrations() -> tuple[str, ...]:
    """Return the migration scripts in order. Each script raises the schema version by one."""
    scripts = sorted((_PACKAGE / "migrations").iterdir(), key=lambda each: each.name)
    return tuple(script.read_text(encoding="utf-8") for script in scripts)
