"""Which node has which shard: one server has all, sentinels know who is master, a cluster has a map.

What is known may be out of date. Whoever notices says `doubt`, and it is looked up before the next use.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, cast

import msgspec
from redis.asyncio.connection import ConnectionPool
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import RedisError

from ..errors import StorageClosed, StorageUnavailable
from ..shards import SHARDS
from .errors import not_sent, refused
from .location import Location
from .node import Host, Node
from .schema import Keys

GRACE = 0.1
"""Seconds in which nodes may know better than the one that answered first."""


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
        self._known: set[Host] = set()

    def learn(self, shard: int, host: Host) -> None:
        super().learn(shard, host)
        self._known.add(host)

    async def _look(self) -> Sequence[Host]:
        nodes = [self.node(host) for host in dict.fromkeys((*self._known, *self._location.hosts))]
        asking = [asyncio.create_task(_ask_map(node, self._slots)) for node in nodes]
        try:
            best = await _best(asking)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.wait(asking)
        if best.hosts:
            await self._forget_others(best.hosts)
            return best.hosts
        if isinstance(best.error, RedisError):
            raise refused(best.error, self._location.name) from best.error
        raise best.error or StorageUnavailable(f"{self._location.name}: no node knows who has every slot")

    async def _forget_others(self, hosts: Iterable[Host]) -> None:
        """Ask no longer, and hold no connection to, what is neither in the map nor in the URL."""
        self._known = set(hosts)
        for host, node in self._nodes.items():
            if host not in self._known and host not in self._location.hosts:
                await node.rest()


class _Map(msgspec.Struct, frozen=True):
    """What a node says. One that is cut off from the others knows that it is, or is of an earlier epoch."""

    hosts: Sequence[Host] = ()
    """Of each shard; none where it does not know them all."""
    rank: tuple[bool, int] = (False, 0)
    error: Exception | None = None


async def _best(asking: Sequence[asyncio.Task[_Map]]) -> _Map:
    """The best map of those that come soon, or else the first that comes; if there is none, say why."""
    done, waiting = await asyncio.wait(asking, timeout=GRACE)
    while waiting and not any(task.result().hosts for task in done):
        came, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        done |= came
    maps = [task.result() for task in asking if task in done]
    return max(maps, key=lambda each: (bool(each.hosts), *each.rank, each.error is not None))


async def _ask_map(node: Node, slots: Sequence[int]) -> _Map:
    reply, state = await node.ask(("CLUSTER", "SLOTS"), ("CLUSTER", "INFO"))
    if isinstance(reply, Exception):
        return _Map(error=reply)
    hosts = _hosts(cast("list[list[Any]]", reply), slots, node.host) or ()
    return _Map(hosts, _rank(state) if isinstance(state, bytes) else (False, 0))


def _rank(state: bytes) -> tuple[bool, int]:
    facts = dict(line.split(b":", 1) for line in state.splitlines() if b":" in line)
    return facts.get(b"cluster_state") == b"ok", int(facts.get(b"cluster_current_epoch", 0))


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
