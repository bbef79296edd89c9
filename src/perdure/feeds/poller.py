"""`Poller`: polls many accounts, each when its time has come, a number of them at once.

Several pollers, in any number of processes, share the accounts of one storage: who holds an account polls it.
One account's failure is told and remembered, and never ends a cycle; wrong credentials end it at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from secrets import token_hex
from typing import TypeAlias

import anyio
import msgspec

from ..storage import Micros
from ..storage.clock import MINUTE
from ..storage.errors import NewerFormat, StorageError
from ..storage.limits import MAX_PAGE_RECORDS
from . import poll, transitions
from .account import Account, Status, Stored
from .errors import (
    AccountHeld,
    CorruptFeed,
    FeedError,
    HoldLost,
    InvalidActor,
    NotAuthorized,
    RequestRefused,
    UnknownAccount,
)
from .follows import apply_follow_list, read_follow_list
from .health import AlarmWatch, OnAlarm, find_alarms, log_alarm
from .lease import LASTS
from .link_index import LinkIndex
from .parts import parts_of
from .poll import Failed, Outcome, Polled, PolledElsewhere, Skipped
from .settings import FollowLists, Polling
from .source import FeedSource, FollowSource, HintSource, Profile
from .store import Edit, FeedStore

log = logging.getLogger("perdure.feeds")

AHEAD = 2
"""Polls under way for each connection, so that no connection waits for a storage."""
LOOK = 2.0
"""Seconds between looks at what is due."""
PROFILES = 25
"""Asked for together."""
PROFILES_EVERY: Micros = 55 * MINUTE
HINTS_EVERY: Micros = MINUTE
ALARMS_EVERY: Micros = MINUTE
ALARM_REST = 30.0
"""Alarms read every account. With very many of them, that takes a thirtieth of the time at most."""
REMOVAL_EVERY: Micros = 10 * MINUTE
REMOVAL_BATCH = 1000
LINKS_EVERY: Micros = 5 * MINUTE
MAX_LINK_ITEMS = 20_000
"""Items that are read for summaries of links at a time: about half a second of work."""


Tell: TypeAlias = Callable[[Outcome], None]


class Cycle(msgspec.Struct, kw_only=True):
    """What came of polling many accounts."""

    polled: int = 0
    initial: int = 0
    """Accounts that were polled for the first time."""
    skipped: int = 0
    failed: int = 0
    elsewhere: int = 0
    """Accounts that another poller had."""
    active: int = 0
    """Accounts that had something new."""
    new: int = 0
    links: int = 0
    pages: int = 0
    set_aside: int = 0

    def add(self, outcome: Outcome) -> None:
        match outcome:
            case Polled():
                self.polled += 1
                self.initial += outcome.account.polls <= 1
                self.active += outcome.new > 0
                self.new += outcome.new
                self.links += outcome.links
                self.pages += outcome.pages
                self.set_aside += outcome.set_aside
            case Skipped():
                self.skipped += 1
            case Failed():
                self.failed += 1
            case PolledElsewhere():
                self.elsewhere += 1


class Poller:
    """Polls the accounts of a store from a source."""

    def __init__(
        self,
        store: FeedStore,
        source: FeedSource,
        settings: Polling,
        *,
        tell: Tell = lambda _: None,
        on_alarm: OnAlarm = log_alarm,
        follow_lists: FollowLists | None = None,
        name: str | None = None,
        hold: Micros = LASTS,
    ) -> None:
        """`on_alarm` is called when an alarm is raised, repeated or cleared while the poller runs.
        `follow_lists` are synchronised while it runs. `hold` is how long an account stays with a poller that
        has died.
        """
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{token_hex(3)}"
        self._store = store
        self._index = LinkIndex(store)
        self._source = source
        self._settings = settings
        self._tell = tell
        self._alarms = AlarmWatch(on_alarm)
        self._follow_lists = follow_lists
        self._hold = hold
        self._at_hand: set[str] = set()
        """Accounts that wait for one of our polls, or are in one."""
        self._not_before: dict[str, Micros] = {}
        """Accounts that stand as due, and are left alone for a while."""

    async def poll(self, stored: Stored, *, is_scheduled: bool = False) -> Polled | Skipped | Failed:
        """Poll one account now, due or not. Raise AccountHeld if another poller has it."""
        try:
            return await poll.poll(
                self._store,
                self._source,
                self._settings,
                stored,
                poller=self.name,
                lasts=self._hold,
                is_scheduled=is_scheduled,
            )
        except (AccountHeld, UnknownAccount, NotAuthorized):
            raise
        except (HoldLost, StorageError) as error:
            return self._put_off(stored.account, error)
        except Exception as error:  # a source of somebody's own may raise anything
            log.exception("the poll of %s broke off", stored.account.handle)
            return self._put_off(stored.account, error)

    def _put_off(self, account: Account, error: Exception) -> Failed:
        """What went wrong could not be stored with the account, so it is remembered here."""
        self._not_before[account.account_id] = self._store.clock() + MINUTE
        return Failed(account, error)

    async def once(self) -> Cycle:
        """One cycle: poll every active account now, and those whose probe is due."""
        cycle = await self._through(self._everybody(), reports_elsewhere=True)
        await self._try(self.summarise_links())
        return cycle

    async def run(self) -> None:
        """Poll each account at its time, until cancelled. Beside that, keep the profiles fresh, take hints,
        watch for alarms, synchronise follow lists, summarise links and remove old items.
        """
        await _all_of(
            self._through(self._whoever_is_due()),
            self._every(PROFILES_EVERY, self.refresh_profiles),
            self._take_hints(),
            self._every(ALARMS_EVERY, self.check_alarms, first=ALARMS_EVERY, rest=ALARM_REST),
            self._every(REMOVAL_EVERY, self.remove_old_items),
            self._every(LINKS_EVERY, self.summarise_links),
            self._synchronise(),
        )

    async def check_alarms(self) -> None:
        """Report which alarms have been raised or cleared since the last check."""
        accounts = [stored.account async for stored in self._store.accounts()]
        now = self._store.clock()
        self._alarms.update(find_alarms(accounts, now=now), now=now)

    async def remove_old_items(self) -> int:
        """Remove the items that are older than the settings keep, and return how many there were."""
        oldest = self._settings.oldest_kept(self._store.clock())
        removed = 0
        while oldest and (some := await self._store.remove_items_before(oldest, limit=REMOVAL_BATCH)):
            removed += some
        if removed:
            log.info("removed %s items older than %s days", removed, self._settings.retention_days)
        return removed

    async def summarise_links(self) -> None:
        """Bring the summaries of links up to date, as far as a bounded effort goes."""
        await self._index.refresh(max_items=MAX_LINK_ITEMS)

    async def synchronise_follows(self, source: FollowSource, lists: FollowLists) -> None:
        """Add the accounts that the follow lists name. One list that fails does not stop the others."""
        for actor in lists.actors:
            try:
                follows = await read_follow_list(source, actor)
                changes = await apply_follow_list(
                    self._store, source, follows, polling=self._settings, prune=lists.prune
                )
            except NotAuthorized:
                raise
            except FeedError as error:
                log.warning("the follow list of %s was not synchronised: %s", actor, error)
                continue
            counts = Counter(change.action for change in changes if change.action is not None)
            if counts:
                done = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
                log.info("follow list of %s: %s", actor, done)

    async def refresh_profiles(self) -> None:
        """Ask for the handles and post counts that were not asked for in a while."""
        async for batch in self._stale_profiles():
            known = {stored.account.account_id for stored in batch}
            asked_at = self._store.clock()
            for profile in await self._profiles(sorted(known)):
                if profile.account_id in known:
                    await self._edit(profile.account_id, partial(_profiled, profile=profile, now=asked_at))

    async def _profiles(self, names: list[str]) -> list[Profile]:
        """What is refused for one of them is no reason not to ask for the next ones."""
        try:
            return await self._source.profiles(names)
        except (InvalidActor, RequestRefused) as error:
            log.warning("some profiles were not read: %s", error)
            return []

    async def take_hints(self, source: HintSource) -> int:
        """Make those accounts due that a feed of many shows to have news. How many they were."""
        newest = await source.recent()
        told = 0
        for account_id, time in newest.items():
            with suppress(UnknownAccount, CorruptFeed, NewerFormat):
                before = (await self._store.get(account_id)).account
                edit = partial(transitions.hinted, newest=time, now=self._store.clock())
                if edit(before) != before:
                    told += 1
                    await self._edit(account_id, edit)
        return told

    async def _edit(self, account_id: str, edit: Edit) -> None:
        with suppress(UnknownAccount, CorruptFeed, NewerFormat):  # removed meanwhile, or unreadable here
            await self._store.edit(account_id, edit)

    # Many accounts

    async def _through(self, accounts: AsyncIterable[Stored], *, reports_elsewhere: bool = False) -> Cycle:
        """Poll these accounts, a number at once. Pollers that run side by side meet at accounts all the time,
        so that is reported only for a cycle.
        """
        cycle = Cycle()
        crew = self._settings.connections * AHEAD
        waiting: asyncio.Queue[Stored | None] = asyncio.Queue(crew)

        async def line_up() -> None:
            async for stored in accounts:
                self._at_hand.add(stored.account.account_id)
                await waiting.put(stored)
            for _ in range(crew):
                await waiting.put(None)

        def report(outcome: Outcome) -> None:
            if reports_elsewhere or not isinstance(outcome, PolledElsewhere):
                cycle.add(outcome)
                self._tell(outcome)

        await _all_of(line_up(), *(self._work(waiting, report) for _ in range(crew)))
        return cycle

    async def _work(self, waiting: asyncio.Queue[Stored | None], report: Tell) -> None:
        while (stored := await waiting.get()) is not None:
            try:
                outcome: Outcome = await self.poll(stored, is_scheduled=True)
            except AccountHeld as error:
                outcome = PolledElsewhere(stored.account, error)
            except UnknownAccount as error:
                log.debug("%s", error)
                continue
            finally:
                self._at_hand.discard(stored.account.account_id)
            report(outcome)

    async def _everybody(self) -> AsyncGenerator[Stored]:
        """Collected before the first is polled: a poll changes what a listing shows."""
        now = self._store.clock()
        everybody = [stored async for stored in self._store.accounts()]
        for stored in everybody:
            if stored.account.is_in_cycle(now):
                yield stored

    async def _whoever_is_due(self) -> AsyncGenerator[Stored]:
        """For ever. Those that are at hand already may still stand as due."""
        while True:
            due = [each for each in await self._due() if self._is_free(each.account.account_id)]
            for stored in due:
                yield stored
            if not due:
                await anyio.sleep(LOOK)

    def _is_free(self, account_id: str) -> bool:
        if self._not_before.get(account_id, 0) > self._store.clock():
            return False
        self._not_before.pop(account_id, None)
        return account_id not in self._at_hand

    async def _due(self) -> list[Stored]:
        try:
            return await self._store.due(min(8 * self._settings.connections * AHEAD, MAX_PAGE_RECORDS))
        except StorageError as error:
            log.warning("cannot see what is due: %s", error)
            return []

    # Beside the polls

    async def _every(
        self,
        interval: Micros,
        job: Callable[[], Awaitable[object]],
        *,
        first: Micros = 0,
        rest: float = 0,
    ) -> None:
        """Do a job again and again: the first time after a while, and then after an interval, or after `rest`
        times as long as it took.
        """
        await anyio.sleep(first / 1e6)
        while True:
            started = anyio.current_time()
            await self._try(job())
            await anyio.sleep(max(interval / 1e6, rest * (anyio.current_time() - started)))

    async def _synchronise(self) -> None:
        source, lists = self._source, self._follow_lists
        if lists is None or not lists.actors:
            return
        if isinstance(source, FollowSource):
            await self._every(lists.interval, partial(self.synchronise_follows, source, lists))
        else:
            log.warning("follow lists are not synchronised: %s cannot read them", source.name)

    async def _take_hints(self) -> None:
        source = self._source
        while isinstance(source, HintSource):
            await self._try(self.take_hints(source))
            await anyio.sleep(HINTS_EVERY / 1e6)

    async def _try(self, work: Awaitable[object]) -> None:
        """What is no poll may fail without ending the polls, but for wrong credentials."""
        try:
            await work
        except NotAuthorized:
            raise
        except (FeedError, StorageError) as error:
            log.warning("%s", error)
        except Exception:  # a source or a callback of somebody's own may raise anything
            log.exception("a job of the poller failed")

    async def _stale_profiles(self) -> AsyncGenerator[Sequence[Stored]]:
        now = self._store.clock()
        stale = [
            stored async for stored in self._store.accounts(Status.ACTIVE) if _is_stale(stored.account, now)
        ]
        for some in parts_of(stale, PROFILES):
            yield some


def _profiled(account: Account, profile: Profile, *, now: Micros) -> Account:
    """Take over a profile, unless another poller has read one meanwhile."""
    return transitions.profiled(account, profile, now=now) if _is_stale(account, now) else account


def _is_stale(account: Account, now: Micros) -> bool:
    return (account.profiled_at or 0) + PROFILES_EVERY <= now


async def _all_of(*works: Coroutine[None, None, object]) -> None:
    """Until all have ended, or one has failed; then the others are stopped."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
