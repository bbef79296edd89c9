"""Watches of several clients, closing, and repairs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator

import pytest

from perdure.storage import Insert, Storage, Watch, open_storage
from perdure.storage.errors import StorageClosed
from perdure.storage.kit.sample_records import NOW, OTHER_SPACE, PARTITION, SPACE, insert_each, make_record
from perdure.storage.kit.servers import Valkey
from perdure.storage.redis import notifications

from ..conditions import wait_until
from .redis_helpers import TEST_TIMEOUT, client_of, storage_on

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server() -> Generator[Valkey]:
    with Valkey() as server:
        yield server


@pytest.fixture
async def pair(server: Valkey) -> AsyncGenerator[tuple[Storage, Storage]]:
    url = server.new_url()
    async with await open_storage(url) as first, await open_storage(url) as second:
        yield first, second


async def woken(watch: Watch, within: float = TEST_TIMEOUT) -> bool:
    try:
        async with asyncio.timeout(within):
            await watch.changed()
    except TimeoutError:
        return False
    return True


async def test_a_watch_wakes_for_another_client_and_only_for_what_it_covers(
    pair: tuple[Storage, Storage],
) -> None:
    first, second = pair
    async with first.watch(SPACE, PARTITION, "k") as watch:
        assert await woken(watch)  # the subscription exists now
        await insert_each(
            second, make_record("other"), make_record("k", partition="q"), make_record("k", space=OTHER_SPACE)
        )
        assert not await woken(watch, 0.2)
        await insert_each(second, make_record("k"))
        assert await woken(watch)


async def test_ones_own_commit_wakes_once(pair: tuple[Storage, Storage]) -> None:
    first, _ = pair
    async with first.watch(SPACE) as watch:
        assert await woken(watch)
        await insert_each(first, make_record("k"))
        assert await woken(watch)
        assert not await woken(watch, 0.2)


async def test_a_large_commit_wakes_all_watches(pair: tuple[Storage, Storage]) -> None:
    first, second = pair
    async with first.watch(OTHER_SPACE) as watch:
        assert await woken(watch)
        changes = [Insert(record=make_record(f"{n}" * 100)) for n in range(10, 30)]
        await second.commit(changes, now=NOW)
        assert await woken(watch)


async def test_a_broken_subscription_is_made_anew_and_wakes(
    server: Valkey, pair: tuple[Storage, Storage]
) -> None:
    first, second = pair
    async with first.watch(SPACE) as watch:
        assert await woken(watch)
        async with client_of(server) as client:
            assert await client.client_kill_filter(_type="pubsub")
        assert await woken(watch)
        await insert_each(second, make_record("k"))
        assert await woken(watch)


@pytest.mark.parametrize("message", [b"x\0y", b"x\0\xff\0p\0k"])
async def test_an_invalid_message_wakes_all_watches_and_does_not_end_the_subscription(
    server: Valkey, message: bytes
) -> None:
    url = server.new_url()
    prefix = url.partition("prefix=")[2]
    async with (
        await open_storage(url) as first,
        await open_storage(url) as second,
        client_of(server) as client,
        first.watch(SPACE) as watch,
    ):
        assert await woken(watch)
        assert await client.publish(f"{prefix}:changes", message) == 1
        assert await woken(watch)
        await insert_each(second, make_record("k"))
        assert await woken(watch)


async def test_a_silent_server_is_asked_whether_it_is_there(
    server: Valkey, pair: tuple[Storage, Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "KEEPALIVE_SECONDS", 0.05)
    first, second = pair

    async def is_asked_in_peace() -> bool:
        """Whether the server was pinged and the subscription was not renewed.

        On a slow machine the reply may come too late, so the caller repeats this.
        """
        before = await questions_to(server)
        return not await woken(watch, 0.3) and await questions_to(server) > before

    async with first.watch(SPACE) as watch:
        assert await woken(watch)
        await wait_until(is_asked_in_peace)
        server.pause()
        for _ in range(50):  # enough iterations to detect the failure, even if each one is slow
            await asyncio.sleep(0.01)
        server.resume()
        assert await woken(watch)
        await insert_each(second, make_record("k"))
        assert await woken(watch)


async def questions_to(server: Valkey) -> int:
    """Return how many times the server was pinged."""
    async with client_of(server) as client:
        return (await client.info("commandstats")).get("cmdstat_ping", {"calls": 0})["calls"]


async def test_there_is_no_subscription_without_a_watch(
    server: Valkey, pair: tuple[Storage, Storage]
) -> None:
    first, _ = pair

    async def subscribers() -> int:
        async with client_of(server) as client:
            return len([each for each in await client.client_list() if each["sub"] != "0"])

    async def one() -> bool:
        return await subscribers() == 1

    async def none() -> bool:
        return not await subscribers()

    await wait_until(none)
    watch, another = first.watch(SPACE), first.watch(SPACE)
    assert await woken(watch)
    await wait_until(one)
    await watch.close()
    await another.close()
    await wait_until(none)


async def test_closing_waits_for_calls_in_flight_and_leaves_no_connection(server: Valkey) -> None:
    url = server.new_url()
    storage = await open_storage(url)
    watch = storage.watch(SPACE)
    commits = [asyncio.create_task(insert_each(storage, make_record(f"k{n}"))) for n in range(20)]
    await asyncio.sleep(0)
    await storage.close()
    await storage.close()
    await asyncio.gather(*commits)
    with pytest.raises(StorageClosed):
        await watch.changed()
    async with client_of(server) as client:

        async def is_alone() -> bool:
            return len(await client.client_list()) == 1

        await wait_until(is_alone)
    async with await open_storage(url) as again:
        assert len(await again.page(SPACE, limit=99, now=NOW)) == 20


async def test_what_is_damaged_is_found_and_repaired(server: Valkey) -> None:
    server.send_command("FLUSHALL")
    async with storage_on(server) as storage, client_of(server) as client:
        record = make_record(tag="t", expires_at=NOW + 9, lane="l", wake_at=1)
        await insert_each(storage, record, make_record("other"))
        assert (await storage.maintain()).findings == ()
        indexes = [key for key in await client.keys("*") if await client.type(key) == b"zset"]
        assert len(indexes) == 8
        for key in indexes:
            await client.zpopmax(key)
        listing = next(key for key in indexes if key.endswith(b"}Okit"))
        await client.zadd(listing, {f"{7:016}gone\0{PARTITION}": 0})
        found = (await storage.maintain()).findings
        assert len(found) == 9
        assert (await storage.maintain(repair=True)).findings == found
        assert (await storage.maintain()).findings == ()
        assert dict(await storage.counts(SPACE, now=NOW)) == {"": 1, "t": 1}
        assert await storage.due("l", until=1, limit=9, now=NOW) == [record]
