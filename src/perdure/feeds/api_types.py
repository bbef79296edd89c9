"""Types that methods of `Feeds` return. All types in this module can be encoded as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from ..storage import Micros, Position
from ..storage.time_types import Timestamp
from .account import Account, AccountStatus
from .alarms import Alarm, find_alarms
from .completeness_audit import AuditReport
from .item import Item
from .link_ranking import SharedLink
from .poll import PollSucceeded


class AccountChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change to one account. In a dry run, the change is only reported and not made."""

    account: str
    """The id of the account."""
    handle: str
    action: str | None
    """What was done, such as `added` or `suspended`. None if nothing had to be done."""
    note: str = ""


class ChangeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that a method call made to accounts or, in a dry run, would have made."""

    changes: tuple[AccountChange, ...]
    unknown: tuple[str, ...] = ()
    """Names for which no account was found."""
    dry_run: bool = False

    def count(self, action: str | None) -> int:
        return sum(change.action == action for change in self.changes)


class AccountSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A short description of one account, for lists of accounts."""

    account: str
    handle: str
    status: AccountStatus
    watermark: Timestamp | None
    last_polled_at: Timestamp | None
    next_poll_at: Timestamp
    gaps: int
    consecutive_failures: int
    reason: str
    origins: tuple[str, ...]

    @classmethod
    def from_account(cls, account: Account) -> AccountSummary:
        return cls(
            account=account.account_id,
            handle=account.handle,
            status=account.status,
            watermark=account.watermark,
            last_polled_at=account.last_polled_at,
            next_poll_at=account.next_poll_at,
            gaps=len(account.gaps),
            consecutive_failures=account.consecutive_failures,
            reason=account.reason,
            origins=account.origins,
        )


class AccountDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The complete stored state of one account, and the number of its items."""

    account: Account
    items: int
    is_leased: bool
    now: Timestamp


class AccountPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of accounts, in the order in which they were added."""

    accounts: tuple[Account, ...]
    next_account: str | None
    """Pass this account id as `after` to get the next page. None if this is the last page."""


class FeedSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Totals over all accounts, and the current alarms."""

    accounts: int
    active: int
    unavailable: int
    suspended: int
    with_watermark: int
    with_gaps: int
    failing: int
    posts_fetched_count: int
    invalid_records: int
    last_polled_at: Timestamp | None
    next_poll_at: Timestamp | None
    alarms: tuple[Alarm, ...]

    @property
    def watermark_share(self) -> float:
        """The fraction of accounts that have a watermark (the time of the newest item that was read).

        It is low if many accounts have never been polled successfully, or have never posted.
        """
        return self.with_watermark / self.accounts if self.accounts else 0.0


def summarize(accounts: Iterable[Account], *, now: Micros) -> FeedSummary:
    """Return totals over these accounts, and the alarms that they cause at the time `now`."""
    accounts = list(accounts)
    by_status = {status: sum(each.status is status for each in accounts) for status in AccountStatus}
    next_polls = [each.next_poll_at for each in accounts if each.status is not AccountStatus.SUSPENDED]
    return FeedSummary(
        accounts=len(accounts),
        active=by_status[AccountStatus.ACTIVE],
        unavailable=by_status[AccountStatus.UNAVAILABLE],
        suspended=by_status[AccountStatus.SUSPENDED],
        with_watermark=sum(each.watermark is not None for each in accounts),
        with_gaps=sum(bool(each.gaps) for each in accounts),
        failing=sum(each.has_failures for each in accounts),
        posts_fetched_count=sum(each.posts_fetched_count for each in accounts),
        invalid_records=sum(each.invalid_records for each in accounts),
        last_polled_at=max((each.last_polled_at for each in accounts if each.last_polled_at), default=None),
        next_poll_at=min(next_polls, default=None),
        alarms=find_alarms(accounts, now=now),
    )


class FeedStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An overview of all accounts: totals, alarms and failing accounts."""

    summary: FeedSummary
    watermark_share: float
    items: int
    failing: tuple[AccountSummary, ...]
    now: Timestamp


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """The number of accounts that are not suspended, and the time at which the next poll is due."""

    accounts: int
    next_poll_at: Timestamp | None


class BackfillReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a backfill, which reads the feed of an account back to an earlier time."""

    account: str
    handle: str
    since: Timestamp
    new_items: int = 0
    new_links: int = 0
    pages: int = 0
    is_done: bool = False
    """Whether all items back to `since` have been read. If not, the next polls continue the backfill."""
    reason: str = ""
    """Why the backfill stopped early, or an empty string."""
    dry_run: bool = False

    def plus(self, outcome: PollSucceeded) -> BackfillReport:
        return replace(
            self,
            new_items=self.new_items + outcome.new_items,
            new_links=self.new_links + outcome.new_links,
            pages=self.pages + outcome.pages,
            is_done=not outcome.account.gaps,
        )


class AccountAudit(msgspec.Struct, frozen=True, kw_only=True):
    """The audit report of one account, or the reason why the audit failed."""

    account: str
    handle: str
    audit: AuditReport | None = None
    reason: str = ""
    """Why the audit failed, or an empty string."""
    is_failure: bool = False
    """Whether the audit failed unexpectedly. False if the account was already known to be unavailable."""


class FeedItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item, and the account whose feed contains it."""

    account: str
    account_handle: str
    item: Item

    @classmethod
    def from_item(cls, item: Item, account_id: str, handles: Mapping[str, str]) -> FeedItem:
        links = tuple(replace(link, shared_url=link.shared_url or link.url) for link in item.links)
        handle = handles.get(account_id, account_id)
        return cls(account=account_id, account_handle=handle, item=replace(item, links=links))


class ItemPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of items, newest first."""

    items: tuple[FeedItem, ...]
    next_position: Position | None
    """Pass this position as `after` to get the next page. None if this is the last page."""


class RankedLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link and the accounts that shared it."""

    url: str
    """The normalized URL (see `normalize_url`). Links with equal normalized URLs count as links to the same
    page."""
    shared_url: str
    """The URL as it was first shared."""
    title: str
    sharers: int
    """Number of accounts that shared the link."""
    handles: tuple[str, ...]
    """The handles of the accounts that shared the link, earliest first. The parameter `max_handles` of
    `Feeds.links` limits their number. If an account is not stored, its id is listed instead of its handle."""
    share_count: int
    """Number of times that the link was shared."""
    first_at: Timestamp
    last_at: Timestamp
    today: int
    """Number of accounts that shared the link in the last 24 hours."""
    day_before: int
    """Number of accounts that shared the link between 48 and 24 hours ago."""

    @classmethod
    def from_link(cls, link: SharedLink, handles: Mapping[str, str], max_handles: int | None) -> RankedLink:
        return cls(
            url=link.url,
            shared_url=link.shared_url,
            title=link.title,
            sharers=len(link.sharers),
            handles=tuple(handles.get(each, each) for each in link.sharers[:max_handles]),
            share_count=link.share_count,
            first_at=link.first_at,
            last_at=link.last_at,
            today=link.today,
            day_before=link.day_before,
        )
