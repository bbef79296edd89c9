"""How a poll ends, for the account: when it is polled again, and what is remembered of this time. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from random import uniform

from msgspec.structs import replace

from ..storage import Micros
from ..storage.clock import HOUR, MINUTE
from .account import BY_HAND, Account, Hold, Status
from .errors import AccountUnavailable, FeedError, InvalidActor
from .item import Item
from .settings import Polling
from .source import Profile

SHORTEST: Micros = 2 * MINUTE
LONGEST: Micros = 6 * HOUR
"""Between two polls of an account, but for what chance adds."""
MAX_RETRY_WAIT: Micros = 30 * MINUTE
"""Between two polls that fail, if the account's own interval is not longer: a source that was down for hours
is read again soon after it is back."""
JITTER = 0.1
PROBES: tuple[Micros, ...] = (HOUR, 6 * HOUR, 24 * HOUR, 7 * 24 * HOUR)
"""When an account that the source does not show is looked for again; the last one for ever."""


def new_account(profile: Profile, *, now: Micros, polling: Polling, origin: str = BY_HAND) -> Account:
    """Return a new account, which is due at once."""
    return Account(
        account_id=profile.account_id,
        handle=profile.handle,
        added_at=now,
        origins=(origin,),
        next_at=now,
        interval=polling.interval,
        posts=profile.posts,
        profiled_at=now,
    )


def claimed(account: Account, hold: Hold) -> Account:
    """Give the account to a poller. A poller that died may have stored posts that it did not count."""
    is_taken_over = account.hold is not None and account.hold.poller != hold.poller
    return replace(uncounted(account) if is_taken_over else account, hold=hold)


def uncounted(account: Account) -> Account:
    """Compare the source's count with ours only from the next profile on."""
    return replace(
        account, posts=None, posts_found=0, posts_carried=0, unseen=0, unseen_since=None, unseen_polls=0
    )


def posts_since(account: Account, found: Iterable[Item]) -> int:
    """Return how many of these items the source had not counted yet when its profile was last read: what is
    read of an account's past is no news for its count.
    """
    since = (account.profiled_at or 0) - HOUR  # clocks of authors differ
    return sum(item.kind != "repost" and item.time > since for item in found)


def posts_until(account: Account, found: Iterable[Item]) -> int:
    """Return how many of these items the source may have counted when its profile was last read."""
    until = (account.profiled_at or 0) + 10 * MINUTE  # its clock may differ from ours
    return sum(item.kind != "repost" and item.time <= until for item in found)


def read(
    account: Account, *, new: int, counted: int, uncounted: int, pages: int, set_aside: int, now: Micros
) -> Account:
    """Count what a page brought: new items, and how many of them are posts that the last profile may have
    counted, or may not have counted. A post of about the same time is both: a false alarm would be worse than
    a late one.
    """
    unseen = max(account.unseen - counted, 0)
    return replace(
        account,
        last_polled_at=now,
        posts_fetched_count=account.posts_fetched_count + new,
        posts_found=account.posts_found + uncounted,
        pages=account.pages + pages,
        set_aside=account.set_aside + set_aside,
        unseen=unseen,
        unseen_since=account.unseen_since if unseen else None,
    )


def audited(account: Account, *, posts: int) -> Account:
    """An audit compared everything, and stored this many posts."""
    return replace(
        account, posts_found=account.posts_found + posts, unseen=0, unseen_since=None, unseen_polls=0
    )


def settled(
    account: Account,
    *,
    found: int,
    fresh: int,
    elapsed: Micros | None,
    waited: Micros | None = None,
    got_on: bool,
    now: Micros,
) -> Account:
    """The poll is over. With a gap left the account is due at once, if it got on with one. `fresh` of the
    items that it found are newer than what was known before. `waited` is the time since the poll before,
    if both were due or part of a cycle: a poll by hand says nothing about how often there are polls.
    """
    interval = account.interval if elapsed is None else interval_after(account.interval, fresh, elapsed)
    return replace(
        account,
        hold=None,
        status=Status.ACTIVE if account.status is Status.UNAVAILABLE else account.status,
        reason="" if account.status is not Status.SUSPENDED else account.reason,
        failures=0,
        failing_since=None,
        last_wait=account.last_wait if waited is None else waited,
        cadence=account.cadence if waited is None else min(waited, account.last_wait or waited),
        polls=account.polls + 1,
        quiet=0 if found else account.quiet + 1,
        unseen_polls=account.unseen_polls + 1 if account.unseen and not found else 0,
        interval=interval,
        next_at=now if account.gaps and got_on else now + jittered(interval),
    )


def failed(account: Account, error: FeedError, *, now: Micros) -> Account:
    """The poll came to nothing. What is known stays as it is."""
    turns = isinstance(error, AccountUnavailable) and account.status is not Status.UNAVAILABLE
    failures = 1 if turns else account.failures + 1
    failing = replace(
        account,
        hold=None,
        failures=failures,
        failing_since=account.failing_since if account.failing_since is not None and not turns else now,
        reason=str(error),
        last_polled_at=now,
    )
    if account.status is Status.SUSPENDED:
        return failing
    if isinstance(error, InvalidActor):
        return replace(failing, status=Status.SUSPENDED)
    if isinstance(error, AccountUnavailable):
        wait = PROBES[min(failures, len(PROBES)) - 1]
        return replace(failing, status=Status.UNAVAILABLE, next_at=now + jittered(wait))
    wait = min(MINUTE << min(failures - 1, 20), max(MAX_RETRY_WAIT, account.interval))
    return replace(failing, next_at=now + jittered(wait))


def released(account: Account) -> Account:
    """The poll was given up: due as before. It may have stored posts that it did not count."""
    return replace(uncounted(account), hold=None)


def suspended(account: Account, reason: str = "") -> Account:
    return replace(account, status=Status.SUSPENDED, reason=reason)


def resumed(account: Account, *, now: Micros) -> Account:
    return replace(
        account, status=Status.ACTIVE, reason="", failures=0, failing_since=None, next_at=now, cadence=None
    )


def reset(account: Account, *, now: Micros) -> Account:
    """Forget how far it was read. Its items stay, so nothing is stored twice."""
    return replace(
        account,
        mark=None,
        since=None,
        gaps=(),
        deep_mark=None,
        etag=None,
        next_at=now,
        failures=0,
        failing_since=None,
        polls=0,
    )


def hinted(account: Account, *, newest: Micros, now: Micros) -> Account:
    """Somebody saw an item of it: poll it now, if that is news."""
    if account.status is not Status.ACTIVE or (account.mark is not None and newest <= account.mark):
        return account
    return replace(account, next_at=min(account.next_at, now))


def profiled(account: Account, profile: Profile, *, now: Micros) -> Account:
    """What the source says of it: a new handle, and by how much its own count has risen more than ours. A
    count that falls makes up for an earlier rise: posts were deleted before a poll saw them.
    """
    unseen, carried = account.unseen, account.posts_found
    if account.posts is not None and profile.posts is not None:
        risen = profile.posts - account.posts
        unseen = max(unseen + risen - account.posts_found - account.posts_carried, 0)
        carried = max(account.posts_found - max(risen - account.posts_carried, 0), 0)
    return replace(
        account,
        handle=profile.handle or account.handle,
        posts=profile.posts if profile.posts is not None else account.posts,
        unseen=unseen,
        unseen_since=None if not unseen else now if account.unseen_since is None else account.unseen_since,
        profiled_at=now,
        posts_found=0,
        posts_carried=carried,  # a poll may be quicker than the profile that counts what it found
    )


def interval_after(before: Micros, new: int, elapsed: Micros) -> Micros:
    """Toward one new item in each poll, halfway: half the time after four of them, longer after none.
    A poll soon after another that found nothing proves nothing.
    """
    wanted = elapsed / new if new else max(before, 2 * elapsed)
    return round(min(max(math.sqrt(before * max(wanted, 1)), SHORTEST), LONGEST))


def jittered(span: Micros) -> Micros:
    return round(span * uniform(1 - JITTER, 1 + JITTER))
