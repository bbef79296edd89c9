"""The state transitions of an account: leases, finished and failed polls, profiles, and edits by operators.

Most functions return a changed copy of the account. No function performs I/O or reads a clock, but some add
random jitter to poll times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from random import uniform

from msgspec.structs import replace

from ..storage import Micros
from ..storage.time_types import HOUR, MINUTE
from .account import MANUAL_ORIGIN, Account, AccountStatus, Lease
from .errors import AccountUnavailable, FeedError, InvalidActor
from .item import Item
from .settings import PollSettings
from .source import Profile

MIN_POLL_INTERVAL: Micros = 2 * MINUTE
MAX_POLL_INTERVAL: Micros = 6 * HOUR
"""Maximum of `Account.poll_interval`. `MIN_POLL_INTERVAL` is the minimum. Random jitter makes the actual time
between two polls a little longer or shorter."""
MAX_RETRY_WAIT: Micros = 30 * MINUTE
"""Maximum wait after a failed poll, unless the account's own interval is longer. The wait is short so that
polls succeed soon after an outage of the source has ended."""
JITTER_FRACTION = 0.1
PROBE_INTERVALS: tuple[Micros, ...] = (HOUR, 6 * HOUR, 24 * HOUR, 7 * 24 * HOUR)
"""The times to wait between polls of an unavailable account. The last value is used repeatedly."""


def new_account(
    profile: Profile, *, now: Micros, settings: PollSettings, origin: str = MANUAL_ORIGIN
) -> Account:
    """Return a new account whose first poll is due immediately."""
    return Account(
        account_id=profile.account_id,
        handle=profile.handle,
        added_at=now,
        origins=(origin,),
        next_poll_at=now,
        poll_interval=settings.initial_interval,
        profile_posts=profile.post_count,
        profile_read_at=now,
    )


def leased(account: Account, lease: Lease) -> Account:
    """Set or renew the lease. If it replaces the lease of another poll, reset the post counts.

    The other poll was interrupted, so the counts may be wrong.
    """
    is_taken_over = account.lease is not None and account.lease.poller != lease.poller
    return replace(profile_count_reset(account) if is_taken_over else account, lease=lease)


def profile_count_reset(account: Account) -> Account:
    """Discard the post count of the latest profile, and all counts that are based on it."""
    return replace(
        account,
        profile_posts=None,
        posts_since_profile=0,
        uncounted_posts=0,
        unseen_posts=0,
        unseen_since=None,
        unseen_polls=0,
    )


def posts_after_profile(account: Account, found: Iterable[Item]) -> int:
    """Return how many items in `found` are posts that may be newer than the most recently read profile."""
    since = (account.profile_read_at or 0) - HOUR  # the clocks of authors differ
    return sum(item.kind != "repost" and item.time > since for item in found)


def posts_before_profile(account: Account, found: Iterable[Item]) -> int:
    """Return how many items in `found` are posts that the latest profile's post count may include."""
    until = (account.profile_read_at or 0) + 10 * MINUTE  # the clock of the source may differ from ours
    return sum(item.kind != "repost" and item.time <= until for item in found)


def page_read(
    account: Account, *, new: int, counted: int, uncounted: int, invalid: int, now: Micros
) -> Account:
    """Add the new items of a page to the counts.

    `counted` is the number of new posts that may be included in the latest profile's post count. `uncounted`
    is the number of new posts that may be missing from that count. Posts from about the time of the profile
    are in both numbers. The overlap can delay an alarm, but does not cause a false alarm.
    """
    unseen = max(account.unseen_posts - counted, 0)
    return replace(
        account,
        last_polled_at=now,
        posts_fetched_count=account.posts_fetched_count + new,
        posts_since_profile=account.posts_since_profile + uncounted,
        pages_read=account.pages_read + 1,
        invalid_records=account.invalid_records + invalid,
        unseen_posts=unseen,
        unseen_since=account.unseen_since if unseen else None,
    )


def audited(account: Account, *, posts: int) -> Account:
    """Apply a complete audit, after which no posts are unseen.

    `posts` is the number of posts that the audit stored and that were written after the profile was read.
    """
    return replace(
        account,
        posts_since_profile=account.posts_since_profile + posts,
        unseen_posts=0,
        unseen_since=None,
        unseen_polls=0,
    )


def poll_finished(
    account: Account,
    *,
    new: int,
    newer: int,
    elapsed: Micros | None,
    waited: Micros | None = None,
    made_progress: bool,
    now: Micros,
) -> Account:
    """End a successful poll. If gaps remain and the poll made progress, the next poll is due immediately.

    `new` is the number of new items. `newer` is the number of new items that are newer than the watermark
    before the poll. `elapsed` is the time since the previous poll, or None if the poll interval must not
    change. `waited` is also the time since the previous poll, but is None if a user requested this poll.
    Both are None for the first poll of an account.
    """
    interval = (
        account.poll_interval if elapsed is None else next_interval(account.poll_interval, newer, elapsed)
    )
    return replace(
        account,
        lease=None,
        status=AccountStatus.ACTIVE if account.status is AccountStatus.UNAVAILABLE else account.status,
        reason="" if account.status is not AccountStatus.SUSPENDED else account.reason,
        consecutive_failures=0,
        failing_since=None,
        last_wait=account.last_wait if waited is None else waited,
        cadence=account.cadence if waited is None else min(waited, account.last_wait or waited),
        poll_count=account.poll_count + 1,
        empty_polls=0 if new else account.empty_polls + 1,
        unseen_polls=account.unseen_polls + 1 if account.unseen_posts and not new else 0,
        poll_interval=interval,
        next_poll_at=now if account.gaps and made_progress else now + add_jitter(interval),
    )


def poll_failed(account: Account, error: FeedError, *, now: Micros) -> Account:
    """End a failed poll, and schedule the next attempt."""
    is_unavailable = isinstance(error, AccountUnavailable)
    is_first = is_unavailable and account.status is not AccountStatus.UNAVAILABLE
    failures = 1 if is_first else account.consecutive_failures + 1
    failing = replace(
        account,
        lease=None,
        consecutive_failures=failures,
        failing_since=now if is_first or account.failing_since is None else account.failing_since,
        reason=str(error),
        last_polled_at=now,
    )
    if account.status is AccountStatus.SUSPENDED:
        return failing
    if isinstance(error, InvalidActor):
        return replace(failing, status=AccountStatus.SUSPENDED)
    if is_unavailable:
        wait = PROBE_INTERVALS[min(failures, len(PROBE_INTERVALS)) - 1]
        return replace(failing, status=AccountStatus.UNAVAILABLE, next_poll_at=now + add_jitter(wait))
    wait = min(MINUTE << min(failures - 1, 20), max(MAX_RETRY_WAIT, account.poll_interval))
    return replace(failing, next_poll_at=now + add_jitter(wait))


def released(account: Account) -> Account:
    """Remove the lease of an interrupted poll. Reset the post counts, because they may be wrong."""
    return replace(profile_count_reset(account), lease=None)


def suspended(account: Account, reason: str = "") -> Account:
    return replace(account, status=AccountStatus.SUSPENDED, reason=reason)


def resumed(account: Account, *, now: Micros) -> Account:
    return replace(
        account,
        status=AccountStatus.ACTIVE,
        reason="",
        consecutive_failures=0,
        failing_since=None,
        next_poll_at=now,
        cadence=None,
    )


def reset(account: Account, *, now: Micros) -> Account:
    """Forget how far the feed has been read, and make the account due now."""
    return replace(
        account,
        watermark=None,
        history_start=None,
        gaps=(),
        deep_watermark=None,
        etag=None,
        next_poll_at=now,
        consecutive_failures=0,
        failing_since=None,
        poll_count=0,
    )


def hinted(account: Account, *, newest: Micros, now: Micros) -> Account:
    """Make an active account due now if it has no watermark, or if its newest item is after the watermark.

    `newest` is the time of the newest item.
    """
    is_known = account.watermark is not None and newest <= account.watermark
    if is_known or account.status is not AccountStatus.ACTIVE:
        return account
    return replace(account, next_poll_at=min(account.next_poll_at, now))


def profile_updated(account: Account, profile: Profile, *, now: Micros) -> Account:
    """Apply a profile: update the handle, and compare the post count with the posts that were found.

    If the post count falls, the number of unseen posts also falls, because the deleted posts may be among the
    unseen posts.
    """
    unseen, carried = account.unseen_posts, account.posts_since_profile
    if account.profile_posts is not None and profile.post_count is not None:
        risen = profile.post_count - account.profile_posts
        unseen = max(unseen + risen - account.posts_since_profile - account.uncounted_posts, 0)
        carried = max(account.posts_since_profile - max(risen - account.uncounted_posts, 0), 0)
    return replace(
        account,
        handle=profile.handle or account.handle,
        profile_posts=profile.post_count if profile.post_count is not None else account.profile_posts,
        unseen_posts=unseen,
        unseen_since=None if not unseen else now if account.unseen_since is None else account.unseen_since,
        profile_read_at=now,
        posts_since_profile=0,
        uncounted_posts=carried,  # a profile may count a post later than a poll finds it
    )


def next_interval(interval: Micros, new: int, elapsed: Micros) -> Micros:
    """Return the next poll interval, which aims at one new item per poll.

    For example, four new items after a full interval halve the interval. Without new items, the interval
    grows if more than half of it has passed since the previous poll.
    """
    target = elapsed / new if new else max(interval, 2 * elapsed)
    return round(min(max(math.sqrt(interval * max(target, 1)), MIN_POLL_INTERVAL), MAX_POLL_INTERVAL))


def add_jitter(interval: Micros) -> Micros:
    return round(interval * uniform(1 - JITTER_FRACTION, 1 + JITTER_FRACTION))
