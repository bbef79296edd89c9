"""The baseline of Redis: MULTI, HSET, ZADD and EXEC in one round trip for each write, HGETALL for the read.

A task is a hash, and an entry in a sorted set of its owner's tasks by time, for listing. Versions are not
checked: that takes a script, or WATCH and one more round trip. The driver has its defaults, with the parser
in C; its pool opens up to CONNECTIONS connections.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.typing import EncodableT, FieldT

from perdure.storage import Record
from perdure.storage.redis.location import parse_url

from .baseline import Baseline
from .synthetic_tasks import Lifecycle

CONNECTIONS = 64


class BaselineRedis(Baseline):
    redis: Redis

    def __init__(self, url: str, lifecycles: Iterator[Lifecycle]) -> None:
        super().__init__(lifecycles)
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
        """Write the record, and return by how many entries the list grew."""
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
