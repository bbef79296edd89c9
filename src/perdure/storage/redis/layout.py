"""Which node has which shard: one server has all, sentinels know who is master, a cluster has a map.

What is known may be out of date. Whoever notices says `doubt`, and it is looked up before the next use.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, cast

from redis.asyncio.connection import ConnectionPool
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import RedisError

from ..errors import StorageClosed, StorageUnavailable
from ..shards import SHARDS
from .failures import not_sent, refused
from .keys import Keys
from .location import Location
from .node import Host, Node


class Layout(ABC):
    """The nodes, and the shards on them. Belongs to one event loop."""

    is_one: ClassVar[bool] = True
    """Whether one server has all shards, so that one command may be about several of them."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._nodes: dict[Host, Node] = {}
        self._places: list[Node] | None = None
        self._looking = asyncio.Lock()
        self._closed = False

    async def places(self) -> Sequence[Node]:
        """The node of each shard."""
        if self._places is None:
            async with self._looking:
                self._check_open()
                if self._places is None:  # another may have looked while we waited
                    self._places = [self.node(host) for host in await self._look()]
        return self._places

    def doubt(self) -> None:
        self._places = None

    def learn(self, shard: int, host: Host) -> None:
        """A node said who has this shard."""
        if self._places is not None:
            self._places[shard] = self.node(host)

    def node(self, host: Host) -> Node:
        self._check_open()
        node = self._nodes.get(host)
        if node is None:
            name, port = host
            options = self._location.options
            node = self._nodes[host] = Node(
                host,
                ConnectionPool(host=name, port=port, **self._location.driver),
                timeout=options.timeout,
                replicas=options.replicas,
                replica_timeout=options.replica_timeout,
            )
        return node

    async def close(self) -> None:
        self._closed = True
        async with self._looking:  # whoever looks has connections of these nodes
            self._places = None
        await asyncio.gather(*(node.close() for node in self._nodes.values()))

    def _check_open(self) -> None:
        if self._closed:
            raise StorageClosed("this storage was closed")

    @abstractmethod
    async def _look(self) -> Sequence[Host]:
        """The host of each shard."""


class SingleLayout(Layout):
    """One server."""

    async def _look(self) -> Sequence[Host]:
        return self._location.hosts * SHARDS


class SentinelLayout(Layout):
    """The server that the sentinels call master."""

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        timeout = location.options.timeout
        options: dict[str, Any] = {
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "retry": Retry(NoBackoff(), 0),  # another sentinel is asked, which is better
            **location.sentinel,
        }
        self._sentinel = Sentinel(location.hosts, sentinel_kwargs=options)

    async def _look(self) -> Sequence[Host]:
        try:
            master = cast("Host", await self._sentinel.discover_master(self._location.service))
        except (RedisError, OSError) as error:
            raise not_sent(error, self._location.name) from error
        return (master,) * SHARDS

    async def close(self) -> None:
        await super().close()
        await asyncio.gather(*(sentinel.aclose() for sentinel in self._sentinel.sentinels))


class ClusterLayout(Layout):
    """The nodes of a cluster, which all know the map of slots."""

    is_one = False

    def __init__(self, location: Location, keys: Keys) -> None:
        super().__init__(location)
        self._slots = [key_slot(keys.tag(shard)) for shard in range(SHARDS)]

    async def _look(self) -> Sequence[Host]:
        error: Exception | None = None
        for host in dict.fromkeys((*self._nodes, *self._location.hosts)):
            (reply,) = await self.node(host).ask(("CLUSTER", "SLOTS"))
            if not isinstance(reply, Exception):
                found = _hosts(cast("list[list[Any]]", reply), self._slots, host)
                if found is not None:
                    return found
            else:
                error = reply
        if isinstance(error, RedisError):
            raise refused(error, self._location.name) from error
        raise error or StorageUnavailable(f"{self._location.name}: no node knows who has every slot")


def _hosts(ranges: Sequence[Sequence[Any]], slots: Sequence[int], asked: Host) -> list[Host] | None:
    """The masters of these slots; None where one has none."""
    masters: list[tuple[int, int, Host]] = []
    for first, last, (name, port, *_), *_ in ranges:
        masters.append((first, last, ((name or b"").decode() or asked[0], port)))
    found = [next((host for first, last, host in masters if first <= slot <= last), None) for slot in slots]
    return None if None in found else cast("list[Host]", found)


def layout_of(location: Location, keys: Keys) -> Layout:
    if location.kind == "cluster":
        return ClusterLayout(location, keys)
    return SentinelLayout(location) if location.kind == "sentinel" else SingleLayout(location)
