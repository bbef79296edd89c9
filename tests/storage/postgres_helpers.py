"""What the tests of the PostgreSQL engine share: a look behind the engine, and calls that may fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import asyncpg

from perdure.storage import Change, Insert, Record, Storage
from perdure.storage.kit.samples import NOW, PARTITION, SPACE
from perdure.storage.kit.servers import Postgres
from perdure.storage.postgres.location import parse

if TYPE_CHECKING:
    from perdure.storage.postgres.connections import Connection

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds after which a condition that never comes fails the test instead of hanging it."""


OURS = "FROM pg_stat_activity WHERE application_name = $1 AND pid <> pg_backend_pid()"
"""The sessions of a name, but for the one that asks."""


def named(server: Postgres, options: str = "") -> tuple[str, str]:
    """A new storage whose sessions can be told from others, and their name."""
    url = server.new_url()
    name = parse(url).options.schema
    return f"{url}&application_name={name}{options}", name


@asynccontextmanager
async def session(url: str) -> AsyncGenerator[Connection]:
    """A session of our own in the schema that the URL names."""
    location = parse(url)
    connection = await asyncpg.connect(location.dsn, server_settings={"search_path": location.schema})
    try:
        yield connection
    finally:
        await connection.close()


def inserting(record: Record) -> list[Change]:
    return [Insert(record=record)]


async def in_time(call: Awaitable[T]) -> T:
    async with asyncio.timeout(PATIENCE):
        return await call


async def outcomes(calls: Sequence[Awaitable[T]]) -> list[T | BaseException]:
    return await in_time(asyncio.gather(*calls, return_exceptions=True))


async def keys_of(storage: Storage, partition: str = PARTITION) -> set[str]:
    return {record.key for record in await storage.page(SPACE, partition, limit=1000, now=NOW)}


@asynccontextmanager
async def partition_locked(url: str, partition: str = PARTITION) -> AsyncGenerator[Connection]:
    """While somebody else writes to this partition and does not come to an end."""
    async with session(url) as other, other.transaction():
        await other.execute("SELECT begin_writing('0', ARRAY[$1])", partition)
        yield other
