"""Callers that stop waiting, and closing: nothing is left behind, and running calls finish."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

from perdure.storage import Committed, open_storage
from perdure.storage.errors import StorageClosed
from perdure.storage.kit.sample_records import NOW, SPACE, insert_each, make_record
from perdure.storage.postgres import pool

from .. import servers
from .helpers import in_time, inserting, keys_of, outcomes
from .postgres_helpers import OURS, named, partition_locked, session, stalled, until, until_waiting

if TYPE_CHECKING:
    from perdure.storage.postgres.pool import Connection

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("pool", [1, 3])
async def test_callers_that_stop_waiting_leave_nothing_behind(pool: int) -> None:
    url, name = named(servers.postgres(), f"&pool={pool}")
    async with await open_storage(url) as storage:
        for n in range(20):
            with anyio.move_on_after(0.001 * (n % 5)):
                async with anyio.create_task_group() as group:
                    for m in range(4):
                        group.start_soon(insert_each, storage, make_record(f"k{n}.{m}", tag="t"))
                        group.start_soon(keys_of, storage)
                    group.start_soon(partial(storage.maintain, repair=n % 2 == 0))
        await insert_each(storage, make_record("last", tag="t"))
        assert len(await keys_of(storage)) == 81  # a commit continues without its caller
        async with session(url.partition("&")[0]) as db:
            await until(db, f"SELECT count(*) <= {pool} {OURS}", name)
        assert (await storage.maintain()).findings == ()


async def test_who_stops_opening_leaves_nothing_behind() -> None:
    url, name = named(servers.postgres())
    for n in range(12):
        with anyio.move_on_after(0.002 * n):
            async with await open_storage(url):
                pass
    async with await open_storage(url) as storage:
        await insert_each(storage, make_record("k"))
    async with session(url.partition("&")[0]) as db:
        await until_none(db, name)


async def until_none(db: Connection, name: str) -> None:
    """The server may take a moment to see that a session has gone."""
    await until(db, f"SELECT count(*) = 0 {OURS}", name)


async def test_who_stops_waiting_for_a_server_that_stalls_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "CLOSE_TIMEOUT", 0.2)
    url, name = named(servers.postgres(), "&pool=1&statement_timeout=600")
    async with await open_storage(url) as storage, stalled(url, name):
        page = asyncio.ensure_future(storage.page(SPACE, limit=1, now=NOW))
        for _ in range(50):  # turns, in which it is sent
            await asyncio.sleep(0.002)
        page.cancel()
        await outcomes([page])
        assert page.cancelled()
        assert await in_time(storage.page(SPACE, limit=1, now=NOW)) == []  # on another connection


async def test_closing_does_not_wait_forever_for_maintenance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "CLOSE_TIMEOUT", 0.2)
    url, name = named(servers.postgres(), "&lock_timeout=0")
    storage = await open_storage(url)
    unnamed = url.partition("&")[0]
    async with session(unnamed) as db, session(unnamed) as other, other.transaction():
        await other.execute("LOCK TABLE records IN ROW EXCLUSIVE MODE")
        upkeep = asyncio.ensure_future(storage.maintain(repair=True))
        await until(db, f"SELECT count(*) = 1 {OURS} AND wait_event_type = 'Lock'", name)
        await in_time(storage.close())
        with pytest.raises(StorageClosed):
            await in_time(upkeep)
        await until_none(db, name)


async def test_closing_finishes_calls_in_flight() -> None:
    url, name = named(servers.postgres(), "&pool=1")
    storage = await open_storage(url)
    async with partition_locked(url.partition("&")[0]):
        commit = asyncio.ensure_future(storage.commit(inserting(make_record("k")), now=NOW))
        await until_waiting(url, name)
        page = asyncio.ensure_future(storage.page(SPACE, limit=1, now=NOW))
        purge = asyncio.ensure_future(storage.purge(until=NOW, limit=1))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(storage.close())
        await asyncio.sleep(0.1)
        assert not closing.done()
    assert isinstance(await in_time(commit), Committed)
    assert await in_time(purge) == []
    assert len(await in_time(page)) == 1
    await in_time(closing)
    await storage.close()
    with pytest.raises(StorageClosed):
        await storage.get(make_record("k").address, now=NOW)
    async with session(url.partition("&")[0]) as db:
        await until_none(db, name)
