"""Servers that are killed, frozen or full, or that cut connections.

Nothing acknowledged is lost, no commit is half written, and every caller gets the right outcome.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Generator

import pytest

from perdure.storage import Delete, Insert, Storage, open_storage
from perdure.storage.errors import (
    OutcomeUnknown,
    StorageCorrupt,
    StorageFailed,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
)
from perdure.storage.kit.sample_records import NOW, PARTITION, SPACE, insert_each, make_record
from perdure.storage.kit.servers import Valkey
from perdure.storage.redis.location import parse_url
from perdure.storage.redis.router import RETRY_DELAYS, Router
from perdure.storage.redis.stored_layout import Keys
from perdure.storage.redis.topology import topology_for

from ..conditions import wait_until
from .redis_helpers import (
    TEST_TIMEOUT,
    StressResult,
    client_of,
    hasty,
    is_usable,
    storage,
    storage_on,
    stress,
)

pytestmark = pytest.mark.anyio

__all__ = ["hasty", "storage"]
"""Fixtures from the helpers, which pytest finds by name in this module."""


@pytest.fixture
def server() -> Generator[Valkey]:
    with Valkey() as server:
        yield server


@pytest.fixture
def url(server: Valkey) -> str:
    return server.new_url()


@pytest.mark.parametrize("crash", [True, False])
async def test_a_restart_under_load_loses_nothing_acknowledged(
    server: Valkey, storage: Storage, hasty: Storage, *, crash: bool
) -> None:
    outcome = StressResult()

    async def restart() -> None:
        for number in range(30):
            if number >= 3 and (outcome.unknown or outcome.unavailable):
                return
            await asyncio.to_thread(server.restart, crash=crash)
            await asyncio.sleep(0.2)

    await stress(hasty, restart, outcome=outcome)
    assert outcome.acknowledged
    assert outcome.unknown or outcome.unavailable
    await outcome.check(storage)


async def test_connections_that_are_cut_leave_nothing_half_done(
    server: Valkey, storage: Storage, hasty: Storage
) -> None:
    async def cut() -> None:
        async with client_of(server) as client:
            for _ in range(30):
                await client.client_kill_filter(_type="normal", skipme=True)
                await asyncio.sleep(0.01)

    outcome = await stress(hasty, cut)
    assert outcome.acknowledged
    await outcome.check(storage)


async def test_a_connection_that_the_server_closed_while_idle_is_not_used(
    server: Valkey, storage: Storage
) -> None:
    async with client_of(server) as client:
        for number in range(20):
            assert await client.client_kill_filter(_type="normal", skipme=True)
            await asyncio.sleep(0.02)
            await insert_each(storage, make_record(f"k{number}"))


async def test_a_frozen_server_is_unavailable_to_readers_and_leaves_writers_in_doubt(
    server: Valkey, storage: Storage, hasty: Storage
) -> None:
    record = make_record("k")
    server.pause()
    writing = asyncio.create_task(hasty.commit([Insert(record=record)], now=NOW))
    for _ in range(50):  # enough iterations of the event loop to send it on the only connection
        await asyncio.sleep(0.001)
    with pytest.raises(StorageUnavailable):
        await hasty.get(record.address, now=NOW)
    with pytest.raises(OutcomeUnknown) as caught:
        await writing
    assert isinstance(caught.value.__cause__, TimeoutError)
    server.resume()
    await wait_until(lambda: is_usable(storage))
    assert await storage.get(record.address, now=NOW) in (None, record)


async def test_a_pause_shorter_than_the_timeout_is_only_slow(server: Valkey, storage: Storage) -> None:
    async with client_of(server) as client:
        await client.client_pause(500, all=True)
    await insert_each(storage, make_record("k"))


async def test_a_server_that_is_gone_is_unavailable(server: Valkey, hasty: Storage) -> None:
    server.stop()
    with pytest.raises(StorageUnavailable):
        await hasty.commit([Insert(record=make_record())], now=NOW)
    with pytest.raises(StorageUnavailable):
        await hasty.page(SPACE, limit=1, now=NOW)


async def test_a_full_memory_refuses_what_grows_and_lets_go_what_shrinks(
    server: Valkey, storage: Storage
) -> None:
    first = make_record("first", tag="t")
    await insert_each(storage, first)
    async with client_of(server) as client:
        await client.config_set("maxmemory", "1mb")
    with pytest.raises(StorageFull):
        await insert_each(storage, *(make_record(f"k{number}", body="x" * 100_000) for number in range(100)))
    with pytest.raises(StorageFull):
        await storage.commit(
            [first.replace_with(body="x" * 1000, tag="u"), Insert(record=make_record("new"))], now=NOW
        )
    assert await storage.get(first.address, now=NOW) == first
    assert (await storage.maintain()).findings == ()
    await storage.commit([Delete(before=first)], now=NOW)
    assert await storage.get(first.address, now=NOW) is None


async def test_a_server_that_became_a_replica_is_unavailable(
    server: Valkey, storage: Storage, hasty: Storage
) -> None:
    server.send_command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(StorageUnavailable):
        await insert_each(hasty, make_record())
    server.send_command("REPLICAOF", "NO", "ONE")
    await insert_each(storage, make_record())


async def test_a_server_without_the_replicas_it_needs_is_unavailable(server: Valkey, hasty: Storage) -> None:
    server.send_command("CONFIG", "SET", "min-replicas-to-write", "1")
    with pytest.raises(StorageUnavailable):
        await insert_each(hasty, make_record())


async def test_a_server_that_cannot_save_is_read_only() -> None:
    with Valkey({"appendonly": "no", "save": "3600 100000"}) as server:
        async with storage_on(server, "&persistence=any") as storage:
            shutil.rmtree(server.folder)
            server.send_command("BGSAVE")

            async def has_failed() -> bool:
                return "rdb_last_bgsave_status:err" in server.send_command("INFO", "persistence")

            await wait_until(has_failed)
            with pytest.raises(StorageReadOnly):
                await insert_each(storage, make_record())
            assert await storage.get(make_record().address, now=NOW) is None
            server.send_command(
                "CONFIG", "SET", "save", ""
            )  # otherwise the server would save before it stops


async def test_a_user_without_permission_to_publish_can_write(server: Valkey) -> None:
    server.send_command("ACL", "SETUSER", "mute", "on", ">secret", "~*", "resetchannels", "+@all", "-publish")
    url = server.new_url().replace("redis://", "redis://mute:secret@")
    async with await open_storage(url) as storage:
        await insert_each(storage, make_record(tag="t"))
        assert dict(await storage.counts(SPACE, PARTITION, now=NOW)) == {"t": 1}


async def test_cancelled_callers_leave_nothing_behind(server: Valkey, storage: Storage) -> None:
    async def write(number: int) -> None:
        async with asyncio.timeout(number % 7 / 1000):
            await insert_each(storage, make_record(f"k{number}", tag="t"))

    await asyncio.gather(*(write(number) for number in range(500)), return_exceptions=True)
    await insert_each(
        storage, make_record("last", tag="t")
    )  # queued after all commits that are still in flight
    counts = await storage.counts(SPACE, PARTITION, now=NOW)
    listed = await storage.page(SPACE, PARTITION, limit=1000, now=NOW)
    assert sum(counts.values()) == len(listed)
    assert (await storage.maintain()).findings == ()
    async with client_of(server) as client:

        async def are_few() -> bool:
            return len(await client.client_list()) <= 1 + 5

        await wait_until(are_few)


async def test_what_is_refused_is_tried_again_for_as_long_as_the_timeout_allows(server: Valkey) -> None:
    async with storage_on(server, f"&timeout={TEST_TIMEOUT}") as storage:
        server.send_command("REPLICAOF", "127.0.0.1", "1")
        writing = asyncio.create_task(insert_each(storage, make_record()))
        await asyncio.sleep(2 * sum(RETRY_DELAYS))  # longer than the sum of all delays
        assert not writing.done()
        server.send_command("REPLICAOF", "NO", "ONE")
        await writing


async def test_a_commit_to_a_server_that_loads_is_done_when_it_has() -> None:
    with Valkey({"enable-debug-command": "yes"}) as server:
        async with storage_on(server, f"&timeout={TEST_TIMEOUT}") as storage, client_of(server) as client:
            await insert_each(storage, make_record("before"))
            server.send_command("DEBUG", "POPULATE", "2000", "other", "100")
            server.send_command(
                "CONFIG", "SET", "key-load-delay", "5000", "loading-process-events-interval-bytes", "1024"
            )

            async def loads() -> bool:
                return server.send_command("GET", "k").startswith("-LOADING")

            loading = asyncio.create_task(client.execute_command("DEBUG", "RELOAD"))
            await wait_until(loads)
            writing = asyncio.create_task(insert_each(storage, make_record("while it loads")))
            await asyncio.sleep(0.5)
            assert not writing.done()
            server.send_command("CONFIG", "SET", "key-load-delay", "0")
            await writing
            await loading
            assert len(await storage.page(SPACE, limit=9, now=NOW)) == 2


async def test_a_connection_without_its_user_does_nothing_and_is_made_anew(server: Valkey) -> None:
    server.send_command("CONFIG", "SET", "requirepass", "secret")
    location = parse_url(server.new_url(f"&timeout={TEST_TIMEOUT}").replace("redis://", "redis://:secret@"))
    topology = topology_for(location, Keys(location.options.prefix))
    router = Router(topology, location.display_name, location.options.timeout)
    node = (await topology.nodes_by_shard())[0]
    assert await node.send_now(("RESET",)) == [b"RESET"]
    first, second = await router.write([(0, ("SET", "k", "v")), (1, ("SET", "k", "v"))])
    for reply in (first, second):
        assert isinstance(reply, StorageFailed)
        assert not isinstance(reply, OutcomeUnknown)
    assert await router.write([(0, ("GET", "k"))]) == [None]
    await topology.close()


async def test_a_script_that_stops_half_way_is_not_said_to_have_done_nothing(
    server: Valkey, storage: Storage
) -> None:
    await insert_each(storage, make_record("first", lane="l", wake_at=1))
    async with client_of(server) as client:
        (timers,) = [key for key in await client.keys("*") if key.endswith(b"}T")]
        await client.set(timers, "not ours")
    with pytest.raises(StorageFailed):
        await storage.commit([Insert(record=make_record("second", lane="l", wake_at=1))], now=NOW)
    with pytest.raises(StorageCorrupt):
        await storage.due("l", until=1, limit=9, now=NOW)


async def test_a_wait_for_replicas_always_has_an_end(server: Valkey) -> None:
    async with storage_on(server, "&replicas=1&replica_timeout=0.0001") as storage:
        with pytest.raises(OutcomeUnknown, match="confirmed: 0, required: 1"):
            await storage.commit([Insert(record=make_record())], now=NOW)
