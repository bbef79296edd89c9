"""The writer: commits share transactions, each has its own outcome, and none waits for a failing one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure.storage import (
    Accepted,
    Change,
    Committed,
    Conflict,
    Guard,
    Insert,
    InsertIfAbsent,
    Refused,
    open_storage,
)
from perdure.storage.errors import StorageBusy
from perdure.storage.kit.sample_records import NOW, PARTITION, SPACE, commit_changes, insert_each, make_record

from ..markers import server
from .helpers import in_time, inserting, keys_of, outcomes
from .sqlite_helpers import child, locked, queued, trace, url_of

pytestmark = pytest.mark.anyio

MANY = 200


async def test_concurrent_commits_share_transactions(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    async with await open_storage(url_of(path)) as storage:
        statements = trace(storage)
        with locked(path) as release:
            tasks = await queued(storage, [inserting(make_record(f"k{n:03}")) for n in range(MANY)])
            release()
            results = await outcomes(tasks)
        assert all(isinstance(result, Committed) for result in results)
        assert statements.count("COMMIT") <= 2  # the one that waited for the lock, and the rest
        assert len(await keys_of(storage)) == MANY


async def test_a_commit_alone_is_a_transaction_alone(tmp_path: Path) -> None:
    async with await open_storage(url_of(tmp_path / "records.db")) as storage:
        statements = trace(storage)
        for n in range(5):
            await insert_each(storage, make_record(f"k{n}"))
        assert statements.count("COMMIT") == 5


async def test_each_commit_of_a_group_has_its_own_outcome(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    async with await open_storage(url_of(path)) as storage:
        taken = make_record("taken", tag="t")
        await insert_each(storage, taken)
        guard = Guard(space=SPACE, tags=frozenset({"t"}), max_count=2)
        with locked(path) as release:
            group = asyncio.gather(
                storage.commit([Insert(record=taken)], now=NOW),
                storage.commit([taken.replace_with(body="1", tag="t")], now=NOW),
                storage.commit([taken.replace_with(body="2", tag="t")], now=NOW),
                storage.commit([InsertIfAbsent(record=make_record("a", tag="t"))], guard=guard, now=NOW),
                storage.commit([InsertIfAbsent(record=make_record("b", tag="t"))], guard=guard, now=NOW),
                storage.commit(inserting(make_record("c")), now=NOW),
                storage.purge(until=NOW, limit=1),
            )
            await asyncio.sleep(0)
            release()
            results = await group
        assert results == [
            Refused((Conflict(1),)),
            Committed((Accepted(2),)),
            Refused((Conflict(2),)),
            Committed((Accepted(1),)),
            Refused((Accepted(1),), guard_count=3),
            Committed((Accepted(1),)),
            [],
        ]
        assert dict(await storage.counts(SPACE, PARTITION, now=NOW)) == {"t": 2, "": 1}
        assert (await storage.maintain()).findings == ()


async def test_a_caller_cancelled_while_its_commit_is_queued_affects_no_other(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    async with await open_storage(url_of(path)) as storage:
        with locked(path) as release:
            tasks = await queued(storage, [inserting(make_record(f"k{n}")) for n in range(9)])
            for task in tasks[::4]:
                task.cancel()
            await asyncio.wait(tasks[::4])
            release()
            results = await outcomes(tasks)
        done = [isinstance(result, Committed) for result in results]
        assert done == [n % 4 != 0 for n in range(9)]
        assert all(task.cancelled() for task in tasks[::4])
        keys = await keys_of(storage)
        assert {f"k{n}" for n in range(9) if n % 4} <= {*keys}
        assert dict(await storage.counts(SPACE, now=NOW)) == {"": len(keys)}


# Locks of others


@server
async def test_a_lock_that_lasts_too_long_is_busy_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    async with await open_storage(url_of(path, busy_timeout=0.2)) as storage:
        await insert_each(storage, make_record("before", tag="t"))
        async with child("lock", path) as holder:
            assert await holder.line() == "locked"
            with pytest.raises(StorageBusy) as refused:
                await insert_each(storage, make_record("during"))
            assert refused.value.retryable
            with pytest.raises(StorageBusy):
                await storage.purge(until=NOW, limit=1)
            assert await keys_of(storage) == ["before"]
            await holder.send("release")
            await holder.end()
        await insert_each(storage, make_record("during"))
        assert await keys_of(storage) == ["before", "during"]


@server
async def test_reads_continue_while_the_database_is_locked(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    async with await open_storage(url_of(path)) as storage:
        record = make_record(tag="t", lane="lane", wake_at=NOW)
        await insert_each(storage, record)
        async with child("lock", path) as holder:
            assert await holder.line() == "locked"
            [waiting] = await queued(storage, [inserting(make_record("waits"))])
            assert await storage.get(record.address, now=NOW) == record
            assert await storage.get_many([record.address] * 100, now=NOW) == [record] * 100
            assert await storage.page(SPACE, limit=9, now=NOW) == [record]
            assert await storage.due("lane", until=NOW, limit=9, now=NOW) == [record]
            assert dict(await storage.counts(SPACE, now=NOW)) == {"t": 1}
            assert not waiting.done()
            await holder.send("release")
            await in_time(waiting)


async def test_a_group_waits_for_a_lock_no_longer_than_one_commit_would(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    url = url_of(path, busy_timeout=0.2)
    async with await open_storage(url) as storage, await open_storage(url) as clock:
        changes: list[Change] = [*inserting(make_record("tick"))]
        with locked(path):
            tasks = await queued(storage, [inserting(make_record(f"k{n}")) for n in range(MANY)])
            ticks = 0
            while not all(task.done() for task in tasks):
                with pytest.raises(StorageBusy):
                    await commit_changes(clock, *changes)
                ticks += 1
            results = await outcomes(tasks)
        assert all(isinstance(result, StorageBusy) for result in results)
        assert ticks <= MANY / 10, "each waited after the other"


async def test_what_was_busy_is_not_written_later(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    async with await open_storage(url_of(path, busy_timeout=0.1)) as storage:
        with locked(path), pytest.raises(StorageBusy):
            await insert_each(storage, make_record("busy"))
        await insert_each(storage, make_record("later"))
        assert await keys_of(storage) == ["later"]
