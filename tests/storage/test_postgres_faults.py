"""When the server stops, stalls or refuses: what was acknowledged is there, and every error has its type."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from perdure.storage import Committed, InsertIfAbsent, Refused, Storage, open_storage
from perdure.storage.errors import (
    MissingSchema,
    OutcomeUnknown,
    StorageBusy,
    StorageFull,
    StorageUnavailable,
)
from perdure.storage.kit.sample_records import NOW, PARTITION, SPACE, insert_each, make_record
from perdure.storage.kit.servers import Postgres
from perdure.storage.postgres import pool as pool_module
from perdure.storage.postgres.location import parse_url

from .. import servers
from .helpers import in_time, inserting, keys_of, outcomes
from .postgres_helpers import OURS, at_last, named, partition_locked, session, stalled, until_waiting

pytestmark = pytest.mark.anyio

END_OURS = f"SELECT count(pg_terminate_backend(pid)) {OURS}"
AT_WORK = "AND query LIKE '%commit_group%'"
"""Of a session that does not only begin: who ends such a one has made the server unavailable."""


@pytest.fixture(scope="module")
def own() -> Generator[Postgres]:
    """A server that these tests may stop."""
    with Postgres() as server:
        yield server


async def end_sessions(url: str, name: str, which: str = "") -> None:
    async with session(url.partition("&")[0]) as db:
        await db.fetchval(f"{END_OURS} {which}", name)


async def commit_many(storage: Storage, prefix: str, number: int) -> tuple[set[str], list[BaseException]]:
    """The keys that were acknowledged, and what the others met."""
    keys = [f"{prefix}{n}" for n in range(number)]
    results: list[Committed | Refused | BaseException] = []
    for start in range(0, number, 10):
        part = keys[start : start + 10]
        calls = [storage.commit(inserting(make_record(key, tag="t")), now=NOW) for key in part]
        results += await outcomes(calls)
        await asyncio.sleep(0.005)
    done = {key for key, each in zip(keys, results, strict=True) if isinstance(each, Committed)}
    return done, [each for each in results if isinstance(each, BaseException)]


async def expect_whole(storage: Storage, acknowledged: set[str]) -> None:
    there = {*await keys_of(storage)}
    assert acknowledged <= there
    assert dict(await storage.counts(SPACE, PARTITION, now=NOW)) == {"t": len(there)}
    assert (await storage.maintain()).findings == ()


# Lost connections


async def test_a_restart_between_calls_goes_unnoticed(own: Postgres) -> None:
    async with await open_storage(own.new_url()) as storage:
        await asyncio.gather(*[storage.page(SPACE, limit=1, now=NOW) for _ in range(8)])  # fill the pool
        await insert_each(storage, make_record("before", tag="t"))
        await asyncio.to_thread(own.restart)
        assert await storage.get(make_record("before").address, now=NOW) is not None
        await insert_each(storage, make_record("after", tag="t"))
        await expect_whole(storage, {"before", "after"})


@pytest.mark.parametrize("end", ["orderly", "crash"])
async def test_a_restart_under_load_loses_nothing_acknowledged(own: Postgres, end: str) -> None:
    async with await open_storage(own.new_url()) as storage:
        stress = asyncio.ensure_future(commit_many(storage, "k", 900))
        await asyncio.sleep(0.1)
        while len(await keys_of(storage)) <= 10:  # noqa: ASYNC110 - with more, the first ten are acknowledged
            await asyncio.sleep(0.01)
        await asyncio.to_thread(own.restart, crash=end == "crash")
        acknowledged, errors = await in_time(stress)
        assert acknowledged
        assert {type(error) for error in errors} <= {OutcomeUnknown, StorageUnavailable}
        assert all(error.__cause__ is not None for error in errors)
        await expect_whole(storage, acknowledged)


async def test_a_server_that_is_down_is_unavailable_until_it_is_back(own: Postgres) -> None:
    async with await open_storage(own.new_url()) as storage:
        await insert_each(storage, make_record("k", tag="t"))
        await asyncio.to_thread(own.stop)
        try:
            for call in (
                storage.get(make_record("k").address, now=NOW),
                storage.commit(inserting(make_record("l", tag="t")), now=NOW),
                storage.page(SPACE, limit=1, now=NOW),
                storage.purge(until=NOW, limit=1),
                storage.maintain(),
            ):
                with pytest.raises(StorageUnavailable) as caught:
                    await in_time(call)
                assert caught.value.retryable
        finally:
            await asyncio.to_thread(own.start)
        await insert_each(storage, make_record("m", tag="t"))
        await expect_whole(storage, {"k", "m"})


async def test_sessions_ended_under_load_lose_nothing_acknowledged() -> None:
    url, name = named(servers.postgres())
    async with await open_storage(url) as storage:
        stress = asyncio.ensure_future(commit_many(storage, "k", 500))
        for _ in range(8):
            await asyncio.sleep(0.05)
            await end_sessions(url, name, AT_WORK)
        acknowledged, errors = await in_time(stress)
        assert acknowledged
        assert {type(error) for error in errors} <= {OutcomeUnknown}
        await expect_whole(storage, acknowledged)


async def test_a_read_does_not_notice_that_sessions_were_ended() -> None:
    url, name = named(servers.postgres())
    async with await open_storage(url) as storage:
        await insert_each(storage, make_record("k"))
        for _ in range(5):
            await asyncio.gather(*[storage.page(SPACE, limit=1, now=NOW) for _ in range(8)])
            await end_sessions(url, name)
            assert await storage.get(make_record("k").address, now=NOW) is not None


async def test_a_commit_whose_session_was_ended_in_the_middle_is_unknown() -> None:
    url, name = named(servers.postgres())
    async with await open_storage(url) as storage:
        async with partition_locked(url.partition("&")[0]):
            commit = asyncio.ensure_future(storage.commit(inserting(make_record("k")), now=NOW))
            await until_waiting(url, name)
            await end_sessions(url, name)
            with pytest.raises(OutcomeUnknown):
                await in_time(commit)
        assert await storage.get(make_record("k").address, now=NOW) is None
        await insert_each(storage, make_record("k"))


# Waiting


@pytest.mark.parametrize("option", ["lock_timeout", "statement_timeout"])
async def test_a_commit_that_waits_too_long_raises_and_nothing_is_written(option: str) -> None:
    url = servers.postgres().new_url(f"&{option}=0.3")
    async with await at_last(lambda: open_storage(url)) as storage:
        async with partition_locked(url):
            with pytest.raises(StorageBusy) as caught:
                await in_time(storage.commit(inserting(make_record("k")), now=NOW))
            assert caught.value.retryable
            assert await at_last(lambda: storage.get(make_record("k").address, now=NOW)) is None
            await at_last(lambda: insert_each(storage, make_record("k", partition="another")))
        await at_last(lambda: insert_each(storage, make_record("k")))


@pytest.mark.parametrize("pool", [1, 8])
async def test_a_server_that_stalls_is_given_up(pool: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "CLIENT_TIMEOUT_MARGIN", 0.5)
    url, name = named(servers.postgres(), f"&pool={pool}&statement_timeout=0.5")
    before, after = (
        [InsertIfAbsent(record=make_record("before"))],
        [InsertIfAbsent(record=make_record("after"))],
    )
    async with await at_last(lambda: open_storage(url)) as storage:
        await at_last(lambda: storage.commit(before, now=NOW))
        async with stalled(url, name):
            with pytest.raises(OutcomeUnknown):
                await in_time(storage.commit(inserting(make_record("k")), now=NOW))
            await at_last(lambda: storage.commit(after, now=NOW))  # on another connection
        assert {"before", "after"} <= {*await at_last(lambda: keys_of(storage))}


async def test_a_stalled_read_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "CLIENT_TIMEOUT_MARGIN", 0.5)
    url, name = named(servers.postgres(), "&pool=1&statement_timeout=0.5")
    async with await at_last(lambda: open_storage(url)) as storage:
        async with stalled(url, name):
            with pytest.raises(StorageUnavailable):
                await in_time(storage.page(SPACE, limit=1, now=NOW))
        assert await at_last(lambda: storage.page(SPACE, limit=1, now=NOW)) == []


# One among others


RAISE = """
    CREATE FUNCTION complain() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$;
    CREATE TRIGGER complain BEFORE INSERT ON records
    FOR EACH ROW WHEN (new.key = 'bad') EXECUTE FUNCTION complain();
"""


async def test_a_commit_that_does_not_fit_leaves_its_neighbours_alone() -> None:
    url = servers.postgres().new_url()
    async with await open_storage(url) as storage:
        async with session(url) as db:
            await db.execute(RAISE.format(code="53100"))
        keys = ["a", "bad", "b"]
        results = await outcomes(
            [storage.commit(inserting(make_record(key, tag="t")), now=NOW) for key in keys]
        )
        assert [type(result) for result in results] == [Committed, StorageFull, Committed]
        await expect_whole(storage, {"a", "b"})


async def test_a_locked_partition_does_not_affect_others() -> None:
    url = servers.postgres().new_url("&lock_timeout=1")
    records = [
        make_record(f"k{n}", partition=partition)
        for n, partition in enumerate(["held", "a", "held", "b", "a"])
    ]
    async with await open_storage(url) as storage:
        async with partition_locked(url, "held"):
            results = await outcomes([storage.commit(inserting(record), now=NOW) for record in records])
        assert [type(each) for each in results] == [StorageBusy, Committed, StorageBusy, Committed, Committed]
        assert results[0] is not results[2]
        there = [record.address.key for record in records if await storage.get(record.address, now=NOW)]
        assert there == ["k1", "k3", "k4"]


async def test_a_schema_that_was_dropped_is_missing() -> None:
    url = servers.postgres().new_url()
    async with await open_storage(url) as storage:
        async with session(url) as db:
            await db.execute(f"DROP SCHEMA {parse_url(url).quoted_schema} CASCADE")
        with pytest.raises(MissingSchema, match="run: perdure migrate"):
            await storage.commit(inserting(make_record("k")), now=NOW)


async def test_what_is_acknowledged_is_on_disk_though_the_server_need_not_wait_for_it() -> None:
    url = servers.postgres().new_url("&synchronous_commit=off")
    async with await open_storage(url), session(url) as db, db.transaction():
        assert await db.fetchval("SHOW synchronous_commit") == "off"
        await db.execute("SELECT begin_writing('0', '{}')")
        assert await db.fetchval("SHOW synchronous_commit") == "on"
