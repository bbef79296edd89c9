"""The health of all accounts: counts, and alarms about polling. Pure; derived from the accounts alone.

    late       accounts are polled too late or not at all: no poller runs, or it is too slow
    failing    polls of an account have failed for longer than its interval
    unseen     a profile counts more posts than the polls find
    repeated   polls read an account from the start again and again

An alarm is true of the accounts as they are now, so it clears when its cause ends.
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
"""Added to the time after which an account is late: the leases of a poller that died last a minute."""
ALARM_FAILURES = 3
"""How many consecutive polls must have failed."""
ALARM_EMPTY_POLLS = 2
"""How many consecutive polls must have found nothing before posts that only profiles count are an alarm."""
MAX_NAMED_ACCOUNTS = 5
"""Maximum number of accounts that an alarm names."""
REPEAT_INTERVAL: Micros = 60 * MINUTE
"""How often an alarm that is still true is reported again."""


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """A problem, and the accounts that have it."""

    kind: AlarmKind
    message: str
    count: int
    """How many accounts have the problem."""
    handles: tuple[str, ...]
    """The handles of the first of these accounts."""


AlarmState: TypeAlias = Literal["raised", "cleared"]
OnAlarm: TypeAlias = Callable[[Alarm, AlarmState], None]


def log_alarm(alarm: Alarm, state: AlarmState) -> None:
    """Log an alarm. The default of `Poller`."""
    if state == "raised":
        log.warning("ALARM: %s", alarm.message)
    else:
        log.info("alarm cleared: %s", alarm.message)


class AlarmWatch:
    """Compares alarms with those of the last check, and reports what has changed."""

    def __init__(self, on_alarm: OnAlarm) -> None:
        self._on_alarm = on_alarm
        self._raised: dict[AlarmKind, tuple[Alarm, Micros]] = {}
        """The alarms that were reported, and when."""

    def update(self, alarms: Iterable[Alarm], *, now: Micros) -> None:
        """Report new and cleared alarms, and repeat the others at intervals."""
        current: dict[AlarmKind, Alarm] = {alarm.kind: alarm for alarm in alarms}
        for kind in ALARM_KINDS:
            if kind in self._raised and kind not in current:
                self._on_alarm(self._raised.pop(kind)[0], "cleared")
        for kind, alarm in current.items():
            if self._should_report(alarm, now):
                self._raised[kind] = alarm, now
                self._on_alarm(alarm, "raised")

    def _should_report(self, alarm: Alarm, now: Micros) -> bool:
        """Whether it was not reported, affects more accounts than before, or was reported long ago."""
        if alarm.kind not in self._raised:
            return True
        before, reported_at = self._raised[alarm.kind]
        return alarm.count > before.count or now >= reported_at + REPEAT_INTERVAL


def find_alarms(accounts: Iterable[Account], *, now: Micros) -> tuple[Alarm, ...]:
    """Return the alarms for these accounts at this time."""
    polled = [each for each in accounts if each.status is not AccountStatus.SUSPENDED]
    found = (
        _late_alarm(polled, now),
        _failing_alarm(polled, now),
        _unseen_alarm(polled),
        _repeated_alarm(polled),
    )
    return tuple(alarm for alarm in found if alarm is not None)


def late_at(account: Account, now: Micros, typical_cadence: Micros = 0) -> Micros:
    """Return when an account is late: more than a whole interval after its next poll.

    `typical_cadence` is used for an account that was not polled twice yet. A running poll counts from its
    last page: it is late if the source makes it wait too long.
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
    hint = "no poller is running, or it is too slow; check `perdure feeds run`"
    return _alarm("late", late, lambda who: f"{who} overdue, {since}; {hint}", of=len(accounts))


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
    """Whether two consecutive profiles counted posts that no poll found."""
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
    """Return an alarm about these accounts, if there are any. `message` adds to the start of a sentence."""
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
        """The fraction of accounts with a watermark. It is low if polls fail or accounts never post."""
        return self.with_watermark / self.accounts if self.accounts else 0.0


def summarize(accounts: Iterable[Account], *, now: Micros) -> FeedSummary:
    accounts = list(accounts)
    by_status = {status: sum(each.status is status for each in accounts) for status in AccountStatus}
    return FeedSummary(
        accounts=len(accounts),
        active=by_status[AccountStatus.ACTIVE],
        unavailable=by_status[AccountStatus.UNAVAILABLE],
        suspended=by_status[AccountStatus.SUSPENDED],
        with_watermark=sum(each.watermark is not None for each in accounts),
        with_gaps=sum(bool(each.gaps) for each in accounts),
        failing=sum(
            each.consecutive_failures > 0 and each.status is not AccountStatus.SUSPENDED for each in accounts
        ),
        posts_fetched_count=sum(each.posts_fetched_count for each in accounts),
        invalid_records=sum(each.invalid_records for each in accounts),
        last_polled_at=max((each.last_polled_at for each in accounts if each.last_polled_at), default=None),
        next_poll_at=min(
            (each.next_poll_at for each in accounts if each.status is not AccountStatus.SUSPENDED),
            default=None,
        ),
        alarms=find_alarms(accounts, now=now),
    )
