"""Damaging a stored record behind the back of its engine, by the engine's own means."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from perdure.storage import Address
from perdure.storage.dynamodb.items import record_key
from perdure.storage.dynamodb.location import parse_url as parse_dynamodb
from perdure.storage.redis.location import parse_url as parse_redis
from perdure.storage.redis.router import Router
from perdure.storage.redis.stored_layout import Keys
from perdure.storage.redis.topology import topology_for
from perdure.storage.shards import shard_of
from perdure.storage.sqlite.location import parse_url as parse_sqlite

from .dynamodb_helpers import client_of
from .postgres_helpers import session

WHERE = "WHERE space = $1 AND partition = $2 AND key = $3"


async def damage(url: str, address: Address) -> None:
    """Make the record at this address unreadable."""
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        damage_sqlite(url, address)
    elif scheme == "postgresql":
        await damage_postgres(url, address)
    elif scheme == "dynamodb":
        await damage_dynamodb(url, address, "REMOVE version")
    else:
        await damage_redis(url, address, b"damaged")


def damage_sqlite(url: str, address: Address, column: str = "body") -> None:
    with closing(sqlite3.connect(parse_sqlite(url).path, isolation_level=None)) as db:
        where = WHERE.replace("$1", "?").replace("$2", "?").replace("$3", "?")
        db.execute(f"UPDATE records SET {column} = CAST(x'ff' AS TEXT) {where}", address)  # noqa: S608


async def damage_postgres(url: str, address: Address, column: str = "body") -> None:
    """Let bytes pass as text, without a check, while this transaction lasts."""
    async with session(url) as db, db.transaction():
        await db.execute("CREATE CAST (bytea AS text) WITHOUT FUNCTION")
        await db.execute(f"UPDATE records SET {column} = '\\xff'::bytea::text {WHERE}", *address)  # noqa: S608
        await db.execute("DROP CAST (bytea AS text)")


async def damage_dynamodb(url: str, address: Address, update: str) -> None:
    location = parse_dynamodb(url)
    async with client_of(location.options.endpoint_url or "") as db:
        names = {"ExpressionAttributeNames": {"#order": "order"}} if "#order" in update else {}
        await db.update_item(
            TableName=location.table, Key=record_key(address).item, UpdateExpression=update, **names
        )


async def damage_redis(url: str, address: Address, value: bytes) -> None:
    location = parse_redis(url)
    keys = Keys(location.options.prefix)
    topology = topology_for(location, keys)
    router = Router(topology, location.display_name, location.options.timeout)
    try:
        command = ("SET", keys.record_key(address), value)
        assert await router.write([(shard_of(address.partition), command)]) == [b"OK"]
    finally:
        await topology.close()
