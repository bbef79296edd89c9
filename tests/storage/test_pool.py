"""A storage that a test has released is empty when the next test gets it."""

from __future__ import annotations

import pytest

from perdure.storage import Space, open_storage
from perdure.storage.kit.sample_records import NOW, insert_each, make_record

from .. import engines
from ..markers import server
from .pool import pooled

pytestmark = pytest.mark.anyio


@server
@pytest.mark.parametrize("kind", [each for each in engines.SERVERS if each != "redis"])
async def test_a_storage_of_the_pool_is_used_again_and_empty(kind: str) -> None:
    async with pooled(kind) as first, await open_storage(first) as storage:
        records = [make_record(f"k{n}", partition=f"p{n % 7}", lane="lane", wake_at=1) for n in range(60)]
        await insert_each(storage, *records, make_record("large", body='"' + "x" * 900_000 + '"'))
    async with pooled(kind) as second, await open_storage(second) as storage:
        assert second == first
        assert await storage.get_many([each.address for each in records], now=NOW) == [None] * len(records)
        assert await storage.page(records[0].space, limit=100, now=NOW) == []
        assert await storage.due("lane", until=NOW, limit=100, now=NOW) == []
        assert await storage.counts(records[0].space, now=NOW) == {}
        assert await storage.counts(Space("other"), now=NOW) == {}
        assert (await storage.maintain()).findings == ()


@server
@pytest.mark.parametrize("kind", [each for each in engines.SERVERS if each != "redis"])
async def test_the_storage_of_a_test_that_failed_is_not_used_again(kind: str) -> None:
    left: list[str] = []

    async def fail() -> None:
        async with pooled(kind) as url:
            left.append(url)
            raise AssertionError

    with pytest.raises(AssertionError):
        await fail()
    async with pooled(kind) as other:
        assert [other] != left
