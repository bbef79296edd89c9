"""Alarms: what is wrong with the polling of accounts, found in the accounts alone. Pure.

    late       accounts are polled too late, or not at all: the poller is dead, or too slow
    failing    polls of an account have failed for longer than its interval
    unseen     a profile counts more posts than the polls find
    repeated   polls read an account from the start again and again

An alarm is true of the accounts as they are now, so it ends by itself when its cause does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal, TypeAlias, get_args

import msgspec

from ..storage import Micros
from ..storage.clock import MINUTE, Timestamp
from .account import Account, AccountStatus

log = logging.getLogger("perdure.feeds")

AlarmKind: TypeAlias = Literal["late", "failing", "unseen", "repeated"]

ALARM_KINDS: tuple[AlarmKind, ...] = get_args(AlarmKind)
LATE_GRACE: Micros = 2 * MINUTE
"""Added to the time after which an account is late: a poller that died keeps its accounts for a minute."""
ALARM_FAILURES = 3
"""How often a poll must have failed in a row."""
ALARM_EMPTY_POLLS = 2
"""How many polls in a row must have found nothing, before posts that only the profile counts are an alarm."""
MAX_NAMED_ACCOUNTS = 5
"""How many accounts an alarm names."""
REPEAT_INTERVAL: Micros = 60 * MINUTE
"""How long after an alarm was reported it is reported again, if it still holds."""


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong, and with which accounts."""

    kind: AlarmKind
    message: str
    count: int
    """How many accounts."""
    handles: tuple[str, ...]
    """The handles of the first of them."""


AlarmState: TypeAlias = Literal["raised", "cleared"]
OnAlarm: TypeAlias = Callable[[Alarm, AlarmState], None]


def log_alarm(alarm: Alarm, state: AlarmState) -> None:
    """Log an alarm: what `Poller` does unless it is given another function."""
    if state == "raised":
        log.warning("ALARM: %s", alarm.message)
    else:
        log.info("alarm cleared: %s", alarm.message)


class AlarmWatch:
    """Compares the alarms with those of the last check, and reports what has changed."""

    def __init__(self, on_alarm: OnAlarm) -> None:
        self._on_alarm = on_alarm
        self._raised: dict[AlarmKind, tuple[Alarm, Micros]] = {}
        """What was reported, and when."""

    def update(self, alarms: Iterable[Alarm], *, now: Micros) -> None:
        """Report what is new, what has ended, and once in a while what still holds."""
        current: dict[AlarmKind, Alarm] = {alarm.kind: alarm for alarm in alarms}
        for kind in ALARM_KINDS:
            if kind in self._raised and kind not in current:
                self._on_alarm(self._raised.pop(kind)[0], "cleared")
        for kind, alarm in current.items():
            if self._should_report(alarm, now):
                self._raised[kind] = alarm, now
                self._on_alarm(alarm, "raised")

    def _should_report(self, alarm: Alarm, now: Micros) -> bool:
        """Whether it was not reported, concerns more accounts than before, or was reported long ago."""
        if alarm.kind not in self._raised:
            return True
        before, reported_at = self._raised[alarm.kind]
        return alarm.count > before.count or now >= reported_at + REPEAT_INTERVAL


def find_alarms(accounts: Iterable[Account], *, now: Micros) -> tuple[Alarm, ...]:
    """Return the alarms that these accounts give at this time."""
    polled = [each for each in accounts if each.status is not AccountStatus.SUSPENDED]
    found = (
        _late_alarm(polled, now),
        _failing_alarm(polled, now),
        _unseen_alarm(polled),
        _repeated_alarm(polled),
    )
    return tuple(alarm for alarm in found if alarm is not None)


def late_at(account: Account, now: Micros, typical_cadence: Micros = 0) -> Micros:
    """Return the time from which on an account is late: a whole interval and more after its next poll.

    `usual` is the time between polls of other accounts, for one that was not polled twice yet. A poll that
    still runs counts from its last page: a source that makes it wait makes it late.
    """
    cadence = typical_cadence if account.cadence is None else account.cadence
    due = account.next_poll_at
    if account.last_polled_at is not None:
        due = max(due, account.last_polled_at + (0 if account.is_leased(now) else cadence))
    return due + max(account.poll_interval, cadence) + LATE_GRACE


def is_failing(account: Account, now: Micros) -> bool:
    """Whether the polls of an account have failed for longer than its interval."""
    since = account.failing_since
    return (
        account.status is AccountStatus.ACTIVE
        and account.consecutive_failures >= ALARM_FAILURES
        and since is not None
        and now > since + account.poll_interval
    )


def _late_alarm(accounts: Sequence[Account], now: Micros) -> Alarm | None:
    usual = min((each.cadence for each in accounts if each.cadence is not None), default=0)
    late = [each for each in accounts if now > late_at(each, now, usual)]
    if not late:
        return None
    late.sort(key=lambda each: each.next_poll_at)
    since = f"the longest since {_time(late[0].next_poll_at)}"
    remedy = "no poller is running, or it is too slow: check `perdure feeds run`"
    return _alarm("late", late, lambda who: f"{who} overdue, {since}; {remedy}", of=len(accounts))


def _failing_alarm(accounts: Sequence[Account], now: Micros) -> Alarm | None:
    failing = [each for each in accounts if is_failing(each, now)]
    if not failing:
        return None
    since = min(each.failing_since or now for each in failing)
    reason = " ".join(failing[0].reason.split())[:200]
    return _alarm(
        "failing",
        failing,
        lambda who: f"{who} not read since {_time(since)}: {reason}",
        of=len(accounts),
    )


def _unseen_alarm(accounts: Sequence[Account]) -> Alarm | None:
    unseen = [
        each
        for each in accounts
        if each.status is AccountStatus.ACTIVE
        and each.unseen_polls >= ALARM_EMPTY_POLLS
        and _is_confirmed(each)
    ]
    posts = sum(each.unseen_posts for each in unseen)
    return _alarm(
        "unseen",
        unseen,
        lambda who: (
            f"{who} missing posts: profiles count {posts} that no poll has found; "
            "compare with `perdure feeds audit`"
        ),
    )


def _is_confirmed(account: Account) -> bool:
    """Whether two profiles in a row have counted posts that no poll has found."""
    since = account.unseen_since
    return since is not None and (account.profile_read_at or 0) > since


def _repeated_alarm(accounts: Sequence[Account]) -> Alarm | None:
    repeated = [each for each in accounts if each.is_repeated]
    return _alarm(
        "repeated",
        repeated,
        lambda who: f"{who} read from the start in every poll: no watermark is stored",
    )


def _alarm(
    kind: AlarmKind, accounts: Sequence[Account], message: Callable[[str], str], *, of: int | None = None
) -> Alarm | None:
    """Return an alarm about these accounts, if there are any. `message` takes who is concerned."""
    if not accounts:
        return None
    handles = tuple(each.handle for each in accounts[:MAX_NAMED_ACCOUNTS])
    count = len(accounts)
    total = f"{count} of {of} accounts" if of is not None else f"{count} account{'s' if count > 1 else ''}"
    names = ", ".join(handles) + (", ..." if count > len(handles) else "")
    verb = "is" if count == 1 else "are"
    return Alarm(kind=kind, message=message(f"{total} ({names}) {verb}"), count=count, handles=handles)


def _time(time: Micros) -> str:
    return f"{datetime.fromtimestamp(time / 1e6, UTC):%Y-%m-%d %H:%M} UTC"


class FeedSummary(msgspec.Struct, frozen=True, kw_only=True):
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
        """Accounts with a mark. Below 95 %, something is wrong, or many have never posted."""
        return self.with_watermark / self.accounts if self.accounts else 0.0


def summarize(accounts: Iterable[Account], *, now: Micros) -> FeedSummary:
    everybody = list(accounts)
    by_status = {status: sum(each.status is status for each in everybody) for status in AccountStatus}
    return FeedSummary(
        accounts=len(everybody),
        active=by_status[AccountStatus.ACTIVE],
        unavailable=by_status[AccountStatus.UNAVAILABLE],
        suspended=by_status[AccountStatus.SUSPENDED],
        with_watermark=sum(each.watermark is not None for each in everybody),
        with_gaps=sum(bool(each.gaps) for each in everybody),
        failing=sum(
            each.consecutive_failures > 0 and each.status is not AccountStatus.SUSPENDED for each in everybody
        ),
        posts_fetched_count=sum(each.posts_fetched_count for each in everybody),
        invalid_records=sum(each.invalid_records for each in everybody),
        last_polled_at=max((each.last_polled_at for each in everybody if each.last_polled_at), default=None),
        next_poll_at=min(
            (each.next_poll_at for each in everybody if each.status is not AccountStatus.SUSPENDED),
            default=None,
        ),
        alarms=find_alarms(everybody, now=now),
    )
