"""A server decides about a commit by a copy of our rule. If the copies disagree, no caller gets Committed."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import asyncio

import pytest

from perdure.storage import Accepted, Committed, Conflict, Insert, Refused, Storage, open_storage
from perdure.storage.errors import StorageFailed
from perdure.storage.kit.sample_records import NOW, PARTITION, insert_each, make_record
from perdure.storage.records_and_changes import RecordState, check_server_decision
from perdure.storage.redis import scripts

from .. import servers
from ..markers import server
from .postgres_helpers import session
from .redis_helpers import storage_on

pytestmark = pytest.mark.anyio

OF_POSTGRES = ("is_accepted := true;", f"is_accepted := my_partition <> '{PARTITION}';")
OF_REDIS = ("local accepted, delta = true, 0", "local accepted, delta = false, 0")


async def replace_in_function(url: str, old: str, new: str) -> None:
    async with session(url) as db:
        definition: str = await db.fetchval("SELECT pg_get_functiondef('commit_group'::regproc)")
        assert old in definition
        await db.execute(definition.replace(old, new))


def replace_in_script(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """Call a script that the server does not know, and send it another text instead."""
    text = scripts.WRITE_SCRIPT.text
    assert old in text
    monkeypatch.setitem(scripts._TEXT_BY_SHA, "0" * 40, text.replace(old, new))
    monkeypatch.setattr("perdure.storage.redis.writer.WRITE_SCRIPT", scripts.Script(text, "0" * 40))


async def expect_an_error_for_what_was_not_written(storage: Storage) -> None:
    record = make_record("new")
    with pytest.raises(StorageFailed, match="refused a commit that this client accepts"):
        await storage.commit([Insert(record=record)], now=NOW)
    assert await storage.get(record.address, now=NOW) is None


@server
async def test_postgres_refuses_what_we_would_accept() -> None:
    url = servers.postgres().new_url()
    async with await open_storage(url) as storage:
        await replace_in_function(url, *OF_POSTGRES)
        await expect_an_error_for_what_was_not_written(storage)


@server
async def test_redis_refuses_what_we_would_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    async with storage_on(servers.valkey()) as storage:
        replace_in_script(monkeypatch, *OF_REDIS)
        await expect_an_error_for_what_was_not_written(storage)


@server
async def test_a_disagreement_about_one_commit_leaves_the_others_of_its_group_alone() -> None:
    url = servers.postgres().new_url()
    async with await open_storage(url) as storage:
        await replace_in_function(url, *OF_POSTGRES)
        results = await asyncio.gather(
            *[storage.commit([Insert(record=make_record(partition=each))], now=NOW) for each in ("a", "b")],
            insert_each(storage, make_record()),
            return_exceptions=True,
        )
        assert results[:2] == [Committed((Accepted(1),))] * 2
        assert isinstance(results[2], StorageFailed)


def test_what_the_server_wrote_though_we_refuse_it_is_an_error() -> None:
    stored = [RecordState(1, 1, "")]
    refused = Refused((Conflict(1),))
    insert = [Insert(record=make_record())]
    assert check_server_decision(insert, stored, guard_count=None, was_written=False) == refused
    assert isinstance(
        check_server_decision(insert, stored, guard_count=None, was_written=True), StorageFailed
    )
    assert isinstance(check_server_decision(insert, [None], guard_count=3, was_written=True), StorageFailed)
    assert check_server_decision(insert, [None], guard_count=3, was_written=False) == Refused(
        (Accepted(1),), guard_count=3
    )
