"""Records that are damaged in the ways that each engine allows: each harms only itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest

from perdure.storage import Address, Insert, Storage, open_storage
from perdure.storage.copy import copy_records
from perdure.storage.dynamodb.items import MAX_INLINE_BODY_BYTES
from perdure.storage.errors import CopyMismatch, StorageCorrupt
from perdure.storage.kit import CHECKS, Check
from perdure.storage.kit.sample_records import NOW, PARTITION, SPACE, insert_each, make_record
from perdure.storage.memory import MemoryEngine
from perdure.storage.redis.location import parse_url as parse_redis
from perdure.storage.redis.stored_layout import Keys

from .. import servers
from ..markers import row, server
from .damage import damage_dynamodb, damage_postgres, damage_redis, damage_sqlite
from .dynamodb_helpers import client_of, items_of, table_of
from .engines import ENGINES
from .postgres_helpers import session
from .redis_helpers import client_of as redis_client_of

pytestmark = pytest.mark.anyio

Damage: TypeAlias = Callable[[str, Address], Awaitable[None]]

NUMBERS = b"%016d%016d" % (1, 5) + b"9" * 32
OF_REDIS: dict[str, bytes] = {
    "empty": b"",
    "short": b"1234",
    "no-tag": NUMBERS,
    "no-lane": NUMBERS + b"t\0",
    "no-number": b"x" + NUMBERS[1:] + b"t\0\0{}",
    "no-utf8-body": NUMBERS + b"t\0\0\xff",
}
OF_DYNAMODB = [
    *("REMOVE version", "REMOVE #order", "REMOVE tag", "REMOVE body"),
    *("SET version = pk", "SET body = version", "SET tag = version"),
]
WAYS: dict[str, tuple[str, Damage]] = {
    **{f"redis {name}": ("redis", partial(damage_redis, value=value)) for name, value in OF_REDIS.items()},
    **{f"dynamodb {update}": ("dynamodb", partial(damage_dynamodb, update=update)) for update in OF_DYNAMODB},
}
RECORD = make_record("bad", order=5, tag="t", lane="l", wake_at=5)


@server
@row(107)
@pytest.mark.parametrize("check", [each for each in CHECKS if each.promise == 23], ids=str)
@pytest.mark.parametrize("way", WAYS)
async def test_any_damage_harms_only_its_record(way: str, check: Check) -> None:
    engine, damage = WAYS[way]
    async with ENGINES[engine]() as subject:
        subject.damage = partial(damage, subject.url or "")
        await check(subject)


async def expect_left_out(storage: Storage) -> None:
    """The record is an error for a caller that asks for it, absent from listings, and reported."""
    with pytest.raises(StorageCorrupt, match="'bad'"):
        await storage.get(RECORD.address, now=NOW)
    for partition in (PARTITION, None):
        page = await storage.page(SPACE, partition, limit=1, now=NOW)
        assert [record.key for record in page] == ["other"]
    assert [record.key for record in await storage.due("l", until=9, limit=1, now=NOW)] == ["other"]
    findings = " ".join((await storage.maintain(repair=True)).findings)
    assert "'bad'" in findings
    assert "'other'" not in findings


OTHER = make_record("other", order=6, tag="t", lane="l", wake_at=6)


@row(107)
@pytest.mark.parametrize("column", ["body", "tag", "lane"])
async def test_sqlite_text_that_is_not_utf8(tmp_path: Path, column: str) -> None:
    url = f"sqlite:///{tmp_path / 'records.db'}"
    async with await open_storage(url) as storage:
        await insert_each(storage, RECORD, OTHER)
        damage_sqlite(url, RECORD.address, column)
        await expect_left_out(storage)


async def test_sqlite_purges_an_expired_record_whose_tag_is_damaged(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'records.db'}"
    async with await open_storage(url) as storage:
        bad, good = (make_record(key, tag="t", expires_at=NOW + 1) for key in ("bad", "good"))
        await insert_each(storage, bad, good)
        damage_sqlite(url, bad.address, "tag")
        assert {each.key for each in await storage.purge(until=NOW + 1, limit=9)} == {"bad", "good"}
        await storage.maintain(repair=True)
        assert (await storage.maintain()).findings == ()
        with closing(sqlite3.connect(tmp_path / "records.db")) as db:
            assert db.execute("SELECT count(*) FROM counts").fetchone() == (0,)


@server
@row(107)
@pytest.mark.parametrize("column", ["body", "tag", "lane"])
async def test_postgres_text_that_is_not_utf8(column: str) -> None:
    url = servers.postgres().new_url()
    async with await open_storage(url) as storage:
        await insert_each(storage, RECORD, OTHER)
        await damage_postgres(url, RECORD.address, column)
        if column == "lane":
            with pytest.raises(StorageCorrupt, match="'bad'"):
                await storage.get(RECORD.address, now=NOW)
        else:
            await expect_left_out(storage)


@server
@row(107)
async def test_postgres_lacks_a_piece_of_a_large_body() -> None:
    url = servers.postgres().new_url()
    async with await open_storage(url) as storage, session(url) as db:
        await db.execute("ALTER TABLE records ALTER COLUMN body SET STORAGE EXTERNAL")
        large = make_record("bad", order=5, tag="t", lane="l", wake_at=5, body="x" * 100_000)
        await insert_each(storage, large, OTHER)
        toast = await db.fetchval(
            "SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = 'records'::regclass"
        )
        await db.execute("SET allow_system_table_mods = on")
        for kind in ("r", "t"):  # as a table of its own it can be changed
            await db.execute(f"UPDATE pg_class SET relkind = '{kind}' WHERE oid = '{toast}'::regclass")  # noqa: S608
            if kind == "r":
                await db.execute(f"DELETE FROM {toast} WHERE chunk_seq = 3")  # noqa: S608
        await expect_left_out(storage)


@server
@row(107)
async def test_redis_key_of_another_type() -> None:
    server = servers.valkey()
    url = server.new_url()
    async with await open_storage(url) as storage, redis_client_of(server) as client:
        await insert_each(storage, RECORD, OTHER)
        key = Keys(parse_redis(url).options.prefix).record_key(RECORD.address)
        await client.delete(key)
        await client.hset(key, "field", "value")
        with pytest.raises(StorageCorrupt, match="'bad'"):
            await storage.commit([Insert(record=RECORD)], now=NOW)
        assert await storage.page(SPACE, PARTITION, limit=9, now=NOW) == [OTHER]
        assert "'bad'" in " ".join((await storage.maintain(repair=True)).findings)


@server
@row(107)
async def test_redis_tag_that_is_not_utf8() -> None:
    url = servers.valkey().new_url()
    async with await open_storage(url) as storage:
        await insert_each(storage, RECORD, OTHER)
        await damage_redis(url, RECORD.address, NUMBERS + b"\xff\0\0{}")
        await expect_left_out(storage)
        with pytest.raises(StorageCorrupt, match="'bad'"):
            await storage.commit([Insert(record=RECORD)], now=NOW)
        assert (await storage.counts(SPACE, now=NOW))["t"] == 1


@server
@row(107)
async def test_dynamodb_lacks_a_part_of_a_large_body() -> None:
    async with ENGINES["dynamodb"]() as subject:
        url = subject.url or ""
        large = make_record(
            "bad", order=5, tag="t", lane="l", wake_at=5, body="x" * (MAX_INLINE_BODY_BYTES + 1)
        )
        await insert_each(subject.storage, large, OTHER)
        async with client_of(servers.dynoxide().endpoint) as db:
            [part, _] = await items_of(db, table_of(url), "body")
            await db.delete_item(TableName=table_of(url), Key={"pk": part["pk"], "sk": part["sk"]})
        await expect_left_out(await subject.caught_up())


@server
@row(107)
async def test_maintenance_keeps_the_parts_of_a_damaged_record() -> None:
    async with ENGINES["dynamodb"]() as subject:
        url = subject.url or ""
        await insert_each(subject.storage, make_record("bad", body="x" * (MAX_INLINE_BODY_BYTES + 1)))
        await damage_dynamodb(url, RECORD.address, "REMOVE body_id")
        assert (await subject.storage.maintain(repair=True)).reclaimed_bytes == 0
        async with client_of(servers.dynoxide().endpoint) as db:
            assert len(await items_of(db, table_of(url), "body")) == 2


@row(107)
async def test_a_copy_of_a_storage_with_a_damaged_record_is_not_called_complete(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'records.db'}"
    async with await open_storage(url) as storage:
        await insert_each(storage, RECORD, OTHER)
        damage_sqlite(url, RECORD.address)
        target = Storage(MemoryEngine())
        with pytest.raises(CopyMismatch, match="the source reports"):
            await copy_records(storage, target, [SPACE], name="test")
        assert await target.get(OTHER.address, now=NOW) == OTHER
