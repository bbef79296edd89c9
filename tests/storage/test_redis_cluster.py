"""A cluster: one slot for each partition, nodes that fail, and slots that move during commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager

import pytest
from redis.crc import key_slot

from perdure.storage import Storage, open_storage
from perdure.storage.errors import CannotOpen, OutcomeUnknown
from perdure.storage.kit.sample_records import NOW, SPACE, insert_each, make_record
from perdure.storage.kit.servers import Valkey, ValkeyCluster
from perdure.storage.redis import topology as topologies
from perdure.storage.redis.location import parse_url
from perdure.storage.redis.stored_layout import Keys
from perdure.storage.redis.topology import Topology, topology_for

from ..conditions import wait_until
from ..markers import row
from .redis_helpers import TEST_TIMEOUT, client_of, hasty, keys_of, storage, stress

pytestmark = pytest.mark.anyio

__all__ = ["hasty", "storage"]
"""Fixtures from the helpers, which pytest finds by name in this module."""


@pytest.fixture(scope="module")
def cluster() -> Generator[ValkeyCluster]:
    with ValkeyCluster() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def empty(cluster: ValkeyCluster) -> None:
    for node in cluster.nodes:
        node.send_command("FLUSHALL")


@pytest.fixture
def url(cluster: ValkeyCluster) -> str:
    return cluster.new_url()


@row(96)
async def test_the_keys_of_a_partition_are_in_one_slot(cluster: ValkeyCluster) -> None:
    url = cluster.new_url()
    prefix = url.partition("prefix=")[2].encode()
    async with await open_storage(url) as storage:
        for name in ("p", "{p}", "}{", "a" * 512):
            records = [
                make_record(
                    f"k{n}", partition=name, tag=f"t{n}", lane=f"l{n}", wake_at=n, expires_at=NOW + n + 1
                )
                for n in range(3)
            ]
            await insert_each(storage, *records)
            held = [await keys_of(node) for node in cluster.nodes]
            mine = [key for keys in held for key in keys if key.startswith(b"{" + prefix)]
            assert len({key_slot(key) for key in mine if b"format" not in key}) == 1
            assert (
                sum(
                    any(key.startswith(b"{" + prefix) and b"format" not in key for key in keys)
                    for keys in held
                )
                == 1
            )
            assert len(await storage.purge(until=NOW + 9, limit=9)) == 3


async def test_shards_are_spread_over_all_nodes(cluster: ValkeyCluster, storage: Storage) -> None:
    await insert_each(storage, *(make_record(partition=f"p{n}") for n in range(50)))
    assert all([await keys_of(node) for node in cluster.nodes])
    assert len(await storage.page(SPACE, limit=99, now=NOW)) == 50


async def test_a_node_that_dies_and_comes_back_loses_nothing(
    cluster: ValkeyCluster, storage: Storage, hasty: Storage
) -> None:
    async def restart() -> None:
        await asyncio.to_thread(cluster.nodes[1].restart, crash=True)

    outcome = await stress(hasty, restart)
    assert outcome.acknowledged
    await outcome.check(storage)


async def test_slots_that_move_under_load_leave_every_commit_whole(
    cluster: ValkeyCluster, storage: Storage, hasty: Storage
) -> None:
    first, second = cluster.nodes[:2]

    slots: set[int] = set()

    async def move() -> None:
        slots.update([key_slot(key) for key in await keys_of(first) if key.endswith(b"}T")][:2])
        for slot in slots:
            await move_slot(cluster, slot, first, second)

    outcome = await stress(hasty, move)
    assert slots
    assert outcome.acknowledged
    assert not slots.intersection({key_slot(key) for key in await keys_of(first)})
    await outcome.check(storage)


async def move_slot(cluster: ValkeyCluster, slot: int, source: Valkey, target: Valkey) -> None:
    """Move a slot a few keys at a time, as the tools that reshard a cluster do."""
    async with client_of(source) as at_source, client_of(target) as at_target:
        names = [
            (await client.execute_command("CLUSTER", "MYID")).decode() for client in (at_source, at_target)
        ]
        await at_target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", names[0])
        await at_source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", names[1])
        while keys := await at_source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 20):
            await at_source.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            await asyncio.sleep(0.002)  # so that commits are sent while the slot is on two nodes
        for node in (target, source, *cluster.nodes):
            async with client_of(node) as client:
                await client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[1])


async def test_a_node_of_a_cluster_is_not_a_server_by_itself(cluster: ValkeyCluster) -> None:
    with pytest.raises(CannotOpen, match=r"redis\+cluster"):
        await open_storage(cluster.nodes[0].new_url())


@asynccontextmanager
async def topology_on(url: str) -> AsyncGenerator[Topology]:
    location = parse_url(url)
    topology = topology_for(location, Keys(location.options.prefix))
    try:
        yield topology
    finally:
        await topology.close()


def ports_of(cluster: ValkeyCluster) -> set[int]:
    return {node.port for node in cluster.nodes}


async def test_a_purge_that_fails_on_one_node_does_not_say_that_nothing_was_removed(
    cluster: ValkeyCluster, storage: Storage
) -> None:
    await insert_each(storage, *(make_record(partition=f"p{n}", expires_at=NOW + 1) for n in range(50)))
    async with storage.watch(SPACE) as watch, asyncio.timeout(TEST_TIMEOUT):
        await watch.changed()  # the subscription exists now
        cluster.nodes[2].send_command("CONFIG", "SET", "min-replicas-to-write", "1")
        try:
            with pytest.raises(OutcomeUnknown, match="records were purged"):
                await storage.purge(until=NOW + 1, limit=99)
        finally:
            cluster.nodes[2].send_command("CONFIG", "SET", "min-replicas-to-write", "0")
        await watch.changed()
    assert 0 < len(await storage.purge(until=NOW + 1, limit=99)) < 50


async def test_a_frozen_node_does_not_delay_the_slot_map(cluster: ValkeyCluster) -> None:
    async with topology_on(cluster.new_url("&timeout=1000")) as topology:
        for node in cluster.nodes:
            node.pause()
            try:
                async with asyncio.timeout(TEST_TIMEOUT):
                    nodes = await topology.nodes_by_shard()
            finally:
                node.resume()
            assert {node.host[1] for node in nodes} == ports_of(cluster)
            topology.invalidate()


async def test_the_map_of_a_node_that_was_left_behind_is_not_believed(
    cluster: ValkeyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topologies, "DISCOVERY_GRACE", TEST_TIMEOUT)  # long enough for all nodes to reply
    with ValkeyCluster(1) as behind:
        cluster.nodes[0].send_command("CLUSTER", "BUMPEPOCH")
        for seeds in ((*behind.nodes, *cluster.nodes), (*cluster.nodes, *behind.nodes)):
            hosts = ",".join(f"127.0.0.1:{node.port}" for node in seeds)
            async with topology_on(f"redis+cluster://{hosts}/") as topology:
                assert {node.host[1] for node in await topology.nodes_by_shard()} == ports_of(cluster)


async def test_a_node_that_is_no_longer_in_the_map_is_let_go(cluster: ValkeyCluster) -> None:
    with Valkey() as former:

        async def is_alone() -> bool:
            async with client_of(former) as client:
                return len(await client.client_list()) == 1

        async with topology_on(cluster.new_url()) as topology:
            await topology.node(("127.0.0.1", former.port)).send_now(("PING",))
            assert not await is_alone()
            await topology.nodes_by_shard()
            await wait_until(is_alone)
