"""Cycles over real HTTP: a fake Bluesky in another process, which delays every response.

The baseline is the time that the delays alone take, with all connections always busy.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from time import perf_counter

import msgspec

from perdure.feeds import FeedSettings, FeedSource, FeedStore, Poller, PollSettings, RateLimiter, transitions
from perdure.feeds.bluesky import open_bluesky
from perdure.feeds.settings import BlueskySettings
from perdure.storage import open_storage
from perdure.storage.time_types import MINUTE
from tests.feeds.fake_server.process import FakeProcess, fake_process

from ..report import ResultRow, Target, at_most

LATENCY = 0.05
CONNECTIONS = 10
FEW, MANY = 44, 100
"""Posts of an account, in its only page: about 15 000 or 34 000 for 342 accounts."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    accounts: int
    first: int
    """The number of first cycles, each on a new storage."""
    idle: int
    """The number of cycles without new posts, with ETags and without."""


async def measure(folder: Path, workload: Workload) -> list[ResultRow]:
    async with fake_process("--latency", str(LATENCY)) as fake:
        settings = FeedSettings(
            polling=PollSettings(connections=CONNECTIONS),
            bluesky=BlueskySettings(service=fake.url, pds=fake.url),
        )
        budget = RateLimiter(CONNECTIONS)
        async with open_bluesky(settings, limiter=budget) as source:
            rows: list[ResultRow] = []
            for posts in (FEW, MANY):
                dids = await fake.order(
                    "populate", accounts=workload.accounts, posts=posts, every=15 * MINUTE
                )
                bench = Bench(fake, source, budget, settings.polling, dids)
                rows.append(await bench.first(folder, workload.first, posts))
            rows += [
                await bench.idle(folder, workload.idle, gives_etags=gives_etags)
                for gives_etags in (True, False)
            ]
            return rows


class Bench:
    def __init__(
        self,
        fake: FakeProcess,
        source: FeedSource,
        budget: RateLimiter,
        polling: PollSettings,
        dids: list[str],
    ) -> None:
        self._fake = fake
        self._source = source
        self._budget = budget
        self._polling = polling
        self._dids = dids

    async def first(self, folder: Path, rounds: int, posts: int) -> ResultRow:
        taken: list[tuple[float, float]] = []
        wanted = posts * len(self._dids)
        for number in range(rounds):
            async with await open_storage(f"sqlite:///{folder / f'first-{posts}-{number}.db'}") as storage:
                store = FeedStore(storage)
                await self._add_all(store)
                taken.append(await self._cycle(store))
                assert await store.count_items() == wanted
        return _row(f"first cycle, {len(self._dids)} accounts, {wanted:,} items", taken, at_most(2.5))

    async def idle(self, folder: Path, rounds: int, *, gives_etags: bool) -> ResultRow:
        await self._fake.order("server", gives_etags=gives_etags)
        name = "with ETags" if gives_etags else "without ETags"
        async with await open_storage(f"sqlite:///{folder / f'idle-{gives_etags}.db'}") as storage:
            store = FeedStore(storage)
            await self._add_all(store)
            await self._cycle(store)
            before = self._budget.request_count
            taken = [await self._cycle(store) for _ in range(rounds)]
            assert self._budget.request_count - before == rounds * len(self._dids), (
                "an idle account cost more"
            )
        target = at_most(1.3 if gives_etags else 1.5)
        return _row(f"idle cycle, {len(self._dids)} accounts, {name}", taken, target)

    async def _add_all(self, store: FeedStore) -> None:
        for start in range(0, len(self._dids), 25):
            for profile in await self._source.profiles(self._dids[start : start + 25]):
                await store.add(transitions.new_account(profile, now=store.clock(), settings=self._polling))

    async def _cycle(self, store: FeedStore) -> tuple[float, float]:
        """Run a cycle; return the seconds that it took, and those that its requests had to wait."""
        before, started = self._budget.request_count, perf_counter()
        cycle = await Poller(store, self._source, self._polling).run_once()
        seconds = perf_counter() - started
        assert cycle.polled == len(self._dids), cycle
        return seconds, (self._budget.request_count - before) / CONNECTIONS * LATENCY


def _row(what: str, taken: list[tuple[float, float]], target: Target | None) -> ResultRow:
    seconds, bound = median(each for each, _ in taken), taken[0][1]
    return ResultRow(
        what=f"feeds, {what}; time / latency bound",
        baseline=f"{bound:.2f} s",
        subject=f"{seconds:.2f} s",
        ratio=median(each / least for each, least in taken),
        target=target,
    )
