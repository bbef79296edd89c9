"""Changes by another client between two steps of a verb. Each test makes the change at that moment."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from perdure.storage import Accepted, Committed, Delete, Guard, Insert, Storage, migrate_storage, open_storage
from perdure.storage.dynamodb import consistency_repair, counters
from perdure.storage.dynamodb.items import MAX_INLINE_BODY_BYTES, ExpiredRecord, total_key
from perdure.storage.dynamodb.location import parse_url
from perdure.storage.dynamodb.purge import MAX_PURGED_PER_TRANSACTION, purge_expired
from perdure.storage.dynamodb.table_client import ALL_ATTRIBUTES, RECORD_PROJECTION, Table
from perdure.storage.dynamodb.transaction import Transaction
from perdure.storage.errors import StorageBusy
from perdure.storage.kit.sample_records import (
    NOW,
    PARTITION,
    SPACE,
    commit_changes,
    insert_each,
    insert_many,
    make_record,
)
from perdure.storage.shards import shard_of

from .. import servers
from .dynamodb_helpers import client_of, items_of

pytestmark = pytest.mark.anyio


class Shared(NamedTuple):
    """Two storages on the same table, and direct access to the table."""

    ours: Storage
    theirs: Storage
    table: Table
    db: Any

    @property
    def name(self) -> str:
        return self.table.name


@asynccontextmanager
async def shared(options: str = "") -> AsyncGenerator[Shared]:
    server = servers.dynoxide()
    url = server.new_url(options)
    await migrate_storage(url)
    table = Table(parse_url(url))
    await table.connect()
    try:
        async with (
            client_of(server.endpoint) as db,
            await open_storage(url) as ours,
            await open_storage(url) as theirs,
        ):
            yield Shared(ours, theirs, table, db)
    finally:
        await table.close()


def once_after(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, act: Callable[[], Awaitable[None]]
) -> None:
    """Call `act` after the first call of a function of a module."""
    done: Any = getattr(module, name)

    async def wrapped(*given: Any) -> Any:  # noqa: ANN401
        answer = await done(*given)
        if getattr(module, name) is wrapped:
            monkeypatch.setattr(module, name, done)
            await act()
        return answer

    monkeypatch.setattr(module, name, wrapped)


async def test_a_counter_that_was_removed_and_made_again_meanwhile_is_not_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with shared() as table:
        first = make_record("first", tag="t")
        await insert_each(table.ours, first)
        await commit_changes(table.ours, Delete(before=first))

        async def start_again() -> None:
            await table.theirs.maintain()
            for key in ("k1", "k2"):
                await insert_each(table.theirs, make_record(key, tag="t"))

        once_after(monkeypatch, consistency_repair, "scan_table", start_again)
        await table.ours.maintain()
        assert dict(await table.ours.counts(SPACE, PARTITION, now=NOW)) == {"t": 2}
        assert (await table.ours.maintain()).findings == ()


async def test_a_counter_that_is_created_again_while_it_is_read_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with shared() as table:
        expired, other = make_record("expired", tag="t", expires_at=NOW + 10), make_record("other", tag="t")
        await insert_each(table.ours, expired)
        await insert_each(table.ours, other)
        await commit_changes(table.ours, Delete(before=other))

        async def start_again() -> None:
            await table.theirs.purge(until=NOW + 10, limit=9)
            await table.theirs.maintain()
            await insert_each(
                table.theirs, make_record("new", tag="t", expires_at=NOW + 20)
            )  # `expiries` is 1 again

        once_after(monkeypatch, counters, "find_expired", start_again)
        assert dict(await table.ours.counts(SPACE, PARTITION, now=NOW + 10)) == {"t": 1}


async def test_a_total_changes_its_revision_even_if_its_counts_stay() -> None:
    async with shared() as table:
        one = PARTITION
        other = next(name for name in map(str, range(10_000)) if shard_of(name) == shard_of(one))
        record = make_record("k", partition=one, tag="t")
        await insert_each(table.ours, record)
        key = total_key(SPACE, shard_of(one)).item

        async def total() -> Any:  # noqa: ANN401
            return (await table.db.get_item(TableName=table.name, Key=key, ConsistentRead=True))["Item"]

        before = counters.decode_counter(await total())
        transaction = Transaction(table.table)
        transaction.add_count(SPACE, one, "t", -1)
        transaction.add_count(SPACE, other, "t", 1)
        assert await transaction.commit()
        after = counters.decode_counter(await total())
        assert after.counts == before.counts
        assert after.revision == before.revision + 1


@pytest.mark.parametrize("kind", ["delete", "retag"])
async def test_a_record_that_ends_just_before_it_expires_is_subtracted_once(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The writer's clock is behind the reader's, for which the record has already expired."""
    async with shared() as table:
        later = NOW + 1_000_000_000
        record = make_record(tag="t", expires_at=later)
        await insert_each(table.ours, record, make_record("other", tag="t"))

        async def end() -> None:
            change = (
                Delete(before=record)
                if kind == "delete"
                else record.replace_with(body="2", tag="u", expires_at=later * 2)
            )
            assert isinstance(await table.theirs.commit([change], now=later - 1), Committed)

        once_after(monkeypatch, counters, "find_expired", end)
        wanted = {"t": 1} if kind == "delete" else {"t": 1, "u": 1}
        assert dict(await table.ours.counts(SPACE, PARTITION, now=later)) == wanted


async def test_an_expired_record_whose_body_is_half_gone_is_only_expired() -> None:
    async with shared() as table:
        record = make_record(
            body="x" * (MAX_INLINE_BODY_BYTES + 1), expires_at=NOW + 1, lane="l", wake_at=NOW
        )
        await insert_each(table.ours, record)
        [part, _] = await items_of(table.db, table.name, "body")
        await table.db.delete_item(TableName=table.name, Key={"pk": part["pk"], "sk": part["sk"]})
        assert await table.ours.get(record.address, now=NOW + 1) is None
        for partition in (PARTITION, None):
            assert await table.ours.page(SPACE, partition, limit=9, now=NOW + 1) == []
        assert await table.ours.due("l", until=NOW + 1, limit=9, now=NOW + 1) == []


async def test_a_guard_makes_no_more_room_than_a_transaction_does() -> None:
    async with shared() as table:
        full = Guard(space=SPACE, tags=frozenset({"t"}), max_count=MAX_PURGED_PER_TRANSACTION * 3)
        await insert_many(
            table.ours, [make_record(f"k{n}", tag="t", expires_at=NOW + 1) for n in range(full.max_count)]
        )
        change = Insert(record=make_record("new", tag="t"))
        assert await table.ours.commit([change], guard=full, now=NOW + 1) == Committed((Accepted(1),))
        assert len(await items_of(table.db, table.name, "record")) == MAX_PURGED_PER_TRANSACTION * 2 + 1


async def test_a_guard_makes_as_much_room_as_it_takes() -> None:
    async with shared() as table:
        await insert_many(table.ours, [make_record(f"k{n}", tag="t", expires_at=NOW + 1) for n in range(100)])
        full = Guard(space=SPACE, tags=frozenset({"t"}), max_count=1)
        change = Insert(record=make_record("new", tag="t"))
        assert await table.ours.commit([change], guard=full, now=NOW + 1) == Committed((Accepted(1),))
        assert len(await items_of(table.db, table.name, "record")) == 1


async def test_a_purge_gets_over_an_index_that_is_behind() -> None:
    """The index lists one record twice and another with its old tag. Requests are not retried."""
    async with shared("&attempts=1") as table:
        twice = make_record("twice", tag="t", expires_at=NOW + 2)
        retagged = make_record("retagged", tag="new", expires_at=NOW + 2)
        await insert_each(table.ours, twice, retagged)
        shown = [
            ExpiredRecord(NOW + 1, twice.address, "t", None, 0),
            ExpiredRecord(NOW + 2, twice.address, "t", None, 0),
            ExpiredRecord(NOW + 2, retagged.address, "old", None, 0),
        ]
        removed: list[ExpiredRecord] = []
        async for batch in purge_expired(table.table, shown, NOW + 2):
            removed += batch
        assert sorted(each.address.key for each in removed) == ["retagged", "twice"]
        assert (await table.ours.maintain()).findings == ()


async def test_a_count_gets_over_a_purge_though_requests_are_made_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with shared("&attempts=1") as table:
        await insert_each(
            table.ours, make_record("k1", tag="t", expires_at=NOW + 1), make_record("k2", tag="t")
        )

        async def purge() -> None:
            assert len(await table.theirs.purge(until=NOW + 1, limit=9)) == 1

        once_after(monkeypatch, counters, "find_expired", purge)
        assert dict(await table.ours.counts(SPACE, PARTITION, now=NOW + 1)) == {"t": 1}


async def test_a_large_body_that_is_replaced_each_time_it_is_read_is_busy_and_not_corrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with shared() as table:
        newest = make_record(body="0" * (MAX_INLINE_BODY_BYTES + 1))
        await insert_each(table.ours, newest)
        get = Table.get

        async def replaced_after(of: Table, keys: Any, projection: Any = ALL_ATTRIBUTES) -> Any:  # noqa: ANN401
            nonlocal newest
            found = await get(of, keys, projection)
            if projection is RECORD_PROJECTION:
                change = newest.replace_with(body=newest.body, tag="")
                await commit_changes(table.theirs, change)
                newest = change.after
            return found

        with monkeypatch.context() as patch:
            patch.setattr(Table, "get", replaced_after)
            with pytest.raises(StorageBusy, match="was replaced during each attempt"):
                await table.ours.get(newest.address, now=NOW)
        assert newest.version > 2
        assert await table.ours.get(newest.address, now=NOW) == newest
