"""The class `Feeds`, through which commands, web pages and tools manage and poll feeds.

    async with Feeds.open("sqlite:///perdure.db") as feeds:
        await feeds.add(["alice.bsky.social"])
        await feeds.run_once()
        print(await feeds.links())

The `name` of an account is its handle (with or without @), its DID or the URL of its profile. With `dry_run`,
a method changes nothing and only reports what it would do.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Self, TypeAlias

import anyio
from msgspec.structs import replace

from ..storage import Micros, Position, open_storage
from ..storage.time_types import HOUR
from . import transitions, watermark_and_gaps
from .account import ACCOUNTS, POLLS, Account, AccountStatus
from .account_lookup import find_profiles, is_account_name, normalize_account_name, parse_account_name
from .alarms import OnAlarm, log_alarm
from .api_types import (
    AccountAudit,
    AccountChange,
    AccountDetail,
    AccountPage,
    AccountSummary,
    BackfillReport,
    ChangeReport,
    FeedItem,
    FeedStatus,
    ItemPage,
    RankedLink,
    Schedule,
    summarize,
)
from .completeness_audit import audit_account
from .errors import (
    AccountUnavailable,
    AmbiguousHandle,
    AuthenticationFailed,
    FeedError,
    RequestRejected,
    SourceError,
    UnknownAccount,
)
from .follow_list_sync import add_account, is_pruned, sync_follow_list
from .item import ItemKind
from .lease import LEASE_DURATION
from .link_ranking import LinkIndex, Ranking
from .poll import PollFailed, PollSkipped, PollSucceeded
from .poller import CycleStats, OnOutcome, Poller
from .rate_limit import RateLimiter
from .settings import FeedSettings
from .source import AuditSource, FeedSource, FollowSource, open_source
from .store import AccountEdit, FeedStore, older_than

log = logging.getLogger("perdure.feeds")

Time: TypeAlias = Micros | timedelta
"""A time in the past, as microseconds since 1970-01-01 or as a timedelta before now."""

MAX_WAIT: Micros = 31 * 24 * HOUR
"""How far ahead `Feeds.schedule` searches for the next poll. No account waits longer than this."""


class Feeds:
    """Manages and polls the accounts in one storage, and returns their items and links."""

    def __init__(
        self,
        store: FeedStore,
        settings: FeedSettings | None = None,
        *,
        source: FeedSource | None = None,
        lease_seconds: float = LEASE_DURATION / 1e6,
    ) -> None:
        """Create an instance that reads feeds from `source`, or from Bluesky if `source` is None.

        The connection to Bluesky is opened when it is first needed, and closed at the end of `async with`.
        If a poller is killed, other pollers can poll its accounts after `lease_seconds`.
        """
        self.store = store
        self.settings = settings or FeedSettings()
        self.rate_limiter = RateLimiter(self.settings.polling.connections)
        """Limits the requests to the Bluesky server from which feeds are read. By default, it logs when
        requests must wait. To change that, set its `on_wait`."""
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
        """Open the storage at `url`, yield a `Feeds` object, and close the storage at the end."""
        async with await open_storage(url) as storage:
            feeds = cls(FeedStore(storage), settings, source=source, lease_seconds=lease_seconds)
            async with feeds:
                yield feeds

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit_stack.aclose()

    async def source(self) -> FeedSource:
        """Return the source that was passed to `__init__`. If there was none, return a connection to Bluesky.

        Raise InvalidSettings if a setting is invalid or a required package is not installed.
        """
        async with self._connecting:
            if self._source is None:
                opening = open_source(self.settings, self.rate_limiter)
                self._source = await self._exit_stack.enter_async_context(opening)
            return self._source

    # Changing accounts

    async def add(self, names: Sequence[str], *, dry_run: bool = False) -> ChangeReport:
        """Add accounts to be polled. The report also lists names for which no account was found."""
        normalized = list(dict.fromkeys(normalize_account_name(name) for name in names))
        valid = [name for name in normalized if is_account_name(name)]
        profiles = await find_profiles(await self.source(), valid) if valid else []
        changes = [
            await add_account(self.store, profile, settings=self.settings.polling, dry_run=dry_run)
            for profile in profiles
        ]
        known = {name.lower() for each in profiles for name in (each.account_id, each.handle)}
        unknown: list[str] = []
        for name in normalized:
            if name.lower() in known:
                continue
            try:
                account = (await self.store.find(name)).account
            except (UnknownAccount, AmbiguousHandle):
                unknown.append(name)
            else:  # the account is stored, but the source does not currently show it
                note = f"already added, {account.status}: {account.reason}"
                changes.append(_change(account, None, note))
        return ChangeReport(changes=tuple(changes), unknown=tuple(unknown), dry_run=dry_run)

    async def follow(self, actor: str, *, prune: bool = False, dry_run: bool = False) -> ChangeReport:
        """Add the accounts that `actor` follows.

        With `prune`, suspend accounts that were added only from this follow list and are no longer on it.
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
        """Remove accounts. Keep their stored items unless `delete_items` is set."""
        changes: list[AccountChange] = []
        for account in await self._find_all(names):
            items = await self.store.count_items(account.account_id)
            if not dry_run:
                await self.store.remove(account.account_id, with_items=delete_items)
            note = f"{items} item{'' if items == 1 else 's'} {'deleted' if delete_items else 'kept'}"
            changes.append(_change(account, "removed", note))
        return ChangeReport(changes=tuple(changes), dry_run=dry_run)

    async def suspend(self, names: Sequence[str], *, reason: str = "", dry_run: bool = False) -> ChangeReport:
        """Stop polling accounts until they are resumed. A non-empty `reason` replaces any earlier reason.

        Synchronizing a follow list does not resume accounts that this method suspended.
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
        """Resume polling accounts. Their next polls are due immediately."""
        edit = partial(transitions.resumed, now=self.store.clock())
        return await self._edit_all(names, edit, "resumed", dry_run=dry_run)

    async def reset(self, names: Sequence[str], *, dry_run: bool = False) -> ChangeReport:
        """Forget how far the feeds of accounts have been read.

        The next polls read the feeds as if the accounts were new. Stored items are kept and not duplicated.
        """
        edit = partial(transitions.reset, now=self.store.clock())
        return await self._edit_all(names, edit, "reset", dry_run=dry_run)

    async def copy_accounts(self, url: str) -> None:
        """Add all accounts to the storage at `url`. If there are no accounts, that storage is not created."""
        if accounts := await self._all_accounts():
            async with await open_storage(url) as storage:
                target = FeedStore(storage)
                for account in accounts:
                    await target.add(account)

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
        """Return the accounts with these names. Raise UnknownAccount if an account is not stored."""
        return [await self._find(name) for name in names]

    # Polling

    async def poll(self, name: str) -> PollSucceeded | PollSkipped | PollFailed:
        """Poll an account now, even if it is suspended.

        Raise PollInProgress if another poller is polling the account.
        """
        poller = await self._poller()
        return await poller.poll(await self.store.find(parse_account_name(name)))

    async def run(self, *, on_outcome: OnOutcome | None = None, on_alarm: OnAlarm = log_alarm) -> None:
        """Poll each account at its own interval, until cancelled.

        Several processes can call this method with the same storage. Each process also refreshes profiles
        and link summaries, synchronizes follow lists, reports alarms, and deletes items that are older than
        the retention period.
        """
        poller = await self._poller(on_outcome, on_alarm)
        await poller.run()

    async def run_once(self, *, on_outcome: OnOutcome | None = None) -> CycleStats:
        """Poll every active account once, even if it is not due. Also poll unavailable accounts that are due.

        Refresh outdated profiles before polling. Otherwise a post that is written after a poll could be
        included in the profile's post count, and would appear to be missing. At the end, delete items that
        are older than the retention period.
        """
        poller = await self._poller(on_outcome)
        try:
            await poller.refresh_profiles()
        except AuthenticationFailed:
            raise
        except SourceError as error:
            log.warning("could not read the profiles; polling without them: %s", error)
        cycle = await poller.run_once()
        await poller.remove_old_items()
        return cycle

    async def backfill(
        self, name: str, since: Time, *, wait: bool = True, dry_run: bool = False
    ) -> BackfillReport:
        """Read the feed of an account back to the time `since`, and store missing items.

        If `wait` is False, return immediately. The next scheduled polls then read the items.
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
        """Compare the stored items of one or all accounts with the source. Yield one result per account.

        Store missing items. With `history`, also store items that were written before
        `Account.history_start`. With `remove`, delete items that no longer exist at the source. If the audit
        of one account fails, continue with the next account.
        """
        source = await self.source()
        if not isinstance(source, AuditSource):
            raise RequestRejected(f"{source.name} does not support audits")
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
        """Return an overview of all accounts: totals, alarms and failing accounts."""
        accounts, now = await self._all_accounts(), self.store.clock()
        summary = summarize(accounts, now=now)
        return FeedStatus(
            summary=summary,
            watermark_share=summary.watermark_share,
            items=await self.store.count_items(),
            failing=tuple(AccountSummary.from_account(each) for each in accounts if each.has_failures),
            now=now,
        )

    async def account(self, name: str) -> AccountDetail:
        """Return the complete stored state of an account."""
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
        """Return all accounts that match the filters, starting with the least recently polled.

        `polled_before` excludes accounts that were polled at that time or later.
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
        """Return a page of accounts in the order in which they were added.

        If `after` is an account id, the page starts after that account.
        """
        before = None if after is None else await self.store.get(after)
        found, has_more = await self.store.account_page(before, limit)
        accounts = tuple(stored.account for stored in found)
        return AccountPage(accounts=accounts, next_account=accounts[-1].account_id if has_more else None)

    async def pollable_accounts(self) -> list[AccountSummary]:
        """Return the accounts that `run_once` would poll now."""
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
        """Return the number of accounts that are not suspended, and the time of the next poll.

        This is fast, because not all accounts are read.
        """
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
        """Return a page of items from the feed of one account or of all accounts, newest first.

        The page starts with the newest item older than `before` or, if `before` is None, after the position
        `after`. With `keep_ties`, items with the same time are not split between pages, so the time of the
        last item can be passed as `before` to get the next page. `max_scanned` limits how many items are
        read, in case filters exclude most of them. If this number is reached, the page can have fewer than
        `limit` items.
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
        """Return the id of an account. Accept the DID of a removed account if its items are still stored."""
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
    ) -> Ranking[RankedLink]:
        """Return the links shared by the most accounts since the time `since`.

        For hours without a stored link summary, items must be read. After about `max_items` items have been
        read, further hours without a summary are left out. Up to `max_handles` handles are listed for each
        link. For both parameters, None means no limit.
        """
        ranking = await self._links.ranking(self._time(since), limit=limit, max_items=max_items)
        named = {each for link in ranking.links for each in link.sharers[:max_handles]}
        handles = await self.store.handles(sorted(named))
        links = tuple(RankedLink.from_link(link, handles, max_handles) for link in ranking.links)
        return Ranking(links=links, missing_hours=ranking.missing_hours)

    def _time(self, time: Time) -> Micros:
        if isinstance(time, timedelta):
            return max(0, self.store.clock() - time // timedelta(microseconds=1))
        return time


def _change(account: Account, action: str | None, note: str = "") -> AccountChange:
    return AccountChange(account=account.account_id, handle=account.handle, action=action, note=note)
