"""Closing: every call finishes or raises StorageClosed, and nothing is left behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure.storage import Committed, open_storage
from perdure.storage.errors import StorageClosed
from perdure.storage.kit.sample_records import NOW, PARTITION, SPACE, insert_each, make_record

from .helpers import in_time, inserting, keys_of, outcomes
from .sqlite_helpers import engine_threads, locked, names_in, queued, url_of

pytestmark = pytest.mark.anyio


async def test_commits_in_flight_finish_or_raise(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    storage = await open_storage(url_of(path))
    with locked(path) as release:
        tasks = await queued(storage, [inserting(make_record(f"k{n:02}")) for n in range(50)])
        closing = asyncio.create_task(storage.close())
        await asyncio.sleep(0)
        with pytest.raises(StorageClosed):
            await insert_each(storage, make_record("late"))
        release()
        results = await outcomes(tasks)
        await closing
    assert all(isinstance(result, Committed | StorageClosed) for result in results)
    finished = [f"k{n:02}" for n, result in enumerate(results) if isinstance(result, Committed)]
    async with await open_storage(url_of(path)) as storage:
        assert await keys_of(storage) == finished


async def test_reads_in_flight_finish_or_raise(tmp_path: Path) -> None:
    storage = await open_storage(url_of(tmp_path / "records.db"))
    await insert_each(storage, make_record())
    reads = [asyncio.create_task(storage.page(SPACE, PARTITION, limit=1, now=NOW)) for _ in range(50)]
    await asyncio.sleep(0)
    await storage.close()
    results = await asyncio.gather(*reads, return_exceptions=True)
    assert all(result == [make_record()] or isinstance(result, StorageClosed) for result in results)


async def test_every_verb_raises_after_closing(tmp_path: Path) -> None:
    storage = await open_storage(url_of(tmp_path / "records.db"))
    await storage.close()
    for call in (
        lambda: storage.get(make_record().address, now=NOW),
        lambda: storage.commit(inserting(make_record()), now=NOW),
        lambda: storage.page(SPACE, limit=1, now=NOW),
        lambda: storage.due("lane", until=NOW, limit=1, now=NOW),
        lambda: storage.counts(SPACE, now=NOW),
        lambda: storage.purge(until=NOW, limit=1),
        storage.maintain,
    ):
        with pytest.raises(StorageClosed):
            await call()
    with pytest.raises(StorageClosed):
        storage.watch(SPACE)


async def test_closing_twice_is_fine_in_sequence_and_concurrently(tmp_path: Path) -> None:
    storage = await open_storage(url_of(tmp_path / "records.db"))
    await insert_each(storage, make_record())
    await asyncio.gather(storage.close(), storage.close())
    await storage.close()
    assert engine_threads() == []


async def test_nothing_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    storage = await open_storage(url_of(path))
    watch = storage.watch(SPACE)
    await asyncio.gather(*[storage.page(SPACE, limit=1, now=NOW) for _ in range(10)])
    await insert_each(storage, make_record())
    assert len(engine_threads()) == 3  # a writer and two readers
    await storage.close()
    await watch.close()
    assert engine_threads() == []
    assert names_in(tmp_path) == ["records.db"]


async def test_a_waiting_watch_raises_when_the_storage_is_closed(tmp_path: Path) -> None:
    storage = await open_storage(url_of(tmp_path / "records.db"))
    watch = storage.watch(SPACE)
    await watch.changed()
    waiting = asyncio.create_task(watch.changed())
    await asyncio.sleep(0)
    await storage.close()
    with pytest.raises(StorageClosed):
        await in_time(waiting)
