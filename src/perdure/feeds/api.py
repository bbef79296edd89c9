"""`Feeds`: everything that commands, pages and tools do with feeds.

    async with Feeds.open("sqlite:///perdure.db") as feeds:
        await feeds.add(["alice.bsky.social"])
        await feeds.run_once()
        print(await feeds.links())

An account is named by its handle, its DID or the URL of its profile. A handle may have a leading @. A time in
the past is a number of microseconds since 1970, or a timedelta before now. With `dry_run`, a method changes
nothing and reports what it would do.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Self, TypeAlias

import anyio
from msgspec.structs import replace

from ..storage import Micros, Position, open_storage
from ..storage.time_units import HOUR
from . import transitions, watermark_and_gaps
from .account import ACCOUNTS, POLLS, Account, AccountStatus
from .account_audit import audit_account
from .account_names import find_profiles, is_account_name, normalize_account_name, parse_account_name
from .alarms import OnAlarm, log_alarm
from .api_types import (
    AccountAudit,
    AccountChange,
    AccountDetail,
    AccountPage,
    AccountSummary,
    BackfillReport,
    ChangeReport,
    FailingAccount,
    FeedItem,
    FeedStatus,
    ItemPage,
    LinkRanking,
    RankedLink,
    Schedule,
    summarize,
)
from .errors import (
    AccountUnavailable,
    AmbiguousHandle,
    AuthenticationFailed,
    FeedError,
    InvalidSettings,
    RequestRejected,
    SourceError,
    UnknownAccount,
)
from .follow_list_sync import add_account, is_pruned, sync_follow_list
from .item import ItemKind
from .lease import LEASE_DURATION
from .link_ranking import LinkIndex
from .poll import PollFailed, PollSkipped, PollSucceeded
from .poller import CycleStats, OnOutcome, Poller
from .rate_limit import RateLimiter
from .settings import FeedSettings
from .source import AuditSource, FeedSource, FollowSource
from .store import AccountEdit, FeedStore, older_than

if TYPE_CHECKING:
    from .bluesky import BlueskySource

log = logging.getLogger("perdure.feeds")

Time: TypeAlias = Micros | timedelta
"""A time in the past: microseconds since 1970, or how long ago it was."""

MAX_WAIT: Micros = 31 * 24 * HOUR
"""How far ahead `Feeds.schedule` searches for the next poll. No account waits that long."""


class Feeds:
    """The feeds of one storage."""

    def __init__(
        self,
        store: FeedStore,
        settings: FeedSettings | None = None,
        *,
        source: FeedSource | None = None,
        lease_seconds: float = LEASE_DURATION / 1e6,
    ) -> None:
        """Read from `source`, or from Bluesky with these settings if `source` is None.

        The connection to Bluesky is opened when it is first needed, and closed at the end of `async with`.
        `lease_seconds` is how long an account stays leased to a poller that was killed.
        """
        self.store = store
        self.settings = settings or FeedSettings()
        self.rate_limiter = RateLimiter(self.settings.polling.connections)
        """The rate limiter for Bluesky. It calls its `on_wait` before a long wait."""
        self._source = source
        self._lease_duration: Micros = round(lease_seconds * 1e6)
        self._links = LinkIndex(store)
        self._connecting = anyio.Lock()
        self._exit_stack = AsyncExitStack()

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str,
        settings: FeedSettings | None = None,
        *,
        source: FeedSource | None = None,
        lease_seconds: float = LEASE_DURATION / 1e6,
    ) -> AsyncGenerator[Self]:
        """Open the feeds of a storage. Create the storage if it does not exist."""
        async with await open_storage(url) as storage:
            feeds = cls(FeedStore(storage), settings, source=source, lease_seconds=lease_seconds)
            async with feeds:
                yield feeds

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit_stack.aclose()

    async def source(self) -> FeedSource:
        """Return the source of the feeds. Raise InvalidSettings if Bluesky cannot be opened."""
        async with self._connecting:
            if self._source is None:
                opening = open_source(self.settings, self.rate_limiter)
                self._source = await self._exit_stack.enter_async_context(opening)
            return self._source

    # Changing accounts

    async def add(self, names: Sequence[str], *, dry_run: bool = False) -> ChangeReport:
        """Start polling accounts. The report lists the names that the source does not know."""
        wanted = list(dict.fromkeys(normalize_account_name(name) for name in names))
        valid = [name for name in wanted if is_account_name(name)]
        profiles = await find_profiles(await self.source(), valid) if valid else []
        changes = [
            await add_account(self.store, profile, settings=self.settings.polling, dry_run=dry_run)
            for profile in profiles
        ]
        known = {name.lower() for each in profiles for name in (each.account_id, each.handle)}
        unknown: list[str] = []
        for name in wanted:
            if name.lower() in known:
                continue
            try:
                account = (await self.store.find(name)).account
            except (UnknownAccount, AmbiguousHandle):
                unknown.append(name)
            else:  # the account is stored, but the source does not show it at the moment
                note = f"already added, {account.status}: {account.reason}"
                changes.append(_change(account, None, note))
        return ChangeReport(changes=tuple(changes), unknown=tuple(unknown), dry_run=dry_run)

    async def follow(self, actor: str, *, prune: bool = False, dry_run: bool = False) -> ChangeReport:
        """Add the accounts that `actor` follows.

        With `prune`, suspend accounts that this follow list added and that `actor` no longer follows.
        """
        source = await self.source()
        if not isinstance(source, FollowSource):
            raise RequestRejected(f"{source.name} does not support follow lists")
        actor = parse_account_name(actor)
        changes = await sync_follow_list(
            self.store, source, actor, settings=self.settings.polling, prune=prune, dry_run=dry_run
        )
        return ChangeReport(changes=tuple(changes), dry_run=dry_run)

    async def remove(
        self, names: Sequence[str], *, delete_items: bool = False, dry_run: bool = False
    ) -> ChangeReport:
        """Remove accounts. Keep their items unless `delete_items` is set."""
        changes: list[AccountChange] = []
        for account in await self._find_all(names):
            items = await self.store.count_items(account.account_id)
            if not dry_run:
                await self.store.remove(account.account_id, with_items=delete_items)
            note = f"{'with' if delete_items else 'without'} {items} item{'' if items == 1 else 's'}"
            changes.append(_change(account, "removed", note))
        return ChangeReport(changes=tuple(changes), dry_run=dry_run)

    async def suspend(self, names: Sequence[str], *, reason: str = "", dry_run: bool = False) -> ChangeReport:
        """Stop polling accounts until they are resumed. A new reason replaces an earlier one.

        A follow list does not resume an account that was suspended in this way.
        """
        changes: list[AccountChange] = []
        for account in await self._find_all(names):
            is_suspended = account.status is AccountStatus.SUSPENDED
            if is_suspended and not reason and not is_pruned(account):
                changes.append(_change(account, None, f"already suspended: {account.reason}"))
                continue
            edit = partial(transitions.suspended, reason=reason or "suspended manually")
            note = f"the reason was: {account.reason}" if is_suspended else ""
            changes.append(await self._edit(account, edit, "suspended", note, dry_run=dry_run))
        return ChangeReport(changes=tuple(changes), dry_run=dry_run)

    async def resume(self, names: Sequence[str], *, dry_run: bool = False) -> ChangeReport:
        """Resume accounts, and make them due now."""
        edit = partial(transitions.resumed, now=self.store.clock())
        return await self._edit_all(names, edit, "resumed", dry_run=dry_run)

    async def reset(self, names: Sequence[str], *, dry_run: bool = False) -> ChangeReport:
        """Forget how far accounts have been read: the next poll starts at the initial look-back.

        Stored items are kept, and they are not stored twice.
        """
        edit = partial(transitions.reset, now=self.store.clock())
        return await self._edit_all(names, edit, "reset", dry_run=dry_run)

    async def _edit_all(
        self, names: Sequence[str], edit: AccountEdit, action: str, *, dry_run: bool
    ) -> ChangeReport:
        accounts = await self._find_all(names)
        changes = [await self._edit(account, edit, action, dry_run=dry_run) for account in accounts]
        return ChangeReport(changes=tuple(changes), dry_run=dry_run)

    async def _edit(
        self, account: Account, edit: AccountEdit, action: str, note: str = "", *, dry_run: bool
    ) -> AccountChange:
        if not dry_run:
            await self.store.update(account.account_id, edit)
        return _change(account, action, note)

    async def _find(self, name: str) -> Account:
        return (await self.store.find(parse_account_name(name))).account

    async def _find_all(self, names: Sequence[str]) -> list[Account]:
        """Return these accounts. Raise UnknownAccount if one is missing."""
        return [await self._find(name) for name in names]

    # Polling

    async def poll(self, name: str) -> PollSucceeded | PollSkipped | PollFailed:
        """Poll an account now, even if it is suspended. Raise PollInProgress if another poller polls it."""
        poller = await self._poller()
        return await poller.poll(await self.store.find(parse_account_name(name)))

    async def run(self, *, on_outcome: OnOutcome | None = None, on_alarm: OnAlarm = log_alarm) -> None:
        """Poll each account at its own interval, until cancelled.

        Several processes can share one storage. This also refreshes profiles, follow lists, alarms and link
        summaries, and removes items that are older than the retention.
        """
        poller = await self._poller(on_outcome, on_alarm)
        await poller.run()

    async def run_once(self, *, on_outcome: OnOutcome | None = None) -> CycleStats:
        """Poll every account once, due or not, and remove items that are older than the retention.

        Profiles are read first, so that the polls can find the posts that the profiles count.
        """
        poller = await self._poller(on_outcome)
        try:
            await poller.refresh_profiles()
        except AuthenticationFailed:
            raise
        except SourceError as error:
            log.warning("could not read the profiles: %s", error)
        cycle = await poller.run_once()
        await poller.remove_old_items()
        return cycle

    async def backfill(
        self, name: str, since: Time, *, wait: bool = True, dry_run: bool = False
    ) -> BackfillReport:
        """Read an account back to a time and store missing items.

        Without `wait`, return at once and leave the work to the next polls.
        """
        account, start = await self._find(name), self._time(since)
        report = BackfillReport(
            account=account.account_id, handle=account.handle, since=start, dry_run=dry_run
        )
        if dry_run:
            return report
        edit = partial(watermark_and_gaps.add_backfill_gap, since=start, now=self.store.clock())
        await self.store.update(account.account_id, edit)
        return await (await self._poller()).poll_until_done(report) if wait else report

    async def audit(
        self, name: str | None = None, *, history: bool = False, remove: bool = False, dry_run: bool = False
    ) -> AsyncGenerator[AccountAudit]:
        """Compare the stored items of one account or of all accounts with the records at the source.

        Store missing items, with `history` also those from before the first poll. With `remove`, remove items
        that were deleted at the source. If an account cannot be read, continue with the others.
        """
        source = await self.source()
        if not isinstance(source, AuditSource):
            raise RequestRejected(f"{source.name} does not list the records of an account")
        since = self.settings.polling.oldest_kept(self.store.clock())
        audit = partial(
            audit_account, self.store, source, history=history, remove=remove, since=since, dry_run=dry_run
        )
        for account in await self._all_accounts() if name is None else await self._find_all([name]):
            report = AccountAudit(account=account.account_id, handle=account.handle)
            try:
                report = replace(report, audit=await audit(account.account_id))
            except AuthenticationFailed:
                raise
            except FeedError as error:
                is_unavailable = isinstance(error, AccountUnavailable)
                is_known = is_unavailable and account.status is AccountStatus.UNAVAILABLE
                report = replace(report, reason=str(error), is_failure=not is_known)
            yield report

    async def _poller(self, on_outcome: OnOutcome | None = None, on_alarm: OnAlarm = log_alarm) -> Poller:
        return Poller(
            self.store,
            await self.source(),
            self.settings.polling,
            on_outcome=on_outcome or (lambda _: None),
            on_alarm=on_alarm,
            follow_lists=self.settings.follow_lists,
            lease_duration=self._lease_duration,
        )

    # Accounts

    async def status(self) -> FeedStatus:
        """Return the state of all accounts: counts, failing accounts and alarms."""
        accounts, now = await self._all_accounts(), self.store.clock()
        summary = summarize(accounts, now=now)
        return FeedStatus(
            summary=summary,
            watermark_share=summary.watermark_share,
            items=await self.store.count_items(),
            failing=tuple(FailingAccount.from_account(each) for each in accounts if each.has_failures),
            now=now,
        )

    async def account(self, name: str) -> AccountDetail:
        """Return the complete state of an account."""
        account, now = await self._find(name), self.store.clock()
        items = await self.store.count_items(account.account_id)
        return AccountDetail(account=account, items=items, is_leased=account.is_leased(now), now=now)

    async def accounts(
        self,
        *,
        status: AccountStatus | None = None,
        without_watermark: bool = False,
        polled_before: Time | None = None,
    ) -> list[AccountSummary]:
        """Return accounts, starting with the least recently polled.

        With `polled_before`, leave out accounts that were polled at that time or later.
        """
        found = await self._all_accounts(status)
        if without_watermark:
            found = [account for account in found if account.watermark is None]
        if polled_before is not None:
            before = self._time(polled_before)
            found = [account for account in found if (account.last_polled_at or 0) < before]
        found.sort(key=lambda account: (account.last_polled_at or 0, account.handle))
        return [AccountSummary.from_account(account) for account in found]

    async def account_page(self, after: str | None = None, *, limit: int) -> AccountPage:
        """Return a page of accounts in the order in which they were added, starting after this id."""
        before = None if after is None else await self.store.get(after)
        found, has_more = await self.store.account_page(before, limit)
        accounts = tuple(stored.account for stored in found)
        return AccountPage(accounts=accounts, next_account=accounts[-1].account_id if has_more else None)

    async def pollable_accounts(self) -> list[AccountSummary]:
        """Return the accounts that `run_once` would poll."""
        now = self.store.clock()
        accounts = await self._all_accounts()
        return [AccountSummary.from_account(each) for each in accounts if each.is_pollable(now)]

    async def due_accounts(self) -> list[AccountSummary]:
        """Return the accounts that `run` would poll now."""
        now = self.store.clock()
        accounts = [each for each in await self._all_accounts() if each.is_pollable(now)]
        due = [each for each in accounts if each.next_poll_at <= now and not each.is_leased(now)]
        return [AccountSummary.from_account(each) for each in due]

    async def schedule(self) -> Schedule:
        """Return the number of polled accounts and the time of the next poll, without reading accounts."""
        storage, now = self.store.storage, self.store.clock()
        counts = await storage.counts(ACCOUNTS, now=now)
        first = await storage.due(POLLS, until=now + MAX_WAIT, limit=1, now=now)
        return Schedule(
            accounts=sum(count for tag, count in counts.items() if tag != AccountStatus.SUSPENDED.value),
            next_poll_at=first[0].wake_at if first else None,
        )

    async def _all_accounts(self, status: AccountStatus | None = None) -> list[Account]:
        return [stored.account async for stored in self.store.accounts(status)]

    # Items and links

    async def items(
        self,
        name: str | None = None,
        *,
        since: Time = 0,
        before: Time | None = None,
        after: Position | None = None,
        kind: ItemKind | None = None,
        with_links: bool = False,
        limit: int = 50,
        max_scanned: int | None = None,
        keep_ties: bool = False,
    ) -> ItemPage:
        """Return a page of items of all accounts or of one, newest first.

        The page starts `after` a position or `before` a time. With `keep_ties`, items that have the same time
        are on the same page, so that the next page can start `before` that time. `max_scanned` limits how
        many items are read if the filters leave most of them out.
        """
        account_id = None if name is None else await self._account_id(name)
        if before is not None:
            after = older_than(self._time(before), account_id)
        found, next_position = await self.store.item_page(
            account_id,
            since=self._time(since),
            after=after,
            kind=kind,
            with_links=with_links,
            limit=limit,
            max_scanned=max_scanned,
            keep_ties=keep_ties,
        )
        handles = await self.store.handles(account_id for account_id, _ in found)
        items = tuple(FeedItem.from_item(item, account_id, handles) for account_id, item in found)
        return ItemPage(items=items, next_position=next_position)

    async def _account_id(self, name: str) -> str:
        """Return the id of an account, or the DID of a removed account whose items are still stored."""
        name = parse_account_name(name)
        try:
            return (await self._find(name)).account_id
        except UnknownAccount:
            if name.startswith("did:") and await self.store.count_items(name):
                return name
            raise

    async def links(
        self,
        since: Time = timedelta(days=1),
        *,
        limit: int = 20,
        max_items: int | None = None,
        max_handles: int | None = None,
    ) -> LinkRanking:
        """Return the links that the most accounts shared since a time.

        `max_items` limits how many items are read for hours that are not summarized yet, and `max_handles`
        limits how many accounts are named for each link.
        """
        ranking = await self._links.ranking(self._time(since), limit=limit, max_items=max_items)
        named = {each for link in ranking.links for each in link.sharers[:max_handles]}
        handles = await self.store.handles(sorted(named))
        links = tuple(RankedLink.from_link(link, handles, max_handles) for link in ranking.links)
        return LinkRanking(links=links, missing_hours=ranking.missing_hours)

    def _time(self, time: Time) -> Micros:
        if isinstance(time, timedelta):
            return max(0, self.store.clock() - time // timedelta(microseconds=1))
        return time


@asynccontextmanager
async def open_source(
    settings: FeedSettings, limiter: RateLimiter | None = None
) -> AsyncGenerator[BlueskySource]:
    """Open Bluesky with these settings. Raise InvalidSettings if they are invalid or a package is missing."""
    try:
        from .bluesky import open_bluesky  # noqa: PLC0415 (the extra may be missing)
    except ModuleNotFoundError as error:
        reason = f"{error.name} is not installed; install the feeds extra: pip install 'perdure[feeds]'"
        raise InvalidSettings("bluesky", reason) from error
    async with open_bluesky(settings, limiter=limiter) as source:
        yield source


def _change(account: Account, action: str | None, note: str = "") -> AccountChange:
    return AccountChange(account=account.account_id, handle=account.handle, action=action, note=note)
