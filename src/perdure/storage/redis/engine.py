"""The Redis engine, which stores records on a single server, on a master with sentinels, or on a cluster.

`writer` and `reader` build commands. `router` sends each command to the right node, and retries it if that is
safe. `node` finds out whether a failed command was not sent, was rejected, or has an unknown outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import uuid4

from ..contract import Engine, MaintenanceReport, StorageInfo
from ..records_and_changes import (
    Address,
    Change,
    Committed,
    Guard,
    LanePosition,
    Micros,
    PageRequest,
    Purged,
    Record,
    Refused,
    Space,
    Tag,
)
from ..watch import Watch
from .consistency_repair import maintain, server_info
from .location import parse_url
from .notifications import Listener
from .reader import Reader
from .router import Router
from .server_checks import check_servers
from .stored_layout import Keys
from .topology import Topology, topology_for
from .writer import Writer


async def open_engine(url: str) -> RedisEngine:
    """Open the storage at `url`. Raise UnsafeServer if a server may lose acknowledged writes."""
    location = parse_url(url)
    keys = Keys(location.options.prefix)
    topology = topology_for(location, keys)
    router = Router(topology, location.display_name, location.options.timeout)
    try:
        await check_servers(location, topology, router, keys)
    except BaseException:
        await topology.close()
        raise
    return RedisEngine(topology, router, keys)


class RedisEngine(Engine):
    """An open storage on Redis. Use it only in the event loop that opened it."""

    name = "redis"

    def __init__(self, topology: Topology, router: Router, keys: Keys) -> None:
        client = uuid4().hex.encode()
        self._topology = topology
        self._router = router
        self._reader = Reader(router, keys)
        self._writer = Writer(router, keys, client)
        self._keys = keys
        self._listener = Listener(topology, keys.channel, client)
        self._watches = self._listener.watches

    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:
        return await self._reader.get(addresses, now)

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        result = await self._writer.commit(changes, guard, now)
        if isinstance(result, Committed):
            self._watches.wake_for(changes)
        return result

    async def page(self, request: PageRequest, *, now: Micros) -> list[Record]:
        return await self._reader.page(request, now)

    async def due(
        self, lane: str, *, after: LanePosition | None, until: Micros, limit: int, now: Micros
    ) -> list[Record]:
        return await self._reader.due(lane, after, until, limit, now)

    async def counts(self, space: Space, partition: str | None, *, now: Micros) -> Mapping[Tag, int]:
        return await self._reader.counts(space, partition, now)

    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        return await self._writer.purge(until, limit, self._watches.wake)

    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch:
        return self._watches.watch((space, partition, key))

    async def maintain(self, *, repair: bool) -> MaintenanceReport:
        return await maintain(self._topology, self._router, self._keys, repair=repair)

    async def info(self) -> StorageInfo:
        return await server_info(self._topology)

    async def close(self) -> None:
        self._watches.close()
        await self._listener.close()
        await self._router.close()
        await self._topology.close()
