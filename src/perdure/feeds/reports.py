"""The records that the methods of `Feeds` return. Each of them can be printed as JSON."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from ..storage import Position
from ..storage.clock import Timestamp
from .account import Account, AccountStatus
from .audit import AuditReport
from .health import FeedSummary
from .item import Item
from .poll import PollSucceeded


class AccountChange(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to one account, or would be done."""

    account: str
    handle: str
    action: str | None
    """A past participle: `added`, `renamed`, `suspended`. None if there was nothing to do."""
    note: str = ""


class ChangeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to a number of accounts."""

    changes: tuple[AccountChange, ...]
    unknown: tuple[str, ...] = ()
    """Names that the source does not know."""
    dry_run: bool = False

    def count(self, action: str | None) -> int:
        return sum(change.action == action for change in self.changes)


class AccountSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An account in a list."""

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
    """One account, with everything that is known about it."""

    account: Account
    items: int
    is_leased: bool
    now: Timestamp


class AccountPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of accounts, in the order in which they were added."""

    accounts: tuple[Account, ...]
    next_account: str | None
    """The account after which the next page starts. None if this is the last page."""


class FailingAccount(msgspec.Struct, frozen=True, kw_only=True):
    """An account whose last poll failed."""

    account: str
    handle: str
    status: AccountStatus
    consecutive_failures: int
    reason: str
    next_poll_at: Timestamp


class FeedStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The health of all accounts."""

    summary: FeedSummary
    watermark_share: float
    items: int
    failing: tuple[FailingAccount, ...]
    now: Timestamp


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """How many accounts are polled, and when the next poll is due."""

    accounts: int
    next_poll_at: Timestamp | None


class BackfillReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of an account by a backfill."""

    account: str
    handle: str
    since: Timestamp
    new_items: int = 0
    new_links: int = 0
    pages: int = 0
    is_done: bool = False
    """Whether everything since then was read. If not, the next polls continue."""
    reason: str = ""
    """Why it is not done."""
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
    """The audit of one account, or why there is none."""

    account: str
    handle: str
    audit: AuditReport | None = None
    reason: str = ""
    """Why the account could not be audited."""
    is_failure: bool = False
    """Whether that is a fault. An account that is known to be unavailable is skipped without one."""


class FeedItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item, and the account in whose feed it is."""

    account: str
    account_handle: str
    item: Item


class ItemPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of items, newest first."""

    items: tuple[FeedItem, ...]
    next_position: Position | None
    """Where the next page starts. None if this is the last page."""


class RankedLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link, and the accounts that shared it."""

    url: str
    """The normal form, which is the same for all links to a page."""
    shared_url: str
    """The URL as it was first shared."""
    title: str
    sharers: int
    """How many accounts shared it."""
    handles: tuple[str, ...]
    """The handles of these accounts, in the order in which they shared it."""
    share_count: int
    """How often it was shared."""
    first_at: Timestamp
    last_at: Timestamp
    today: int
    """How many accounts shared it in the last 24 hours."""
    day_before: int
    """How many accounts shared it in the 24 hours before that."""


class LinkRanking(msgspec.Struct, frozen=True, kw_only=True):
    """The links that the most accounts shared, in this order."""

    links: tuple[RankedLink, ...]
    missing_hours: int
    """Number of hours that are not counted yet, because `max_items` bounded how much was read."""
