"""Whole cycles over real HTTP: what befalls the source in the middle of one costs no account anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest

from perdure.feeds import CycleStats, FeedSettings, FeedStore, Poller, PollOutcome, PollSettings, transitions
from perdure.feeds.bluesky import BlueskySource, open_bluesky
from perdure.feeds.errors import AuthenticationFailed
from perdure.feeds.settings import BlueskySettings
from perdure.storage import open_storage
from perdure.storage.time_types import MINUTE

from ..conditions import wait_until
from .fake_server import FakeBluesky, Fault, populate
from .simulation import World

pytestmark = pytest.mark.anyio

ACCOUNTS = 40
TIGHT = 5
PASSWORD = {"PERDURE_BLUESKY_PASSWORD": "abcd-efgh"}
QUICK = PollSettings(max_retries=1, retry_backoff_ms=1)


class Town:
    """Accounts that are polled with credentials."""

    def __init__(self, fake: FakeBluesky, store: FeedStore, bluesky: BlueskySource, dids: list[str]) -> None:
        self.fake = fake
        self.store = store
        self.bluesky = bluesky
        self.dids = dids

    async def once(self, midway: Callable[[], object] = lambda: None) -> CycleStats:
        """A cycle in which something happens when a quarter of the accounts are done."""
        done = 0

        def on_outcome(outcome: PollOutcome) -> None:
            nonlocal done
            done += 1
            if done == ACCOUNTS // 4:
                midway()

        return await Poller(self.store, self.bluesky, QUICK, on_outcome=on_outcome).run_once()

    async def is_complete(self) -> bool:
        for did in self.dids:
            stored = {item.uri: item.time async for _, item in self.store.newest_items(did)}
            if stored != self.fake.world.everything_of(did):
                return False
        return True


@pytest.fixture
async def town() -> AsyncGenerator[Town]:
    world = World()
    dids = populate(world, accounts=ACCOUNTS, posts=30, every=MINUTE)
    reader = world.account("reader.test")
    async with FakeBluesky(world, requires_auth=True) as fake, await open_storage("memory:") as storage:
        fake.sessions.passwords[reader] = "abcd-efgh"
        settings = BlueskySettings(service=fake.url, pds=fake.url, identifier="reader.test")
        async with open_bluesky(FeedSettings(polling=QUICK, bluesky=settings), environ=PASSWORD) as bluesky:
            store = FeedStore(storage, clock=lambda: world.now)
            for profile in await bluesky.profiles(dids):
                await store.add(transitions.new_account(profile, now=world.now, settings=QUICK))
            yield Town(fake, store, bluesky, dids)


async def test_a_cycle_stores_everything_and_the_next_one_costs_a_request_each(town: Town) -> None:
    first = await town.once()
    assert (first.polled, first.failed, first.new_items) == (ACCOUNTS, 0, ACCOUNTS * 30)
    assert first.new_links == ACCOUNTS * 30
    assert await town.is_complete()
    town.fake.log.clear()
    assert (await town.once()).new_items == 0
    assert [each.status for each in town.fake.log] == [304] * ACCOUNTS


async def test_a_token_that_runs_out_midway_is_no_account_s_fault(town: Town) -> None:
    cycle = await town.once(lambda: town.fake.sessions.expire("access"))
    assert (cycle.polled, cycle.failed) == (ACCOUNTS, 0)
    assert await town.is_complete()
    assert 400 in {each.status for each in town.fake.asked()}


async def test_a_rate_limit_midway_is_waited_out(town: Town) -> None:
    """It is a tight limit that was not announced; once a request was refused, it is wide again."""
    fake, limit = town.fake, town.fake.limit
    fake.latency = 0.01

    async def widen() -> None:
        await wait_until(lambda: fake.in_flight > TIGHT, seconds=20)
        fake.gate.set()
        while not limit.refused:  # noqa: ASYNC110 - the server has no word for this
            await asyncio.sleep(0)
        limit.most = 1000

    widening: list[asyncio.Task[None]] = []

    def tighten() -> None:
        limit.set(TIGHT, seconds=1)
        fake.gate.clear()
        widening.append(asyncio.create_task(widen()))

    cycle = await town.once(tighten)
    await asyncio.gather(*widening)
    assert (cycle.polled, cycle.failed) == (ACCOUNTS, 0)
    assert 0 < limit.refused <= QUICK.connections
    assert await town.is_complete()


async def test_a_page_of_garbage_is_counted_and_the_rest_is_stored(town: Town) -> None:
    for uri in town.fake.world.everything_of(town.dids[0]):
        town.fake.world.spoil(uri)
    cycle = await town.once()
    assert (cycle.polled, cycle.failed, cycle.invalid_records) == (ACCOUNTS, 0, 30)
    assert await town.is_complete()
    assert (await town.store.get(town.dids[0])).account.invalid_records == 30


async def test_answers_that_break_now_and_then_lose_nothing(town: Town) -> None:
    for how in ("cut", "truncated", "nonsense", "dropped"):
        town.fake.fail(Fault(how=how, status=200, times=None, chance=0.1))
    cycles = [await town.once() for _ in range(6)]
    assert sum(cycle.new_items for cycle in cycles) == ACCOUNTS * 30
    assert await town.is_complete()


async def test_an_account_that_went_away_is_skipped_and_the_others_are_read(town: Town) -> None:
    gone = town.dids.pop()
    town.fake.world.deactivate(gone)
    cycle = await town.once()
    assert (cycle.polled, cycle.skipped, cycle.failed) == (ACCOUNTS - 1, 1, 0)
    assert await town.is_complete()


async def test_wrong_credentials_end_a_cycle_at_once(town: Town) -> None:
    def change_password() -> None:
        town.fake.sessions.passwords.clear()
        town.fake.sessions.revoke()

    with pytest.raises(AuthenticationFailed):
        await town.once(change_password)
    active = [stored.account async for stored in town.store.accounts()]
    assert {account.consecutive_failures for account in active} == {0}
    assert any(account.watermark is None for account in active)
