"""What the commands do with polls: all of them at their times, all once, or those of one account."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import TypeVar

import anyio
import msgspec

from ...feeds import (
    Account,
    AccountStatus,
    FeedSettings,
    FeedStore,
    Poller,
    PollOutcome,
    PollSucceeded,
    RateLimiter,
)
from ...feeds.account import ACCOUNTS, POLLS
from ...feeds.errors import AuthenticationFailed, PollInProgress, SourceError
from ...feeds.health import Alarm, find_alarms
from ...storage import Micros
from ...storage.clock import HOUR
from ...storage.errors import StorageError
from ..backends import open_feeds, open_source
from ..signals import run_until_signal
from .changing import name_in, reread
from .showing import Lines, shown

log = logging.getLogger("perdure.feeds")

T = TypeVar("T")

STOPPING = ("releasing accounts", "Leased accounts are polled again within a minute.")
"""What is printed at the first signal to stop, and at the second."""
LOOK = 1.0
"""Seconds between looks at what the polls wait for."""
FAR: Micros = 31 * 24 * HOUR
"""Further ahead than any account waits."""


async def run(settings: FeedSettings, *, json: bool) -> None:
    """Poll until told to stop. Whoever is added meanwhile is polled too."""
    budget = RateLimiter(settings.polling.connections)
    show = shown(budget, json=json)
    budget.on_wait = show.waits
    async with open_feeds(settings) as store, open_source(settings, budget) as source:
        poller = Poller(
            store,
            source,
            settings.polling,
            on_outcome=show.tell,
            on_alarm=show.alarm,
            follow_lists=settings.follow_lists,
        )
        if not json:
            show.say(f"polling {source.name} from {store.storage.name}; Ctrl+C ends it")
            if not await in_cycle(store):
                show.say("there are no accounts to poll yet; add one with `perdure feeds add HANDLE`")
        with show:
            await _beside(_look(show, store), run_until_signal(poller.run(), *STOPPING))
        show.end(await _alarms(store))


async def once(settings: FeedSettings, *, json: bool) -> bool:
    """Poll every account once. Return whether any of them could be polled, or there is none."""
    budget = RateLimiter(settings.polling.connections)
    show = shown(budget, json=json)
    budget.on_wait = show.waits
    async with open_feeds(settings) as store, open_source(settings, budget) as source:
        show.total = len(await in_cycle(store))
        if not show.total and not json:
            show.say("there is nobody to poll; `perdure feeds add HANDLE` adds an account")
        poller = Poller(store, source, settings.polling, on_outcome=show.tell)
        with show:
            is_whole = await run_until_signal(_cycle(poller), *STOPPING)
        show.warn_of_slowness()
        show.end(await _alarms(store))
        return is_whole is not None and (show.cycle.polled > 0 or not show.total)


async def _cycle(poller: Poller) -> bool:
    """The profiles first: what they count must have been found by the polls that follow."""
    try:
        await poller.refresh_profiles()
    except AuthenticationFailed:
        raise
    except SourceError as error:
        log.warning("the profiles were not read: %s", error)
    await poller.run_once()
    await poller.remove_old_items()
    return True


async def in_cycle(store: FeedStore) -> list[Account]:
    """Those whom a cycle polls: whoever is active, and whoever is to be looked for again."""
    now = store.clock()
    return [stored.account async for stored in store.accounts() if stored.account.is_pollable(now)]


async def due_now(store: FeedStore) -> list[Account]:
    """Those whom `run` would poll at once."""
    now = store.clock()
    return [each for each in await in_cycle(store) if each.next_poll_at <= now and not each.is_leased(now)]


async def _alarms(store: FeedStore) -> tuple[Alarm, ...]:
    return find_alarms([stored.account async for stored in store.accounts()], now=store.clock())


async def _look(show: Lines, store: FeedStore) -> None:
    """Keep the display up to date: how many accounts there are, and when the next one is due."""
    while True:
        with suppress(StorageError):  # the polls report it
            await _count(show, store)
        await anyio.sleep(LOOK)


async def _count(show: Lines, store: FeedStore) -> None:
    now = store.clock()
    counts = await store.storage.counts(ACCOUNTS, now=now)
    show.total = sum(count for tag, count in counts.items() if tag != AccountStatus.SUSPENDED.value)
    earliest = await store.storage.due(POLLS, until=now + FAR, limit=1, now=now)
    show.idle_until = earliest[0].wake_at if earliest else None


async def _beside(looking: Coroutine[None, None, None], work: Coroutine[None, None, T]) -> T:
    """Do the work while somebody looks on."""
    onlooker = asyncio.create_task(looking)
    try:
        return await work
    finally:
        onlooker.cancel()
        await asyncio.gather(onlooker, return_exceptions=True)


# One account


async def poll(settings: FeedSettings, name: str) -> PollOutcome:
    async with open_feeds(settings) as store, open_source(settings) as source:
        stored = await store.find(name_in(name))
        return await Poller(store, source, settings.polling).poll(stored)


class Backfill(msgspec.Struct, frozen=True, kw_only=True):
    """What came of reading an account again."""

    account: str
    handle: str
    since: Micros
    new: int = 0
    links: int = 0
    pages: int = 0
    is_done: bool = False
    """Whether everything since then was read. If not, it is what the next polls do first."""
    reason: str = ""
    """Why not."""

    def and_then(self, outcome: PollSucceeded) -> Backfill:
        return msgspec.structs.replace(
            self,
            new=self.new + outcome.new_items,
            links=self.links + outcome.new_links,
            pages=self.pages + outcome.pages,
            is_done=not outcome.account.gaps,
        )


async def backfill(settings: FeedSettings, name: str, since: Micros, *, later: bool) -> Backfill:
    """Read an account again, back to a time, now or in the next polls."""
    async with open_feeds(settings) as store:
        account = (await store.find(name_in(name))).account
        edit = partial(reread, since=since, now=store.clock())
        account = await store.update(account.account_id, edit)
        begun = Backfill(account=account.account_id, handle=account.handle, since=since)
        if later:
            return begun
        async with open_source(settings) as source:
            return await _walk(store, Poller(store, source, settings.polling), begun)


async def _walk(store: FeedStore, poller: Poller, so_far: Backfill) -> Backfill:
    """Poll until there is no gap any more; a poll that leaves them as they were makes no headway."""
    while not so_far.is_done:
        stored = await store.get(so_far.account)
        try:
            outcome = await poller.poll(stored)
        except PollInProgress as error:
            return msgspec.structs.replace(so_far, reason=str(error))
        if not isinstance(outcome, PollSucceeded):
            return msgspec.structs.replace(so_far, reason=str(outcome.error))
        so_far = so_far.and_then(outcome)
        if outcome.account.gaps == stored.account.gaps:
            return msgspec.structs.replace(so_far, reason="max_pages_per_user is too small to get on")
    return so_far
