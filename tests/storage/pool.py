"""Storages on the shared servers: taken by a test, emptied afterwards, and given to the next.

To create and migrate a schema, or a table with seven indexes, takes longer than most tests do. So each test
process keeps those that it has created. This is only for storages whose clients all live in this process: a
request of a killed process could still arrive after the next test has started.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import msgspec

from perdure.storage import migrate_storage
from perdure.storage.postgres.location import parse_url

from .. import servers
from .dynamodb_helpers import DynamoDb, client_of, settle, table_of


class Kind(msgspec.Struct, frozen=True):
    """Storages of one kind: how one is made, and how it is emptied."""

    make: Callable[[], Awaitable[str]]
    empty: Callable[[str], Awaitable[None]]


_unused: defaultdict[str, list[str]] = defaultdict(list)


@asynccontextmanager
async def pooled(kind: str) -> AsyncGenerator[str]:
    """The URL of an empty storage of this kind. The storage of a test that failed is not used again."""
    url = _unused[kind].pop() if _unused[kind] else await KINDS[kind].make()
    yield url
    await KINDS[kind].empty(url)
    _unused[kind].append(url)


def _on_postgres(server: Callable[[], Any]) -> Kind:
    async def make() -> str:
        url: str = server().new_url()
        await migrate_storage(url)
        return url

    return Kind(make, _empty_schema)


async def _empty_schema(url: str) -> None:
    location = parse_url(url)
    connection = await asyncpg.connect(
        location.dsns[0], server_settings={"search_path": location.quoted_schema}
    )
    try:
        await connection.execute("DELETE FROM records; DELETE FROM counts; DELETE FROM totals")
    finally:
        await connection.close()


def _on_dynamodb(server: Callable[[], DynamoDb]) -> Kind:
    async def make() -> str:
        url = server().new_url()
        await migrate_storage(url)
        return url

    async def empty(url: str) -> None:
        async with client_of(server().endpoint) as db:
            await _empty_table(db, table_of(url))
            await settle(db, table_of(url))  # else the next test finds in an index what is gone

    return Kind(make, empty)


async def _empty_table(db: Any, table: str) -> None:  # noqa: ANN401 - typed by another package
    while found := (await db.scan(TableName=table, ConsistentRead=True, ProjectionExpression="pk, sk"))[
        "Items"
    ]:
        for at in range(0, len(found), 25):
            deletes = [{"DeleteRequest": {"Key": key}} for key in found[at : at + 25]]
            await db.batch_write_item(RequestItems={table: deletes})


KINDS = {
    "postgres": _on_postgres(servers.postgres),
    "postgres-system": _on_postgres(servers.system_postgres),
    "dynamodb": _on_dynamodb(servers.dynoxide),
    "dynamodb-strict": _on_dynamodb(servers.extenddb),
    "dynamodb-local": _on_dynamodb(servers.dynamodb_local),
}
