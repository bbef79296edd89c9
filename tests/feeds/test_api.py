"""`Feeds`: what commands, pages and tools do with feeds, on a simulated source."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from perdure.feeds import (
    AccountStatus,
    Feeds,
    FeedSettings,
    FeedStore,
    Item,
    Link,
    PollSettings,
    PollSucceeded,
)
from perdure.feeds.account import Lease
from perdure.feeds.errors import InvalidActor, PollInProgress, RequestRejected, UnknownAccount
from perdure.samples import SimulatedSource
from perdure.storage import Micros, open_storage
from perdure.storage.time_types import HOUR

from ..storage.sqlite_helpers import url_of
from .simulation import World, WorldSource

pytestmark = pytest.mark.anyio


def now() -> Micros:
    return time.time_ns() // 1000


@pytest.fixture
def world() -> World:
    return World(clock=now)


@pytest.fixture
async def feeds(world: World, anyio_backend: str) -> AsyncGenerator[Feeds]:
    settings = FeedSettings(polling=PollSettings(posts_per_page=10))
    async with Feeds.open("memory:", settings, source=WorldSource(world)) as opened:
        yield opened


def person(world: World, handle: str, posts: int = 0, *, every: Micros = HOUR) -> str:
    did = world.account(handle)
    for number in reversed(range(posts)):
        world.publish(did, f"{handle} {number}", at=now() - number * every)
    return did


async def test_accounts_are_added_polled_and_listed(world: World, feeds: Feeds) -> None:
    alice, bob = person(world, "alice.test", 3), person(world, "bob.test", 1)
    report = await feeds.add(["@alice.test", "https://bsky.app/profile/bob.test", "unknown.test", "no-name"])
    assert {(change.account, change.action) for change in report.changes} == {
        (alice, "added"),
        (bob, "added"),
    }
    assert report.unknown == ("unknown.test", "no-name")
    assert {each.handle for each in await feeds.due_accounts()} == {"alice.test", "bob.test"}
    outcomes: list[object] = []
    cycle = await feeds.run_once(on_outcome=outcomes.append)
    assert (cycle.polled, cycle.new_items, len(outcomes)) == (2, 4, 2)
    assert await feeds.due_accounts() == []
    assert len(await feeds.pollable_accounts()) == 2
    assert [each.account for each in await feeds.accounts(polled_before=timedelta(hours=1))] == []
    status = await feeds.status()
    assert (status.summary.accounts, status.items, status.failing) == (2, 4, ())
    schedule = await feeds.schedule()
    assert schedule.accounts == 2
    assert schedule.next_poll_at is not None
    assert schedule.next_poll_at > now()


async def test_accounts_are_copied_to_a_storage_that_is_created_if_there_are_any(
    world: World, feeds: Feeds, tmp_path: Path
) -> None:
    path = tmp_path / "feeds.db"
    await feeds.copy_accounts(url_of(path))
    assert not path.exists()
    person(world, "alice.test")
    await feeds.add(["alice.test"])
    await feeds.copy_accounts(url_of(path))
    async with Feeds.open(url_of(path)) as copied:
        assert (await copied.account("alice.test")).account == (await feeds.account("alice.test")).account


async def test_a_dry_run_reports_and_changes_nothing(world: World, feeds: Feeds) -> None:
    alice, bob = person(world, "alice.test", 3), person(world, "bob.test")
    await feeds.add([alice])
    await feeds.run_once()
    world.follow(bob, alice)
    before = (await feeds.account(alice)).account, (await feeds.items()).items
    for report in (
        await feeds.add(["bob.test"], dry_run=True),
        await feeds.follow("bob.test", dry_run=True),
        await feeds.remove([alice], delete_items=True, dry_run=True),
        await feeds.suspend([alice], dry_run=True),
        await feeds.resume([alice], dry_run=True),
        await feeds.reset([alice], dry_run=True),
        await feeds.backfill(alice, timedelta(days=9), dry_run=True),
    ):
        assert report.dry_run
    assert ((await feeds.account(alice)).account, (await feeds.items()).items) == before
    assert [each.account for each in await feeds.accounts()] == [alice]


async def test_a_change_of_many_accounts_is_made_for_all_or_for_none(world: World, feeds: Feeds) -> None:
    alice = person(world, "alice.test")
    await feeds.add([alice])
    with pytest.raises(UnknownAccount):
        await feeds.suspend([alice, "unknown.test"])
    with pytest.raises(InvalidActor, match="invalid account 'not a name'; use a handle such as"):
        await feeds.remove([alice, "not a name"])
    assert (await feeds.account(alice)).account.status is AccountStatus.ACTIVE


async def test_a_second_suspend_keeps_the_reason_or_reports_the_old_one(world: World, feeds: Feeds) -> None:
    alice = person(world, "alice.test")
    await feeds.add([alice])
    await feeds.suspend([alice], reason="noise")
    (change,) = (await feeds.suspend([alice])).changes
    assert (change.action, change.note) == (None, "already suspended: noise")
    assert (await feeds.account(alice)).account.reason == "noise"
    (change,) = (await feeds.suspend([alice], reason="spam")).changes
    assert (change.action, change.note) == ("suspended", "the reason was: noise")
    assert (await feeds.account(alice)).account.reason == "spam"


async def test_items_are_paged_by_position_or_by_time(world: World, feeds: Feeds) -> None:
    alice = person(world, "alice.test", 5)
    same_time = now() - 10 * HOUR
    for number in range(3):
        world.publish(alice, f"same {number}", at=same_time)
    await feeds.add([alice])
    await feeds.run_once()
    texts: list[str] = []
    page = await feeds.items(limit=3)
    texts += [each.item.text for each in page.items]
    while page.next_position is not None:
        page = await feeds.items(limit=3, after=page.next_position)
        texts += [each.item.text for each in page.items]
    assert (len(texts), len({*texts})) == (8, 8)
    assert {each.account_handle for each in page.items} == {"alice.test"}
    assert len((await feeds.items(limit=6, keep_ties=True)).items) == 8
    assert len((await feeds.items(limit=6)).items) == 6
    assert len((await feeds.items(since=timedelta(hours=9))).items) == 5
    assert len((await feeds.items(before=timedelta(hours=9))).items) == 3
    bounded = await feeds.items(with_links=True, max_scanned=4)
    assert (bounded.items, bounded.next_position is None) == ((), False)


async def test_items_of_a_removed_account_are_found_by_its_did(world: World, feeds: Feeds) -> None:
    alice = person(world, "alice.test", 2)
    await feeds.add([alice])
    await feeds.run_once()
    (change,) = (await feeds.remove([alice])).changes
    assert (change.action, change.note) == ("removed", "2 items kept")
    assert len((await feeds.items(alice)).items) == 2
    with pytest.raises(UnknownAccount):
        await feeds.items("alice.test")
    with pytest.raises(UnknownAccount):
        await feeds.items("did:plc:unknown")


async def test_links_name_the_accounts_that_shared_them(world: World, feeds: Feeds) -> None:
    shared = "https://news.test/a/?utm_source=x"
    people = [person(world, f"{name}.test") for name in ("alice", "bob", "carol")]
    await feeds.add(people)
    for number, did in enumerate(people):
        uri = f"at://{did}/1"
        link = Link("https://news.test/a", "card", "News", shared if number == 0 else "")
        item = Item(
            uri=uri, time=now() - HOUR + number, kind="post", post_uri=uri, author_id=did, links=(link,)
        )
        await feeds.store.add_items(did, [item])
    (ranked,) = (await feeds.links()).links
    assert (ranked.url, ranked.shared_url, ranked.title) == ("https://news.test/a", shared, "News")
    assert (ranked.sharers, ranked.share_count, ranked.today) == (3, 3, 3)
    assert ranked.handles == ("alice.test", "bob.test", "carol.test")
    (ranked,) = (await feeds.links(timedelta(hours=2), max_handles=1)).links
    assert (ranked.sharers, ranked.handles) == (3, ("alice.test",))
    assert (await feeds.links(timedelta(minutes=1))).links == ()


async def test_backfill_reads_back_to_a_time(world: World, feeds: Feeds) -> None:
    alice = person(world, "alice.test", 30, every=5 * HOUR)
    await feeds.add([alice])
    assert isinstance(await feeds.poll(alice), PollSucceeded)
    assert not (await feeds.backfill(alice, timedelta(days=3), wait=False)).is_done
    report = await feeds.backfill(alice, timedelta(days=5))
    assert (report.is_done, report.handle) == (True, "alice.test")
    assert len((await feeds.items(alice, since=timedelta(days=5), limit=100)).items) == 24


async def test_what_another_poller_has_is_left_to_it(world: World, feeds: Feeds) -> None:
    alice = person(world, "alice.test", 1)
    await feeds.add([alice])
    hold = Lease("another", now() + HOUR)
    await feeds.store.update(alice, lambda account: replace(account, lease=hold))
    assert (await feeds.account(alice)).is_leased
    with pytest.raises(PollInProgress):
        await feeds.poll(alice)
    report = await feeds.backfill(alice, timedelta(days=2))
    reason = "alice.test is already being polled by another; try again later"
    assert (report.is_done, report.reason) == (False, reason)
    assert await feeds.due_accounts() == []


async def test_an_audit_yields_a_report_of_each_account(world: World, feeds: Feeds) -> None:
    alice, gone = person(world, "alice.test", 2), person(world, "gone.test")
    await feeds.add([alice, gone])
    await feeds.run_once()
    world.deactivate(gone)
    reports = {report.handle: report async for report in feeds.audit()}
    assert (reports["alice.test"].audit is None, reports["gone.test"].audit is None) == (False, True)
    assert reports["gone.test"].is_failure
    await feeds.run_once()
    (report,) = [report async for report in feeds.audit("gone.test")]
    assert not report.is_failure  # the account is known to be unavailable


async def test_accounts_are_paged_in_the_order_in_which_they_were_added(world: World, feeds: Feeds) -> None:
    people = [person(world, f"user{number}.test") for number in range(5)]
    for did in people:
        await feeds.add([did])
    page = await feeds.account_page(limit=3)
    assert [each.account_id for each in page.accounts] == people[:3]
    page = await feeds.account_page(page.next_account, limit=3)
    assert ([each.account_id for each in page.accounts], page.next_account) == (people[3:], None)


async def test_a_source_without_follow_lists_or_records_says_so() -> None:
    async with (
        await open_storage("memory:") as storage,
        Feeds(FeedStore(storage), source=SimulatedSource()) as feeds,
    ):
        with pytest.raises(RequestRejected, match="sample feeds does not support follow lists"):
            await feeds.follow("alice.example")
        with pytest.raises(RequestRejected, match="sample feeds does not support audits"):
            await anext(feeds.audit())


async def test_what_reads_the_storage_alone_needs_no_source(tmp_path: Path) -> None:
    """Not even valid settings of one."""
    settings = FeedSettings(bluesky=replace(FeedSettings().bluesky, identifier="me.test"))
    async with Feeds.open(url_of(tmp_path / "feeds.db"), settings) as feeds:
        assert (await feeds.status()).summary.accounts == 0
        assert (await feeds.links()).links == ()
