"""The stored state of an account: how far its feed has been read, and when the next poll is due.

The *watermark* is the time of the newest item that polls have read. Polls never lower it. A *gap* is a part
of the feed that polls have not read yet or must read again. Polls continue to read a gap at its *cursor*,
from newer to older items, until they reach a time called the *floor*. Every item between
`Account.history_start` and the watermark is either stored or inside a gap, except backdated items, invalid
items, and items that were deleted because of their age. This module performs no I/O and reads no clock.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from ..storage import Address, Insert, Micros, Record, Replace, Space
from ..storage.body_format import FORMAT_FIELD, BodyFormat
from ..storage.errors import StorageCorrupt
from ..storage.time_types import Interval, Timestamp
from .errors import CorruptFeedRecord

ACCOUNTS = Space("accounts")
POLLS = "polls"
"""The storage lane (a timer queue) in which accounts wait for their next poll or, while they are leased, for
the end of their lease."""
MANUAL_ORIGIN = "manual"
"""The origin of accounts that an operator added (see `Account.origins`)."""


class AccountStatus(StrEnum):
    """Whether an account is polled.

    The value is also the tag of the account's record. Storages can list and count records by tag.
    """

    ACTIVE = "active"
    """The account is polled at its own interval."""
    UNAVAILABLE = "unavailable"
    """The source does not show the account. Polls check at growing intervals whether it is shown again."""
    SUSPENDED = "suspended"
    """No polls of the account are scheduled until it is resumed."""


class Gap(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of the feed that has not been read yet or must be read again.

    Polls read it from newer to older items.
    """

    cursor: str | None = None
    """The source's cursor from which reading continues, or None to start from the newest item."""
    floor: Timestamp
    """The feed must be read at least back to this time."""
    late_floor: Timestamp
    """Polls stop at `floor`, unless a page that reaches it contains late (backdated) items. In that case,
    they read further pages, until a page contains no late items or reaches `late_floor`. If both times are
    equal, polls always stop at `floor`. See `watermark_and_gaps`."""
    cursor_rejections: int = 0
    """Number of times that the source has rejected the cursor."""
    is_restarted: bool = False
    """Whether reading has restarted from the newest item because the page at the cursor was empty."""


class Lease(msgspec.Struct, frozen=True):
    """One poller's exclusive right to poll an account until a given time."""

    poller: str
    until: Timestamp


class Account(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field=FORMAT_FIELD, tag=2):
    """The stored state of one account, including how far its feed has been read."""

    account_id: str
    """The permanent id of the account: a DID (decentralized identifier)."""
    handle: str
    """The handle from the most recently read profile."""
    added_at: Timestamp
    origins: tuple[str, ...] = (MANUAL_ORIGIN,)
    """How the account was added: `manual` (by an operator) or `follows:<id>` (account <id> follows it)."""
    status: AccountStatus = AccountStatus.ACTIVE
    reason: str = ""
    """Why the account is unavailable or suspended, or why its most recent poll failed. Otherwise empty."""
    history_start: Timestamp | None = None
    """The time back to which the feed is read: the time of the first poll minus `initial_lookback_hours`.
    None before the first poll."""
    watermark: Timestamp | None = None
    """The time of the newest item that polls have read, or None if they have not read any item. Items that
    are dated too far in the future do not raise the watermark."""
    gaps: tuple[Gap, ...] = ()
    """The parts of the feed that have not been read yet or must be read again, newest first."""
    deep_watermark: Timestamp | None = None
    """The watermark before the most recent deep read (a search for backdated posts). None before the first
    deep read. The first poll that starts with a watermark counts as a deep read."""
    etag: str | None = None
    """The ETag of the newest page, to detect changes. None if the next poll must read the page even if it is
    unchanged."""
    lease: Lease | None = None
    next_poll_at: Timestamp
    """The time at which the next poll is due."""
    poll_interval: Interval
    """The planned time between two polls. It adapts to how often the account posts."""
    consecutive_failures: int = 0
    failing_since: Timestamp | None = None
    """The time of the first failure in the current series of failed polls, or None if there is no series."""
    last_polled_at: Timestamp | None = None
    last_wait: Interval | None = None
    """The time between the latest successful scheduled poll and the poll before it. None if it is unknown."""
    cadence: Interval | None = None
    """The actual time between polls: the smaller of the two most recent values of `last_wait`. After an
    outage, the most recent value alone would be far too large. None if it is not known."""
    posts_fetched_count: int = 0
    """Number of new items, including reposts, that polls have found."""
    pages_read: int = 0
    poll_count: int = 0
    invalid_records: int = 0
    """Number of invalid records in the source's responses that polls have skipped."""
    profile_posts: int | None = None
    """The most recently read post count of the profile. None if it is unknown."""
    unseen_posts: int = 0
    """Number of posts included in the profile's post count that neither polls nor audits have found."""
    unseen_since: Timestamp | None = None
    """The time at which `unseen_posts` rose above 0. None while `unseen_posts` is 0."""
    unseen_polls: int = 0
    """Number of consecutive polls that found nothing new although `unseen_posts` was above 0."""
    empty_polls: int = 0
    """Number of consecutive polls that found nothing new."""
    profile_read_at: Timestamp | None = None
    """The time at which the profile was most recently read."""
    posts_since_profile: int = 0
    """Number of posts (not reposts) found since `profile_read_at` that might not be
    included in `profile_posts`."""
    uncounted_posts: int = 0
    """Number of posts found before `profile_read_at` that `profile_posts` probably does not include yet."""

    @property
    def is_repeated(self) -> bool:
        """Whether the account still has no watermark although earlier polls found items."""
        return self.watermark is None and self.poll_count > 0 and self.posts_fetched_count > 0

    @property
    def has_failures(self) -> bool:
        """Whether the most recent poll failed. Always False for a suspended account."""
        return self.consecutive_failures > 0 and self.status is not AccountStatus.SUSPENDED

    def is_pollable(self, now: Micros) -> bool:
        """Return whether the account is active, or is unavailable and due for another check."""
        return self.status is AccountStatus.ACTIVE or (
            self.status is AccountStatus.UNAVAILABLE and self.next_poll_at <= now
        )

    def is_leased(self, now: Micros) -> bool:
        return self.lease is not None and now < self.lease.until


class StoredAccount(msgspec.Struct, frozen=True):
    """An account and its record. Replacing the record fails if it has changed since it was read."""

    account: Account
    record: Record

    @classmethod
    def from_record(cls, record: Record) -> StoredAccount:
        """Decode the record of an account. Raise NewerFormat or CorruptFeedRecord if that fails."""
        try:
            account = _format.decode(record.partition, record.body)
        except StorageCorrupt as error:
            raise CorruptFeedRecord(record.partition, f"invalid account record: {error}") from error
        return cls(account, record)

    def replace_with(self, account: Account) -> tuple[StoredAccount, Replace]:
        """Return `account` as it will be stored, and the storage change that replaces the current record."""
        lane, wake_at = _lane_and_wake_time(account)
        change = self.record.replace_with(
            body=_format.encode(account), tag=account.status.value, lane=lane, wake_at=wake_at
        )
        return StoredAccount(account, change.after), change


def insertion(account: Account) -> Insert:
    """Return the storage change that inserts a new account."""
    lane, wake_at = _lane_and_wake_time(account)
    record = Record(
        space=ACCOUNTS,
        partition=account.account_id,
        key=_KEY,
        order=account.added_at,
        body=_format.encode(account),
        tag=account.status.value,
        lane=lane,
        wake_at=wake_at,
    )
    return Insert(record=record)


def account_address(account_id: str) -> Address:
    return Address(ACCOUNTS, account_id, _KEY)


def _lane_and_wake_time(account: Account) -> tuple[str | None, Micros | None]:
    """Return the lane and the wake time for the record of an account. Both are None for a suspended account.

    A leased account is due when its lease expires. If the poller that leased the account was killed, another
    poller then polls it.
    """
    if account.status is AccountStatus.SUSPENDED:
        return None, None
    return POLLS, account.next_poll_at if account.lease is None else account.lease.until


_KEY = "account"
"""The key of every account record. Each partition contains only one such record."""
_format = BodyFormat(Account)
