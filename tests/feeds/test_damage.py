"""One item that cannot be read hides no other, on every engine."""

from __future__ import annotations

import pytest

from perdure.feeds import FeedStore, Item, Poller, PollSettings, audit_account
from perdure.feeds.account import account_address
from perdure.feeds.item import ITEMS
from perdure.storage import Address

from ..markers import row
from .simulation import World, WorldSource
from .test_store import ANNA, StoreUnderTest, added, damage, item, settle, store

__all__ = ["store"]
pytestmark = pytest.mark.anyio


async def with_a_damaged_item(store: FeedStore) -> list[Item]:
    """Three items, the second of which cannot be read."""
    await added(store)
    found = [item(number) for number in range(3)]
    await store.add_items(ANNA, found)
    record = await store.storage.get(Address(ITEMS, ANNA, found[1].uri), now=store.clock())
    assert record is not None
    await damage(store, record)
    await settle(store)
    return found


@row(130)
async def test_a_damaged_item_is_skipped_and_logged_once(
    store: FeedStore, caplog: pytest.LogCaptureFixture
) -> None:
    found = await with_a_damaged_item(store)
    for account_id in (ANNA, None):
        assert [each.uri async for _, each in store.newest_items(account_id)] == [found[2].uri, found[0].uri]
    assert caplog.text.count(f"skipped a stored record: {found[1].uri}: invalid item record") == 1


@row(130)
async def test_a_damaged_item_is_known_and_can_be_removed(store: FeedStore) -> None:
    found = await with_a_damaged_item(store)
    assert await store.missing_items(ANNA, found) == []
    assert await store.add_items(ANNA, found) == []
    await store.remove(ANNA, with_items=True)
    assert await store.storage.page(ITEMS, ANNA, limit=9, now=store.clock()) == []


@row(130)
async def test_an_account_with_a_damaged_item_is_polled_and_audited(store: FeedStore) -> None:
    world = World(clock=store.clock)
    source, did = WorldSource(world), world.account("anna.test")
    await added(store, did)
    uris = [world.publish(did, f"post {number}") for number in range(3)]
    poller = Poller(store, source, PollSettings())
    await poller.poll(await store.get(did))
    record = await store.storage.get(Address(ITEMS, did, uris[1]), now=store.clock())
    assert record is not None
    await damage(store, record)
    uris.append(world.publish(did, "one more"))
    await poller.poll(await store.get(did))
    assert {each.uri async for _, each in store.newest_items(did)} == {uris[0], uris[2], uris[3]}
    assert (await audit_account(store, source, did)).missing == 0


async def lose(store: FeedStore, address: Address) -> None:
    """Damage a record by the engine's own means; in memory, where there are none, by its body."""
    assert isinstance(store, StoreUnderTest)
    if store.subject.damage is not None:
        await store.subject.damage(address)
        return
    record = await store.storage.get(address, now=store.clock())
    assert record is not None
    await damage(store, record)


@row(130)
async def test_records_that_the_storage_cannot_read_hide_no_others(store: FeedStore) -> None:
    found = [item(number) for number in range(3)]
    await added(store)
    await added(store, "did:plc:bob", "bob.test")
    await store.add_items(ANNA, found)
    await lose(store, Address(ITEMS, ANNA, found[1].uri))
    await lose(store, account_address("did:plc:bob"))
    await settle(store)
    assert [each.uri async for _, each in store.newest_items()] == [found[2].uri, found[0].uri]
    assert await store.missing_items(ANNA, found) == []
    assert await store.handles([ANNA, "did:plc:bob"]) == {ANNA: "anna.test"}
