"""How a poll ends, for the account: when it is polled again, and what is remembered of this time. Pure."""

from __future__ import annotations

import math
from random import uniform

from msgspec.structs import replace

from ..storage import Micros
from .account import Account, Hold, Status
from .errors import AccountUnavailable, FeedError, InvalidActor
from .settings import HOUR, MINUTE, Polling
from .source import Profile

SHORTEST: Micros = 2 * MINUTE
LONGEST: Micros = 6 * HOUR
"""Between two polls of an account, but for what chance adds."""
JITTER = 0.1
PROBES: tuple[Micros, ...] = (HOUR, 6 * HOUR, 24 * HOUR, 7 * 24 * HOUR)
"""When an account that the source does not show is looked for again; the last one for ever."""


def new_account(profile: Profile, *, now: Micros, polling: Polling) -> Account:
    """Due at once."""
    return Account(
        account_id=profile.account_id,
        handle=profile.handle,
        added_at=now,
        next_at=now,
        interval=polling.interval,
        posts=profile.posts,
        profiled_at=now,
    )


def claimed(account: Account, hold: Hold) -> Account:
    return replace(account, hold=hold)


def read(account: Account, *, new: int, pages: int, set_aside: int, now: Micros) -> Account:
    """Count what a page brought."""
    return replace(
        account,
        last_polled_at=now,
        posts_fetched_count=account.posts_fetched_count + new,
        pages=account.pages + pages,
        set_aside=account.set_aside + set_aside,
        unseen=0 if new else account.unseen,
    )


def settled(
    account: Account, *, found: int, fresh: int, elapsed: Micros | None, got_on: bool, now: Micros
) -> Account:
    """The poll is over. With a gap left the account is due at once, if it got on with one. `fresh` of the
    items that it found are newer than what was known before.
    """
    interval = account.interval if elapsed is None else interval_after(account.interval, fresh, elapsed)
    return replace(
        account,
        hold=None,
        status=Status.ACTIVE if account.status is Status.UNAVAILABLE else account.status,
        reason="" if account.status is not Status.SUSPENDED else account.reason,
        failures=0,
        polls=account.polls + 1,
        quiet=0 if found else account.quiet + 1,
        interval=interval,
        next_at=now if account.gaps and got_on else now + jittered(interval),
    )


def failed(account: Account, error: FeedError, *, now: Micros) -> Account:
    """The poll came to nothing. What is known stays as it is."""
    turns = isinstance(error, AccountUnavailable) and account.status is not Status.UNAVAILABLE
    failures = 1 if turns else account.failures + 1
    failing = replace(account, hold=None, failures=failures, reason=str(error), last_polled_at=now)
    if account.status is Status.SUSPENDED:
        return failing
    if isinstance(error, InvalidActor):
        return replace(failing, status=Status.SUSPENDED)
    if isinstance(error, AccountUnavailable):
        wait = PROBES[min(failures, len(PROBES)) - 1]
        return replace(failing, status=Status.UNAVAILABLE, next_at=now + jittered(wait))
    wait = min(MINUTE << min(failures - 1, 20), LONGEST)
    return replace(failing, next_at=now + jittered(wait))


def released(account: Account) -> Account:
    """Nobody is at it any more, and nothing came of it: due as it was."""
    return replace(account, hold=None)


def suspended(account: Account, reason: str = "") -> Account:
    return replace(account, status=Status.SUSPENDED, reason=reason)


def resumed(account: Account, *, now: Micros) -> Account:
    return replace(account, status=Status.ACTIVE, reason="", failures=0, next_at=now)


def reset(account: Account, *, now: Micros) -> Account:
    """Forget how far it was read. Its items stay, so nothing is stored twice."""
    return replace(account, mark=None, since=None, gaps=(), etag=None, next_at=now, failures=0)


def hinted(account: Account, *, newest: Micros, now: Micros) -> Account:
    """Somebody saw an item of it: poll it now, if that is news."""
    if account.status is not Status.ACTIVE or (account.mark is not None and newest <= account.mark):
        return account
    return replace(account, next_at=min(account.next_at, now))


def profiled(account: Account, profile: Profile, *, now: Micros) -> Account:
    """What the source says of it: a new handle, and how far its own count has risen without us."""
    risen = 0 if None in (account.posts, profile.posts) else (profile.posts or 0) - (account.posts or 0)
    fetched = account.posts_fetched_count - account.fetched_then
    return replace(
        account,
        handle=profile.handle or account.handle,
        posts=profile.posts if profile.posts is not None else account.posts,
        unseen=account.unseen + max(risen - fetched, 0),
        profiled_at=now,
        fetched_then=account.posts_fetched_count,
    )


def interval_after(before: Micros, new: int, elapsed: Micros) -> Micros:
    """Toward one new item in each poll, halfway: half the time after four of them, longer after none.
    A poll soon after another that found nothing proves nothing.
    """
    wanted = elapsed / new if new else max(before, 2 * elapsed)
    return round(min(max(math.sqrt(before * max(wanted, 1)), SHORTEST), LONGEST))


def jittered(span: Micros) -> Micros:
    return round(span * uniform(1 - JITTER, 1 + JITTER))
