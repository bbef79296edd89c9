"""Closing a storage, and callers that stop waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from perdure.storage import Storage, migrate_storage, open_storage
from perdure.storage.errors import StorageClosed
from perdure.storage.kit.sample_records import NOW, PARTITION, SPACE, insert_each, make_record

from .. import servers
from .dynamodb_helpers import TEST_TIMEOUT, storage_on
from .dynamodb_proxy import Proxy, proxy_to

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def through_proxy() -> AsyncGenerator[tuple[str, Storage, Proxy]]:
    async with proxy_to(servers.dynoxide().port) as proxy:
        url = proxy.new_url()
        await migrate_storage(url)
        async with await open_storage(url) as storage:
            yield url, storage, proxy


async def test_calls_in_flight_finish_and_later_calls_are_refused() -> None:
    async with through_proxy() as (url, storage, _):
        records = [make_record(f"k{n}", partition=f"p{n % 5}") for n in range(40)]
        writing = [asyncio.create_task(insert_each(storage, record)) for record in records]
        reading = [asyncio.create_task(storage.get(record.address, now=NOW)) for record in records]
        await asyncio.sleep(0)
        await asyncio.gather(storage.close(), storage.close())
        await asyncio.gather(*writing)
        await asyncio.gather(*reading)
        with pytest.raises(StorageClosed):
            await insert_each(storage, make_record("late"))
        async with await open_storage(url) as again:
            found = await again.get_many([record.address for record in records], now=NOW)
            assert found == records


async def test_a_commit_whose_caller_stopped_waiting_is_whole_or_absent() -> None:
    async with through_proxy() as (_, storage, _proxy):
        for n in range(20):
            records = [make_record(f"{n}.{m}", tag="t") for m in range(3)]
            task = asyncio.create_task(insert_each(storage, *records))
            await asyncio.sleep(n / 1000)
            task.cancel()
            await asyncio.wait([task])
        await insert_each(
            storage, make_record("last")
        )  # after all commits that are still in flight in its queue
        assert (await storage.maintain()).findings == ()


async def test_callers_that_stop_waiting_leave_the_client_usable() -> None:
    async with storage_on(servers.dynoxide(), "&connections=2") as storage:
        await insert_each(storage, make_record())
        for n in range(30):
            task = asyncio.create_task(storage.page(SPACE, limit=9, now=NOW))
            await asyncio.sleep(n / 2000)
            task.cancel()
            await asyncio.wait([task])
        async with asyncio.timeout(TEST_TIMEOUT):
            assert await storage.page(SPACE, PARTITION, limit=9, now=NOW) == [make_record()]


async def test_watches_of_others_are_woken_within_a_while_and_no_task_is_left() -> None:
    async with through_proxy() as (url, storage, _):
        async with await open_storage(url) as other, storage.watch(SPACE, PARTITION, "k") as watch:
            await insert_each(other, make_record("k"))
            async with asyncio.timeout(TEST_TIMEOUT):
                await watch.changed()
        await asyncio.sleep(0)
        assert not [task for task in asyncio.all_tasks() if "wake_all" in repr(task)]
