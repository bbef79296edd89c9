"""The items in the table: readable records, large bodies in parts, and DynamoDB's own time to live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure.storage import (
    Accepted,
    Committed,
    Conflict,
    Delete,
    Guard,
    Insert,
    Missing,
    Record,
    Refused,
    Space,
    Storage,
    migrate_storage,
    open_storage,
)
from perdure.storage.dynamodb.items import MAX_INLINE_BODY_BYTES, split_body
from perdure.storage.kit.sample_records import (
    NOW,
    PARTITION,
    SPACE,
    commit_changes,
    insert_each,
    make_record,
)
from perdure.storage.limits import (
    MAX_COMMIT_BYTES,
    MAX_INTEGER,
    MAX_KEY_BYTES,
    MAX_LANE_BYTES,
    MAX_PARTITION_BYTES,
    MAX_TAG_BYTES,
)

from .. import servers
from ..markers import row
from .dynamodb_helpers import client_of, items_of, table_of
from .dynamodb_proxy import proxy_to

pytestmark = pytest.mark.anyio

WEEK = 7 * 86_400
SIZES = [1, MAX_INLINE_BODY_BYTES, MAX_INLINE_BODY_BYTES + 1, 2 * MAX_INLINE_BODY_BYTES, MAX_COMMIT_BYTES]


class Table:
    """A storage, and direct access to its table."""

    def __init__(self, storage: Storage, db: Any, name: str) -> None:  # noqa: ANN401 - the driver's client
        self.storage = storage
        self._db = db
        self._name = name

    async def items(self, kind: str) -> list[dict[str, Any]]:
        return await items_of(self._db, self._name, kind)


@asynccontextmanager
async def opened() -> AsyncGenerator[Table]:
    server = servers.dynoxide()
    url = server.new_url()
    await migrate_storage(url)
    async with client_of(server.endpoint) as db, await open_storage(url) as storage:
        yield Table(storage, db, table_of(url))


async def test_items_can_be_read_by_people() -> None:
    async with opened() as table:
        await insert_each(
            table.storage, make_record("k", tag="working", order=5, lane="l", wake_at=7, expires_at=NOW + 9)
        )
        [item] = await table.items("record")
        assert (item["pk"]["S"], item["sk"]["S"]) == (f"record#{SPACE}#{PARTITION}", "k")
        assert (item["tag"]["S"], item["order"]["N"], item["version"]["N"]) == ("working", "5", "1")
        assert (item["lane"]["S"], item["wake_at"]["N"], item["body"]["S"]) == ("l", "7", "{}")
        [count] = await table.items("count")
        assert count["count:working"]["N"] == "1"


@row(95)
async def test_dynamodb_itself_would_remove_a_record_a_week_after_its_end_and_not_earlier() -> None:
    async with opened() as table:
        end = NOW + 1_500_000
        await insert_each(
            table.storage,
            make_record("ends", expires_at=end, body="x" * (MAX_INLINE_BODY_BYTES + 1)),
            make_record("stays"),
        )
        ends, stays = await table.items("record")
        if ends["sk"]["S"] != "ends":
            ends, stays = stays, ends
        assert ends["removed_after"]["N"] == str(NOW // 1_000_000 + 2 + WEEK)
        assert "removed_after" not in stays
        assert {part["removed_after"]["N"] for part in await table.items("body")} == {
            ends["removed_after"]["N"]
        }


@pytest.mark.parametrize("before", SIZES)
@pytest.mark.parametrize("after", SIZES)
async def test_a_body_of_any_size_takes_the_place_of_another(before: int, after: int) -> None:
    async with opened() as table:
        record = make_record(body="a" * before)
        await insert_each(table.storage, record)
        assert await table.storage.get(record.address, now=NOW) == record
        change = record.replace_with(body="b" * after, tag="")
        await commit_changes(table.storage, change)
        assert await table.storage.get(record.address, now=NOW) == change.after
        assert len(await table.items("body")) == (
            len(split_body(change.after.body)) if after > MAX_INLINE_BODY_BYTES else 0
        )
        await commit_changes(table.storage, Delete(before=change.after))
        assert await table.items("body") == []


async def test_a_large_body_that_is_no_longer_there_is_a_conflict_or_missing() -> None:
    async with opened() as table:
        record = make_record(body="a" * (MAX_INLINE_BODY_BYTES + 1))
        for change in (record.replace_with(body="b", tag=""), Delete(before=record)):
            assert await table.storage.commit([change], now=NOW) == Refused((Missing(),))
        await insert_each(table.storage, record)
        await commit_changes(
            table.storage, record.replace_with(body="c" * (MAX_INLINE_BODY_BYTES + 1), tag="")
        )
        for change in (record.replace_with(body="b", tag=""), Delete(before=record)):
            assert await table.storage.commit([change], now=NOW) == Refused((Conflict(2),))


async def test_a_record_inserted_again_with_another_size_is_still_the_same_to_its_writer() -> None:
    async with opened() as table:
        for read, stored in (
            ("a", "b" * (MAX_INLINE_BODY_BYTES + 1)),
            ("a" * (MAX_INLINE_BODY_BYTES + 1), "b"),
        ):
            record = make_record(body=read)
            await insert_each(table.storage, make_record(body=stored))
            change = record.replace_with(body="c", tag="")
            assert await commit_changes(table.storage, change) == Committed((Accepted(2),))
            assert await table.storage.get(record.address, now=NOW) == change.after
            assert await table.items("body") == []
            await commit_changes(table.storage, Delete(before=change.after))


async def test_no_character_is_cut() -> None:
    body = "x" + "é" * MAX_INLINE_BODY_BYTES + "😀" * MAX_INLINE_BODY_BYTES
    parts = split_body(body)
    assert "".join(parts) == body
    assert max(len(part.encode()) for part in parts) <= MAX_INLINE_BODY_BYTES


async def test_large_bodies_are_purged_with_their_records() -> None:
    async with opened() as table:
        body = "x" * (MAX_INLINE_BODY_BYTES + 1)
        await insert_each(
            table.storage, *[make_record(f"k{n}", body=body, expires_at=NOW + 1) for n in range(3)]
        )
        assert len(await table.storage.purge(until=NOW + 1, limit=9)) == 3
        assert await table.items("body") == await table.items("record") == []


async def test_a_large_body_inserted_over_an_expired_one_leaves_no_parts_behind() -> None:
    async with opened() as table:
        body = "x" * (MAX_INLINE_BODY_BYTES + 1)
        await insert_each(table.storage, make_record(body=body, expires_at=NOW + 1))
        await commit_changes(table.storage, Insert(record=make_record(body="y" + body)), now=NOW + 1)
        assert len(await table.items("body")) == 2


async def test_readers_never_see_half_of_one_body_and_half_of_another() -> None:
    async with opened() as table:
        storage = table.storage
        record = make_record(body="0" * (2 * MAX_INLINE_BODY_BYTES))
        await insert_each(storage, record)
        ended = False

        async def read() -> int:
            seen: set[str] = set()
            while not ended:
                got = await storage.get(record.address, now=NOW)
                assert got is not None
                assert len(set(got.body)) == 1
                seen.add(got.body[0])
            return len(seen)

        readers = [asyncio.create_task(read()) for _ in range(3)]
        for n in range(1, 10):
            change = record.replace_with(body=str(n) * (2 * MAX_INLINE_BODY_BYTES), tag="")
            await commit_changes(storage, change)
            record = change.after
        ended = True
        assert max(await asyncio.gather(*readers)) > 1


@pytest.mark.parametrize("start", [servers.dynoxide, servers.extenddb], ids=["dynoxide", "extenddb"])
async def test_the_largest_commit_fits_into_one_transaction(start: Any) -> None:  # noqa: ANN401
    """25 changes in 8 spaces, the longest names, 2 MiB of bodies in many parts, and a guard."""
    async with proxy_to(start().port) as proxy:
        url = proxy.new_url()
        await migrate_storage(url)
        async with await open_storage(url) as storage:
            first = _largest("a")
            guard = Guard(space=Space("guarded"), tags=frozenset("abc"), max_count=3)
            await commit_changes(storage, *[Insert(record=each) for each in first], guard=guard)
            changes = [
                old.replace_with(
                    body=new.body, tag=new.tag, expires_at=new.expires_at, lane=new.lane, wake_at=3
                )
                for old, new in zip(first, _largest("b"), strict=True)
            ]
            await commit_changes(storage, *changes, guard=guard)
            got = await storage.get_many([change.address for change in changes], now=NOW)
            assert got == [change.after for change in changes]
        assert 45 < proxy.largest <= 100


def _largest(letter: str) -> list[Record]:
    just_split = MAX_INLINE_BODY_BYTES + 1
    sizes = [just_split] * (MAX_COMMIT_BYTES // just_split)
    rest = (MAX_COMMIT_BYTES - sum(sizes)) // (25 - len(sizes))
    sizes += [rest] * (25 - len(sizes))
    return [
        make_record(
            f"{n:02}" + "k" * (MAX_KEY_BYTES - 2),
            partition="p" * MAX_PARTITION_BYTES,
            space=Space(f"{n % 8}" + "s" * 15),
            tag=letter * MAX_TAG_BYTES,
            lane=letter * MAX_LANE_BYTES,
            wake_at=MAX_INTEGER,
            expires_at=MAX_INTEGER,
            order=MAX_INTEGER,
            body=letter * size,
        )
        for n, size in enumerate(sizes)
    ]
