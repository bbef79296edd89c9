"""Finds out which node has which shard: from the URL, from sentinels, or from the slot map of a cluster.

The known topology may be out of date. After a call to `invalidate`, it is discovered again on next use.
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
from ..shards import SHARD_COUNT
from .errors import server_error, unreachable_error
from .location import Location
from .node import Host, Node, parse_info
from .stored_layout import Keys

DISCOVERY_GRACE = 0.1
"""Number of seconds to wait for the slot maps of all nodes. After that, one complete slot map is enough."""


class Topology(ABC):
    """The known nodes, and the node of each shard. Use a topology in only one event loop."""

    is_single_server: ClassVar[bool] = True
    """Whether one server has all shards, so that one command can use keys of several shards."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._nodes: dict[Host, Node] = {}
        self._nodes_by_shard: list[Node] | None = None
        self._discovery_lock = asyncio.Lock()
        self._closed = False

    async def nodes_by_shard(self) -> Sequence[Node]:
        """Return the node of each shard, ordered by shard number. Discover the topology if it is unknown."""
        if self._nodes_by_shard is None:
            async with self._discovery_lock:
                self._check_open()
                if self._nodes_by_shard is None:  # no other call has discovered it in the meantime
                    self._nodes_by_shard = [self.node(host) for host in await self._discover()]
        return self._nodes_by_shard

    def invalidate(self) -> None:
        self._nodes_by_shard = None

    def move_shard(self, shard: int, host: Host) -> None:
        """Remember that `shard` has moved to `host`. The previous node of the shard has reported this."""
        if self._nodes_by_shard is not None:
            self._nodes_by_shard[shard] = self.node(host)

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
        async with self._discovery_lock:  # a discovery uses connections of these nodes
            self._nodes_by_shard = None
        await asyncio.gather(*(node.close() for node in self._nodes.values()))

    def _check_open(self) -> None:
        if self._closed:
            raise StorageClosed("this storage is closed")

    @abstractmethod
    async def _discover(self) -> Sequence[Host]:
        """Find and return the host of each shard, ordered by shard number."""


class SingleTopology(Topology):
    """One server that has all shards."""

    async def _discover(self) -> Sequence[Host]:
        return self._location.hosts * SHARD_COUNT


class SentinelTopology(Topology):
    """One master that has all shards. Sentinels report the address of the master."""

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        timeout = location.options.timeout
        options: dict[str, Any] = {
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "retry": Retry(NoBackoff(), 0),  # trying the next sentinel is better than a retry
            **location.sentinel,
        }
        self._sentinel = Sentinel(location.hosts, sentinel_kwargs=options)

    async def _discover(self) -> Sequence[Host]:
        try:
            master = cast("Host", await self._sentinel.discover_master(self._location.service))
        except (RedisError, OSError) as error:
            raise unreachable_error(error, self._location.display_name) from error
        return (master,) * SHARD_COUNT

    async def close(self) -> None:
        await super().close()
        await asyncio.gather(*(sentinel.aclose() for sentinel in self._sentinel.sentinels))


class ClusterTopology(Topology):
    """A cluster. Each node reports a slot map, which contains the node of each slot."""

    is_single_server = False

    def __init__(self, location: Location, keys: Keys) -> None:
        super().__init__(location)
        self._slots = [key_slot(tag) for tag in keys.hash_tags]
        self._known_hosts: set[Host] = set()

    def move_shard(self, shard: int, host: Host) -> None:
        super().move_shard(shard, host)
        self._known_hosts.add(host)

    async def _discover(self) -> Sequence[Host]:
        nodes = [self.node(host) for host in dict.fromkeys((*self._known_hosts, *self._location.hosts))]
        requests = [asyncio.create_task(_fetch_slot_map(node, self._slots)) for node in nodes]
        try:
            best = await _best_slot_map(requests)
        finally:
            for task in requests:
                task.cancel()
            await asyncio.wait(requests)
        if best.hosts:
            await self._disconnect_others(best.hosts)
            return best.hosts
        if isinstance(best.error, RedisError):
            raise server_error(best.error, self._location.display_name) from best.error
        name = self._location.display_name
        raise best.error or StorageUnavailable(f"{name}: no node of the cluster knows all slots")

    async def _disconnect_others(self, hosts: Iterable[Host]) -> None:
        """Remember `hosts`. Close idle connections to nodes that are neither in `hosts` nor in the URL."""
        self._known_hosts = set(hosts)
        for host, node in self._nodes.items():
            if host not in self._known_hosts and host not in self._location.hosts:
                await node.close_idle_connections()


class _SlotMap(msgspec.Struct, frozen=True):
    """The slot map that one node reports. An isolated node reports a failed cluster or an older epoch."""

    hosts: Sequence[Host] = ()
    """The host of each shard, ordered by shard number. Empty if the node does not know all of these hosts."""
    rank: tuple[bool, int] = (False, 0)
    """Whether the node reports a healthy cluster, and the epoch that it reports. A higher rank is better."""
    error: Exception | None = None


async def _best_slot_map(requests: Sequence[asyncio.Task[_SlotMap]]) -> _SlotMap:
    """Return the best slot map that arrives within DISCOVERY_GRACE seconds.

    If no complete slot map has arrived by then, wait until one arrives or until all nodes have answered.
    """
    done, waiting = await asyncio.wait(requests, timeout=DISCOVERY_GRACE)
    while waiting and not any(task.result().hosts for task in done):
        arrived, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        done |= arrived
    maps = [task.result() for task in requests if task in done]
    return max(maps, key=lambda each: (bool(each.hosts), *each.rank, each.error is not None))


async def _fetch_slot_map(node: Node, slots: Sequence[int]) -> _SlotMap:
    reply, state = await node.send_now(("CLUSTER", "SLOTS"), ("CLUSTER", "INFO"))
    if isinstance(reply, Exception):
        return _SlotMap(error=reply)
    hosts = _masters_of(cast("list[list[Any]]", reply), slots, node.host) or ()
    info = parse_info(state) if isinstance(state, bytes) else {}
    rank = info.get("cluster_state") == "ok", int(info.get("cluster_current_epoch", 0))
    return _SlotMap(hosts, rank)


def _masters_of(ranges: Sequence[Sequence[Any]], slots: Sequence[int], sender: Host) -> list[Host] | None:
    """Return the host of the master for each of `slots`, or None if any of these slots has no master."""
    masters = [
        (first, last, ((name or b"").decode() or sender[0], port))
        for first, last, (name, port, *_), *_ in ranges
    ]
    found = [next((host for first, last, host in masters if first <= slot <= last), None) for slot in slots]
    return None if None in found else cast("list[Host]", found)


def topology_for(location: Location, keys: Keys) -> Topology:
    if location.kind == "cluster":
        return ClusterTopology(location, keys)
    return SentinelTopology(location) if location.kind == "sentinel" else SingleTopology(location)
