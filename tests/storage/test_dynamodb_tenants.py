"""Commits of several tenants share a transaction. Contended items of one tenant do not affect the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure.storage import Accepted, Change, Committed, Insert, Record, Storage
from perdure.storage.dynamodb.items import (
    MAX_INLINE_BODY_BYTES,
    Key,
    count_key,
    part_keys,
    record_key,
    total_key,
)
from perdure.storage.dynamodb.writer import QUEUE_COUNT
from perdure.storage.errors import StorageBusy, StorageError, StorageUnavailable
from perdure.storage.kit.sample_records import NOW, SPACE, insert_each, make_record
from perdure.storage.shards import shard_of

from .. import servers
from ..markers import row
from .dynamodb_helpers import storage_on
from .dynamodb_proxy import Error, Fault, Proxy, proxy_to

pytestmark = pytest.mark.anyio

BUSY, *OTHERS = [name for name in map(str, range(2000)) if shard_of(name) % QUEUE_COUNT == 0][:6]
"""Tenants whose commits share a transaction."""
NEIGHBOUR = next(
    name for name in map(str, range(10_000)) if name != BUSY and shard_of(name) == shard_of(BUSY)
)
"""A tenant that also shares the total of the shard."""


@asynccontextmanager
async def through_proxy(start: Any = servers.dynoxide) -> AsyncGenerator[tuple[Storage, Proxy]]:  # noqa: ANN401
    async with proxy_to(start().port) as proxy, storage_on(proxy, "&attempts=3") as storage:
        yield storage, proxy


def key_in(write: dict[str, Any]) -> Key:
    [what] = write.values()
    item = what.get("Key") or what["Item"]
    return Key(item["pk"]["S"], item["sk"]["S"])


def contend(proxy: Proxy, *prefixes: str, code: str = "TransactionConflict", times: int = 10**6) -> None:
    """Cancel transactions like AWS, because of items whose keys start with a prefix."""
    left = times

    def rule(operation: str, question: dict[str, Any]) -> Fault:
        nonlocal left
        if operation != "TransactWriteItems" or not left:
            return None
        keys = [key_in(write) for write in question["TransactItems"]]
        reasons = tuple(code if key.pk.startswith(prefixes) else "None" for key in keys)
        if set(reasons) == {"None"}:
            return None
        left -= 1
        return Error("TransactionCanceledException", reasons=reasons)

    proxy.rule = rule


async def together(storage: Storage, *commits: list[Change]) -> list[Any]:
    return await asyncio.gather(*[storage.commit(each, now=NOW) for each in commits], return_exceptions=True)


def inserting(*tenants: str) -> list[list[Change]]:
    return [[Insert(record=make_record(partition=tenant, tag="t"))] for tenant in tenants]


async def expect_only_the_busy_one_fails(storage: Storage, kind: type[StorageError]) -> None:
    busy, *others = await together(storage, *inserting(BUSY, *OTHERS))
    assert isinstance(busy, kind)
    assert others == [Committed((Accepted(1),))] * len(OTHERS)
    stored = await storage.get_many(
        [make_record(partition=each).address for each in (BUSY, *OTHERS)], now=NOW
    )
    assert [record is not None for record in stored] == [False, *[True] * len(OTHERS)]


@row(110)
@pytest.mark.parametrize("start", [servers.dynoxide, servers.extenddb], ids=["dynoxide", "extenddb"])
@pytest.mark.parametrize(
    ("code", "kind"), [("TransactionConflict", StorageBusy), ("ThrottlingError", StorageUnavailable)]
)
@pytest.mark.parametrize("item", [count_key(SPACE, BUSY), record_key(make_record(partition=BUSY).address)])
async def test_a_tenant_whose_items_are_contended_fails_alone(
    item: Key,
    code: str,
    kind: type[StorageError],
    start: Any,  # noqa: ANN401
) -> None:
    async with through_proxy(start) as (storage, proxy):
        contend(proxy, item.pk, code=code)
        await expect_only_the_busy_one_fails(storage, kind)
        assert proxy.largest > 2 * len(OTHERS)  # the commits shared a transaction
        proxy.rule = lambda _operation, _question: None
        assert (await storage.maintain()).findings == ()


@row(110)
async def test_a_tenant_that_also_shares_the_total_of_the_shard_does_not_fail() -> None:
    """First the total is contended, which affects both tenants; then the counter of one of them."""
    async with through_proxy() as (storage, proxy):
        contend(proxy, total_key(SPACE, shard_of(BUSY)).pk, count_key(SPACE, BUSY).pk, times=1)
        total_first = proxy.rule

        def rule(operation: str, question: dict[str, Any]) -> Fault:
            fault = total_first(operation, question)
            if isinstance(fault, Error):
                contend(proxy, count_key(SPACE, BUSY).pk)
            return fault

        proxy.rule = rule
        busy, neighbour = await together(storage, *inserting(BUSY, NEIGHBOUR))
        assert isinstance(busy, StorageBusy)
        assert neighbour == Committed((Accepted(1),))


async def test_a_temporary_conflict_on_a_total_is_retried_in_one_transaction() -> None:
    async with through_proxy() as (storage, proxy):
        contend(proxy, total_key(SPACE, shard_of(BUSY)).pk, times=2)
        assert await together(storage, *inserting(BUSY, NEIGHBOUR)) == [Committed((Accepted(1),))] * 2
        assert proxy.asked["TransactWriteItems"] == 3


async def test_a_total_that_stays_contended_is_tried_for_each_tenant_alone() -> None:
    async with through_proxy() as (storage, proxy):
        contend(proxy, total_key(SPACE, shard_of(BUSY)).pk, times=5)
        assert await together(storage, *inserting(BUSY, NEIGHBOUR)) == [Committed((Accepted(1),))] * 2
        assert (await storage.maintain()).findings == ()


async def test_a_contended_part_of_a_body_concerns_its_record() -> None:
    async with through_proxy() as (storage, proxy):
        contend(proxy, part_keys("", 1)[0].pk)
        large: Record = make_record("large", partition=BUSY, body="x" * (MAX_INLINE_BODY_BYTES + 1))
        changes: list[Change] = [Insert(record=large)]
        busy, *others = await together(storage, changes, *inserting(*OTHERS))
        assert isinstance(busy, StorageBusy)
        assert others == [Committed((Accepted(1),))] * len(OTHERS)


async def test_a_temporary_conflict_fails_no_commit() -> None:
    async with through_proxy() as (storage, proxy):
        contend(proxy, count_key(SPACE, BUSY).pk, times=2)
        results = await together(storage, *inserting(BUSY, *OTHERS))
        assert results == [Committed((Accepted(1),))] * (1 + len(OTHERS))
        await insert_each(storage, make_record("more", partition=BUSY))
        assert (await storage.maintain()).findings == ()
