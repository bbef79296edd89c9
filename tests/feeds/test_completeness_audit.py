"""The audit finds what no poll can see, stores it once, and reports what was deleted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import pytest

from perdure.feeds import FeedStore, Item, Poller, PollSettings, transitions
from perdure.feeds.completeness_audit import MAX_EXAMPLES, AuditReport, audit_account
from perdure.feeds.errors import AccountUnavailable, SourceUnavailable
from perdure.feeds.source import RecordPage, SourceRecord
from perdure.storage import open_storage
from perdure.storage.time_types import DAY, HOUR

from .simulation import Question, World, WorldSource

pytestmark = pytest.mark.anyio


class Town:
    """One account that is polled, and the world that it is in."""

    def __init__(self, world: World, store: FeedStore) -> None:
        self.world = world
        self.store = store
        self.source = WorldSource(world)
        self.did = world.account("anna.test")

    async def poll(self) -> None:
        await Poller(self.store, self.source, PollSettings(posts_per_page=10)).run_once()

    async def audit(self, *, dry_run: bool = False) -> AuditReport:
        return await audit_account(self.store, self.source, self.did, dry_run=dry_run)

    async def stored(self) -> set[str]:
        return {item.uri async for _, item in self.store.newest_items(self.did)}


@pytest.fixture
async def town() -> AsyncGenerator[Town]:
    world = World()
    async with await open_storage("memory:") as storage:
        town = Town(world, FeedStore(storage, clock=lambda: world.now))
        (profile,) = await town.source.profiles([town.did])
        await town.store.add(transitions.new_account(profile, now=world.now, settings=PollSettings()))
        for _ in range(30):
            world.advance(HOUR // 2)
            world.publish(town.did, "a post")
        await town.poll()
        yield town


async def test_an_audit_finds_a_post_that_was_dated_back_and_no_poll_saw(town: Town) -> None:
    newest = town.world.publish(town.did, "new")
    back_dated = town.world.publish(town.did, "old", created_at=town.world.now - 30 * DAY)
    await town.poll()
    assert newest in await town.stored()
    assert back_dated not in await town.stored()

    found = await town.audit()
    assert (found.source_records, found.missing, found.repaired, found.deleted) == (32, 1, 1, 0)
    assert [item.uri for item in found.examples] == [back_dated]
    assert await town.stored() == set(town.world.everything_of(town.did))


async def test_a_second_audit_finds_nothing(town: Town) -> None:
    town.world.publish(town.did, "old", created_at=town.world.now - 30 * DAY)
    assert (await town.audit()).repaired == 1
    again = await town.audit()
    assert (again.source_records, again.missing, again.repaired, again.examples) == (31, 0, 0, ())


async def test_a_dry_run_reports_the_same_and_stores_nothing(town: Town) -> None:
    back_dated = town.world.publish(town.did, "old", created_at=town.world.now - 30 * DAY)
    before = await town.stored()
    found = await town.audit(dry_run=True)
    assert (found.missing, found.repaired) == (1, 0)
    assert [item.uri for item in found.examples] == [back_dated]
    assert await town.stored() == before


async def test_reposts_are_audited_too(town: Town) -> None:
    other = town.world.account("bert.test")
    post = town.world.publish(other, "theirs")
    repost = town.world.repost(town.did, post)
    found = await town.audit()
    assert [(item.uri, item.kind, item.post_uri) for item in found.examples] == [(repost, "repost", post)]


async def test_what_was_deleted_is_counted_and_stays(town: Town) -> None:
    deleted = min(await town.stored())
    town.world.delete(deleted)
    found = await town.audit()
    assert (found.source_records, found.missing, found.deleted, found.deleted_examples) == (
        29,
        0,
        1,
        (deleted,),
    )
    assert deleted in await town.stored()


async def test_a_repost_without_an_address_of_its_own_is_not_taken_for_deleted(town: Town) -> None:
    """Its item is known by a post of another account, which the account's records do not contain."""
    post = "at://did:plc:bert/app.bsky.feed.post/1"
    nameless = Item(uri=post, time=town.world.now, kind="repost", post_uri=post, author_id="did:plc:bert")
    await town.store.add_items(town.did, [nameless])
    assert (await town.audit()).deleted == 0


async def test_there_are_only_a_few_examples_of_many(town: Town) -> None:
    for days in range(2 * MAX_EXAMPLES):
        town.world.publish(town.did, created_at=town.world.now - days * DAY - DAY)
    found = await town.audit(dry_run=True)
    assert (found.missing, len(found.examples)) == (2 * MAX_EXAMPLES, MAX_EXAMPLES)


async def test_records_that_cannot_be_read_are_counted(town: Town) -> None:
    town.world.spoil(town.world.publish(town.did, "garbage"))
    found = await town.audit()
    assert (found.invalid_records, found.missing) == (1, 0)


async def test_what_is_published_during_an_audit_is_never_taken_for_gone(town: Town) -> None:
    async def publish_and_poll(question: Question) -> None:
        if question.kind == "records":
            town.source.before = None
            town.world.publish(town.did, "meanwhile", created_at=town.world.now)
            await town.poll()

    town.source.before = publish_and_poll
    found = await town.audit()
    assert (found.missing, found.deleted) == (0, 0)


class CutOff:
    """A source whose second page cannot be read."""

    def __init__(self, first: RecordPage) -> None:
        self.first = first

    async def records(self, account_id: str) -> AsyncIterator[RecordPage]:
        yield self.first
        raise SourceUnavailable("cut")

    async def shown_items(self, items: Sequence[Item]) -> list[Item]:
        return list(items)


async def test_an_audit_that_fails_keeps_what_it_stored_and_reports_no_partial_result(town: Town) -> None:
    uri = f"at://{town.did}/app.bsky.feed.post/1"
    item = Item(uri=uri, time=1, kind="post", post_uri=uri, author_id=town.did)
    page = RecordPage(records=(SourceRecord(item, town.world.now),), uris=(uri,))
    with pytest.raises(SourceUnavailable):
        await audit_account(town.store, CutOff(page), town.did)
    assert uri in await town.stored()


async def test_an_account_that_is_not_there_is_no_account_without_records(town: Town) -> None:
    async def is_gone(question: Question) -> None:
        raise AccountUnavailable("Could not find repo")

    town.source.before = is_gone
    with pytest.raises(AccountUnavailable):
        await town.audit()


async def test_what_polls_will_still_read_is_left_to_them(town: Town) -> None:
    """They show more of it: what it quotes, and what it reposts."""
    theirs = town.world.publish(town.world.account("bob.test"), "theirs")
    town.world.advance(HOUR)
    repost = town.world.repost(town.did, theirs)
    found = await town.audit()
    assert (found.missing, found.repaired) == (0, 0)
    assert repost not in await town.stored()
    await town.poll()
    assert repost in await town.stored()


# What polls should have seen


async def test_history_is_no_missing_post_and_is_stored_on_request() -> None:
    """What was written before the first poll's look-back was never promised."""
    world = World()
    async with await open_storage("memory:") as storage:
        town = Town(world, FeedStore(storage, clock=lambda: world.now))
        for _ in range(20):
            world.advance(HOUR)
            world.publish(town.did, "history")
        world.advance(7 * DAY)
        for _ in range(15):
            world.advance(HOUR)
            world.publish(town.did, "a post")
        (profile,) = await town.source.profiles([town.did])
        await town.store.add(transitions.new_account(profile, now=world.now, settings=PollSettings()))
        await town.poll()
        history = 35 - len(await town.stored())
        assert history > 10
        back_dated = world.publish(town.did, "old", created_at=world.now - 30 * DAY)
        for is_dry_run in (True, False):
            found = await town.audit(dry_run=is_dry_run)
            assert (found.missing, found.history) == (1, history)
            assert [item.uri for item in found.examples] == [back_dated]
        assert found.repaired == 1
        found = await audit_account(town.store, town.source, town.did, history=True)
        assert (found.missing, found.history, found.history_stored) == (0, history, history)
        assert await town.stored() == set(world.everything_of(town.did))


async def test_a_record_that_the_feed_does_not_show_is_not_stored(town: Town) -> None:
    other = town.world.account("bert.test")
    post = town.world.publish(other, "theirs")
    repost = town.world.repost(town.did, post, created_at=town.world.now - 30 * DAY)
    town.world.deactivate(other)
    found = await town.audit()
    assert (found.missing, found.repaired, found.hidden) == (0, 0, 1)
    assert repost not in await town.stored()


# What was deleted


async def test_what_was_deleted_is_removed_on_request(town: Town) -> None:
    deleted = sorted(await town.stored())[:3]
    for uri in deleted:
        town.world.delete(uri)
    found = await audit_account(town.store, town.source, town.did, remove=True, dry_run=True)
    assert (found.deleted, found.removed) == (3, 0)
    found = await audit_account(town.store, town.source, town.did, remove=True)
    assert (found.deleted, found.removed) == (3, 3)
    assert await town.stored() == set(town.world.everything_of(town.did))


async def test_an_invalid_record_is_not_taken_for_deleted(town: Town) -> None:
    spoiled = min(await town.stored())
    town.world.spoil(spoiled)
    found = await audit_account(town.store, town.source, town.did, remove=True)
    assert (found.deleted, found.removed, found.invalid_records) == (0, 0, 1)
    assert spoiled in await town.stored()


async def test_a_source_without_any_record_removes_nothing(town: Town) -> None:
    """It is more likely to be wrong than to have lost everything."""
    for uri in await town.stored():
        town.world.delete(uri)
    found = await audit_account(town.store, town.source, town.did, remove=True)
    assert (found.deleted, found.removed) == (30, 0)
    assert len(await town.stored()) == 30


# The alarm


async def test_an_audit_ends_the_alarm_for_posts_that_no_poll_finds_and_raises_none(town: Town) -> None:
    poller = Poller(town.store, town.source, PollSettings(posts_per_page=10))
    await poller.refresh_profiles()

    async def unseen_after_an_hour() -> int:
        town.world.advance(HOUR)
        await poller.run_once()
        await poller.refresh_profiles()
        return (await town.store.get(town.did)).account.unseen_posts

    town.world.publish(town.did, "old", created_at=town.world.now - 30 * DAY)
    assert await unseen_after_an_hour() == 1
    await town.audit()
    assert (await town.store.get(town.did)).account.unseen_posts == 0
    town.world.publish(town.did, "older", created_at=town.world.now - 40 * DAY)
    await town.audit()  # before a profile has counted it
    assert await unseen_after_an_hour() == 0
