"""An account: what is remembered of a feed between polls, and when it is polled again.

The *watermark* is the time of the newest item that was stored, and never decreases. A *gap* is an unfinished
read: between its floor and the watermark there may be items that are not stored yet. Only gaps have cursors.
Every item between the initial look-back and the watermark is stored, or lies in a gap.

Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from ..storage import Address, Insert, Micros, Record, Replace, Space
from ..storage.body import FORMAT_FIELD, BodyFormat
from ..storage.clock import Interval, Timestamp
from ..storage.errors import StorageCorrupt
from .errors import CorruptFeedRecord

ACCOUNTS = Space("accounts")
POLLS = "polls"
"""The lane in which accounts wait for their next poll, and leased ones for the end of the lease."""
MANUAL_ORIGIN = "manual"
"""The origin of an account that an operator added."""


class AccountStatus(StrEnum):
    """Whether an account is polled. It is stored as the tag of the record."""

    ACTIVE = "active"
    """Polled at its own interval."""
    UNAVAILABLE = "unavailable"
    """Not shown by the source. Probed at growing intervals."""
    SUSPENDED = "suspended"
    """Not polled until it is resumed."""


class Gap(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An unfinished read toward older items."""

    cursor: str | None = None
    """Where to continue. None to start from the newest item."""
    floor: Timestamp
    """The time down to which everything must be read."""
    late_floor: Timestamp
    """The time down to which reading continues while it still finds new items."""
    cursor_rejections: int = 0
    """How often the source rejected the cursor."""
    is_restarted: bool = False
    """Whether it was restarted from the newest item, because its cursor returned an empty page."""


class Lease(msgspec.Struct, frozen=True):
    """The right of one poller to poll the account until a time."""

    poller: str
    until: Timestamp


class Account(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field=FORMAT_FIELD, tag=2):
    """The stored state of one feed."""

    account_id: str
    """The permanent id: a DID."""
    handle: str
    """The handle in the last profile that was read."""
    added_at: Timestamp
    origins: tuple[str, ...] = (MANUAL_ORIGIN,)
    """What added it: `manual`, or `follows:` and the id of the account whose follow list contains it."""
    status: AccountStatus = AccountStatus.ACTIVE
    reason: str = ""
    """Why it is not active, or the last error."""
    history_start: Timestamp | None = None
    """The time from which everything is stored: the look-back of the first poll."""
    watermark: Timestamp | None = None
    """The time of the newest item that was stored. None before the first."""
    gaps: tuple[Gap, ...] = ()
    """Newest first."""
    deep_watermark: Timestamp | None = None
    """The watermark at the last deep read, which searches for back-dated posts."""
    etag: str | None = None
    """The ETag of the newest page, if all its items are stored."""
    lease: Lease | None = None
    next_poll_at: Timestamp
    """When it is polled or probed next."""
    poll_interval: Interval
    """The time between two polls. It follows how often the account posts."""
    consecutive_failures: int = 0
    failing_since: Timestamp | None = None
    """The time of the first of these failures."""
    last_polled_at: Timestamp | None = None
    last_wait: Interval | None = None
    """The time between the last two polls."""
    cadence: Interval | None = None
    """The shorter of the last two such times: how often the account is really polled. After an outage, the
    last one alone would be too long."""
    posts_fetched_count: int = 0
    """How many items were new when they were read."""
    pages_read: int = 0
    poll_count: int = 0
    invalid_records: int = 0
    """How many records of the source were skipped because they are invalid."""
    profile_posts: int | None = None
    """The number of posts that the last profile reports."""
    unseen_posts: int = 0
    """How many posts the profile counts that neither polls nor audits found."""
    unseen_since: Timestamp | None = None
    """When a profile first counted them. The next profile no longer counts posts that were deleted before a
    poll found them."""
    unseen_polls: int = 0
    """How many consecutive polls since then found nothing new."""
    empty_polls: int = 0
    """How many consecutive polls found nothing new."""
    profile_read_at: Timestamp | None = None
    posts_since_profile: int = 0
    """How many posts were stored since that profile was read. Profiles do not count reposts."""
    uncounted_posts: int = 0
    """How many posts were stored before that profile was read, and not counted in it yet."""

    @property
    def is_initial(self) -> bool:
        """Whether no item of it was ever stored."""
        return self.watermark is None

    @property
    def is_repeated(self) -> bool:
        """Whether it is read from the start although an earlier poll stored items of it."""
        return self.watermark is None and self.poll_count > 0 and self.posts_fetched_count > 0

    @property
    def has_failures(self) -> bool:
        """Whether its last poll failed, and it will be polled again."""
        return self.consecutive_failures > 0 and self.status is not AccountStatus.SUSPENDED

    def is_pollable(self, now: Micros) -> bool:
        """Whether a cycle polls it: it is active, or unavailable and due for a probe."""
        return self.status is AccountStatus.ACTIVE or (
            self.status is AccountStatus.UNAVAILABLE and self.next_poll_at <= now
        )

    def is_leased(self, now: Micros) -> bool:
        return self.lease is not None and now < self.lease.until


class StoredAccount(msgspec.Struct, frozen=True):
    """An account and the record it was read from. The next write succeeds only if the record is unchanged."""

    account: Account
    record: Record

    @classmethod
    def from_record(cls, record: Record) -> StoredAccount:
        """Decode a record. Raise NewerFormat or CorruptFeedRecord."""
        try:
            account = _format.decode(record.partition, record.body)
        except StorageCorrupt as error:
            raise CorruptFeedRecord(record.partition, f"invalid account record: {error}") from error
        return cls(account, record)

    def replace_with(self, account: Account) -> tuple[StoredAccount, Replace]:
        """Return the next state, and the change that stores it."""
        lane, wake_at = _lane_and_wake_time(account)
        change = self.record.replace_with(
            body=_format.encode(account), tag=account.status.value, lane=lane, wake_at=wake_at
        )
        return StoredAccount(account, change.after), change


def insertion(account: Account) -> Insert:
    """Return the change that stores a new account."""
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
    """A leased account wakes when its lease expires, so that it is polled again if its poller died."""
    if account.status is AccountStatus.SUSPENDED:
        return None, None
    return POLLS, account.next_poll_at if account.lease is None else account.lease.until


_KEY = "account"
"""Each partition has one account."""
_format = BodyFormat(Account)
