"""Detects polling problems by examining only the stored accounts. There are four kinds of alarms:

    late       an account is polled too late or not at all, because no poller is running or pollers are slow
    failing    several consecutive polls of an account have failed, for longer than its poll interval
    unseen     a profile counts posts that polls do not find
    repeated   every poll of an account reads its feed as if the account were new

An alarm describes the current state of the accounts, so it clears when its cause ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Literal, TypeAlias, get_args

import msgspec

from ..storage import Micros
from ..storage.time_types import MINUTE
from .account import Account, AccountStatus

log = logging.getLogger("perdure.feeds")

AlarmKind: TypeAlias = Literal["late", "failing", "unseen", "repeated"]

ALARM_KINDS: tuple[AlarmKind, ...] = get_args(AlarmKind)
LATE_GRACE: Micros = 2 * MINUTE
"""Extra time before an account counts as late. If a poller is killed, other pollers cannot poll its accounts
until its leases expire, which by default takes up to a minute."""
ALARM_FAILURES = 3
"""Minimum number of consecutive failed polls for the alarm `failing`."""
ALARM_EMPTY_POLLS = 2
"""Minimum number of consecutive polls without new items for the alarm `unseen`."""
MAX_NAMED_ACCOUNTS = 5
"""Maximum number of accounts that an alarm lists by handle."""
REPEAT_INTERVAL: Micros = 60 * MINUTE
"""An alarm that has not cleared is reported again after this time."""


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """A problem, and the accounts that it affects."""

    kind: AlarmKind
    message: str
    count: int
    """Number of affected accounts."""
    handles: tuple[str, ...]
    """The handles of up to `MAX_NAMED_ACCOUNTS` affected accounts."""


AlarmState: TypeAlias = Literal["raised", "cleared"]
OnAlarm: TypeAlias = Callable[[Alarm, AlarmState], None]


def log_alarm(alarm: Alarm, state: AlarmState) -> None:
    """Log that an alarm was raised or cleared. This is the default `on_alarm` of `Poller`."""
    if state == "raised":
        log.warning("ALARM: %s", alarm.message)
    else:
        log.info("alarm cleared: %s", alarm.message)


class AlarmWatch:
    """Compares the current alarms with the alarms of the previous check, and reports the differences."""

    def __init__(self, on_alarm: OnAlarm) -> None:
        self._on_alarm = on_alarm
        self._raised: dict[AlarmKind, tuple[Alarm, Micros]] = {}
        """The alarms that have not cleared yet, and the time at which each was most recently reported."""

    def update(self, alarms: Iterable[Alarm], *, now: Micros) -> None:
        """Report alarms that are new, affect more accounts or have cleared. Repeat other alarms hourly."""
        current: dict[AlarmKind, Alarm] = {alarm.kind: alarm for alarm in alarms}
        for kind in ALARM_KINDS:
            if kind in self._raised and kind not in current:
                self._on_alarm(self._raised.pop(kind)[0], "cleared")
        for kind, alarm in current.items():
            before, reported_at = self._raised.get(kind, (None, 0))
            if before is None or alarm.count > before.count or now >= reported_at + REPEAT_INTERVAL:
                self._raised[kind] = alarm, now
                self._on_alarm(alarm, "raised")


def find_alarms(accounts: Iterable[Account], *, now: Micros) -> tuple[Alarm, ...]:
    """Return the alarms for `accounts` at the time `now`. Ignore suspended accounts."""
    polled = [each for each in accounts if each.status is not AccountStatus.SUSPENDED]
    return tuple(_find_alarms(polled, now))


def _find_alarms(accounts: Sequence[Account], now: Micros) -> Iterator[Alarm]:
    usual_cadence = min((each.cadence for each in accounts if each.cadence is not None), default=0)
    late = [each for each in accounts if now > _late_at(each, now, usual_cadence)]
    if late:
        late.sort(key=lambda each: each.next_poll_at)
        hint = "no poller is running, or the poller is too slow; check `perdure feeds run`"
        problem = f"overdue (earliest due time: {_format_time(late[0].next_poll_at)}); {hint}"
        yield _alarm("late", late, problem, of=len(accounts))
    if failing := [each for each in accounts if _is_failing(each, now)]:
        since = min(each.failing_since or now for each in failing)
        reason = " ".join(failing[0].reason.split())[:200]
        problem = f"failing (first failure: {_format_time(since)}): {reason}"
        yield _alarm("failing", failing, problem, of=len(accounts))
    if unseen := [each for each in accounts if _has_unseen_posts(each)]:
        posts = sum(each.unseen_posts for each in unseen)
        counts = f"profiles count {posts} more than polls have found"
        yield _alarm("unseen", unseen, f"missing posts: {counts}; run `perdure feeds audit`")
    if repeated := [each for each in accounts if each.is_repeated]:
        yield _alarm("repeated", repeated, "read from the start in every poll: no watermark is stored")


def _late_at(account: Account, now: Micros, usual_cadence: Micros) -> Micros:
    """Return the time after which an account is late: one interval and a grace period after it is due.

    The interval is the poll interval of the account or its cadence (see `Account.cadence`), whichever is
    longer. If the cadence is unknown, `usual_cadence` is used instead. The account is due at `next_poll_at`,
    or one cadence after its previous poll, whichever is later. While the account is being polled, it is due
    at `next_poll_at` or when the latest page was read, whichever is later.
    """
    cadence = usual_cadence if account.cadence is None else account.cadence
    due = account.next_poll_at
    if account.last_polled_at is not None:
        due = max(due, account.last_polled_at + (0 if account.is_leased(now) else cadence))
    return due + max(account.poll_interval, cadence) + LATE_GRACE


def _is_failing(account: Account, now: Micros) -> bool:
    """Return whether several consecutive polls of an account failed, for longer than its poll interval."""
    since = account.failing_since
    return (
        account.status is AccountStatus.ACTIVE
        and account.consecutive_failures >= ALARM_FAILURES
        and since is not None
        and now > since + account.poll_interval
    )


def _has_unseen_posts(account: Account) -> bool:
    """Return whether posts are still unseen after several polls and after the profile was read again."""
    since = account.unseen_since
    return (
        account.status is AccountStatus.ACTIVE
        and account.unseen_polls >= ALARM_EMPTY_POLLS
        and since is not None
        and (account.profile_read_at or 0) > since
    )


def _alarm(kind: AlarmKind, accounts: Sequence[Account], problem: str, *, of: int | None = None) -> Alarm:
    """Return an alarm with a message such as "2 of 9 accounts (a, b) are overdue", where `of` is 9."""
    handles = tuple(each.handle for each in accounts[:MAX_NAMED_ACCOUNTS])
    count = len(accounts)
    among = count if of is None else of
    total = f"{'' if of is None else f'{count} of '}{among} account{'' if among == 1 else 's'}"
    names = ", ".join(handles) + (", ..." if count > len(handles) else "")
    verb = "is" if count == 1 else "are"
    return Alarm(kind=kind, message=f"{total} ({names}) {verb} {problem}", count=count, handles=handles)


def _format_time(time: Micros) -> str:
    return f"{datetime.fromtimestamp(time / 1e6, UTC):%Y-%m-%d %H:%M} UTC"
