"""A hundred thousand accounts in virtual time: the rate limit, the lateness of polls, and the memory.

Each account posts at its own rate, from a few times an hour to hardly ever. The source has the limit of a
PDS, 3000 requests in five minutes, and responds after 50 ms. Nothing waits for a real clock.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import msgspec

from perdure.feeds import (
    FeedPage,
    FeedStore,
    Poller,
    PollOutcome,
    PollSettings,
    Profile,
    RateLimiter,
    Retrier,
    transitions,
)
from perdure.feeds.account import Account
from perdure.feeds.item import Item
from perdure.storage import Micros, Storage
from perdure.storage.memory import MemoryEngine
from perdure.storage.time_types import HOUR, MINUTE
from tests.feeds.virtual_time import run, virtual_clock

from ..report import InfoTable, ResultRow, at_most

WINDOW: Micros = 5 * MINUTE
LIMIT = 3000
LATENCY = 0.05


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    accounts: int
    hours: float


class SimulatedCrowd:
    """A source in which each account posts at every multiple of its own interval."""

    name = "crowd"

    def __init__(self, budget: RateLimiter, polling: PollSettings, seed: int = 1) -> None:
        self._clock = budget.clock
        self._budget = budget
        self._requests = Retrier(budget, polling)
        self._chance = Random(seed)
        self._paces: dict[str, Micros] = {}
        self._window = 0
        self._used = 0
        self.busiest = 0
        """Return the maximum number of requests in a window."""
        self.by_hour: Counter[int] = Counter()

    def join(self, account_id: str) -> Profile:
        self._paces[account_id] = round(self._chance.lognormvariate(0, 1.5) * 12 * HOUR)
        return Profile(account_id=account_id, handle=f"{account_id[8:]}.test")

    async def page(
        self, account_id: str, *, limit: int, cursor: str | None = None, etag: str | None = None
    ) -> FeedPage | None:
        return await self._requests.call(lambda: self._page(account_id, limit, cursor, etag))

    async def profiles(self, actors: Sequence[str]) -> list[Profile]:  # noqa: ARG002 - no profile changes
        return []

    async def _page(
        self, account_id: str, limit: int, cursor: str | None, etag: str | None
    ) -> FeedPage | None:
        self._count()
        await asyncio.sleep(LATENCY)
        pace = self._paces[account_id]
        newest = int(cursor) if cursor is not None else self._clock() // pace
        if cursor is None and etag == str(newest):
            return None
        items = tuple(_item(account_id, number, pace) for number in range(newest, newest - limit, -1))
        return FeedPage(items=items, cursor=str(newest - limit), etag=str(newest))

    def _count(self) -> None:
        window = self._clock() // WINDOW
        self._used = self._used + 1 if window == self._window else 1
        self._window = window
        self.busiest = max(self.busiest, self._used)
        self.by_hour[self._clock() // HOUR] += 1
        resets_at = (window + 1) * WINDOW
        self._budget.update(limit=LIMIT, remaining=LIMIT - self._used, resets_at=resets_at)


def _item(account_id: str, number: int, pace: Micros) -> Item:
    uri = f"at://{account_id}/{number}"
    return Item(uri=uri, time=number * pace, kind="post", post_uri=uri, author_id=account_id)


def measure(workload: Workload) -> tuple[list[ResultRow], list[InfoTable]]:
    return run(_simulate(workload))


async def _simulate(workload: Workload) -> tuple[list[ResultRow], list[InfoTable]]:
    clock = virtual_clock()
    polling = PollSettings(posts_per_page=5, initial_lookback_hours=0)
    crowd = SimulatedCrowd(RateLimiter(polling.connections, clock=clock), polling)
    store = FeedStore(Storage(MemoryEngine()), clock=clock)
    tracemalloc.start()
    watch = Lateness(clock)
    await _add_all(store, crowd, workload.accounts, watch)
    kept = tracemalloc.get_traced_memory()[0]
    poller = asyncio.create_task(Poller(store, crowd, polling, on_outcome=watch.note).run())
    await asyncio.sleep(workload.hours * 3600)
    poller.cancel()
    await asyncio.gather(poller, return_exceptions=True)
    grown = tracemalloc.get_traced_memory()[1] - kept
    tracemalloc.stop()
    return _results(workload, crowd, watch, await store.count_items(), kept, grown)


async def _add_all(store: FeedStore, crowd: SimulatedCrowd, count: int, watch: Lateness) -> None:
    """Add accounts as if they had been polled before: first polls are spread over the longest interval."""
    chance = Random(2)
    for number in range(count):
        profile = crowd.join(f"did:plc:{number:024}")
        account = transitions.new_account(profile, now=store.clock(), settings=PollSettings())
        first = store.clock() + round(chance.random() * transitions.MAX_POLL_INTERVAL)
        await store.add(
            msgspec.structs.replace(account, next_poll_at=first, poll_interval=transitions.MAX_POLL_INTERVAL)
        )
        watch.expect(account.account_id, first)


class Lateness:
    """How late each poll was, as a share of the account's interval."""

    def __init__(self, clock: Callable[[], Micros]) -> None:
        self._clock = clock
        self._next: dict[str, Micros] = {}
        self.parts: list[float] = []

    def note(self, outcome: PollOutcome) -> None:
        account: Account = outcome.account
        late = max(0, self._clock() - self._next[account.account_id])
        self.parts.append(late / account.poll_interval)
        self.expect(account.account_id, account.next_poll_at)

    def expect(self, account_id: str, at: Micros) -> None:
        self._next[account_id] = at


def _results(
    workload: Workload, crowd: SimulatedCrowd, watch: Lateness, items: int, kept: int, grown: int
) -> tuple[list[ResultRow], list[InfoTable]]:
    hours = [crowd.by_hour[hour] for hour in sorted(crowd.by_hour)][1:-1] or [sum(crowd.by_hour.values())]
    late = sorted(watch.parts) or [0.0]
    row = ResultRow(
        what=f"feeds, {workload.accounts:,} accounts simulated; "
        "requests in the busiest five minutes / allowed",
        baseline=f"{LIMIT:,}",
        subject=f"{crowd.busiest:,}",
        ratio=crowd.busiest / LIMIT,
        target=at_most(1),
    )
    rows = [
        ("requests an hour, on average", f"{sum(hours) / len(hours):,.0f}"),
        ("allowed in an hour", f"{LIMIT * HOUR // WINDOW:,}"),
        ("polls", f"{len(watch.parts):,}"),
        ("items stored", f"{items:,}"),
        ("lateness, median, in intervals of the account", f"{late[len(late) // 2]:.2f}"),
        ("lateness, 99th of 100", f"{late[len(late) * 99 // 100]:.2f}"),
        ("memory of the accounts, in the memory engine", f"{kept / workload.accounts / 1024:.1f} KiB each"),
        ("memory of the polls and items on top, at most", f"{grown / 1024 / 1024:.0f} MiB"),
    ]
    text = f"{workload.accounts:,} accounts for {workload.hours:g} hours of virtual time."
    return [row], [InfoTable(text=text, headings=("what", "measured"), rows=tuple(rows))]
