"""The number of requests of each verb, which determines the time and the price of DynamoDB."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure.storage import Delete, Guard, Insert, InsertIfAbsent, Storage, open_storage
from perdure.storage.kit.sample_records import (
    NOW,
    PARTITION,
    SPACE,
    commit_changes,
    insert_each,
    insert_many,
    make_record,
)
from perdure.storage.shards import SHARD_COUNT

from .. import servers
from ..markers import row
from .dynamodb_helpers import storage_on
from .dynamodb_proxy import Proxy, proxy_to

pytestmark = pytest.mark.anyio

TWO = Guard(space=SPACE, tags=frozenset({"a", "b"}), max_count=2)
TIMER_SHARD_COUNT = 8
LARGE = "x" * 1_000_000
TRANSACTION = {"TransactWriteItems": 1}


@asynccontextmanager
async def counted() -> AsyncGenerator[tuple[Storage, Proxy]]:
    async with proxy_to(servers.dynoxide().port) as proxy, storage_on(proxy) as storage:
        yield storage, proxy


async def asked(proxy: Proxy, call: Awaitable[object]) -> dict[str, int]:
    before = Counter(proxy.asked)
    await call
    return dict(proxy.asked - before)


async def test_opening_takes_one() -> None:
    async with proxy_to(servers.dynoxide().port) as proxy:
        url = proxy.new_url()
        async with storage_on(proxy):
            assert proxy.asked["CreateTable"] == proxy.asked["UpdateTimeToLive"] == 1
        before = proxy.asked["DescribeTable"]
        with pytest.raises(Exception, match="the table does not exist"):
            await open_storage(url)
        assert proxy.asked["DescribeTable"] == before + 1


async def test_a_commit_takes_one() -> None:
    async with counted() as (storage, proxy):
        record = make_record(tag="a")
        assert await asked(proxy, insert_each(storage, record)) == TRANSACTION
        same_tag = record.replace_with(body="2", tag="a")
        assert await asked(proxy, commit_changes(storage, same_tag)) == {"PutItem": 1}
        other_tag = same_tag.after.replace_with(body="3", tag="b")
        assert await asked(proxy, commit_changes(storage, other_tag)) == TRANSACTION
        assert await asked(proxy, commit_changes(storage, Delete(before=other_tag.after))) == TRANSACTION
        many = [Insert(record=make_record(f"k{n}", tag="c")) for n in range(25)]
        assert await asked(proxy, commit_changes(storage, *many)) == TRANSACTION
        guarded = storage.commit([Insert(record=make_record("guarded", tag="a"))], guard=TWO, now=NOW)
        assert await asked(proxy, guarded) == TRANSACTION


async def test_a_refusal_takes_no_more() -> None:
    async with counted() as (storage, proxy):
        record, other = make_record("k", tag="a"), make_record("other", tag="a")
        await insert_each(storage, record, other)
        await commit_changes(storage, record.replace_with(body="2", tag="a"))
        for change, wanted in (
            (Insert(record=record), TRANSACTION),
            (Delete(before=record), TRANSACTION),
            (record.replace_with(body="3", tag="b"), TRANSACTION),
            (record.replace_with(body="3", tag="a"), {"PutItem": 1}),
            (InsertIfAbsent(record=record), TRANSACTION),
        ):
            assert await asked(proxy, storage.commit([change], now=NOW)) == wanted
        full = storage.commit([Insert(record=make_record("more", tag="b"))], guard=TWO, now=NOW)
        assert await asked(proxy, full) == {**TRANSACTION, "Query": 1, "TransactGetItems": 1}


async def test_a_failed_condition_costs_another_attempt() -> None:
    async with counted() as (storage, proxy):
        await insert_each(storage, make_record("kept"), make_record("expired", expires_at=NOW + 1))
        beside_kept = commit_changes(
            storage, InsertIfAbsent(record=make_record("kept")), Insert(record=make_record("new"))
        )
        assert await asked(proxy, beside_kept) == {"TransactWriteItems": 2}
        over_expired = commit_changes(storage, Insert(record=make_record("expired")), now=NOW + 1)
        assert await asked(proxy, over_expired) == {"TransactWriteItems": 2}


async def test_a_body_in_parts_is_fetched_and_cleared_away() -> None:
    async with counted() as (storage, proxy):
        record = make_record(body=LARGE)
        assert await asked(proxy, insert_each(storage, record)) == TRANSACTION
        assert await asked(proxy, storage.get(record.address, now=NOW)) == {"BatchGetItem": 2}
        change = record.replace_with(body="small", tag="")
        assert await asked(proxy, commit_changes(storage, change)) == {
            **TRANSACTION,
            "BatchGetItem": 1,
            "BatchWriteItem": 1,
        }


async def test_reads_of_a_partition() -> None:
    async with counted() as (storage, proxy):
        await insert_many(storage, [make_record(f"k{n:03}", order=n) for n in range(150)])
        addresses = [make_record(f"k{n:03}").address for n in range(100)]
        assert await asked(proxy, storage.get(addresses[0], now=NOW)) == {"BatchGetItem": 1}
        assert await asked(proxy, storage.get_many(addresses, now=NOW)) == {"BatchGetItem": 1}
        page = storage.page(SPACE, PARTITION, limit=50, now=NOW)
        assert await asked(proxy, page) == {"Query": 1, "BatchGetItem": 1}
        large_page = storage.page(SPACE, PARTITION, limit=150, now=NOW)
        assert await asked(proxy, large_page) == {"Query": 1, "BatchGetItem": 2}
        counts = storage.counts(SPACE, PARTITION, now=NOW)
        assert await asked(proxy, counts) == {"Query": 1, "BatchGetItem": 1, "TransactGetItems": 1}


@row(95)
async def test_reads_of_a_partition_are_consistent() -> None:
    async with counted() as (storage, proxy):
        await insert_each(storage, make_record(tag="t", body=LARGE))
        seen: list[bool] = []

        def note(_: str, question: dict[str, Any]) -> None:
            batches: list[dict[str, Any]] = list(question.get("RequestItems", {}).values())
            seen.extend(bool(each.get("ConsistentRead")) for each in batches or [question])

        proxy.rule = note
        await storage.get(make_record().address, now=NOW)
        await storage.page(SPACE, PARTITION, limit=9, now=NOW)
        await storage.page(SPACE, PARTITION, tag="t", limit=9, now=NOW)
        assert (
            seen == [True] * 8
        )  # each record is read before its body parts, and each page starts with a query


async def test_verbs_across_partitions_ask_every_shard() -> None:
    async with counted() as (storage, proxy):
        await insert_each(
            storage, *[make_record("k", partition=f"p{n}", expires_at=NOW + 5) for n in range(30)]
        )
        page = storage.page(SPACE, limit=20, now=NOW)
        assert await asked(proxy, page) == {"Query": SHARD_COUNT, "BatchGetItem": 1}
        assert await asked(proxy, storage.counts(SPACE, now=NOW)) == {"Query": SHARD_COUNT, "BatchGetItem": 1}
        assert await asked(proxy, storage.purge(until=NOW, limit=100)) == {"Query": SHARD_COUNT}
        purge = storage.purge(until=NOW + 5, limit=100)
        assert await asked(proxy, purge) == {"Query": SHARD_COUNT, "TransactWriteItems": 1}


async def test_a_look_at_a_lane_asks_eight() -> None:
    async with counted() as (storage, proxy):
        idle = storage.due("l", until=NOW, limit=10, now=NOW)
        assert await asked(proxy, idle) == {"Query": TIMER_SHARD_COUNT}
        await insert_each(
            storage, *[make_record("k", partition=f"p{n}", lane="l", wake_at=n) for n in range(20)]
        )
        busy = storage.due("l", until=NOW, limit=10, now=NOW)
        assert await asked(proxy, busy) == {"Query": TIMER_SHARD_COUNT, "BatchGetItem": 1}


async def test_concurrent_reads_share_a_request() -> None:
    async with counted() as (storage, proxy):
        records = [make_record(f"k{n}") for n in range(64)]
        await insert_many(storage, records)
        reads = asyncio.gather(*[storage.get(record.address, now=NOW) for record in records])
        assert await asked(proxy, reads) == {"BatchGetItem": 1}


async def test_concurrent_commits_of_a_partition_share_a_transaction() -> None:
    async with counted() as (storage, proxy):
        inserts = asyncio.gather(*[insert_each(storage, make_record(f"k{n}")) for n in range(20)])
        assert await asked(proxy, inserts) == {"TransactWriteItems": 1}
        guard = Guard(space=SPACE, tags=frozenset({"", "a"}), max_count=30)
        guarded = [
            storage.commit([Insert(record=make_record(f"g{n}", tag="a"))], guard=guard, now=NOW)
            for n in range(10)
        ]
        assert (await asked(proxy, asyncio.gather(*guarded)))["TransactWriteItems"] == 2


async def test_watching_costs_no_request() -> None:
    async with counted() as (storage, proxy), storage.watch(SPACE) as watch:
        assert await asked(proxy, watch.changed()) == {}
