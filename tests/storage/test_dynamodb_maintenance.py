"""`maintain`: counters that do not match the records, and body parts that nothing refers to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure.storage import Delete, Insert, Storage, migrate_storage, open_storage
from perdure.storage.dynamodb.items import MAX_INLINE_BODY_BYTES, record_key
from perdure.storage.errors import StorageCorrupt
from perdure.storage.kit.sample_records import (
    NOW,
    OTHER_SPACE,
    PARTITION,
    SPACE,
    commit_changes,
    insert_each,
    make_record,
)
from perdure.storage.shards import shard_of

from .. import servers
from .dynamodb_helpers import client_of, items_of, settle, table_of

pytestmark = pytest.mark.anyio

LARGE = "x" * (MAX_INLINE_BODY_BYTES + 1)


class Behind:
    """The table behind a storage."""

    def __init__(self, db: Any, name: str) -> None:  # noqa: ANN401 - the driver's client
        self.db = db
        self.name = name

    async def remove(self, owner: str) -> None:
        """Delete a record without changing its counters, as DynamoDB's time to live does."""
        key = record_key(make_record(owner).address).item
        await self.db.delete_item(TableName=self.name, Key=key)

    async def miscount(self, pk: str, sk: str, tag: str, by: int) -> None:
        await self.db.update_item(
            TableName=self.name,
            Key={"pk": {"S": pk}, "sk": {"S": sk}},
            UpdateExpression="ADD #tag :by",
            ExpressionAttributeNames={"#tag": f"count:{tag}"},
            ExpressionAttributeValues={":by": {"N": str(by)}},
        )


@asynccontextmanager
async def opened() -> AsyncGenerator[tuple[Storage, Behind]]:
    server = servers.extenddb()
    url = server.new_url()
    await migrate_storage(url)
    async with client_of(server.endpoint) as db, await open_storage(url) as storage:
        yield storage, Behind(db, table_of(url))


async def test_a_sound_table_has_no_findings() -> None:
    async with opened() as (storage, _):
        assert (await storage.maintain()).findings == ()
        await insert_each(
            storage, *[make_record(f"k{n}", partition=f"p{n % 9}", tag="ab"[n % 2]) for n in range(30)]
        )
        await insert_each(storage, make_record("large", body=LARGE, space=OTHER_SPACE))
        done = await storage.maintain()
        assert (done.findings, done.reclaimed_bytes) == ((), 0)


async def test_records_deleted_by_the_time_to_live_are_reported_and_repaired() -> None:
    async with opened() as (storage, behind):
        await insert_each(
            storage, make_record("k1", tag="a"), make_record("k2", tag="a"), make_record("k3", tag="b")
        )
        await behind.remove("k1")
        await behind.remove("k3")
        wanted = (
            f"counter {PARTITION}/{SPACE}, tag 'a': stored 2, actual 1",
            f"counter {PARTITION}/{SPACE}, tag 'b': stored 1, actual 0",
        )
        assert (await storage.maintain()).findings == wanted
        assert dict(await storage.counts(SPACE, PARTITION, now=NOW)) == {"a": 2, "b": 1}
        assert (await storage.maintain(repair=True)).findings == wanted
        assert (await storage.maintain()).findings == ()
        await settle(behind.db, behind.name)
        for partition in (PARTITION, None):
            assert dict(await storage.counts(SPACE, partition, now=NOW)) == {"a": 1}


async def test_a_partition_of_nothing_but_a_counter_is_set_right() -> None:
    async with opened() as (storage, behind):
        await insert_each(storage, make_record("k1", tag="a"))
        await behind.remove("k1")
        await storage.maintain(repair=True)
        assert dict(await storage.counts(SPACE, PARTITION, now=NOW)) == {}
        assert (await storage.maintain()).findings == ()


async def test_a_wrong_total_is_reported_and_repaired() -> None:
    async with opened() as (storage, behind):
        await insert_each(storage, make_record("k1", tag="a"))
        shard = shard_of(PARTITION)
        await behind.miscount(f"total#{shard:02}#{SPACE}", "total", "a", 4)
        wanted = (f"counter {SPACE}, shard {shard}, tag 'a': stored 5, actual 1",)
        assert (await storage.maintain(repair=True)).findings == wanted
        assert (await storage.maintain()).findings == ()
        assert dict(await storage.counts(SPACE, now=NOW)) == {"a": 1}


async def test_a_counter_with_many_wrong_tags_is_set_right() -> None:
    async with opened() as (storage, behind):
        await insert_each(storage, make_record("k1"))
        tags = [f"{n:03}" for n in range(250)]
        for tag in tags:
            await behind.miscount(f"count#{SPACE}#{PARTITION}", "count", tag, 2)
        assert len((await storage.maintain(repair=True)).findings) >= 250
        assert dict(await storage.counts(SPACE, PARTITION, now=NOW)) == {"": 1}
        await storage.maintain(repair=True)
        assert (await storage.maintain()).findings == ()
        assert dict(await storage.counts(SPACE, now=NOW)) == {"": 1}


async def test_repairing_while_others_write_harms_nothing() -> None:
    async with opened() as (storage, behind):
        await insert_each(storage, *[make_record(f"k{n}", tag="a") for n in range(5)])
        await behind.remove("k0")

        async def write(writer: int) -> None:
            for n in range(15):
                await commit_changes(
                    storage, Insert(record=make_record(f"{writer}.{n}", partition=f"p{writer % 2}", tag="a"))
                )

        writers = asyncio.gather(*[write(writer) for writer in range(4)])
        for _ in range(3):
            findings = (await storage.maintain(repair=True)).findings
            assert all(PARTITION in finding for finding in findings)
        await writers
        assert (await storage.maintain()).findings == ()
        assert dict(await storage.counts(SPACE, now=NOW)) == {"a": 64}


async def test_parts_that_nothing_refers_to_are_removed() -> None:
    async with opened() as (storage, behind):
        await insert_each(storage, make_record("gone", body=LARGE), make_record("stays", body=LARGE))
        await behind.remove("gone")
        assert (await storage.maintain(repair=True)).reclaimed_bytes == len(LARGE)
        assert len(await items_of(behind.db, behind.name, "body")) == 2
        assert (await storage.get(make_record("stays").address, now=NOW)) == make_record("stays", body=LARGE)
        assert (await storage.maintain()).reclaimed_bytes == 0


async def test_a_body_without_one_of_its_parts_is_reported() -> None:
    async with opened() as (storage, behind):
        await insert_each(storage, make_record(body=LARGE))
        [part, _] = await items_of(behind.db, behind.name, "body")
        await behind.db.delete_item(TableName=behind.name, Key={"pk": part["pk"], "sk": part["sk"]})
        with pytest.raises(StorageCorrupt):
            await storage.get(make_record().address, now=NOW)


async def test_counters_of_partitions_that_are_empty_are_removed() -> None:
    async with opened() as (storage, behind):
        records = [make_record("k", partition=f"p{n}", tag="t") for n in range(5)]
        await insert_each(storage, *records)
        for record in records[1:]:
            await commit_changes(storage, Delete(before=record))
        assert len(await items_of(behind.db, behind.name, "count")) == 5
        assert (await storage.maintain()).findings == ()
        assert len(await items_of(behind.db, behind.name, "count")) == 1
        await insert_each(storage, records[1])
        assert dict(await storage.counts(SPACE, "p1", now=NOW)) == {"t": 1}
        assert (await storage.maintain()).findings == ()
