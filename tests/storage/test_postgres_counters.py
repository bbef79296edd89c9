"""Counters stay exact whatever happens at once, and are repaired if another program made them wrong."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
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
    Purged,
    Refused,
    open_storage,
)
from perdure.storage.kit.sample_records import NOW, PARTITION, SPACE, insert_each, insert_many, make_record

from .. import servers
from .helpers import in_time, inserting, outcomes
from .postgres_helpers import partition_locked, session

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]


async def test_totals_are_exact_after_concurrent_commits_of_several_processes() -> None:
    url = servers.postgres().new_url()
    async with await open_storage(url) as storage:
        processes = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.storage.postgres_stress", url, str(seed), cwd=ROOT
            )
            for seed in range(4)
        ]
        assert [await in_time(process.wait()) for process in processes] == [0] * 4
        early = NOW - 1  # at which nothing is hidden
        records = await storage.page(SPACE, limit=1000, now=early)
        assert records
        assert dict(await storage.counts(SPACE, now=early)) == Counter(record.tag for record in records)
        for partition in {record.partition for record in records}:
            mine = Counter(record.tag for record in records if record.partition == partition)
            assert dict(await storage.counts(SPACE, partition, now=early)) == mine
        assert (await storage.maintain()).findings == ()


async def test_each_commit_of_a_group_sees_those_before_it_and_has_its_own_outcome() -> None:
    url = servers.postgres().new_url()
    async with await open_storage(url) as storage:
        taken = make_record("taken", tag="t")
        await insert_each(storage, taken)
        guard = Guard(space=SPACE, tags=frozenset({"t"}), max_count=2)
        changes: list[tuple[Change, Guard | None]] = [
            (Insert(record=taken), None),
            (taken.replace_with(body="1", tag="t"), None),
            (taken.replace_with(body="2", tag="t"), None),
            (InsertIfAbsent(record=make_record("a", tag="t")), guard),
            (InsertIfAbsent(record=make_record("b", tag="t")), guard),
            (InsertIfAbsent(record=make_record("a", tag="u")), None),
            (Insert(record=make_record("c")), None),
        ]
        results = await asyncio.gather(
            *[storage.commit([change], guard=guard, now=NOW) for change, guard in changes]
        )
        assert results[:3] == [Refused((Conflict(1),)), Committed((Accepted(2),)), Refused((Conflict(2),))]
        assert results[3:5] == [Committed((Accepted(1),)), Refused((Accepted(1),), guard_count=3)]
        assert [type(result) for result in results[5:]] == [Committed, Committed]
        assert dict(await storage.counts(SPACE, PARTITION, now=NOW)) == {"t": 2, "": 1}
        assert (await storage.maintain()).findings == ()


async def test_wrong_counters_are_found_and_set_right() -> None:
    url = servers.postgres().new_url()
    async with await open_storage(url) as storage:
        await insert_each(
            storage, make_record("a", tag="t"), make_record("b", tag="t"), make_record("c", tag="u")
        )
        async with session(url) as db:
            await db.execute("UPDATE counts SET n = 7 WHERE tag = 't'; DELETE FROM counts WHERE tag = 'u'")
            await db.execute("INSERT INTO counts VALUES ('kit', 'unknown', 'v', 3)")
            await db.execute("UPDATE totals SET n = n + 5 WHERE tag = 'u'")
        wrong = {
            "counter someone/kit, tag 't': stored 7, actual 2",
            "counter someone/kit, tag 'u': stored 0, actual 1",
            "counter unknown/kit, tag 'v': stored 3, actual 0",
            "counter kit, tag 'u': stored 6, actual 1",
        }
        assert {*(await storage.maintain()).findings} == wrong
        assert {*(await storage.maintain(repair=True)).findings} == wrong
        assert (await storage.maintain()).findings == ()
        assert dict(await storage.counts(SPACE, PARTITION, now=NOW)) == {"t": 2, "u": 1}
        assert dict(await storage.counts(SPACE, now=NOW)) == {"t": 2, "u": 1}
        assert dict(await storage.counts(SPACE, "unknown", now=NOW)) == {}


async def test_a_repair_among_commits_leaves_every_counter_right() -> None:
    url = servers.postgres().new_url()
    async with await open_storage(url) as storage, await open_storage(url) as other:
        commits = [storage.commit(inserting(make_record(f"k{n}", tag="t")), now=NOW) for n in range(300)]
        repairs = [other.maintain(repair=True) for _ in range(3)]
        results = await outcomes([*commits, *repairs])
        assert [result for result in results if isinstance(result, BaseException)] == []
        assert dict(await storage.counts(SPACE, now=NOW)) == {"t": 300}
        assert (await storage.maintain()).findings == ()


async def test_two_concurrent_purges_report_each_record_once() -> None:
    url = servers.postgres().new_url()
    async with await open_storage(url) as storage, await open_storage(url) as other:
        records = [make_record(f"k{n}", tag="t", expires_at=NOW + n) for n in range(200)]
        await insert_many(storage, records)
        all_purged: list[Purged] = []
        purges = [(storage, other)[n % 2].purge(until=NOW + 999, limit=30) for n in range(8)]
        for purged in await asyncio.gather(*purges):
            all_purged += purged
        assert sorted(all_purged) == sorted(Purged(*record.address, "t") for record in records)
        assert dict(await storage.counts(SPACE, now=NOW)) == {}


async def test_a_purge_with_a_serialization_failure_is_repeated() -> None:
    """It waits for the partition after it has found a record whose expiry another session then extends."""
    url = servers.postgres().new_url()
    async with await open_storage(url) as storage:
        await insert_each(
            storage, make_record("kept", expires_at=NOW + 5), make_record("gone", expires_at=NOW + 6)
        )
        async with partition_locked(url) as writer:
            purge = asyncio.ensure_future(storage.purge(until=NOW + 9, limit=9))
            await asyncio.sleep(0.2)
            await writer.execute("UPDATE records SET expires_at = NULL WHERE key = 'kept'")
        assert [each.key for each in await in_time(purge)] == ["gone"]
        assert (await storage.maintain()).findings == ()
