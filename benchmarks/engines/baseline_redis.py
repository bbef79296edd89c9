"""The floor of Redis: MULTI, HSET, ZADD and EXEC in one round trip for each write, HGETALL for the read.

A task is a hash, and an entry in a sorted set of its owner's tasks by time, which is what a list needs. No
version is looked at: that takes a script, or WATCH and one more round trip. The driver is as it comes, with
its parser in C; its pool hands out as many connections as may be in use at once, up to CONNECTIONS.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.typing import EncodableT, FieldT

from perdure.storage import Record
from perdure.storage.redis.location import parse_url

from .copies import Life
from .floor import Floor

CONNECTIONS = 64


class BareRedis(Floor):
    redis: Redis

    def __init__(self, url: str, lives: Iterator[Life]) -> None:
        super().__init__(lives)
        self._location = parse_url(url)
        self._prefix = self._location.options.prefix

    async def open(self) -> None:
        ((host, port),) = self._location.hosts
        pool = BlockingConnectionPool(host=host, port=port, max_connections=CONNECTIONS, timeout=None)
        self._stack.push_async_callback(pool.disconnect)
        self.redis = Redis(connection_pool=pool)

    async def insert(self, record: Record) -> None:
        assert await self._write(record) == 1

    async def update(self, before: Record, after: Record) -> None:  # noqa: ARG002
        assert await self._write(after) == 0

    async def read(self, record: Record) -> str:
        answer = self.redis.hgetall(self._key(record))
        return (await cast("Awaitable[dict[bytes, bytes]]", answer))[b"body"].decode()

    async def _write(self, record: Record) -> int:
        """How many entries the list has more."""
        fields: dict[FieldT, EncodableT] = {
            "created_at": record.order,
            "version": record.version,
            "status": record.tag,
            "expires_at": record.expires_at or 0,
            "body": record.body,
        }
        async with self.redis.pipeline(transaction=True) as pipe:
            pipe.hset(self._key(record), mapping=fields)  # pyright: ignore[reportUnusedCoroutine]
            pipe.zadd(f"{self._prefix}:list:{record.partition}", {record.key: record.order})  # pyright: ignore[reportUnusedCoroutine]
            _, added = cast("list[int]", await pipe.execute())
        return added

    def _key(self, record: Record) -> str:
        return f"{self._prefix}:task:{record.partition}:{record.key}"
