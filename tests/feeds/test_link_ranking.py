"""The ranking from summaries is the one that counting every item gives, whatever happens to the items."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure.feeds import FeedPage, FeedStore, Item, Link, LinkIndex, transitions
from perdure.feeds.item import ITEMS
from perdure.feeds.link_invalidation import MARK_LIFETIME, MAX_CLOCK_SKEW
from perdure.feeds.settings import PollSettings
from perdure.feeds.source import Profile
from perdure.storage import Change, Committed, Guard, Micros, Refused, Storage
from perdure.storage.errors import StorageError
from perdure.storage.memory import MemoryEngine
from perdure.storage.time_types import DAY, HOUR, MINUTE

from ..forwarding_engine import ForwardingEngine
from .crash_points import CrashPoint, SimulatedCrash, Trouble, crashing_store
from .histories import History
from .histories import settings as polling
from .shared_links import counted, random_item, recounted
from .simulation import WorldSource
from .virtual_time import run

START = 1_794_000_000_000_000
ACCOUNTS = [f"did:plc:{name}" for name in ("anna", "bob", "carl")]
SETTLED = MARK_LIFETIME + MAX_CLOCK_SKEW
SPANS = (HOUR, 5 * HOUR + 7, DAY, 2 * DAY, 3 * DAY + HOUR // 2, 7 * DAY, 30 * DAY, 40 * DAY)


class Times:
    """Several processes on one storage, whose clock is set by hand."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.now = START
        storage = Storage(MemoryEngine())
        self.stores = [FeedStore(storage, clock=lambda: self.now) for _ in range(2)]

    @property
    def store(self) -> FeedStore:
        return self.chance.choice(self.stores)

    async def share(self, back: Micros) -> None:
        await self.store.add_items(*self.some_items(back))

    def some_items(self, back: Micros) -> tuple[str, list[Item]]:
        account_id = self.chance.choice(ACCOUNTS)
        count = self.chance.randint(1, 30)
        times = [self.now - self.chance.randint(0, back) for _ in range(count)]
        return account_id, [random_item(self.chance, account_id, time) for time in times]

    async def share_and_die(self, back: Micros) -> None:
        """Store items, and be killed at any step, or lose the line."""
        life = self.chance.choice((CrashPoint, Trouble))(self.chance.randint(0, 8))
        store = crashing_store(self.store, life)
        with suppress(SimulatedCrash, StorageError):
            await store.add_items(*self.some_items(back))

    async def delete(self) -> None:
        account_id, store = self.chance.choice(ACCOUNTS), self.store
        profile = Profile(account_id=account_id, handle="x.test")
        await store.add(transitions.new_account(profile, now=self.now, settings=PollSettings()))
        await store.remove(account_id, with_items=True)

    async def step(self) -> None:
        back = self.chance.choice((HOUR // 4, 3 * HOUR, DAY, 9 * DAY, 45 * DAY))
        match self.chance.choices(range(6), (5, 2, 1, 3, 4, 3))[0]:
            case 0:
                await self.share(back)
            case 1:
                await self.share_and_die(back)
            case 2:
                await self.delete()
            case 3:
                await LinkIndex(self.store).refresh(max_items=self.chance.choice((1, 50, 10_000)))
            case 4:
                self.now += self.chance.choice((1, MINUTE, SETTLED, HOUR, 5 * HOUR, DAY))
            case _:
                await self.check(self.chance.choice(SPANS))

    async def check(self, span: Micros) -> None:
        limit = self.chance.choice((3, 50))
        ranking = await LinkIndex(self.store).ranking(self.now - span, limit=limit)
        assert ranking.missing_hours == 0
        assert counted(ranking.links) == await recounted(self.store, self.now - span, limit)


@given(seed=st.integers(0, 2**32), length=st.integers(1, 40))
def test_a_ranking_is_what_counting_every_item_gives(seed: int, length: int) -> None:
    """Two processes, items that come late, deletions, kills between a mark and its items."""

    async def one() -> None:
        times = Times(seed)
        for _ in range(length):
            await times.step()
        for wait in (0, SETTLED, HOUR):
            times.now += wait
            for span in SPANS:
                await times.check(span)

    run(one())


# Polls


class Sharing(WorldSource):
    """A source whose items share one of a few links each."""

    async def page(
        self, account_id: str, *, limit: int, cursor: str | None = None, etag: str | None = None
    ) -> FeedPage | None:
        page = await super().page(account_id, limit=limit, cursor=cursor, etag=etag)
        return page and replace(page, items=tuple(with_a_link(item) for item in page.items))


def with_a_link(item: Item) -> Item:
    return replace(item, links=(Link(f"https://{item.time % 3}.example", "card"),))


async def after_a_poll_that_dies(seed: int, steps: int) -> tuple[bool, History]:
    """Hours are summarised; then a poll finds new items and some of these hours, and is killed."""
    history = History(seed, polling=polling(max_pages_per_user=50))
    history.source = Sharing(history.world)
    await history.open()
    history.publish(9, pause=20 * MINUTE)
    await history.poll()
    history.world.advance(6 * HOUR)
    await check_all(history)
    for hours in (2, 4, 5):
        history.back_date(hours * HOUR)
    history.publish(9)
    return await history.poll_and_die(steps), history


async def check_all(history: History) -> None:
    store, now = history.store, history.world.now
    for span in (HOUR, DAY, 3 * DAY):
        ranking = await LinkIndex(store).ranking(now - span, limit=9)
        assert counted(ranking.links) == await recounted(store, now - span, 9)


@pytest.mark.parametrize("seed", range(2))
def test_a_poll_that_is_killed_at_any_step_leaves_no_summary_wrong(seed: int) -> None:
    """Before its next poll, which may be hours away, and after it."""

    async def one(steps: int) -> bool:
        was_killed, history = await after_a_poll_that_dies(seed, steps)
        for wait in (0, SETTLED, HOUR):
            history.world.advance(wait)
            await check_all(history)
        await history.poll()
        for wait in (0, SETTLED):
            history.world.advance(wait)
            await check_all(history)
        return was_killed

    steps = 0
    while run(one(steps)):
        steps += 1
    assert steps > 20


class Slow(ForwardingEngine):
    """A storage that takes a long time to store items."""

    name = "slow"

    def __init__(self, storage: Storage, clock: Times) -> None:
        self.storage = storage
        self.clock = clock

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        if any(change.address.space == ITEMS for change in changes):
            self.clock.now += MARK_LIFETIME - MINUTE
        return await super().commit(changes, guard=guard, now=now)


def test_a_commit_that_outlasts_its_marks_marks_again() -> None:
    """Else a summary that is made between the end of the mark and the commit would be taken for final."""

    async def scenario() -> None:
        times = Times(1)
        slow = FeedStore(Storage(Slow(times.stores[0].storage, times)), clock=lambda: times.now)
        time = times.now - 5 * HOUR
        await slow.add_items(ACCOUNTS[0], [random_item(times.chance, ACCOUNTS[0], time)])
        until = await slow.dirty_hours.read(time // DAY, time // DAY)
        assert until[time // HOUR] >= times.now + MARK_LIFETIME // 2

    run(scenario())
