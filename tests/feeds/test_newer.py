"""Accounts and items of a newer version are left exactly as they are, and are in no other account's way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from perdure.feeds import Poller, PollSettings, transitions
from perdure.feeds.account import ACCOUNTS, StoredAccount, insertion
from perdure.feeds.errors import AccountLeaseLost, CorruptFeedRecord
from perdure.feeds.item import ITEMS, parse_item
from perdure.feeds.lease import acquire_lease
from perdure.feeds.store import FeedStore
from perdure.storage import Record
from perdure.storage.errors import NewerFormat

from ..markers import row
from ..newer import FUTURE, changed, newer, put, stored
from .simulation import World, WorldSource
from .test_store import ANNA, START, account, added, item, passes, settle, store

__all__ = ["store"]
pytestmark = pytest.mark.anyio

OTHER = "did:plc:other"
CHANGES: list[dict[str, Any]] = [{"format": FUTURE, "poll_interval": "weekly"}, {"status": "muted"}]


@pytest.fixture(params=CHANGES, ids=["format", "status"])
def change(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


async def make_newer(store: FeedStore, record: Record, change: dict[str, Any]) -> Record:
    return await put(store.storage, record, changed(record.body, **change), now=store.clock())


@row(105)
async def test_an_account_of_a_newer_version_is_left_as_it_is_by_every_operation(
    store: FeedStore, change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    before = await added(store)
    await added(store, OTHER, "other.test")
    record = await make_newer(store, before.record, change)
    await settle(store)
    poller = Poller(store, WorldSource(World(clock=store.clock)), PollSettings())
    operations: list[Callable[[], Awaitable[object]]] = [
        lambda: store.get(ANNA),
        lambda: store.find(ANNA),
        lambda: store.update(ANNA, transitions.suspended),
        lambda: store.remove(ANNA, with_items=True),
    ]
    for operation in operations:
        with pytest.raises(NewerFormat, match=ANNA):
            await operation()
    assert not await store.add(account())
    assert [each.account.account_id async for each in store.accounts()] == [OTHER]
    assert [each.account.account_id for each in await store.due(1)] == [OTHER]
    assert [each.account.account_id for each in (await store.account_page(None, 1))[0]] == [OTHER]
    assert await store.handles([ANNA, OTHER]) == {OTHER: "other.test"}
    await poller.run_once()
    await poller.poll(before)  # as it was read before the newer version wrote it
    assert f"skipped a stored record: {ANNA} was written by a newer version of perdure" in caplog.text
    assert await stored(store.storage, record.address, now=store.clock()) == record


@row(105)
async def test_accounts_behind_many_of_a_newer_version_are_due(store: FeedStore) -> None:
    for number in range(9):
        made = await added(store, f"did:plc:{number}", f"n{number}.test")
        await make_newer(store, made.record, {"format": FUTURE})
    late = replace(account(OTHER, "other.test"), next_poll_at=START + 1)
    await store.add(late)
    passes(store, 2)
    await settle(store)
    assert [each.account.account_id for each in await store.due(2)] == [OTHER]


@row(105)
async def test_a_poller_whose_account_a_newer_version_has_rewritten_writes_nothing_more(
    store: FeedStore,
) -> None:
    before = await added(store)
    async with acquire_lease(store, before, "poller") as held:
        record = await make_newer(store, (await store.get(ANNA)).record, {"format": FUTURE})
        with pytest.raises(AccountLeaseLost, match="newer version"):
            await held.update(transitions.released)
    assert await stored(store.storage, record.address, now=store.clock()) == record


@row(105)
@pytest.mark.parametrize(
    "change", [{"format": FUTURE}, {"kind": "video"}, {"links": [{"url": "https://a.test", "via": "qr"}]}]
)
async def test_an_item_of_a_newer_version_is_skipped_and_kept(
    store: FeedStore, change: dict[str, Any]
) -> None:
    await added(store)
    found = [item(1), item(2)]
    await store.add_items(ANNA, found)
    old, _ = sorted(
        await store.storage.page(ITEMS, ANNA, limit=9, now=store.clock()), key=lambda each: each.order
    )
    record = await make_newer(store, old, change)
    await settle(store)
    assert [each.uri async for _, each in store.newest_items(ANNA)] == [found[1].uri]
    assert await store.add_items(ANNA, found) == []
    assert await store.missing_items(ANNA, found) == []
    await store.remove(ANNA, with_items=True)
    assert await store.storage.page(ITEMS, ANNA, limit=9, now=store.clock()) == [record]


@row(105)
@pytest.mark.parametrize(
    ("record", "read", "unknown", "damage"),
    [
        (insertion(account()).record, StoredAccount.from_record, {"status": "muted"}, {"status": 3}),
        (insertion(account()).record, StoredAccount.from_record, {"status": ""}, {"next_poll_at": None}),
        (Record(space=ITEMS, partition=ANNA, key="k", order=1,
                body=msgspec.json.encode(item(1), order="sorted").decode()),
         parse_item, {"kind": "video"}, {"links": "none"}),
    ],
)  # fmt: skip
def test_damage_is_distinguished_from_a_newer_version(
    record: Record, read: Callable[[Record], object], unknown: dict[str, Any], damage: dict[str, Any]
) -> None:
    read(record)
    for body in (newer(record.body), newer(record.body, **damage), changed(record.body, **unknown)):
        with pytest.raises(NewerFormat):
            read(replace(record, body=body))
    for body in ("{}", changed(record.body, **damage), changed(record.body, format=None)):
        with pytest.raises(CorruptFeedRecord):
            read(replace(record, body=body))
    assert record.space in (ACCOUNTS, ITEMS)
