"""The stored keys and the commands: no key outlives its record, and verbs send no unnecessary command."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from typing import Any

import pytest

from perdure.storage import Delete, Guard, Insert, InsertIfAbsent, Storage
from perdure.storage.kit.sample_records import (
    NOW,
    OTHER_SPACE,
    PARTITION,
    SPACE,
    commit_changes,
    insert_each,
    insert_many,
    make_record,
)
from perdure.storage.kit.servers import Valkey, ValkeyCluster
from perdure.storage.redis.node import Node, Reply

from .redis_helpers import client_of, keys_of, storage_on

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server() -> Generator[Valkey]:
    with Valkey() as server:
        yield server


@pytest.fixture
async def storage(server: Valkey) -> AsyncGenerator[Storage]:
    server.send_command("FLUSHALL")
    async with storage_on(server) as storage:
        yield storage


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of commands in each round trip."""
    seen: list[int] = []
    send_and_receive = Node._send_and_receive

    async def counted(node: Node, commands: Sequence[bytes], extra_seconds: float = 0) -> list[Reply]:
        seen.append(len(commands))
        return await send_and_receive(node, commands, extra_seconds)

    monkeypatch.setattr(Node, "_send_and_receive", counted)
    return seen


async def test_nothing_is_left_of_records_that_are_gone(server: Valkey, storage: Storage) -> None:
    empty = await keys_of(server)
    assert [key.rpartition(b"}")[2] for key in empty] == [b"format"]
    records = [
        make_record(
            f"k{n}", partition=f"p{n % 3}", tag=f"t{n % 4}", lane="l", wake_at=n, expires_at=NOW + n + 1
        )
        for n in range(20)
    ]
    await insert_each(storage, *records)
    await insert_each(storage, make_record(space=OTHER_SPACE, partition="p0"))
    for record in records[:8]:
        change = record.replace_with(body="2", tag="new", expires_at=None if record.order else NOW + 1)
        await commit_changes(storage, change)
        await commit_changes(storage, Delete(before=change.after))
    for record in records[8:12]:
        await commit_changes(storage, record.replace_with(body="2", tag="", expires_at=NOW + 2))
    await commit_changes(
        storage,
        Insert(record=make_record("k12", partition="p0", tag="again", expires_at=NOW + 50)),
        now=NOW + 15,
    )
    await commit_changes(storage, Delete(before=make_record(space=OTHER_SPACE, partition="p0")))
    while await storage.purge(until=NOW + 99, limit=5):
        pass
    assert await keys_of(server) == empty


async def test_a_guard_leaves_expired_records_to_the_purge_and_does_not_count_them(
    server: Valkey, storage: Storage, trips: list[int]
) -> None:
    await insert_many(storage, [make_record(f"k{n}", tag="a", expires_at=NOW + 5) for n in range(300)])
    del trips[:]
    one = Guard(space=SPACE, tags=frozenset({"a"}), max_count=1)
    await storage.commit([Insert(record=make_record("new", tag="a"))], guard=one, now=NOW + 5)
    assert trips == [1]
    assert len(await storage.purge(until=NOW + 5, limit=1000)) == 300


COMMITS: Mapping[str, tuple[dict[str, int], bool]] = {
    "insert": ({"getrange": 1, "set": 1, "zadd": 4, "publish": 1}, False),
    "insert with everything": ({"getrange": 1, "set": 1, "zadd": 8, "publish": 1}, True),
}


@pytest.mark.parametrize("kind", COMMITS)
async def test_what_an_insert_costs_in_the_server(server: Valkey, storage: Storage, kind: str) -> None:
    wanted, everything = COMMITS[kind]
    await insert_each(storage, make_record("other"))
    record = make_record(expires_at=NOW + 9, lane="l", wake_at=1) if everything else make_record()
    async with client_of(server) as client:
        await client.config_resetstat()
        await insert_each(storage, record)
        assert await calls_in(client) == {"evalsha": 1, **wanted}


async def test_what_a_replace_costs_in_the_server(server: Valkey, storage: Storage) -> None:
    record = make_record(tag="t", expires_at=NOW + 9)
    await insert_each(storage, record)
    change = record.replace_with(body="2", tag="t", expires_at=NOW + 9)
    async with client_of(server) as client:
        await client.config_resetstat()
        await commit_changes(storage, change)
        assert await calls_in(client) == {"evalsha": 1, "getrange": 1, "set": 1, "publish": 1}
        await client.config_resetstat()
        await commit_changes(storage, change.after.replace_with(body="3", tag="u", expires_at=NOW + 9))
        changed = {"evalsha": 1, "getrange": 1, "set": 1, "publish": 1, "zadd": 4, "zrem": 4}
        assert await calls_in(client) == changed


async def calls_in(client: Any) -> dict[str, int]:  # noqa: ANN401 - the driver's client, see `client_of`
    """Return how often the server has run each command since its statistics were reset."""
    stats: dict[str, dict[str, int]] = await client.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}
    return {name: number for name, number in calls.items() if name not in ("config|resetstat", "info")}


async def test_how_many_round_trips_each_verb_takes(storage: Storage, trips: list[int]) -> None:
    records = [
        make_record(f"k{n}", partition=f"p{n % 9}", lane="l", wake_at=n, expires_at=NOW + 5)
        for n in range(90)
    ]
    await insert_each(storage, *records)
    assert await trips_of(storage, trips) == {
        "get": [1],
        "get of 90": [1],
        "insert": [1],
        "keep": [1],
        "guarded": [1],
        "page of a partition": [1, 1],
        "page of all": [1, 1],
        "page of none": [1],
        "due": [1, 1],
        "due of none": [1],
        "counts of a partition": [1],
        "counts of all": [1],
        "purge of none": [1],
        "purge": [1, 9],
    }


async def test_how_many_round_trips_each_verb_takes_on_a_cluster(trips: list[int]) -> None:
    with ValkeyCluster() as cluster:
        async with storage_on(cluster) as storage:
            records = [
                make_record(f"k{n}", partition=f"p{n % 9}", lane="l", wake_at=n, expires_at=NOW + 5)
                for n in range(90)
            ]
            await insert_each(storage, *records)
            taken = await trips_of(storage, trips)
    nodes = len(cluster.nodes)
    one = ("get", "insert", "keep", "guarded", "counts of a partition")
    assert {name: taken[name] for name in one} == {name: [1] for name in one}
    assert taken["page of a partition"] == [1, 1]
    for name in ("page of none", "due of none", "counts of all", "purge of none"):
        assert len(taken[name]) == nodes, name
        assert sum(taken[name]) == 64, name
    for name in ("page of all", "due", "purge"):
        assert nodes < len(taken[name]) <= 2 * nodes, name
        assert sum(taken[name]) <= 64 + 10, name


async def trips_of(storage: Storage, trips: list[int]) -> dict[str, list[int]]:
    """Return, for each verb, the number of commands in each of its round trips."""
    guard = Guard(space=SPACE, tags=frozenset({""}), max_count=1000)
    many = [make_record(f"k{n}", partition=f"p{n % 9}").address for n in range(90)]
    verbs = {
        "get": lambda: storage.get(make_record("k0", partition="p0").address, now=NOW),
        "get of 90": lambda: storage.get_many(many, now=NOW),
        "insert": lambda: storage.commit([Insert(record=make_record("a"))], now=NOW),
        "keep": lambda: storage.commit(
            [InsertIfAbsent(record=make_record("a")), InsertIfAbsent(record=make_record("b"))], now=NOW
        ),
        "guarded": lambda: storage.commit([Insert(record=make_record("c"))], guard=guard, now=NOW),
        "page of a partition": lambda: storage.page(SPACE, "p0", limit=5, now=NOW),
        "page of all": lambda: storage.page(SPACE, limit=50, now=NOW),
        "page of none": lambda: storage.page(SPACE, tag="none", limit=50, now=NOW),
        "due": lambda: storage.due("l", until=NOW, limit=10, now=NOW),
        "due of none": lambda: storage.due("none", until=NOW, limit=10, now=NOW),
        "counts of a partition": lambda: storage.counts(SPACE, PARTITION, now=NOW),
        "counts of all": lambda: storage.counts(SPACE, now=NOW),
        "purge of none": lambda: storage.purge(until=NOW, limit=100),
        "purge": lambda: storage.purge(until=NOW + 5, limit=100),
    }
    taken: dict[str, list[int]] = {}
    await storage.page(SPACE, limit=50, now=NOW)  # a new server receives each script once
    for name, verb in verbs.items():
        await storage.counts(SPACE, now=NOW)
        del trips[:]
        await verb()
        taken[name] = list(trips)
    return taken
