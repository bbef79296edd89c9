"""The Redis engine: the seven verbs on one server, on a master and its replicas, or on a cluster.

Writes are put together in `writer`, reads in `reader`; `router` brings them to the right node, and `node`
keeps apart what was not sent, what was refused, and what nobody knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import uuid4

from ..contract import About, Engine, Maintenance, Watch
from ..record import (
    Address,
    Change,
    Committed,
    Guard,
    Micros,
    PageRequest,
    Purged,
    Record,
    Refused,
    Space,
    Tag,
)
from ..signals import Signals
from .location import parse
from .maintenance import Upkeep
from .notifications import Listener
from .reader import Reader
from .router import Router
from .schema import Keys
from .server_checks import check_servers
from .topology import Layout, layout_of
from .writer import Writer


async def open_engine(url: str) -> RedisEngine:
    """Open the storage that the URL names, on servers that are fit to keep it."""
    location = parse(url)
    keys = Keys(location.options.prefix)
    layout = layout_of(location, keys)
    router = Router(layout, location.name, location.options.timeout)
    try:
        await check_servers(location, layout, router, keys)
    except BaseException:
        await layout.close()
        raise
    return RedisEngine(layout, router, keys)


class RedisEngine(Engine):
    """Open connections to the servers. Belongs to the event loop that opened it."""

    name = "redis"

    def __init__(self, layout: Layout, router: Router, keys: Keys) -> None:
        client = uuid4().hex.encode()
        self._layout = layout
        self._router = router
        self._reader = Reader(router, keys)
        self._writer = Writer(router, keys, client)
        self._upkeep = Upkeep(layout, router, keys)
        self._signals = Signals(on_interest=self._attend)
        self._listener = Listener(layout, keys.channel, client, self._signals)

    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:
        return await self._reader.get(addresses, now)

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        result = await self._writer.commit(changes, guard, now)
        if isinstance(result, Committed):
            self._signals.wake(change.address for change in changes)
        return result

    async def page(self, wanted: PageRequest, *, now: Micros) -> list[Record]:
        return await self._reader.page(wanted, now)

    async def due(self, lane: str, *, until: Micros, limit: int, now: Micros) -> list[Record]:
        return await self._reader.due(lane, until, limit, now)

    async def counts(self, space: Space, partition: str | None, *, now: Micros) -> Mapping[Tag, int]:
        return await self._reader.counts(space, partition, now)

    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        return await self._writer.purge(until, limit, self._signals.wake)

    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch:
        return self._signals.watch((space, partition, key))

    async def maintain(self, *, repair: bool) -> Maintenance:
        return await self._upkeep.run(repair=repair)

    async def about(self) -> About:
        return await self._upkeep.about()

    async def close(self) -> None:
        self._signals.close()
        await self._listener.close()
        await self._router.close()
        await self._layout.close()

    def _attend(self) -> None:
        self._listener.attend()
