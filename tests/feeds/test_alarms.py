"""An alarm is raised while something is wrong, names who is concerned, and ends with its cause."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perdure.feeds.account import Account, AccountStatus, Lease
from perdure.feeds.alarms import (
    ALARM_EMPTY_POLLS,
    ALARM_FAILURES,
    LATE_GRACE,
    MAX_NAMED_ACCOUNTS,
    REPEAT_INTERVAL,
    Alarm,
    AlarmState,
    AlarmWatch,
    find_alarms,
)
from perdure.storage.time_types import DAY, HOUR, MINUTE

from ..markers import row

NOW = 1_700_000_000_000_000
WELL = Account(
    account_id="did:plc:a",
    handle="a.test",
    added_at=1,
    poll_count=9,
    next_poll_at=NOW,
    poll_interval=15 * MINUTE,
    cadence=15 * MINUTE,
    last_polled_at=NOW - 15 * MINUTE,
    watermark=NOW - HOUR,
    posts_fetched_count=5,
)


def kinds(*accounts: Account, now: int = NOW) -> list[str]:
    return [alarm.kind for alarm in find_alarms(accounts, now=now)]


def only(*accounts: Account, now: int = NOW) -> Alarm:
    (alarm,) = find_alarms(accounts, now=now)
    return alarm


def test_accounts_that_are_polled_in_time_raise_none() -> None:
    assert kinds() == []
    assert kinds(WELL) == []
    assert kinds(WELL, now=WELL.next_poll_at + WELL.poll_interval + LATE_GRACE) == []


# Late


@row(130)
def test_a_dead_poller_is_an_alarm_within_two_intervals() -> None:
    """Five accounts that were last polled a week ago gave none, because only a living poller counted."""
    assert kinds(WELL, now=NOW + 2 * WELL.poll_interval) == ["late"]
    week = [replace(WELL, handle=f"user{number}.test") for number in range(7)]
    alarm = only(*week, now=NOW + 7 * DAY)
    assert (alarm.kind, alarm.count, len(alarm.handles)) == ("late", 7, MAX_NAMED_ACCOUNTS)
    assert "7 of 7 accounts" in alarm.message
    assert "perdure feeds run" in alarm.message


def test_one_account_that_is_late_is_named() -> None:
    alarm = only(replace(WELL, next_poll_at=NOW + DAY), replace(WELL, handle="late.test"), now=NOW + HOUR)
    assert (alarm.count, alarm.handles) == (1, ("late.test",))


def test_an_account_that_was_added_and_never_polled_is_late() -> None:
    new = replace(
        WELL, poll_count=0, last_polled_at=None, cadence=None, watermark=None, posts_fetched_count=0
    )
    assert kinds(new) == []
    assert kinds(new, now=NOW + HOUR) == ["late"]


def test_polls_by_cron_are_late_by_their_own_pace() -> None:
    """Its own interval is two minutes, but it is polled once an hour, and that is no fault."""
    hourly = replace(
        WELL, poll_interval=2 * MINUTE, next_poll_at=NOW + 2 * MINUTE, last_polled_at=NOW, cadence=HOUR
    )
    assert kinds(hourly, now=NOW + HOUR + 30 * MINUTE) == []
    assert kinds(hourly, now=NOW + 2 * HOUR + 5 * MINUTE) == ["late"]


def test_an_account_that_is_being_polled_or_is_suspended_is_not_late() -> None:
    later = NOW + DAY
    polled = replace(WELL, lease=Lease("me", later + 1), last_polled_at=later - MINUTE)
    assert kinds(polled, now=later) == []
    assert kinds(replace(WELL, status=AccountStatus.SUSPENDED), now=later) == []


def test_an_account_whose_poll_does_not_get_on_is_late() -> None:
    """A source that answers every request with 429 keeps the poll waiting, and its poller alive."""
    later = NOW + DAY
    assert kinds(replace(WELL, lease=Lease("me", later + 1)), now=later) == ["late"]


def test_a_new_account_is_late_by_the_pace_of_the_others() -> None:
    """With polls by cron it is polled when the others are."""
    hourly = replace(WELL, next_poll_at=NOW + 2 * MINUTE, last_polled_at=NOW, cadence=HOUR)
    new = replace(
        WELL, poll_count=0, last_polled_at=None, cadence=None, watermark=None, posts_fetched_count=0
    )
    assert kinds(hourly, new, now=NOW + HOUR) == []
    assert kinds(hourly, new, now=NOW + 2 * HOUR) == ["late"]


def test_a_probe_that_is_not_made_is_late_too() -> None:
    gone = replace(WELL, status=AccountStatus.UNAVAILABLE, next_poll_at=NOW + 7 * DAY)
    assert kinds(gone, now=NOW + 6 * DAY) == []
    assert kinds(gone, now=NOW + 8 * DAY) == ["late"]


# Failing


FAILING = replace(
    WELL,
    consecutive_failures=ALARM_FAILURES,
    failing_since=NOW - HOUR,
    next_poll_at=NOW + 4 * MINUTE,
    reason="status 503",
)


def test_polls_that_fail_for_longer_than_an_interval_are_an_alarm() -> None:
    alarm = only(FAILING, WELL)
    assert (alarm.kind, alarm.handles) == ("failing", ("a.test",))
    assert "status 503" in alarm.message


def test_a_failure_that_has_just_started_is_no_alarm() -> None:
    assert kinds(replace(FAILING, consecutive_failures=ALARM_FAILURES - 1)) == []
    assert kinds(replace(FAILING, failing_since=NOW - MINUTE)) == []


def test_an_account_that_the_source_does_not_show_is_no_failure() -> None:
    assert kinds(replace(FAILING, status=AccountStatus.UNAVAILABLE)) == []


# Unseen


def quiet(unseen: int, polls: int = ALARM_EMPTY_POLLS, handle: str = "a.test") -> Account:
    since = NOW - HOUR if unseen else None
    return replace(
        WELL, unseen_polls=polls, unseen_posts=unseen, unseen_since=since, profile_read_at=NOW, handle=handle
    )


def test_posts_that_no_poll_finds_are_an_alarm_that_names_the_account() -> None:
    """Another account that posts as usual does not hide it."""
    alarm = only(quiet(3), quiet(0, polls=0, handle="busy.test"), quiet(4, handle="b.test"))
    assert (alarm.kind, alarm.count, alarm.handles) == ("unseen", 2, ("a.test", "b.test"))
    assert "2 accounts (a.test, b.test) are missing posts: profiles count 7" in alarm.message


def test_posts_that_the_next_polls_may_still_find_are_none() -> None:
    assert kinds(quiet(3, polls=ALARM_EMPTY_POLLS - 1)) == []
    assert kinds(quiet(0)) == []
    assert kinds(replace(quiet(3), unseen_since=NOW)) == []  # only one profile has counted them so far


# Repeated first polls


def test_first_polls_that_repeat_are_an_alarm() -> None:
    assert kinds(replace(WELL, watermark=None)) == ["repeated"]
    assert kinds(replace(WELL, watermark=None, posts_fetched_count=0)) == []  # it has never posted


# Reporting


def test_a_watch_reports_what_begins_what_lasts_and_what_ends() -> None:
    reported: list[tuple[str, AlarmState]] = []
    watch = AlarmWatch(lambda alarm, state: reported.append((alarm.kind, state)))
    late = find_alarms([WELL], now=NOW + DAY)
    watch.update(late, now=0)
    watch.update(late, now=REPEAT_INTERVAL - 1)
    assert reported == [("late", "raised")]
    watch.update(late, now=REPEAT_INTERVAL)
    watch.update([], now=REPEAT_INTERVAL + 1)
    watch.update([], now=REPEAT_INTERVAL + 2)
    assert reported == [("late", "raised"), ("late", "raised"), ("late", "cleared")]


def test_an_alarm_that_grows_is_reported_again() -> None:
    counts: list[int] = []
    watch = AlarmWatch(lambda alarm, _: counts.append(alarm.count))
    for now, late in enumerate((1, 1, 300, 300, 2)):
        watch.update(find_alarms([WELL] * late, now=NOW + DAY), now=now)
    assert counts == [1, 300]


@pytest.mark.parametrize("count", [1, 2, 9])
def test_a_message_is_one_line(count: int) -> None:
    odd = replace(FAILING, reason="one\nline")
    for alarm in find_alarms([odd] * count, now=NOW + 30 * DAY):
        assert "\n" not in alarm.message
