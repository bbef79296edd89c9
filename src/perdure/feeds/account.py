"""The account: what is remembered of a feed between polls, and when it is polled again. Pure.

`mark` is the time of the newest item that was stored, and never falls. A *gap* is a walk that is unfinished:
below the mark, and above its floor, there may be items that are not stored yet. A cursor stands nowhere else.
Everything between the initial look-back and the mark is stored, or lies under a gap.
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
"""The lane in which accounts wait for their next poll, and held ones for the end of the hold."""
MANUAL_ORIGIN = "manual"
"""The origin of an account that an operator has added."""


class AccountStatus(StrEnum):
    """Whether an account is polled. Stored as the record's tag."""

    ACTIVE = "active"
    """Polled, each at its own interval."""
    UNAVAILABLE = "unavailable"
    """The source does not show it. It is probed again, more and more rarely."""
    SUSPENDED = "suspended"
    """Not polled, until somebody resumes it."""


class Gap(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An unfinished walk toward older items."""

    cursor: str | None = None
    """Where to go on. None: from the newest item, all the way down."""
    floor: Timestamp
    """How far down it must go."""
    late_floor: Timestamp
    """How far down it goes on while it still finds items that nobody knew."""
    cursor_rejections: int = 0
    """How often the source has refused the cursor."""
    is_restarted: bool = False
    """Whether it has begun again from the top already, because its cursor led nowhere."""


class Lease(msgspec.Struct, frozen=True):
    """Who polls the account, and until when nobody else does."""

    poller: str
    until: Timestamp


class Account(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field=FORMAT_FIELD, tag=2):
    account_id: str
    """The one name that never changes: a DID."""
    handle: str
    """What people call it, as of the last profile."""
    added_at: Timestamp
    origins: tuple[str, ...] = (MANUAL_ORIGIN,)
    """What has added it: `manual`, or `follows:` and the id of the account whose follow list has it."""
    status: AccountStatus = AccountStatus.ACTIVE
    reason: str = ""
    """Why it is not active, or what went wrong last."""
    history_start: Timestamp | None = None
    """From when on everything is wanted: the look-back at the first poll."""
    watermark: Timestamp | None = None
    gaps: tuple[Gap, ...] = ()
    """The newest first."""
    deep_watermark: Timestamp | None = None
    """The mark when posts that come late were last looked for in the depth."""
    etag: str | None = None
    """Of the newest page, whose items are all stored."""
    lease: Lease | None = None
    next_poll_at: Timestamp
    """When it is polled again, or probed."""
    poll_interval: Interval
    """Between two polls. Follows how often the account posts."""
    consecutive_failures: int = 0
    """In a row."""
    failing_since: Timestamp | None = None
    """When the first of these failures was."""
    last_polled_at: Timestamp | None = None
    last_wait: Interval | None = None
    """The time between the last two polls."""
    cadence: Interval | None = None
    """The shorter of the last two such times: how often the account is really polled. After an outage the
    last one alone would be too long."""
    posts_fetched_count: int = 0
    """Items that were new when they were read."""
    pages_read: int = 0
    poll_count: int = 0
    invalid_records: int = 0
    """Records that could not be read."""
    profile_posts: int | None = None
    """By the source's own count, at the last look at its profile."""
    unseen_posts: int = 0
    """How many posts that count has that neither polls nor audits found."""
    unseen_since: Timestamp | None = None
    """When a profile first counted them. Those that were deleted before a poll saw them are gone from the
    next profile's count."""
    unseen_polls: int = 0
    """Polls in a row since then that found nothing new."""
    empty_polls: int = 0
    """Polls in a row that found nothing new."""
    profile_read_at: Timestamp | None = None
    posts_since_profile: int = 0
    """Posts that were stored since that look. Reposts are not in the source's count."""
    uncounted_posts: int = 0
    """Posts that were stored in the time before, and that its count did not have yet."""

    @property
    def is_initial(self) -> bool:
        """Whether nothing of it was ever stored."""
        return self.watermark is None

    @property
    def is_repeated(self) -> bool:
        """Whether it is read from the start, though an earlier poll has stored items of it."""
        return self.watermark is None and self.poll_count > 0 and self.posts_fetched_count > 0

    def is_pollable(self, now: Micros) -> bool:
        """Whether a cycle polls it: one that is active, or is to be looked for again."""
        return self.status is AccountStatus.ACTIVE or (
            self.status is AccountStatus.UNAVAILABLE and self.next_poll_at <= now
        )

    def is_leased(self, now: Micros) -> bool:
        return self.lease is not None and now < self.lease.until


class StoredAccount(msgspec.Struct, frozen=True):
    """An account as it was read, with the record that the next write must find unchanged."""

    account: Account
    record: Record

    @classmethod
    def from_record(cls, record: Record) -> StoredAccount:
        """The account of a record. Raises NewerFormat or CorruptFeedRecord."""
        try:
            account = _format.decode(record.partition, record.body)
        except StorageCorrupt as error:
            raise CorruptFeedRecord(record.partition, f"not an account: {error}") from error
        return cls(account, record)

    def replace_with(self, account: Account) -> tuple[StoredAccount, Replace]:
        """The next state, and the change that makes it true."""
        lane, wake_at = _lane_and_wake_time(account)
        change = self.record.replace_with(
            body=_format.encode(account), tag=account.status.value, lane=lane, wake_at=wake_at
        )
        return StoredAccount(account, change.after), change


def insertion(account: Account) -> tuple[StoredAccount, Insert]:
    """A new account, and the change that makes it one."""
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
    return StoredAccount(account, record), Insert(record=record)


def account_address(account_id: str) -> Address:
    return Address(ACCOUNTS, account_id, _KEY)


def _lane_and_wake_time(account: Account) -> tuple[str | None, Micros | None]:
    """A held account wakes when its hold runs out, so that one whose poller died is polled again."""
    if account.status is AccountStatus.SUSPENDED:
        return None, None
    return POLLS, account.next_poll_at if account.lease is None else account.lease.until


_KEY = "account"
"""One to a partition."""
_format = BodyFormat(Account)
