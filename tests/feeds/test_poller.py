"""Many accounts: each at its time, by one poller at once, and a failure affects no other account."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from perdure.feeds import (
    Account,
    AccountStatus,
    FeedPage,
    FeedStore,
    Poller,
    PollFailed,
    PollOutcome,
    PollSettings,
    PollSkipped,
    PollSucceeded,
    transitions,
    watermark_and_gaps,
)
from perdure.feeds.alarms import Alarm, find_alarms
from perdure.feeds.errors import AuthenticationFailed, PollInProgress, SourceUnavailable
from perdure.feeds.source import FeedSource
from perdure.feeds.transitions import MAX_POLL_INTERVAL, MIN_POLL_INTERVAL
from perdure.storage import Change, Committed, Guard, Micros, Refused, Storage
from perdure.storage.errors import StorageFull
from perdure.storage.memory import MemoryEngine
from perdure.storage.time_types import HOUR, MINUTE

from ..forwarding_engine import ForwardingEngine
from .simulation import HintingWorldSource, Question, World, WorldSource
from .virtual_time import in_virtual_time, virtual_clock

TEN = PollSettings(posts_per_page=10)


class Stage:
    """A world, a store, and pollers on it. Built within a virtual loop."""

    def __init__(self, accounts: int = 3, posts: int = 4) -> None:
        self.clock = virtual_clock()
        self.world = World(clock=self.clock)
        self.dids = [self.world.account(f"user{number}.test") for number in range(accounts)]
        for did in self.dids:
            self.publish(did, posts)
        self.source = WorldSource(self.world)
        self.store = FeedStore(Storage(MemoryEngine()), clock=self.clock)
        self.outcomes: list[PollOutcome] = []

    def publish(self, did: str, count: int = 1) -> None:
        for number in range(count):
            self.world.publish(did, "post", at=self.clock() - (count - number) * 1_000_000)

    async def open(self) -> None:
        for profile in await self.source.profiles(self.dids):
            await self.store.add(transitions.new_account(profile, now=self.clock(), settings=TEN))

    def poller(self, name: str = "me", source: FeedSource | None = None) -> Poller:
        return Poller(self.store, source or self.source, TEN, on_outcome=self.outcomes.append, name=name)

    async def account(self, did: str) -> Account:
        return (await self.store.get(did)).account

    async def missing(self) -> set[str]:
        """What is there and was not found."""
        found = {item.uri async for _, item in self.store.newest_items()}
        return {uri for did in self.dids for uri in self.world.everything_of(did)} - found


@asynccontextmanager
async def running(poller: Poller) -> AsyncGenerator[None]:
    task = asyncio.create_task(poller.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def staged(accounts: int = 3, posts: int = 4) -> Stage:
    stage = Stage(accounts, posts)
    await stage.open()
    return stage


async def alarms_of(stage: Stage) -> tuple[Alarm, ...]:
    accounts = [stored.account async for stored in stage.store.accounts()]
    return find_alarms(accounts, now=stage.clock())


def failing(error: Exception, actor: str) -> Callable[[Question], Awaitable[None]]:
    async def before(question: Question) -> None:
        await asyncio.sleep(0.05)
        if question.actor == actor:
            raise error

    return before


# A cycle


@in_virtual_time
async def test_a_cycle_polls_each_account_once_and_reports_what_it_found() -> None:
    stage = await staged()
    cycle = await stage.poller().run_once()
    assert (cycle.polled, cycle.initial, cycle.new_items, cycle.pages, cycle.with_new_items) == (
        3,
        3,
        12,
        3,
        3,
    )
    assert [type(outcome) for outcome in stage.outcomes] == [PollSucceeded] * 3
    assert await stage.missing() == set()
    again = await stage.poller().run_once()
    assert (again.polled, again.initial, again.new_items, again.pages) == (3, 0, 0, 3)


@in_virtual_time
async def test_one_account_s_failure_does_not_end_the_cycle() -> None:
    stage = await staged()
    stage.source.before = failing(SourceUnavailable("cut off"), stage.dids[1])
    cycle = await stage.poller().run_once()
    assert (cycle.polled, cycle.failed) == (2, 1)
    (failed,) = [outcome for outcome in stage.outcomes if isinstance(outcome, PollFailed)]
    assert (failed.account.consecutive_failures, failed.account.reason) == (1, "cut off")
    account = await stage.account(stage.dids[1])
    assert (account.status, account.lease) == (AccountStatus.ACTIVE, None)
    assert account.next_poll_at > stage.clock()


@in_virtual_time
async def test_wrong_credentials_end_the_cycle_at_once_and_are_no_account_s_fault() -> None:
    stage = await staged(accounts=60)
    stage.source.before = failing(AuthenticationFailed("Authentication Required"), stage.dids[5])
    with pytest.raises(AuthenticationFailed):
        await stage.poller().run_once()
    assert len(stage.source.asked) < 60
    for did in stage.dids:
        account = await stage.account(did)
        assert (account.status, account.consecutive_failures, account.lease) == (
            AccountStatus.ACTIVE,
            0,
            None,
        )


@in_virtual_time
async def test_wrong_credentials_end_a_run_too() -> None:
    stage = await staged()
    stage.source.before = failing(AuthenticationFailed("Authentication Required"), stage.dids[0])
    with pytest.raises(AuthenticationFailed):
        await stage.poller().run()


# Accounts that come and go


@in_virtual_time
async def test_an_account_that_is_gone_is_skipped_probed_and_found_again_with_all_its_posts() -> None:
    stage = await staged(accounts=1)
    (did,) = stage.dids
    stage.world.deactivate(did)
    async with running(stage.poller()):
        await asyncio.sleep(60)
        assert [type(outcome) for outcome in stage.outcomes] == [PollSkipped]
        account = await stage.account(did)
        assert (account.status, account.reason) == (AccountStatus.UNAVAILABLE, "Profile not found")
        await asyncio.sleep(1800)
        assert len(stage.outcomes) == 1
        await asyncio.sleep(3600)
        assert len(stage.outcomes) == 2
        stage.world.come_back(did)
        stage.publish(did, 3)
        await asyncio.sleep(7 * 3600)
    account = await stage.account(did)
    assert (account.status, account.reason, account.consecutive_failures) == (AccountStatus.ACTIVE, "", 0)
    assert await stage.missing() == set()


@in_virtual_time
async def test_a_renamed_account_is_polled_under_its_did_and_its_new_name_is_learnt() -> None:
    stage = await staged(accounts=1)
    (did,) = stage.dids
    await stage.poller().run_once()
    stage.world.rename(did, "other.test")
    stage.publish(did)
    await stage.poller().run_once()
    assert await stage.missing() == set()
    await asyncio.sleep(3600)
    await stage.poller().refresh_profiles()
    assert (await stage.store.find("other.test")).account.account_id == did


@in_virtual_time
async def test_a_suspended_account_is_not_polled_until_it_is_resumed() -> None:
    stage = await staged(accounts=1)
    (did,) = stage.dids
    await stage.store.update(did, transitions.suspended)
    async with running(stage.poller()):
        await asyncio.sleep(24 * 3600)
        assert (await stage.poller().run_once()).polled == 0
        assert stage.outcomes == []
        await stage.store.update(did, lambda each: transitions.resumed(each, now=stage.clock()))
        await asyncio.sleep(60)
        assert len(stage.outcomes) == 1


@in_virtual_time
async def test_an_account_that_is_suspended_while_it_is_polled_stays_so() -> None:
    stage = await staged(accounts=1)
    (did,) = stage.dids

    async def suspend(_: Question) -> None:
        await stage.store.update(did, transitions.suspended)

    stage.source.before = suspend
    await stage.poller().run_once()
    account = await stage.account(did)
    assert (account.status, account.lease) == (AccountStatus.SUSPENDED, None)
    assert await stage.missing() == set()


@in_virtual_time
async def test_what_is_reset_while_it_is_polled_is_read_again_from_the_look_back() -> None:
    stage = await staged(accounts=1, posts=50)
    (did,) = stage.dids
    await stage.poller().run_once()
    stage.publish(did)

    async def reset(question: Question) -> None:
        stage.source.before = None
        await stage.store.update(did, lambda each: transitions.reset(each, now=stage.clock()))

    stage.source.before = reset
    asked = len(stage.source.asked)
    cycle = await stage.poller().run_once()
    assert (cycle.new_items, len(stage.source.asked) - asked) == (1, 6)


@in_virtual_time
async def test_a_backfill_finds_what_lies_below_the_look_back_and_nothing_twice() -> None:
    stage = await staged(accounts=1, posts=2)
    (did,) = stage.dids
    for days in range(2, 40):
        stage.world.publish(did, "old", at=stage.clock() - days * 24 * HOUR)
    await stage.poller().run_once()
    assert len(await stage.missing()) > 25
    since = stage.clock() - 60 * 24 * HOUR
    await stage.store.update(
        did, lambda each: watermark_and_gaps.add_backfill_gap(each, since, now=stage.clock())
    )
    before = await stage.store.count_items(did)
    cycle = await stage.poller().run_once()
    assert await stage.missing() == set()
    assert cycle.new_items == await stage.store.count_items(did) - before


# Two pollers


@in_virtual_time
async def test_two_pollers_share_the_accounts_and_never_read_one_at_the_same_time() -> None:
    stage = await staged(accounts=40, posts=25)
    in_flight: set[str] = set()

    async def busy(question: Question) -> None:
        if question.kind != "page":
            return
        assert question.actor not in in_flight
        in_flight.add(question.actor)
        try:
            await asyncio.sleep(0.05)
        finally:
            in_flight.discard(question.actor)

    stage.source.before = busy
    async with running(stage.poller("one")), running(stage.poller("two")):
        for _ in range(30):
            await asyncio.sleep(600)
            for did in stage.dids:
                stage.publish(did)
    await stage.poller("three").run_once()
    assert [outcome for outcome in stage.outcomes if not isinstance(outcome, PollSucceeded)] == []
    assert await stage.missing() == set()


@in_virtual_time
async def test_an_account_that_is_being_polled_is_refused_to_others() -> None:
    stage = await staged(accounts=1)
    (did,) = stage.dids
    stored = await stage.store.get(did)
    stage.source.before = failing(SourceUnavailable("slow"), "unknown")
    first = asyncio.create_task(stage.poller("one").poll(stored))
    await asyncio.sleep(0.01)
    with pytest.raises(PollInProgress):
        await stage.poller("two").poll(await stage.store.get(did))
    assert isinstance(await first, PollSucceeded)


@in_virtual_time
async def test_a_poll_that_takes_longer_than_a_hold_keeps_its_account() -> None:
    stage = await staged(accounts=1)

    async def slow(_: Question) -> None:
        await asyncio.sleep(600)

    stage.source.before = slow
    async with running(stage.poller("one")), running(stage.poller("two")):
        await asyncio.sleep(700)
    assert [type(outcome) for outcome in stage.outcomes] == [PollSucceeded]


# Time


@in_virtual_time
async def test_each_account_is_polled_at_a_pace_that_follows_its_own() -> None:
    stage = await staged(accounts=2, posts=1)
    busy, quiet = stage.dids
    async with running(stage.poller()):
        for _ in range(24 * 12):
            await asyncio.sleep(300)
            stage.publish(busy)
    often, rarely = [(await stage.account(did)) for did in (busy, quiet)]
    assert MIN_POLL_INTERVAL <= often.poll_interval <= 15 * MINUTE
    assert rarely.poll_interval == MAX_POLL_INTERVAL
    assert often.poll_count > 8 * rarely.poll_count
    assert often.posts_fetched_count >= 280


@in_virtual_time
async def test_a_hint_brings_a_poll_forward() -> None:
    stage = await staged(accounts=2, posts=1)
    reader = stage.world.account("reader.test")
    for did in stage.dids:
        stage.world.follow(reader, did)
    source = HintingWorldSource(stage.world, reader)
    async with running(stage.poller(source=source)):
        await asyncio.sleep(48 * 3600)
        stage.publish(stage.dids[0])
        await asyncio.sleep(120)
        assert await stage.missing() == set()


class Stuck(WorldSource):
    """Its feeds have stopped moving, though the accounts have not."""

    async def page(
        self, account_id: str, *, limit: int, cursor: str | None = None, etag: str | None = None
    ) -> FeedPage | None:
        return None


@in_virtual_time
async def test_profiles_that_count_more_than_polls_find_are_an_alarm() -> None:
    stage = await staged(accounts=2)
    poller = stage.poller()
    await poller.run_once()
    await asyncio.sleep(3600)
    await poller.refresh_profiles()
    stuck = stage.poller(source=Stuck(stage.world))
    for _ in range(3):
        stage.publish(stage.dids[0])
        await asyncio.sleep(3600)
        await stuck.refresh_profiles()
        await stuck.run_once()
    (alarm,) = [each for each in await alarms_of(stage) if each.kind != "late"]
    assert (alarm.kind, alarm.count) == ("unseen", 1)
    assert "profiles count 3 more" in alarm.message
    await poller.run_once()
    assert await alarms_of(stage) == ()


# What can go wrong


@in_virtual_time
async def test_any_number_of_connections_will_do() -> None:
    stage = await staged()
    many = Poller(stage.store, stage.source, PollSettings(connections=1000), on_outcome=stage.outcomes.append)
    async with running(many):
        await asyncio.sleep(60)
    assert len(stage.outcomes) == 3


class Full(ForwardingEngine):
    """A storage that has no room left."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        raise StorageFull("no room left")


@in_virtual_time
async def test_a_storage_that_refuses_writes_is_not_flooded() -> None:
    stage = await staged()
    full = FeedStore(Storage(Full(stage.store.storage)), clock=stage.clock)
    async with running(Poller(full, stage.source, TEN, on_outcome=stage.outcomes.append)):
        await asyncio.sleep(600)
    assert 3 <= len(stage.outcomes) <= 3 * 11
    assert {type(outcome) for outcome in stage.outcomes} == {PollFailed}
    async with running(stage.poller()):
        await asyncio.sleep(60)
    assert await stage.missing() == set()


@in_virtual_time
async def test_a_source_that_breaks_in_its_own_way_spoils_one_account_alone() -> None:
    stage = await staged()
    stage.source.before = failing(ZeroDivisionError("oops"), stage.dids[1])
    async with running(stage.poller()):
        await asyncio.sleep(30)
    assert sorted(type(outcome).__name__ for outcome in stage.outcomes) == [
        "PollFailed",
        "PollSucceeded",
        "PollSucceeded",
    ]


class Circular(WorldSource):
    """Its cursors lead in a circle, and never to the end."""

    pages = 0

    async def page(
        self, account_id: str, *, limit: int, cursor: str | None = None, etag: str | None = None
    ) -> FeedPage | None:
        self.pages += 1
        page = await super().page(account_id, limit=limit)
        assert page is not None
        return FeedPage(items=page.items, cursor={None: "a", "a": "b", "b": "c", "c": "a"}[cursor])


@in_virtual_time
async def test_cursors_that_lead_in_a_circle_are_left() -> None:
    stage = await staged(accounts=1, posts=20)
    source = Circular(stage.world)
    await stage.poller(source=source).run_once()
    account = await stage.account(stage.dids[0])
    assert (account.gaps, source.pages) == ((), 4)


class Empty(WorldSource):
    """Its pages are empty, and there is always another one."""

    pages = 0

    async def page(
        self, account_id: str, *, limit: int, cursor: str | None = None, etag: str | None = None
    ) -> FeedPage | None:
        self.pages += 1
        return FeedPage(items=(), cursor=f"{self.pages}")


@in_virtual_time
async def test_an_endless_row_of_empty_pages_is_walked_at_the_account_s_own_pace() -> None:
    stage = await staged(accounts=1)
    source = Empty(stage.world)
    async with running(stage.poller(source=source)):
        await asyncio.sleep(600)
    assert source.pages == TEN.max_pages_per_user


@in_virtual_time
async def test_accounts_that_are_edited_while_a_cycle_waits_for_them_are_polled_all_the_same() -> None:
    stage = await staged(accounts=60)
    edited = False

    async def edit_all(_: Question) -> None:
        nonlocal edited
        if not edited:
            edited = True
            for did in stage.dids:
                await stage.store.update(did, lambda each: transitions.hinted(each, newest=1, now=1))

    stage.source.before = edit_all
    assert (await stage.poller().run_once()).polled == 60
