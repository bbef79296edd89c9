"""The baseline of PostgreSQL: each step is one statement in its own transaction, through a pool.

The table has a primary key and two indexes for listing an owner's tasks, by time and by status. The pool is
as large as the engine's, statements stay prepared, and the driver's reset, which costs a round trip each time
a connection is released, is left out. An update names the version that it expects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

import asyncpg

from perdure.storage import Record
from perdure.storage.postgres.location import parse_url

from .baseline import Baseline
from .synthetic_tasks import Lifecycle

if TYPE_CHECKING:
    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]

TABLE = """
CREATE TABLE {schema}.tasks (
    owner text NOT NULL,
    id text NOT NULL,
    created_at bigint NOT NULL,
    version bigint NOT NULL,
    status text NOT NULL,
    expires_at bigint,
    body text NOT NULL,
    PRIMARY KEY (owner, id)
);
CREATE INDEX ON {schema}.tasks (owner, created_at, id);
CREATE INDEX ON {schema}.tasks (owner, status, created_at, id);
"""
INSERT = "INSERT INTO {schema}.tasks VALUES ($1, $2, $3, $4, $5, $6, $7)"
UPDATE = """
UPDATE {schema}.tasks SET version = $4, status = $5, expires_at = $6, body = $7
WHERE owner = $1 AND id = $2 AND version = $3
"""
READ = "SELECT created_at, version, status, expires_at, body FROM {schema}.tasks WHERE owner = $1 AND id = $2"


class BaselinePostgres(Baseline):
    pool: Pool

    def __init__(self, url: str, lifecycles: Iterator[Lifecycle]) -> None:
        super().__init__(lifecycles)
        self._location = parse_url(url)
        self._insert, self._update, self._read = map(self._within, (INSERT, UPDATE, READ))

    async def open(self) -> None:
        size = self._location.options.pool
        self.pool = await self._stack.enter_async_context(
            asyncpg.create_pool(self._location.dsns[0], min_size=size, max_size=size, reset=_no_reset)
        )
        await self.pool.execute(self._within(f"CREATE SCHEMA {{schema}};{TABLE}"))

    async def insert(self, record: Record) -> None:
        done = await self.pool.execute(
            self._insert,
            record.partition,
            record.key,
            record.order,
            record.version,
            record.tag,
            record.expires_at,
            record.body,
        )
        assert done == "INSERT 0 1"

    async def update(self, before: Record, after: Record) -> None:
        done = await self.pool.execute(
            self._update,
            after.partition,
            after.key,
            before.version,
            after.version,
            after.tag,
            after.expires_at,
            after.body,
        )
        assert done == "UPDATE 1"

    async def read(self, record: Record) -> str:
        row = await self.pool.fetchrow(self._read, record.partition, record.key)
        assert row is not None
        return row["body"]

    def _within(self, sql: str) -> str:
        return sql.format(schema=self._location.quoted_schema)


async def _no_reset(_: object) -> None:
    """Skip the reset: no statement here leaves state in a session."""
