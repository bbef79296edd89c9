"""Random histories of an account and its poller, and what a poller of another kind would have found in them.

A history is a list of steps on a `World` and a store. Everything that was published in the order of time must
be found in the end; what was backdated is for the audit.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeAlias

from msgspec.structs import replace

from perdure.feeds import FeedStore, Poller, PollFailed, PollSettings, PollSucceeded, transitions
from perdure.feeds.lease import LEASE_DURATION
from perdure.feeds.source import Profile
from perdure.feeds.watermark_and_gaps import OVERLAP
from perdure.storage import Micros, Storage
from perdure.storage.errors import StorageError
from perdure.storage.memory import MemoryEngine
from perdure.storage.time_types import HOUR, MINUTE, SECOND

from .crash_points import CrashingSource, CrashPoint, SimulatedCrash, Trouble, crashing_store
from .simulation import Knobs, World, WorldSource

SMALL = PollSettings(posts_per_page=5, max_pages_per_user=4)
"""So that a few posts are many pages, and a poll does not always finish."""

Step: TypeAlias = Callable[["History"], object]


class History:
    """An account, what happens to it, and what is known of it."""

    def __init__(self, seed: int, knobs: Knobs | None = None, polling: PollSettings = SMALL) -> None:
        self.chance = Random(seed)
        self.world = World(seed=seed, knobs=knobs)
        self.did = self.world.account("anna.test")
        self.friend = self.world.account("bob.test")
        self.source = WorldSource(self.world, include_pins=self.chance.random() < 0.3)
        self.polling = polling
        self.store = FeedStore(Storage(MemoryEngine()), clock=lambda: self.world.now)
        self.orderly: dict[str, Micros] = {}
        """What must be found, unless it is deleted."""
        self.nearly: dict[str, Micros] = {}
        """What came out of order by less than a minute: it must be found too, by the next poll."""
        self.begin = self.world.now
        self.kills = 0

    async def open(self) -> None:
        await self.store.add(
            transitions.new_account(
                Profile(account_id=self.did, handle="anna.test"), now=self.world.now, settings=self.polling
            )
        )

    # What the account does

    def publish(self, count: int = 1, *, pause: Micros = SECOND) -> None:
        for _ in range(count):
            self.world.advance(self.chance.choice((0, pause)))
            self._note(self.world.publish(self.did, "post"))

    def back_date(self, by: Micros) -> None:
        self._note(self.world.publish(self.did, "late", created_at=self.world.now - by))

    def post_from_the_future(self) -> None:
        self._note(self.world.publish(self.did, "early", created_at=self.world.now + 9 * HOUR))

    def misdate(self) -> None:
        self._note(self.world.publish(self.did, "odd", created_at="last tuesday"))

    def repost(self) -> None:
        of = self.chance.choice([self.world.publish(self.friend, "theirs"), *self._mine()])
        self._note(self.world.repost(self.did, of))

    def delete(self) -> None:
        if mine := [*self.world.everything_of(self.did)]:
            self.world.delete(self.chance.choice(mine))

    def pin(self) -> None:
        if mine := self._mine():
            self.world.pin(self.did, self.chance.choice(mine))

    def _mine(self) -> list[str]:
        return [uri for uri in self.world.everything_of(self.did) if "/app.bsky.feed.post/" in uri]

    def _note(self, uri: str) -> None:
        """Whether nothing that is newer was there before it."""
        time = self.world.ever_of(self.did)[uri]
        newest = max(self.orderly.values(), default=0)
        if time >= newest:
            self.orderly[uri] = time
        elif time >= newest - OVERLAP:
            self.nearly[uri] = time

    # What the poller does

    async def poll(self, polling: PollSettings | None = None) -> PollSucceeded:
        stored = await self.store.get(self.did)
        outcome = await Poller(self.store, self.source, polling or self.polling).poll(stored)
        assert isinstance(outcome, PollSucceeded), outcome
        return outcome

    async def poll_and_die(self, steps: int) -> bool:
        """Poll, and be killed after so many steps. False: it was over before."""
        life = CrashPoint(steps)
        store = crashing_store(self.store, life)
        try:
            await Poller(store, CrashingSource(self.source, life), self.polling).poll(
                await store.get(self.did)
            )
        except SimulatedCrash:
            self.kills += 1
            self.world.advance(LEASE_DURATION)
            return True
        return False

    async def poll_in_trouble(self, steps: int) -> bool:
        """Poll, while one question after so many fails. False: it was over before."""
        store = crashing_store(self.store, Trouble(steps))
        try:
            outcome = await Poller(store, self.source, self.polling).poll(await store.get(self.did))
        except StorageError:  # already when it was looked up
            return True
        self.world.advance(LEASE_DURATION)
        return isinstance(outcome, PollFailed)

    async def finish(self) -> None:
        """One clean run, with pages enough."""
        account = (await self.poll(settings(max_pages_per_user=1000))).account
        assert account.gaps == ()

    # What is known

    async def found(self) -> dict[str, Micros]:
        return {item.uri: item.time async for _, item in self.store.newest_items(self.did)}

    def wanted(self) -> set[str]:
        """What is there, was published in order or nearly so, and is not older than the look-back."""
        there = self.world.everything_of(self.did)
        floor = self.begin - self.polling.lookback
        return {uri for uri, time in (self.orderly | self.nearly).items() if uri in there and time >= floor}

    async def check(self) -> None:
        """Everything up to the mark is stored, or lies under a gap."""
        account = (await self.store.get(self.did)).account
        found = await self.found()
        lowest = min((gap.floor for gap in account.gaps), default=None)
        for uri in self.wanted() & self.orderly.keys():
            time = self.orderly[uri]
            is_read = account.watermark is not None and time < account.watermark
            assert not is_read or uri in found or (lowest is not None and time >= lowest), (uri, account)


def steps_of(chance: Random, length: int, *, with_kills: bool = True) -> list[Step]:
    """A history, as it may happen."""
    return [_step(chance, with_kills=with_kills) for _ in range(length)]


def _step(chance: Random, *, with_kills: bool) -> Step:
    burst, pause = chance.randint(1, 40), chance.choice((0, SECOND, 10 * MINUTE))
    kill_after, by = chance.randint(0, 60), chance.choice((SECOND, 30 * SECOND, 5 * MINUTE, 3 * HOUR))
    choices: list[tuple[float, Step]] = [
        (4, lambda history: history.publish(chance.randint(1, 3))),
        (2, lambda history: history.publish(burst, pause=pause)),
        (1, lambda history: history.back_date(by)),
        (1, lambda history: history.post_from_the_future()),
        (1, lambda history: history.misdate()),
        (2, lambda history: history.repost()),
        (1, lambda history: history.delete()),
        (1, lambda history: history.pin()),
        (2, lambda history: history.world.advance(by)),
        (5, lambda history: history.poll()),
    ]
    if with_kills:
        choices.append((5, lambda history: history.poll_and_die(kill_after)))
    weights, steps = zip(*choices, strict=True)
    return chance.choices(steps, weights)[0]


# Pollers of another kind


class Literal:
    """The seed's algorithm, exactly: continue from the saved cursor."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._cursor = ""
        self.found: set[str] = set()

    async def poll(self) -> None:
        history = self._history
        lookback = history.polling.lookback if not self._cursor else 15 * MINUTE
        cutoff, cursor = history.world.now - lookback, self._cursor
        for _ in range(10):
            page = await history.source.page(
                history.did, limit=history.polling.posts_per_page, cursor=cursor or None
            )
            if page is None or not page.items:
                break
            self.found |= {item.uri for item in page.items}
            cursor = page.cursor or cursor
            if page.items[-1].time < cutoff or page.cursor is None:
                break
        self._cursor = cursor


class LatestPage:
    """Reads the newest page each time, and no more."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.found: set[str] = set()

    async def poll(self) -> None:
        page = await self._history.source.page(self._history.did, limit=self._history.polling.posts_per_page)
        assert page is not None
        self.found |= {item.uri for item in page.items}


def settings(**changes: object) -> PollSettings:
    return replace(SMALL, **changes)
