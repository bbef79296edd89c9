"""`Poller` polls many accounts, each when it is due, and several at the same time.

Several pollers, in any number of processes, can share the accounts of one storage. A poller leases an account
before polling it, so no two pollers poll it at the same time. A failed poll is reported and retried
later, and does not affect other accounts. Wrong credentials stop the poller.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from secrets import token_hex
from typing import TypeAlias

import anyio
import msgspec
from msgspec.structs import replace

from ..storage import Micros
from ..storage.errors import NewerFormat, StorageError
from ..storage.limits import MAX_PAGE_RECORDS
from ..storage.request_batcher import batched
from ..storage.time_types import MINUTE
from . import transitions
from .account import Account, AccountStatus, StoredAccount
from .alarms import AlarmWatch, OnAlarm, find_alarms, log_alarm
from .api_types import BackfillReport
from .errors import (
    AccountLeaseLost,
    AuthenticationFailed,
    CorruptFeedRecord,
    FeedError,
    InvalidActor,
    PollInProgress,
    RequestRejected,
    UnknownAccount,
)
from .follow_list_sync import sync_follow_list
from .lease import LEASE_DURATION, acquire_lease
from .link_ranking import LinkIndex
from .poll import Poll, PolledElsewhere, PollFailed, PollOutcome, PollSkipped, PollSucceeded
from .settings import FollowLists, PollSettings
from .source import FeedSource, FollowSource, HintSource, Profile
from .store import FeedStore

log = logging.getLogger("perdure.feeds")

POLLS_PER_CONNECTION = 2
"""Number of concurrent polls per connection. While one poll writes to the storage, another can use
the connection."""
DUE_CHECK_SECONDS = 2.0
"""Seconds to wait before checking again if no account is due."""
PROFILES_PER_REQUEST = 25
PROFILE_INTERVAL: Micros = 55 * MINUTE
HINT_INTERVAL: Micros = MINUTE
ALARM_INTERVAL: Micros = MINUTE
ALARM_COST_FACTOR = 30.0
"""Minimum pause after an alarm check, as a multiple of the check's duration. A check reads all accounts."""
REMOVAL_INTERVAL: Micros = 10 * MINUTE
ITEMS_PER_REMOVAL = 1000
LINK_SUMMARY_INTERVAL: Micros = 5 * MINUTE
MAX_LINK_ITEMS = 20_000
"""A refresh of the link summaries stops after reading about this many items (in about half a second)."""

_SKIPPED_ACCOUNTS = (UnknownAccount, CorruptFeedRecord, NewerFormat)
"""Errors that mean that an account was removed or cannot be decoded. Jobs that process many accounts skip
such accounts."""

OnOutcome: TypeAlias = Callable[[PollOutcome], None]


class CycleStats(msgspec.Struct, kw_only=True):
    """Totals over many polls, for example over one cycle, in which each account is polled once."""

    polled: int = 0
    initial: int = 0
    """Number of accounts that were polled for the first time, or for the first time since they were reset."""
    skipped: int = 0
    failed: int = 0
    elsewhere: int = 0
    """Number of accounts that were not polled because another poller was polling them."""
    with_new_items: int = 0
    """Number of polls that found new items."""
    new_items: int = 0
    new_links: int = 0
    pages: int = 0
    invalid_records: int = 0

    def add(self, outcome: PollOutcome) -> None:
        match outcome:
            case PollSucceeded():
                self.polled += 1
                self.initial += outcome.account.poll_count <= 1
                self.with_new_items += outcome.new_items > 0
                self.new_items += outcome.new_items
                self.new_links += outcome.new_links
                self.pages += outcome.pages
                self.invalid_records += outcome.invalid_records
            case PollSkipped():
                self.skipped += 1
            case PollFailed():
                self.failed += 1
            case PolledElsewhere():
                self.elsewhere += 1


class Poller:
    """Polls the accounts in a `FeedStore`."""

    def __init__(
        self,
        store: FeedStore,
        source: FeedSource,
        settings: PollSettings,
        *,
        on_outcome: OnOutcome = lambda _: None,
        on_alarm: OnAlarm = log_alarm,
        follow_lists: FollowLists | None = None,
        name: str | None = None,
        lease_duration: Micros = LEASE_DURATION,
    ) -> None:
        """Create a poller.

        `run` and `run_once` call `on_outcome` after each poll. `run` also synchronizes `follow_lists`, and
        calls `on_alarm` when an alarm is raised, repeated or cleared. If the process is killed, its leases
        expire within `lease_duration`. Other pollers can then poll the accounts.
        """
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{token_hex(3)}"
        self._store = store
        self._index = LinkIndex(store)
        self._source = source
        self._settings = settings
        self._on_outcome = on_outcome
        self._alarm_watch = AlarmWatch(on_alarm)
        self._follow_lists = follow_lists
        self._lease_duration = lease_duration
        self._in_progress: set[str] = set()
        """The ids of the accounts that this poller has queued or is polling."""
        self._deferred_until: dict[str, Micros] = {}
        """For each account whose failure could not be stored: the time at which to poll the account again."""

    async def poll(
        self, stored: StoredAccount, *, is_scheduled: bool = False
    ) -> PollSucceeded | PollSkipped | PollFailed:
        """Poll an account now, even if it is not due. Raise PollInProgress if it is already being polled."""
        store, source, account = self._store, self._source, stored.account
        try:
            async with acquire_lease(store, stored, self.name, duration=self._lease_duration) as lease:
                return await Poll(store, source, self._settings, lease, is_scheduled=is_scheduled).run()
        except (PollInProgress, UnknownAccount, AuthenticationFailed):
            raise
        except Exception as error:  # sources in other packages can raise anything
            if not isinstance(error, AccountLeaseLost | StorageError):
                log.exception("the poll of %s failed", account.handle)
            self._deferred_until[account.account_id] = store.clock() + MINUTE
            return PollFailed(account, error)

    async def poll_until_done(self, report: BackfillReport) -> BackfillReport:
        """Poll an account repeatedly. Return `report` with the results of the polls.

        Stop when the account has no gaps, or when a poll fails or makes no progress.
        """
        while not report.is_done:
            stored = await self._store.get(report.account)
            try:
                outcome = await self.poll(stored)
            except PollInProgress as error:
                return replace(report, reason=str(error))
            if not isinstance(outcome, PollSucceeded):
                return replace(report, reason=str(outcome.error))
            report = report.plus(outcome)
            if outcome.account.gaps == stored.account.gaps:
                return replace(report, reason="no progress; increase max_pages_per_user in the settings")
        return report

    async def run_once(self) -> CycleStats:
        """Poll every active account once, even if it is not due.

        Also poll unavailable accounts that are due. Afterwards, create missing link summaries.
        """
        cycle = await self._poll_all(self._pollable_accounts(), reports_elsewhere=True)
        await self._log_errors(self.summarize_links())
        return cycle

    async def run(self) -> None:
        """Poll each account when it is due, until cancelled.

        Also refresh profiles and link summaries, apply the source's hints about new items, check for alarms,
        synchronize follow lists, and remove old items.
        """
        source, lists = self._source, self._follow_lists
        jobs = [
            self._poll_all(self._due_accounts()),
            self._repeat(PROFILE_INTERVAL, self.refresh_profiles),
            self._repeat(ALARM_INTERVAL, self.check_alarms, first=ALARM_INTERVAL, rest=ALARM_COST_FACTOR),
            self._repeat(REMOVAL_INTERVAL, self.remove_old_items),
            self._repeat(LINK_SUMMARY_INTERVAL, self.summarize_links),
        ]
        if isinstance(source, HintSource):
            jobs.append(self._repeat(HINT_INTERVAL, partial(self.apply_hints, source)))
        if lists is not None and lists.actors:
            if isinstance(source, FollowSource):
                jobs.append(self._repeat(lists.interval, partial(self.sync_follow_lists, source, lists)))
            else:
                log.warning("cannot synchronize follow lists: %s does not support them", source.name)
        await _run_all(*jobs)

    async def check_alarms(self) -> None:
        """Find the current alarms, and report how they have changed since the previous check."""
        accounts = [stored.account async for stored in self._store.accounts()]
        now = self._store.clock()
        self._alarm_watch.update(find_alarms(accounts, now=now), now=now)

    async def remove_old_items(self) -> int:
        """Delete items that are older than the retention period. Return the number of deleted items."""
        oldest = self._settings.oldest_kept(self._store.clock())
        removed = 0
        while oldest and (some := await self._store.remove_items_before(oldest, limit=ITEMS_PER_REMOVAL)):
            removed += some
        if removed:
            log.info("deleted %s items older than %s days", removed, self._settings.retention_days)
        return removed

    async def summarize_links(self) -> None:
        """Create missing link summaries. Stop after about `MAX_LINK_ITEMS` items have been read."""
        await self._index.refresh(max_items=MAX_LINK_ITEMS)

    async def sync_follow_lists(self, source: FollowSource, lists: FollowLists) -> None:
        """Synchronize the follow lists in `lists`. If one list fails, continue with the others."""
        for actor in lists.actors:
            try:
                changes = await sync_follow_list(
                    self._store, source, actor, settings=self._settings, prune=lists.prune
                )
            except AuthenticationFailed:
                raise
            except FeedError as error:
                log.warning("cannot synchronize the follow list of %s: %s", actor, error)
                continue
            counts = Counter(change.action for change in changes if change.action is not None)
            if counts:
                done = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
                log.info("follow list of %s: %s", actor, done)

    async def refresh_profiles(self) -> None:
        """Update the handles and post counts of active accounts whose profiles were not read recently."""
        now = self._store.clock()
        active = [stored.account async for stored in self._store.accounts(AccountStatus.ACTIVE)]
        stale = [account.account_id for account in active if _is_stale(account, now)]
        for batch in batched(stale, PROFILES_PER_REQUEST):
            asked_at = self._store.clock()
            try:
                profiles = await self._source.profiles(sorted(batch))
            except (InvalidActor, RequestRejected) as error:  # the next batch may succeed
                log.warning("could not read some profiles: %s", error)
                continue
            for profile in profiles:
                if profile.account_id in batch:
                    edit = partial(_update_profile, profile=profile, now=asked_at)
                    with suppress(*_SKIPPED_ACCOUNTS):
                        await self._store.update(profile.account_id, edit)

    async def apply_hints(self, source: HintSource) -> int:
        """Make accounts due if the source shows that they have new items. Return how many became due."""
        newest = await source.latest_activity()
        count = 0
        for account_id, time in newest.items():
            with suppress(*_SKIPPED_ACCOUNTS):
                before = (await self._store.get(account_id)).account
                edit = partial(transitions.hinted, newest=time, now=self._store.clock())
                if edit(before) != before:
                    count += 1
                    await self._store.update(account_id, edit)
        return count

    # Many accounts

    async def _poll_all(
        self, accounts: AsyncIterable[StoredAccount], *, reports_elsewhere: bool = False
    ) -> CycleStats:
        """Poll `accounts`, several at the same time.

        `reports_elsewhere` specifies whether to report accounts that another poller is polling. It is False
        for pollers that run continuously, because they often find such accounts.
        """
        cycle = CycleStats()
        consumers = self._settings.connections * POLLS_PER_CONNECTION
        waiting: asyncio.Queue[StoredAccount | None] = asyncio.Queue(consumers)

        async def produce() -> None:
            async for stored in accounts:
                self._in_progress.add(stored.account.account_id)
                await waiting.put(stored)
            for _ in range(consumers):
                await waiting.put(None)

        def report(outcome: PollOutcome) -> None:
            if reports_elsewhere or not isinstance(outcome, PolledElsewhere):
                cycle.add(outcome)
                self._on_outcome(outcome)

        await _run_all(produce(), *(self._consume(waiting, report) for _ in range(consumers)))
        return cycle

    async def _consume(self, waiting: asyncio.Queue[StoredAccount | None], report: OnOutcome) -> None:
        while (stored := await waiting.get()) is not None:
            try:
                outcome: PollOutcome = await self.poll(stored, is_scheduled=True)
            except PollInProgress as error:
                outcome = PolledElsewhere(stored.account, error)
            except UnknownAccount as error:
                log.debug("%s", error)
                continue
            finally:
                self._in_progress.discard(stored.account.account_id)
            report(outcome)

    async def _pollable_accounts(self) -> AsyncGenerator[StoredAccount]:
        """Yield the pollable accounts. Read all accounts before the first poll, because polls change them."""
        now = self._store.clock()
        accounts = [stored async for stored in self._store.accounts()]
        for stored in accounts:
            if stored.account.is_pollable(now):
                yield stored

    async def _due_accounts(self) -> AsyncGenerator[StoredAccount]:
        """Yield due accounts forever. Skip accounts that this poller is already polling or has deferred."""
        limit = min(8 * self._settings.connections * POLLS_PER_CONNECTION, MAX_PAGE_RECORDS)
        while True:
            due: list[StoredAccount] = []
            try:
                due = await self._store.due(limit)
            except StorageError as error:
                log.warning("cannot read the list of accounts that are due for polling: %s", error)
            available = [each for each in due if self._is_available(each.account.account_id)]
            for stored in available:
                yield stored
            if not available:
                await anyio.sleep(DUE_CHECK_SECONDS)

    def _is_available(self, account_id: str) -> bool:
        if self._deferred_until.get(account_id, 0) > self._store.clock():
            return False
        self._deferred_until.pop(account_id, None)
        return account_id not in self._in_progress

    # Other jobs

    async def _repeat(
        self, interval: Micros, job: Callable[[], Awaitable[object]], *, first: Micros = 0, rest: float = 0
    ) -> None:
        """Run a job repeatedly, starting after a delay of `first`.

        The pause after each run is `interval`, or `rest` times the duration of the run if that is longer.
        """
        await anyio.sleep(first / 1e6)
        while True:
            started = anyio.current_time()
            await self._log_errors(job())
            await anyio.sleep(max(interval / 1e6, rest * (anyio.current_time() - started)))

    async def _log_errors(self, work: Awaitable[object]) -> None:
        """Await a job. Re-raise AuthenticationFailed, but only log other errors."""
        try:
            await work
        except AuthenticationFailed:
            raise
        except (FeedError, StorageError) as error:
            log.warning("%s", error)
        except Exception:  # sources and callbacks in other packages can raise anything
            log.exception("a background job of the poller failed")


def _update_profile(account: Account, profile: Profile, *, now: Micros) -> Account:
    """Apply `profile`, unless another poller has just applied a profile."""
    return transitions.profile_updated(account, profile, now=now) if _is_stale(account, now) else account


def _is_stale(account: Account, now: Micros) -> bool:
    return (account.profile_read_at or 0) + PROFILE_INTERVAL <= now


async def _run_all(*jobs: Coroutine[None, None, object]) -> None:
    """Run jobs concurrently. If a job fails, cancel the others, wait until they end, and raise the error.

    A task group would wrap the error in an ExceptionGroup.
    """
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
