"""The stored state of an account: how far its feed has been read, and when it is polled next.

The *watermark* is the time of the newest stored item, and never decreases. A *gap* is an unfinished read:
items between its floor and the watermark may not be stored yet. Only gaps have cursors. Every item between
the initial look-back and the watermark is stored or lies in a gap.

This module performs no I/O and reads no clock.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from ..storage import Address, Insert, Micros, Record, Replace, Space
from ..storage.body_format import FORMAT_FIELD, BodyFormat
from ..storage.errors import StorageCorrupt
from ..storage.time_units import Interval, Timestamp
from .errors import CorruptFeedRecord

ACCOUNTS = Space("accounts")
POLLS = "polls"
"""The lane in which accounts wait for their next poll. Leased accounts wait there until the lease expires."""
MANUAL_ORIGIN = "manual"
"""The origin of an account that an operator added."""


class AccountStatus(StrEnum):
    """Whether an account is polled. The value is also the tag of the account's record."""

    ACTIVE = "active"
    """The account is polled at its own interval."""
    UNAVAILABLE = "unavailable"
    """The source does not show the account. It is probed at growing intervals."""
    SUSPENDED = "suspended"
    """The account is not polled until it is resumed."""


class Gap(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An unfinished read toward older items."""

    cursor: str | None = None
    """Where reading continues. None to start from the newest item."""
    floor: Timestamp
    """The time down to which everything must be read."""
    late_floor: Timestamp
    """The time down to which reading continues while it still finds new items."""
    cursor_rejections: int = 0
    """Number of times that the source has rejected the cursor."""
    is_restarted: bool = False
    """Whether reading restarted from the newest item because the cursor returned an empty page."""


class Lease(msgspec.Struct, frozen=True):
    """The right of one poller to poll the account until a time."""

    poller: str
    until: Timestamp


class Account(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field=FORMAT_FIELD, tag=2):
    """The stored state of one feed."""

    account_id: str
    """The permanent id of the account: a DID."""
    handle: str
    """The handle in the most recently read profile."""
    added_at: Timestamp
    origins: tuple[str, ...] = (MANUAL_ORIGIN,)
    """What added the account: `manual`, or `follows:` and the id of the owner of a follow list."""
    status: AccountStatus = AccountStatus.ACTIVE
    reason: str = ""
    """Why the account is not active, or the last error."""
    history_start: Timestamp | None = None
    """The time from which all items are stored: the time of the first poll minus the look-back."""
    watermark: Timestamp | None = None
    """The time of the newest stored item. None if no item has been stored yet."""
    gaps: tuple[Gap, ...] = ()
    """The unfinished reads, newest first."""
    deep_watermark: Timestamp | None = None
    """The watermark at the last deep read. Deep reads find back-dated posts."""
    etag: str | None = None
    """The ETag of the newest page if it reached known items, else None."""
    lease: Lease | None = None
    next_poll_at: Timestamp
    """When the account is polled or probed next."""
    poll_interval: Interval
    """The time between two polls. It adapts to how often the account posts."""
    consecutive_failures: int = 0
    failing_since: Timestamp | None = None
    """The time of the first of the consecutive failures."""
    last_polled_at: Timestamp | None = None
    last_wait: Interval | None = None
    """The time between the last two polls."""
    cadence: Interval | None = None
    """The shorter of the last two values of `last_wait`: how often the account is really polled. After an
    outage, the last value alone would be too long."""
    posts_fetched_count: int = 0
    """Number of items that were new when they were read."""
    pages_read: int = 0
    poll_count: int = 0
    invalid_records: int = 0
    """Number of records of the source that were skipped because they are invalid."""
    profile_posts: int | None = None
    """Number of posts according to the last profile."""
    unseen_posts: int = 0
    """Number of posts that the last profile counts and that neither polls nor audits have found."""
    unseen_since: Timestamp | None = None
    """When a profile first counted unseen posts. If they were deleted before a poll could find them, the next
    profile does not count them."""
    unseen_polls: int = 0
    """Number of consecutive polls that found nothing new while there were unseen posts."""
    empty_polls: int = 0
    """Number of consecutive polls that found nothing new."""
    profile_read_at: Timestamp | None = None
    """When the last profile was read."""
    posts_since_profile: int = 0
    """Number of posts stored since the last profile was read. Profiles do not count reposts."""
    uncounted_posts: int = 0
    """Number of posts that were stored before the last profile was read and that it did not count yet."""

    @property
    def is_repeated(self) -> bool:
        """Whether the account has no watermark although earlier polls stored items."""
        return self.watermark is None and self.poll_count > 0 and self.posts_fetched_count > 0

    @property
    def has_failures(self) -> bool:
        """Whether the last poll failed and the account is not suspended."""
        return self.consecutive_failures > 0 and self.status is not AccountStatus.SUSPENDED

    def is_pollable(self, now: Micros) -> bool:
        """Return whether the account is active, or unavailable and due for a probe."""
        return self.status is AccountStatus.ACTIVE or (
            self.status is AccountStatus.UNAVAILABLE and self.next_poll_at <= now
        )

    def is_leased(self, now: Micros) -> bool:
        return self.lease is not None and now < self.lease.until


class StoredAccount(msgspec.Struct, frozen=True):
    """An account and its record. The next write succeeds only if the record has not changed since."""

    account: Account
    record: Record

    @classmethod
    def from_record(cls, record: Record) -> StoredAccount:
        """Decode a record. Raise NewerFormat or CorruptFeedRecord if that is not possible."""
        try:
            account = _format.decode(record.partition, record.body)
        except StorageCorrupt as error:
            raise CorruptFeedRecord(record.partition, f"invalid account record: {error}") from error
        return cls(account, record)

    def replace_with(self, account: Account) -> tuple[StoredAccount, Replace]:
        """Return the new state of the account, and the change that stores it."""
        lane, wake_at = _lane_and_wake_time(account)
        change = self.record.replace_with(
            body=_format.encode(account), tag=account.status.value, lane=lane, wake_at=wake_at
        )
        return StoredAccount(account, change.after), change


def insertion(account: Account) -> Insert:
    """Return the change that inserts a new account."""
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
    """Return the lane and the wake time of the record.

    A leased account wakes when its lease expires, so that it is polled again if its poller died.
    """
    if account.status is AccountStatus.SUSPENDED:
        return None, None
    return POLLS, account.next_poll_at if account.lease is None else account.lease.until


_KEY = "account"
"""The key of the only account record in each partition."""
_format = BodyFormat(Account)
