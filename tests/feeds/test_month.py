"""A month of an unattended poller, in virtual time, from a seed.

Everything that really happens is in it: tokens run out, the AppView answers with a 401 of its own, there are
429s and hours of 5xx, accounts are renamed, deactivated and taken down, the poller is killed and once stays
dead for two days. The whole client runs, but for the sockets.

Every post is stored once, no alarm is false, and every fault is raised within two intervals and cleared.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2
import msgspec
import pytest

from perdure.feeds import (
    Account,
    AccountStatus,
    FeedSettings,
    FeedStore,
    Poller,
    PollOutcome,
    PollSettings,
    PollSucceeded,
    RateLimiter,
    poller,
    transitions,
)
from perdure.feeds.alarms import LATE_GRACE, Alarm, AlarmState, find_alarms
from perdure.feeds.bluesky import BlueskySource, open_bluesky
from perdure.feeds.completeness_audit import audit_account
from perdure.feeds.settings import BlueskySettings
from perdure.storage import Micros, Storage
from perdure.storage.memory import MemoryEngine
from perdure.storage.time_types import DAY, HOUR, MINUTE

from ..markers import row
from .crash_points import CrashingEngine, CrashPoint, SimulatedCrash
from .fake_server import FEED, FakeBluesky, Fault
from .simulation import World
from .virtual_time import run, virtual_clock

MONTH: Micros = 30 * DAY
CHECK: Micros = 10 * MINUTE
"""How often the status is read."""
PACES = [HOUR // 2, HOUR, 2 * HOUR, 2 * HOUR, 4 * HOUR, 6 * HOUR, 8 * HOUR, 12 * HOUR, DAY, 2 * DAY]
"""How often each account posts, on average."""
POLLING = PollSettings(posts_per_page=20)
PASSWORD = "abcd-efgh"  # noqa: S105 - a test value
JWT_EXPIRED = Fault(how="refused", times=None, status=401, error="JwtExpired", path=FEED)
"""The AppView's verdict on a token of the PDS, which the PDS passes on."""


def _say_nothing(_reason: str, _until: Micros) -> None:
    """Waits are no alarms."""


class Process(CrashPoint):
    """A poller's process, which can be killed at any time."""

    def __init__(self) -> None:
        super().__init__(-1)
        self.is_dead = False

    def step(self, *, after: bool = False) -> None:
        if self.is_dead:
            raise SimulatedCrash


class Trouble(msgspec.Struct, kw_only=True):
    """Something that is really wrong."""

    kind: str
    start: Micros
    end: Micros = 2**62
    raised_at: Micros | None = None
    must_raise_by: Micros | None = None


class Month:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = virtual_clock()
        self.start = self.clock()
        self.world = World(seed=seed, clock=self.clock)
        self.fake = FakeBluesky(self.world, requires_auth=True, clock=self.clock)
        reader = self.world.account("reader.test")
        self.fake.sessions.passwords[reader] = PASSWORD
        self.dids = [self.world.account(f"user{number}.test") for number in range(len(PACES))]
        self.engine = Storage(MemoryEngine())
        self.store = FeedStore(self.engine, clock=self.clock)
        self.process: Process | None = None
        self.running: asyncio.Task[None] | None = None
        self.new = 0
        self.logged: list[tuple[str, AlarmState]] = []
        self.troubles: list[Trouble] = []
        self.false: list[str] = []

    # The poller

    @asynccontextmanager
    async def source(self) -> AsyncGenerator[BlueskySource]:
        bluesky = BlueskySettings(
            service="http://appview.test", pds="http://localhost", identifier="reader.test"
        )
        async with open_bluesky(
            FeedSettings(polling=POLLING, bluesky=bluesky),
            limiter=RateLimiter(POLLING.connections, clock=self.clock, on_wait=_say_nothing),
            environ={"PERDURE_BLUESKY_PASSWORD": PASSWORD},
            transport=httpx2.MockTransport(self.fake.answer),
        ) as source:
            yield source

    async def _poll(self, process: Process) -> None:
        store = FeedStore(Storage(CrashingEngine(self.engine, process)), clock=self.clock)
        async with self.source() as source:
            await Poller(store, source, POLLING, on_outcome=self._note, on_alarm=self._log).run()

    def _note(self, outcome: PollOutcome) -> None:
        self.new += outcome.new_items if isinstance(outcome, PollSucceeded) else 0

    def _log(self, alarm: Alarm, state: AlarmState) -> None:
        self.logged.append((alarm.kind, state))

    def start_poller(self) -> None:
        self.process = Process()
        self.running = asyncio.create_task(self._poll(self.process))

    async def kill_poller(self) -> None:
        """As by SIGKILL: nothing that it does from now on has any effect."""
        assert self.process is not None
        assert self.running is not None
        assert not self.running.done(), "the poller has ended by itself"
        self.process.is_dead = True
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)

    async def restart_poller(self) -> None:
        await self.kill_poller()
        await self.sleep(self.random.randrange(5, 60) * 1_000_000)
        self.start_poller()

    # What happens

    async def sleep(self, span: Micros) -> None:
        await asyncio.sleep(span / 1e6)

    async def until(self, day: float) -> None:
        await self.sleep(max(0, self.start + round(day * DAY) - self.clock()))

    async def post(self, did: str, pace: Micros) -> None:
        """Post, reply and repost at random times, and delete a post now and then."""
        mine: list[str] = []
        while True:
            await self.sleep(round(self.random.expovariate(1 / pace)))
            kind = self.random.random()
            if kind < 0.15 and mine:
                mine.append(self.world.reply(did, self.random.choice(mine), "a reply"))
            elif kind < 0.25 and mine:
                self.world.repost(did, self.random.choice(mine))
            elif kind < 0.28 and mine:
                self.world.delete(mine.pop())
            else:
                mine.append(self.world.publish(did, f"https://news.test/{self.random.randrange(99)}"))
            mine = [uri for uri in mine if uri in self.world.rows][-20:]

    async def accounts(self) -> list[Account]:
        return [stored.account async for stored in self.store.accounts()]

    # Faults

    @asynccontextmanager
    async def trouble(self, kind: str) -> AsyncGenerator[Trouble]:
        """A fault that must be raised within two intervals of the account that is polled most often."""
        polled = [each for each in await self.accounts() if each.status is AccountStatus.ACTIVE]
        interval = min(max(each.poll_interval, each.cadence or 0) for each in polled)
        allowed = round(2.1 * interval) + LATE_GRACE + CHECK  # an interval varies by a tenth
        found = Trouble(kind=kind, start=self.clock(), must_raise_by=self.clock() + allowed)
        self.troubles.append(found)
        yield found
        found.end = self.clock()

    async def watch(self) -> None:
        """Read the status again and again, as a user would who relies on it."""
        while True:
            await self.sleep(CHECK)
            accounts = await self.accounts()
            longest = max(each.poll_interval for each in accounts)
            for alarm in find_alarms(accounts, now=self.clock()):
                causes = [
                    each
                    for each in self.troubles
                    if each.kind == alarm.kind and each.start <= self.clock() <= each.end + 2 * longest
                ]
                for cause in causes:
                    cause.raised_at = cause.raised_at or self.clock()
                if not causes:
                    day = (self.clock() - self.start) / DAY
                    self.false.append(f"day {day:.2f}: {alarm.message}")

    def fail_now_and_then(self) -> None:
        """What goes wrong all the time."""
        self.fake.faults.clear()
        self.fake.fail(Fault(how="refused", times=None, chance=0.002, status=502))
        self.fake.fail(Fault(how="dropped", times=None, chance=0.002))
        self.fake.fail(msgspec.structs.replace(JWT_EXPIRED, chance=0.002))

    async def fail_for(self, span: Micros, fault: Fault) -> None:
        """Let every request fail for a while."""
        async with self.trouble("failing"):
            self.fake.faults.clear()
            self.fake.fail(fault)
            await self.sleep(span)
            self.fail_now_and_then()

    async def kill_now_and_then(self) -> None:
        while True:
            await self.sleep(round(self.random.expovariate(1 / (16 * HOUR))))
            if self.process is not None and not self.process.is_dead:
                await self.restart_poller()


async def happen(month: Month) -> None:
    """The faults of the month, one after the other."""
    world, dids = month.world, month.dids
    await month.until(3)
    world.rename(dids[2], "renamed.test")

    await month.until(5)
    async with month.trouble("late"):
        await month.kill_poller()
        await month.sleep(2 * DAY)
        month.start_poller()

    await month.until(9)
    await month.fail_for(3 * HOUR, msgspec.structs.replace(JWT_EXPIRED))

    await month.until(10)
    world.deactivate(dids[5])
    await month.until(12)
    await month.fail_for(8 * HOUR, Fault(how="refused", times=None, status=503))
    await month.until(13)
    world.come_back(dids[5])

    await month.until(15)
    month.fake.limit.set(4, seconds=300)
    async with month.trouble("late") as slow:
        slow.must_raise_by = None  # the polls may just keep up
        await month.sleep(6 * HOUR)
        month.fake.limit.set(None)

    await month.until(17)
    world.take_down(dids[8])
    world.rename(dids[0], "busy.test")


async def post_into_the_past(month: Month) -> None:
    """An account posts no more but what no poll can see, until an audit finds it."""
    did = month.dids[3]
    await month.until(20)
    async with month.trouble("unseen") as hidden:
        hidden.must_raise_by = None  # it takes some polls that find nothing
        for number in range(5):
            month.world.publish(did, f"late {number}", created_at=month.clock() - 60 * DAY)
        await month.sleep(3 * DAY)
        assert hidden.raised_at is not None
        async with month.source() as source:
            month.new += (await audit_account(month.store, source, did)).repaired
        assert find_alarms(await month.accounts(), now=month.clock()) == ()


async def live_through(seed: int) -> Month:
    month = Month(seed)
    async with month.source() as source:
        for profile in await source.profiles(month.dids):
            await month.store.add(transitions.new_account(profile, now=month.clock(), settings=POLLING))
    month.fail_now_and_then()
    month.start_poller()
    writers = {
        did: asyncio.create_task(month.post(did, pace)) for did, pace in zip(month.dids, PACES, strict=True)
    }
    others = [asyncio.create_task(work) for work in (month.watch(), month.kill_now_and_then())]
    story = [asyncio.create_task(work) for work in (happen(month), post_into_the_past(month))]
    await month.until(19.5)
    writers[month.dids[3]].cancel()
    await month.until(29)
    for task in writers.values():
        task.cancel()
    await month.until(38)  # the last probe of an account that was away comes after a week
    await asyncio.gather(*story)
    for task in others:
        task.cancel()
    await asyncio.gather(*writers.values(), *others, return_exceptions=True)
    await month.kill_poller()
    return month


@row(130)
@pytest.mark.parametrize("seed", [1])
def test_an_unattended_month_stores_every_post_once_and_raises_every_alarm_and_no_false_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random.seed(seed)  # which the intervals vary by
    monkeypatch.setattr(poller, "DUE_CHECK_SECONDS", 60.0)  # a month has very many seconds
    monkeypatch.setattr(poller, "ALARM_INTERVAL", 5 * MINUTE)
    monkeypatch.setattr(poller, "LINK_SUMMARY_INTERVAL", 6 * HOUR)
    month = run(live_through(seed))
    assert month.false == []
    for trouble in month.troubles:
        if trouble.must_raise_by is not None:
            assert trouble.raised_at is not None, trouble
            assert trouble.raised_at <= trouble.must_raise_by, trouble
    assert {"failing", "unseen"} <= {kind for kind, state in month.logged if state == "raised"}
    assert ("failing", "cleared") in month.logged

    async def stored() -> tuple[dict[str, int], set[str], list[Account]]:
        counts = {did: await month.store.count_items(did) for did in month.dids}
        uris = {item.uri async for _, item in month.store.newest_items()}
        return counts, uris, await month.accounts()

    counts, uris, accounts = run(stored())
    there = {uri for did in month.dids for uri in month.world.everything_of(did)}
    assert there <= uris
    assert uris <= {uri for did in month.dids for uri in month.world.ever_of(did)}
    assert sum(counts.values()) == len(uris)
    statuses = {account.account_id: account.status for account in accounts}
    assert statuses.pop(month.dids[8]) is AccountStatus.UNAVAILABLE
    assert set(statuses.values()) == {AccountStatus.ACTIVE}
    handles = {account.account_id: account.handle for account in accounts}
    assert (handles[month.dids[0]], handles[month.dids[2]]) == ("busy.test", "renamed.test")
