"""A follow list adds and suspends its own accounts, and leaves those of others alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from perdure.feeds import Account, AccountStatus, Feeds, FeedStore, PollSettings
from perdure.feeds.account import MANUAL_ORIGIN
from perdure.feeds.bluesky import BlueskySource
from perdure.feeds.errors import EmptyFollowList, InvalidActor
from perdure.feeds.follow_list_sync import add_account, sync_follow_list
from perdure.feeds.source import Profile
from perdure.storage import open_storage

from .fake_server import FakeBluesky, Fault
from .fake_server.client import reading
from .simulation import World

pytestmark = pytest.mark.anyio

RECORDS = "com.atproto.repo.listRecords"


class Lists:
    """A world over HTTP, and a store that follows lists of it."""

    def __init__(self, fake: FakeBluesky, source: BlueskySource, store: FeedStore) -> None:
        self.fake = fake
        self.world = fake.world
        self.source = source
        self.store = store
        self.boss = self.world.account("boss.test")

    def followed(self, *names: str) -> list[str]:
        dids = [self.world.account(f"{name}.test") for name in names]
        for did in dids:
            self.world.follow(self.boss, did)
        return dids

    async def sync(self, actor: str = "boss.test", *, prune: bool = True) -> dict[str, str]:
        """What was done to which account."""
        changes = await sync_follow_list(self.store, self.source, actor, settings=PollSettings(), prune=prune)
        return {change.handle: change.action for change in changes if change.action is not None}

    async def account(self, did: str) -> Account:
        return (await self.store.get(did)).account


@pytest.fixture
async def lists() -> AsyncGenerator[Lists]:
    async with (
        FakeBluesky(World()) as fake,
        reading(fake) as source,
        await open_storage("memory:") as storage,
    ):
        yield Lists(fake, source, FeedStore(storage))


async def test_accounts_record_where_they_came_from(lists: Lists) -> None:
    anna, bert = lists.followed("anna", "bert")
    await add_account(lists.store, Profile(account_id=anna, handle="anna.test"), settings=PollSettings())
    assert await lists.sync() == {"bert.test": "added"}
    assert (await lists.account(anna)).origins == (MANUAL_ORIGIN, f"follows:{lists.boss}")
    assert (await lists.account(bert)).origins == (f"follows:{lists.boss}",)


async def test_an_account_that_is_unfollowed_is_suspended_and_comes_back_when_followed_again(
    lists: Lists,
) -> None:
    anna, bert = lists.followed("anna", "bert")
    await lists.sync()
    lists.world.unfollow(lists.boss, anna)
    assert await lists.sync(prune=False) == {}
    assert await lists.sync() == {"anna.test": "suspended"}
    assert (await lists.account(anna)).reason == "no longer followed by boss.test"
    assert await lists.sync() == {}
    lists.world.follow(lists.boss, anna)
    assert await lists.sync() == {"anna.test": "resumed"}
    assert {(await lists.account(did)).status for did in (anna, bert)} == {AccountStatus.ACTIVE}


async def test_an_account_that_is_suspended_by_hand_too_does_not_come_back(lists: Lists) -> None:
    anna, _ = lists.followed("anna", "bert")
    await lists.sync()
    lists.world.unfollow(lists.boss, anna)
    await lists.sync()
    await Feeds(lists.store).suspend([anna])
    lists.world.follow(lists.boss, anna)
    assert await lists.sync() == {}
    assert (await lists.account(anna)).reason == "suspended manually"


@pytest.mark.parametrize("has_records", [True, False])
async def test_an_account_that_is_only_deactivated_is_not_suspended(
    lists: Lists, *, has_records: bool
) -> None:
    """The follow list leaves it out as long; the follow record, or the missing profile, says why."""
    anna, bert, cora = lists.followed("anna", "bert", "cora")
    await lists.sync()
    lists.world.deactivate(anna)
    lists.world.unfollow(lists.boss, bert)
    if not has_records:
        message = f"Could not find repo: {lists.boss}"
        lists.fake.fail(
            Fault(
                how="refused",
                times=None,
                path=RECORDS,
                status=400,
                error="InvalidRequest",
                message=message,
            )
        )
    assert await lists.sync() == {"bert.test": "suspended"}
    assert {(await lists.account(did)).status for did in (anna, cora)} == {AccountStatus.ACTIVE}


async def test_two_lists_do_not_get_in_each_other_s_way(lists: Lists) -> None:
    anna, _ = lists.followed("anna", "bert")
    other = lists.world.account("other.test")
    lists.world.follow(other, anna)
    await lists.sync()
    await lists.sync("other.test")
    lists.world.unfollow(lists.boss, anna)
    assert await lists.sync() == {}
    assert (await lists.account(anna)).origins == (f"follows:{other}",)
    lists.world.unfollow(other, anna)
    lists.world.follow(other, lists.boss)
    assert await lists.sync("other.test") == {"boss.test": "added", "anna.test": "suspended"}


async def test_a_list_keeps_its_accounts_when_its_owner_is_renamed(lists: Lists) -> None:
    anna, _ = lists.followed("anna", "bert")
    await lists.sync()
    lists.world.rename(lists.boss, "chief.test")
    lists.world.unfollow(lists.boss, anna)
    assert await lists.sync("chief.test") == {"anna.test": "suspended"}


async def test_an_empty_list_suspends_no_account(lists: Lists) -> None:
    (anna,) = lists.followed("anna")
    await lists.sync()
    lists.world.unfollow(lists.boss, anna)
    with pytest.raises(EmptyFollowList):
        await lists.sync()
    assert (await lists.account(anna)).status is AccountStatus.ACTIVE


async def test_a_list_of_an_unknown_account_is_an_error(lists: Lists) -> None:
    with pytest.raises(InvalidActor, match=r"unknown account unknown\.test"):
        await lists.sync("unknown.test")


async def test_all_of_a_long_list_is_read(lists: Lists) -> None:
    dids = lists.followed(*(f"user{number}" for number in range(250)))
    await lists.sync()
    for did in dids[::2]:
        lists.world.deactivate(did)
    lists.world.unfollow(lists.boss, dids[1])
    assert await lists.sync() == {"user1.test": "suspended"}
