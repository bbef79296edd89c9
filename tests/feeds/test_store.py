"""Accounts and items keep their promises on every engine: found, kept once, listed in order, held by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import anyio
import pytest
from msgspec.structs import replace

from perdure.feeds import transitions
from perdure.feeds.account import Account, AccountStatus, Gap, Lease, StoredAccount, insertion
from perdure.feeds.errors import (
    AccountLeaseLost,
    AccountUnavailable,
    AmbiguousHandle,
    CorruptFeedRecord,
    EditConflict,
    PollInProgress,
    SourceUnavailable,
    UnknownAccount,
)
from perdure.feeds.item import Item, Link, is_storable
from perdure.feeds.lease import LEASE_DURATION, acquire_lease
from perdure.feeds.settings import PollSettings
from perdure.feeds.source import Profile
from perdure.feeds.store import MAX_EDIT_ATTEMPTS, FeedStore
from perdure.storage import Change, Committed, Insert, Record
from perdure.storage.kit import Subject

from ..storage.engines import layer_subject

pytestmark = pytest.mark.anyio

ANNA = "did:plc:anna"
START = 1_794_000_000_000_000


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


class StoreUnderTest(FeedStore):
    def __init__(self, subject: Subject) -> None:
        super().__init__(subject.storage, clock=Hands())
        self.subject = subject


@pytest.fixture
async def store(
    on_engine: str, request: pytest.FixtureRequest, anyio_backend: str
) -> AsyncGenerator[FeedStore]:
    async with layer_subject(on_engine, request.node) as subject:
        yield StoreUnderTest(subject)


def passes(store: FeedStore, micros: int) -> None:
    assert isinstance(store.clock, Hands)
    store.clock.now += micros


async def settle(store: FeedStore) -> None:
    """Return when the verbs across partitions see what was written."""
    assert isinstance(store, StoreUnderTest)
    await store.subject.caught_up()


def account(name: str = ANNA, handle: str = "anna.test") -> Account:
    return transitions.new_account(
        Profile(account_id=name, handle=handle), now=START, settings=PollSettings()
    )


async def added(store: FeedStore, name: str = ANNA, handle: str = "anna.test") -> StoredAccount:
    assert await store.add(account(name, handle))
    return await store.get(name)


def item(number: int, time: int | None = None, **changes: object) -> Item:
    made = Item(
        uri=f"at://{ANNA}/app.bsky.feed.post/{number:04}",
        time=START + number if time is None else time,
        kind="post",
        post_uri=f"at://{ANNA}/app.bsky.feed.post/{number:04}",
        author_id=ANNA,
        text="hello ☃",
        links=(Link("https://example.com/a", "card", "A"),),
    )
    return replace(made, **changes)


# Accounts


async def test_an_account_is_added_once_and_found_by_id_and_by_handle(store: FeedStore) -> None:
    made = await added(store)
    assert not await store.add(account(handle="other.test"))
    await settle(store)
    for name in (ANNA, "anna.test", "@Anna.Test"):
        assert (await store.find(name)).account == made.account
    for name in ("did:plc:unknown", "unknown.test"):
        with pytest.raises(UnknownAccount, match="perdure feeds list"):
            await store.find(name)


async def test_a_handle_that_two_accounts_had_is_not_guessed(store: FeedStore) -> None:
    for name in (ANNA, "did:plc:bob"):
        await added(store, name)
    await settle(store)
    with pytest.raises(AmbiguousHandle, match=f"{ANNA}, did:plc:bob|did:plc:bob, {ANNA}"):
        await store.find("anna.test")


async def test_accounts_are_read_a_page_at_a_time_and_named_by_their_ids(store: FeedStore) -> None:
    accounts = {f"did:plc:{number:03}": f"n{number}.test" for number in range(7)}
    for name, handle in accounts.items():
        await added(store, name, handle)
        passes(store, 1)
    await settle(store)
    seen: list[str] = []
    last, more = None, True
    while more:
        page, more = await store.account_page(last, 3)
        seen += [each.account.account_id for each in page]
        last = page[-1]
    assert sorted(seen) == sorted(accounts)
    assert await store.handles([*accounts, *accounts, "did:plc:unknown"]) == accounts


async def test_a_record_that_is_not_an_account_is_skipped(
    store: FeedStore, caplog: pytest.LogCaptureFixture
) -> None:
    await added(store)
    broken = insertion(account("did:plc:broken")).record
    await store.storage.commit([Insert(record=replace(broken, body="{}"))], now=START)
    await settle(store)
    assert [each.account.account_id async for each in store.accounts()] == [ANNA]
    assert [each.account.account_id for each in await store.due(9)] == [ANNA]
    assert "did:plc:broken: invalid account record" in caplog.text


async def test_accounts_are_listed_in_the_order_they_were_added_and_by_status(store: FeedStore) -> None:
    for number in range(5):
        new = replace(account(f"did:plc:{9 - number}"), added_at=START + number)
        await store.add(new)
    await store.update("did:plc:7", transitions.suspended)
    await settle(store)
    listed = [each.account.account_id async for each in store.accounts()]
    assert listed == [f"did:plc:{9 - number}" for number in range(5)]
    assert [each.account.account_id async for each in store.accounts(AccountStatus.SUSPENDED)] == [
        "did:plc:7"
    ]


async def test_accounts_are_due_in_the_order_of_their_times(store: FeedStore) -> None:
    for number, wait in enumerate((30, 10, 20)):
        await added(store, f"did:plc:{number}")
        await store.update(
            f"did:plc:{number}", lambda each, wait=wait: replace(each, next_poll_at=START + wait)
        )
    await store.update("did:plc:2", transitions.suspended)
    await settle(store)
    assert await store.due(10) == []
    passes(store, 40)
    assert [each.account.account_id for each in await store.due(10)] == ["did:plc:1", "did:plc:0"]


async def test_edits_at_the_same_time_all_take_effect(store: FeedStore) -> None:
    await added(store)

    async def count_one() -> None:
        await store.update(ANNA, lambda each: replace(each, poll_count=each.poll_count + 1))

    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(count_one)
    assert (await store.get(ANNA)).account.poll_count == 6


async def test_everything_about_an_account_comes_back(store: FeedStore) -> None:
    stored = await added(store)
    full = replace(
        stored.account,
        status=AccountStatus.UNAVAILABLE,
        reason="Profile not found",
        watermark=START,
        gaps=(
            Gap(
                cursor="2026-11-15T18:21:31.768Z",
                floor=1,
                late_floor=0,
                cursor_rejections=1,
                is_restarted=True,
            ),
        ),
        etag='W/"abc"',
        consecutive_failures=2,
        last_polled_at=START,
        posts_fetched_count=7,
        unseen_posts=3,
    )
    assert await store.replace(stored, full) is not None
    assert (await store.get(ANNA)).account == full


async def test_a_removed_account_keeps_its_items_unless_asked_to_delete_them(store: FeedStore) -> None:
    await added(store)
    await store.add_items(ANNA, [item(n) for n in range(60)])
    await store.remove(ANNA)
    with pytest.raises(UnknownAccount):
        await store.get(ANNA)
    assert await store.count_items(ANNA) == 60
    await added(store)
    await store.remove(ANNA, with_items=True)
    assert await store.count_items(ANNA) == 0


# Items


async def test_an_item_is_kept_once_however_often_it_is_read(store: FeedStore) -> None:
    page = [item(n) for n in range(60)]
    assert await store.add_items(ANNA, page[:40]) == page[:40]
    assert await store.add_items(ANNA, [*page, page[0]]) == page[40:]
    assert await store.missing_items(ANNA, [*page, item(99)]) == [item(99)]
    assert await store.count_items(ANNA) == 60


async def test_what_is_known_stays_as_it_was_first_read(store: FeedStore) -> None:
    await store.add_items(ANNA, [item(1)])
    assert await store.add_items(ANNA, [item(1, text="edited", time=5)]) == []
    assert [each async for each in store.newest_items(ANNA)] == [(ANNA, item(1))]


async def test_items_are_listed_newest_first_across_accounts_and_within_one(store: FeedStore) -> None:
    await store.add_items(ANNA, [item(1), item(3), item(5, kind="repost")])
    await store.add_items("did:plc:bob", [item(2), item(4)])
    await settle(store)
    accounts = [(who, each.time - START) async for who, each in store.newest_items()]
    assert accounts == [(ANNA, 5), ("did:plc:bob", 4), (ANNA, 3), ("did:plc:bob", 2), (ANNA, 1)]
    assert [each.time - START async for _, each in store.newest_items(ANNA, since=START + 3)] == [5, 3]
    assert [each.time - START async for _, each in store.newest_items(ANNA, kind="repost")] == [5]


async def test_a_time_before_1970_stands_at_its_beginning(store: FeedStore) -> None:
    ancient = item(1, time=-62_135_596_800_000_000)
    assert await store.add_items(ANNA, [ancient]) == [ancient]
    assert [each async for each in store.newest_items(ANNA)] == [(ANNA, ancient)]


async def test_as_many_of_the_largest_items_fit_into_a_commit_as_it_takes(store: FeedStore) -> None:
    large = [item(n, text="x" * 64_000) for n in range(25)]
    assert all(is_storable(each) for each in large)
    assert await store.add_items(ANNA, large) == large


def test_what_fits_into_a_record_is_distinguished_from_what_does_not() -> None:
    assert is_storable(item(1))
    for odd in (
        item(1, uri=""),
        item(1, uri="at://" + "x" * 300),
        item(1, uri="a\0b"),
        item(1, text="\ud800"),
        item(1, uri="\ud800"),
        item(1, text="x" * 300_000),
    ):
        assert not is_storable(odd), odd.uri[:20]


async def test_a_nul_within_a_text_can_be_stored(store: FeedStore) -> None:
    assert is_storable(item(1, text="a\0b"))
    await store.add_items(ANNA, [item(1, text="a\0b")])
    assert [each async for each in store.newest_items(ANNA)] == [(ANNA, item(1, text="a\0b"))]


# Leases


async def test_one_poller_at_a_time_leases_an_account(store: FeedStore) -> None:
    stored = await added(store)
    async with acquire_lease(store, stored, "first"):
        current = await store.get(ANNA)
        for seen in (stored, current):
            with pytest.raises(PollInProgress):
                async with acquire_lease(store, seen, "second"):
                    pass
    async with acquire_lease(store, await store.get(ANNA), "second") as held:
        assert held.account.lease is not None


@pytest.mark.parametrize("is_native", [True, False], ids=["Task.cancel", "cancel scope"])
async def test_a_lease_is_released_if_it_is_cancelled_while_it_is_written(
    store: FeedStore, monkeypatch: pytest.MonkeyPatch, *, is_native: bool
) -> None:
    stored = await added(store)
    written, resume = anyio.Event(), anyio.Event()
    replace_account = store.replace

    async def slow_replace(
        stored: StoredAccount, account: Account, also: Sequence[Change] = ()
    ) -> StoredAccount | None:
        after = await replace_account(stored, account, also)
        written.set()
        await resume.wait()
        return after

    async def poll() -> None:
        async with acquire_lease(store, stored, "poller"):
            pytest.fail("it was not cancelled")

    monkeypatch.setattr(store, "replace", slow_replace)
    if is_native:
        task = asyncio.create_task(poll())
        await written.wait()
        task.cancel()
        await asyncio.sleep(0)
        resume.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        async with anyio.create_task_group() as group:
            group.start_soon(poll)
            await written.wait()
            group.cancel_scope.cancel()
            resume.set()
    account = (await store.get(ANNA)).account
    assert (account.lease, account.next_poll_at) == (None, stored.account.next_poll_at)


async def test_a_leased_account_is_not_due_until_the_lease_expires(store: FeedStore) -> None:
    stored = await added(store)
    async with acquire_lease(store, stored, "first"):
        await settle(store)
        assert await store.due(9) == []
        passes(store, LEASE_DURATION)
        await settle(store)
        assert [each.account.account_id for each in await store.due(9)] == [ANNA]


async def test_who_lost_an_account_writes_nothing_more(store: FeedStore) -> None:
    stored = await added(store)
    async with acquire_lease(store, stored, "slow") as slow:
        passes(store, LEASE_DURATION)
        async with acquire_lease(store, await store.get(ANNA), "quick") as quick:
            await quick.update(lambda each: replace(each, watermark=7))
            with pytest.raises(AccountLeaseLost):
                await slow.update(lambda each: replace(each, watermark=3))
            assert (await store.get(ANNA)).account.watermark == 7
            assert quick.is_valid
    after = (await store.get(ANNA)).account
    assert (after.watermark, after.lease) == (7, None)


async def test_who_learns_of_the_loss_at_a_heartbeat_writes_nothing_more_either(store: FeedStore) -> None:
    stored = await added(store)
    async with acquire_lease(store, stored, "slow") as slow:
        passes(store, LEASE_DURATION)
        async with acquire_lease(store, await store.get(ANNA), "quick") as quick:
            with pytest.raises(AccountLeaseLost):
                await slow.update(lambda each: each)  # which is what a heartbeat writes
            with pytest.raises(AccountLeaseLost):
                await slow.update(lambda each: replace(each, watermark=3))
            await quick.update(lambda each: replace(each, watermark=7))
    assert (await store.get(ANNA)).account.watermark == 7


async def test_an_account_that_was_edited_since_it_was_listed_can_still_be_held(store: FeedStore) -> None:
    listed = await added(store)
    await store.update(ANNA, lambda each: replace(each, handle="new.test"))
    async with acquire_lease(store, listed, "me") as held:
        assert held.account.handle == "new.test"


async def test_one_that_was_polled_since_it_was_listed_cannot(store: FeedStore) -> None:
    listed = await added(store)
    await store.update(ANNA, lambda each: replace(each, poll_count=1))
    with pytest.raises(PollInProgress):
        async with acquire_lease(store, listed, "me"):
            pass


async def test_one_that_became_unavailable_after_a_failure_since_it_was_listed_cannot(
    store: FeedStore,
) -> None:
    await added(store)
    await store.update(ANNA, lambda each: transitions.poll_failed(each, SourceUnavailable("down"), now=5))
    listed = await store.get(ANNA)
    await store.update(ANNA, lambda each: transitions.poll_failed(each, AccountUnavailable("gone"), now=6))
    with pytest.raises(PollInProgress):
        async with acquire_lease(store, listed, "me"):
            pass


async def test_an_account_that_was_suspended_while_its_poller_died_is_not_due(store: FeedStore) -> None:
    stored = await added(store)
    async with acquire_lease(store, stored, "dying"):
        await store.update(ANNA, transitions.suspended)
        passes(store, 2 * LEASE_DURATION)
        await settle(store)
        assert await store.due(9) == []


async def test_what_an_operator_changes_during_a_poll_is_not_undone(store: FeedStore) -> None:
    stored = await added(store)
    async with acquire_lease(store, stored, "me") as held:
        await store.update(ANNA, transitions.suspended)
        await held.update(lambda each: replace(each, watermark=7))
    after = (await store.get(ANNA)).account
    assert (after.status, after.watermark, after.lease) == (AccountStatus.SUSPENDED, 7, None)


async def test_a_lease_is_released_when_its_poll_fails(store: FeedStore) -> None:
    stored = await added(store)
    with pytest.raises(RuntimeError, match="broken"):
        async with acquire_lease(store, stored, "me"):
            raise RuntimeError("broken")
    assert (await store.get(ANNA)).account == stored.account


async def test_the_lease_of_an_account_that_was_removed_is_lost(store: FeedStore) -> None:
    stored = await added(store)
    async with acquire_lease(store, stored, "me") as held:
        await store.remove(ANNA)
        with pytest.raises(AccountLeaseLost, match="removed"):
            await held.update(lambda each: replace(each, watermark=7))


async def test_each_write_makes_the_hold_last_anew(store: FeedStore) -> None:
    stored = await added(store)
    async with acquire_lease(store, stored, "me") as held:
        for _ in range(3):
            passes(store, LEASE_DURATION - 1)
            await held.update(lambda each: each)
            with pytest.raises(PollInProgress):
                async with acquire_lease(store, await store.get(ANNA), "other"):
                    pass
        assert isinstance(held.account.lease, Lease)


# Errors


async def test_an_account_that_others_change_all_the_time_is_busy(store: FeedStore) -> None:
    await added(store)

    def in_a_race(account: Account) -> Account:
        races.append(account.handle)
        return replace(account, handle=f"mine{len(races)}.test")

    races: list[str] = []
    rival = Rival(store)
    with pytest.raises(EditConflict, match="too many concurrent changes to did:plc:anna") as caught:
        await rival.update(ANNA, in_a_race)
    assert (caught.value.retryable, caught.value.account_id) == (True, ANNA)
    assert len(races) == MAX_EDIT_ATTEMPTS
    assert (
        await store.get(ANNA)
    ).account.consecutive_failures == MAX_EDIT_ATTEMPTS  # the other was always quicker


class Rival(FeedStore):
    """A store in which another client writes the account after each read."""

    def __init__(self, store: FeedStore) -> None:
        super().__init__(store.storage, clock=store.clock)

    async def get(self, account_id: str) -> StoredAccount:
        stored = await super().get(account_id)
        failed = replace(stored.account, consecutive_failures=stored.account.consecutive_failures + 1)
        assert await self.replace(stored, failed) is not None
        return stored


async def test_an_account_that_is_changed_before_each_try_to_remove_it_is_busy(store: FeedStore) -> None:
    await added(store)
    with pytest.raises(EditConflict):
        await Rival(store).remove(ANNA)
    assert (await store.get(ANNA)).account.handle == "anna.test"


async def test_a_record_that_is_not_an_account_is_reported_as_corrupt(store: FeedStore) -> None:
    stored = await added(store)
    await damage(store, stored.record)
    with pytest.raises(CorruptFeedRecord, match="invalid account record") as caught:
        await store.get(ANNA)
    assert caught.value.key == stored.record.partition


async def damage(store: FeedStore, record: Record) -> None:
    """Write a body that is neither an account nor an item."""
    change = record.replace_with(body='{"handle": 1}', tag=record.tag)
    assert isinstance(await store.storage.commit([change], now=store.clock()), Committed)
