"""Watching: one notification for a group of commits, and a listening connection that comes back."""

from __future__ import annotations

import asyncio

import pytest

from perdure.storage import Insert, InsertIfAbsent, Storage, Watch, open_storage
from perdure.storage.kit.sample_records import NOW, SPACE, insert_each, make_record
from perdure.storage.kit.servers import Postgres
from perdure.storage.postgres import notifications
from perdure.storage.postgres.location import parse_url

from .. import servers
from .helpers import TIMEOUT, in_time, inserting
from .postgres_helpers import OURS, named, session, stalled, until

pytestmark = pytest.mark.anyio

LISTENING = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND query LIKE '%' || $1 || '%'"
WAITING = """
    SELECT count(*) = 1 FROM pg_stat_activity
    WHERE wait_event_type = 'Lock' AND query = 'SELECT ' || $1 || '.announce_listener()' || E'\n'
"""
STOP_LISTENING = LISTENING.replace("count(*)", "pg_terminate_backend(pid)")


async def until_listening(url: str, number: int = 1) -> None:
    async with session(url) as db, asyncio.timeout(TIMEOUT):
        while await db.fetchval(LISTENING, parse_url(url).channel) != number:  # noqa: ASYNC110 - it is elsewhere
            await asyncio.sleep(0.02)


async def quiet(watch: Watch) -> None:
    """Take the wake-up that comes once the listener is connected, and others, until there are none."""
    await in_time(watch.changed())
    while True:
        try:
            await asyncio.wait_for(watch.changed(), 0.3)
        except TimeoutError:
            return


async def test_a_group_of_commits_is_notified_once() -> None:
    url = servers.postgres().new_url()
    heard: list[str] = []
    async with await open_storage(url) as storage, session(url) as db:

        def hear(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            heard.append(str(payload))

        await db.execute("SELECT announce_listener()")
        await db.add_listener(parse_url(url).channel, hear)

        async def was_woken_for(count: int) -> bool:
            async with asyncio.timeout(TIMEOUT):
                while len(heard) < count:  # noqa: ASYNC110 - the driver calls, and sets no event
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            return len(heard) == count

        await asyncio.gather(*[storage.commit(inserting(make_record(f"k{n}")), now=NOW) for n in range(50)])
        assert await was_woken_for(1)
        await insert_each(storage, make_record("alone"))
        assert await was_woken_for(2)
        await storage.commit([Insert(record=make_record("alone"))], now=NOW)  # refused
        await storage.commit([InsertIfAbsent(record=make_record("alone"))], now=NOW)  # kept
        await storage.purge(until=NOW, limit=9)  # of nothing
        assert await was_woken_for(2)
        await insert_each(storage, make_record("short", expires_at=NOW + 1))
        await storage.purge(until=NOW + 1, limit=9)
        assert await was_woken_for(4)


async def test_commits_notify_only_if_a_listener_is_announced() -> None:
    url = servers.postgres().new_url()
    heard: asyncio.Queue[str] = asyncio.Queue()

    def hear(_connection: object, _pid: int, _channel: str, payload: object) -> None:
        heard.put_nowait(str(payload))

    async with await open_storage(url) as storage, session(url) as db:
        await db.add_listener(parse_url(url).channel, hear)
        await insert_each(storage, make_record("unheard"))
        await db.execute("SELECT announce_listener()")
        await insert_each(storage, make_record("heard"))
        assert '"heard"' in await in_time(heard.get())
        assert heard.empty()


async def test_commits_without_listeners_do_not_wait_for_each_other() -> None:
    with Postgres() as server:
        one, other = server.new_url("&lock_timeout=0.5"), server.new_url("&lock_timeout=0.5")
        async with await open_storage(one) as a, await open_storage(other) as b, session(one) as db:
            await db.execute("ALTER SYSTEM SET synchronous_standby_names = 'unknown'")
            await db.execute("SELECT pg_reload_conf()")
            await until(db, "SELECT current_setting('synchronous_standby_names') = 'unknown'")
            commits = [asyncio.ensure_future(insert_each(each, make_record("k"))) for each in (a, b)]
            try:
                await until(db, "SELECT count(*) = 2 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
            finally:
                await db.execute("ALTER SYSTEM RESET synchronous_standby_names")
                await db.execute("SELECT pg_reload_conf()")
            await in_time(asyncio.gather(*commits))


async def test_a_new_listener_waits_for_commits_that_do_not_notify() -> None:
    url = servers.postgres().new_url()
    async with await open_storage(url) as storage, session(url) as writer, session(url) as db:
        quiet_commit = writer.transaction()
        await quiet_commit.start()
        await writer.execute("SELECT end_writing('', '', '{}')")
        async with storage.watch(SPACE) as watch:
            await until(db, WAITING, parse_url(url).quoted_schema)
            assert await db.fetchval(LISTENING, parse_url(url).channel) == 0
            await quiet_commit.commit()
            await until_listening(url)
            await in_time(watch.changed())


async def test_only_what_is_covered_wakes_in_another_client() -> None:
    url = servers.postgres().new_url()
    async with (
        await open_storage(url) as storage,
        await open_storage(url) as other,
        storage.watch(SPACE, "p", "k") as mine,
        storage.watch(SPACE, "q") as beside,
    ):
        await until_listening(url)
        await asyncio.gather(quiet(mine), quiet(beside))
        await insert_each(other, make_record("k", partition="p"))
        await in_time(mine.changed())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(beside.changed(), 0.3)


async def test_ones_own_commit_wakes_once() -> None:
    url = servers.postgres().new_url()
    async with await open_storage(url) as storage, storage.watch(SPACE) as watch:
        await until_listening(url)
        await quiet(watch)
        await insert_each(storage, make_record("k"))
        await in_time(watch.changed())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watch.changed(), 0.3)


async def test_a_change_too_large_for_a_notification_wakes_every_watch() -> None:
    url = servers.postgres().new_url()
    async with (
        await open_storage(url) as storage,
        await open_storage(url) as other,
        storage.watch(SPACE, "long" * 100, "99") as watch,
    ):
        await until_listening(url)
        await quiet(watch)
        records = [make_record(str(n), partition="long" * 100) for n in range(100)]
        await asyncio.gather(*[other.commit(inserting(record), now=NOW) for record in records])
        await in_time(watch.changed())


async def test_what_is_not_ours_on_the_channel_does_no_harm() -> None:
    url = servers.postgres().new_url()
    async with await open_storage(url) as storage, storage.watch(SPACE) as watch:
        await until_listening(url)
        await quiet(watch)
        async with session(url) as db:
            for noise in ("", "{", '["a"]', '["a",[["b"]]]'):
                await db.execute("SELECT pg_notify($1, $2)", parse_url(url).channel, noise)
                await in_time(watch.changed())


async def test_a_lost_listening_connection_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "RECONNECT_DELAY", 0.05)
    url = servers.postgres().new_url()
    async with (
        await open_storage(url) as storage,
        await open_storage(url) as other,
        storage.watch(SPACE) as watch,
    ):
        await until_listening(url)
        await quiet(watch)
        async with session(url) as db:
            assert await db.fetchval(STOP_LISTENING, parse_url(url).channel)
        await quiet(watch)  # once it is back: anything may have happened
        await until_listening(url)
        await insert_each(other, make_record("k"))
        await in_time(watch.changed())


async def test_there_is_no_listener_without_a_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "LINGER_SECONDS", 0.1)
    url = servers.postgres().new_url()
    async with await open_storage(url) as storage:
        await until_listening(url, 0)
        for _ in range(2):
            async with storage.watch(SPACE):
                await until_listening(url)
            await until_listening(url, 0)


async def test_closing_waits_for_the_end_of_a_connection_that_no_longer_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notifications, "LINGER_SECONDS", 0)
    monkeypatch.setattr(notifications, "CLOSE_TIMEOUT", 0.5)
    url, name = named(servers.postgres())
    before = asyncio.all_tasks()
    storage = await open_storage(url)
    async with storage.watch(SPACE):
        await until_listening(url.partition("&")[0])
        async with session(url.partition("&")[0]) as db:
            await db.execute(f"SELECT pg_terminate_backend(pid) {OURS} AND query NOT LIKE 'LISTEN%'", name)
            await until(db, f"SELECT count(*) = 1 {OURS}", name)
        frozen = stalled(url, name)
        await frozen.__aenter__()
    try:
        await asyncio.sleep(0.05)  # the task that listens is being stopped
        await in_time(storage.close())
        assert asyncio.all_tasks() == before
    finally:
        await frozen.__aexit__(None, None, None)


async def test_watches_that_come_and_go_share_one_connection() -> None:
    url = servers.postgres().new_url()

    async def watch_briefly(storage: Storage) -> None:
        async with storage.watch(SPACE):
            await asyncio.sleep(0.01)

    async with await open_storage(url) as storage:
        for _ in range(5):
            await asyncio.gather(*[watch_briefly(storage) for _ in range(10)])
        await until_listening(url)
    await until_listening(url, 0)
