"""When an account is polled again: at its own pace, soon after a failure, rarely when it is gone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure.feeds import summarize, transitions
from perdure.feeds.account import Account, AccountStatus, Gap, Lease
from perdure.feeds.errors import (
    AccountBlocked,
    AccountUnavailable,
    InvalidActor,
    RequestRejected,
    SourceError,
    SourceUnavailable,
)
from perdure.feeds.item import Item
from perdure.feeds.source import Profile
from perdure.feeds.transitions import (
    JITTER_FRACTION,
    MAX_POLL_INTERVAL,
    MAX_RETRY_WAIT,
    MIN_POLL_INTERVAL,
    PROBE_INTERVALS,
)
from perdure.storage.time_types import HOUR, MINUTE

NOW = 1_700_000_000_000_000
BEFORE = Account(
    account_id="did:plc:a",
    handle="a.test",
    added_at=1,
    next_poll_at=NOW,
    poll_interval=15 * MINUTE,
    lease=Lease("me", NOW + 1),
    watermark=NOW - HOUR,
)


def settle(
    account: Account = BEFORE,
    *,
    found: int = 0,
    fresh: int = 0,
    elapsed: int | None = None,
    got_on: bool = True,
) -> Account:
    return transitions.poll_finished(
        account, new=found, newer=fresh, elapsed=elapsed, made_progress=got_on, now=NOW
    )


def is_about(actual: int, wanted: int) -> bool:
    return abs(actual - wanted) <= wanted * JITTER_FRACTION + 1


# The interval


@given(
    before=st.integers(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL),
    new=st.integers(0, 10_000),
    elapsed=st.integers(1, 90 * 24 * HOUR),
)
def test_an_interval_stays_within_its_bounds(before: int, new: int, elapsed: int) -> None:
    assert MIN_POLL_INTERVAL <= transitions.next_interval(before, new, elapsed) <= MAX_POLL_INTERVAL


@pytest.mark.parametrize(
    ("per_day", "wanted"),
    [
        (0, MAX_POLL_INTERVAL),
        (1, MAX_POLL_INTERVAL),
        (24, HOUR),
        (144, 10 * MINUTE),
        (10_000, MIN_POLL_INTERVAL),
    ],
)
@pytest.mark.parametrize("start", [MIN_POLL_INTERVAL, 15 * MINUTE, MAX_POLL_INTERVAL])
def test_an_interval_follows_how_often_the_account_posts(per_day: int, wanted: int, start: int) -> None:
    interval, owed = start, 0.0
    for _ in range(60):
        owed += per_day * interval / (24 * HOUR)
        new = int(owed)
        owed -= new
        interval = transitions.next_interval(interval, new, interval)
    assert wanted / 2 <= interval <= wanted * 2


def test_a_poll_soon_after_another_that_found_nothing_proves_nothing() -> None:
    assert transitions.next_interval(HOUR, 0, 5) == HOUR


def test_the_next_poll_is_an_interval_away_give_or_take_a_tenth() -> None:
    spread = {settle().next_poll_at - NOW for _ in range(200)}
    assert all(is_about(each, 15 * MINUTE) for each in spread)
    assert len(spread) > 100


def test_an_open_gap_is_due_at_once_unless_the_poll_did_not_get_on_with_it() -> None:
    opened = replace(BEFORE, gaps=(Gap(cursor="c", floor=1, late_floor=1),))
    assert settle(opened).next_poll_at == NOW
    assert settle(opened, got_on=False).next_poll_at > NOW


def test_a_poll_that_ended_well_forgets_the_failures() -> None:
    after = settle(replace(BEFORE, consecutive_failures=3, reason="x", status=AccountStatus.UNAVAILABLE))
    assert (after.consecutive_failures, after.reason, after.status, after.lease) == (
        0,
        "",
        AccountStatus.ACTIVE,
        None,
    )


def test_an_account_that_was_suspended_meanwhile_stays_so() -> None:
    assert settle(replace(BEFORE, status=AccountStatus.SUSPENDED)).status is AccountStatus.SUSPENDED
    failed = transitions.poll_failed(
        replace(BEFORE, status=AccountStatus.SUSPENDED), AccountUnavailable("Profile not found"), now=NOW
    )
    assert failed.status is AccountStatus.SUSPENDED


# Failures


@pytest.mark.parametrize("error", [AccountUnavailable("Profile not found"), AccountBlocked("blocked")])
def test_what_the_source_does_not_show_is_probed_more_and_more_rarely(error: SourceError) -> None:
    account, waits = BEFORE, list[int]()
    for _ in range(6):
        account = transitions.poll_failed(account, error, now=NOW)
        waits.append(account.next_poll_at - NOW)
        assert account.status is AccountStatus.UNAVAILABLE
        assert account.reason == str(error)
    wanted = [*PROBE_INTERVALS, PROBE_INTERVALS[-1], PROBE_INTERVALS[-1]]
    assert all(is_about(wait, each) for wait, each in zip(waits, wanted, strict=True))
    assert PROBE_INTERVALS == (HOUR, 6 * HOUR, 24 * HOUR, 7 * 24 * HOUR)


def test_failures_of_another_kind_do_not_put_the_first_probe_off() -> None:
    failing = replace(BEFORE, consecutive_failures=5)
    gone = transitions.poll_failed(failing, AccountUnavailable("Profile not found"), now=NOW)
    assert is_about(gone.next_poll_at - NOW, PROBE_INTERVALS[0])


@pytest.mark.parametrize("error", [SourceUnavailable("cut"), RequestRejected("no")])
def test_what_failed_for_another_reason_stays_active_and_is_tried_soon(error: SourceError) -> None:
    account, waits = BEFORE, list[int]()
    for _ in range(12):
        account = transitions.poll_failed(account, error, now=NOW)
        waits.append(account.next_poll_at - NOW)
    assert account.status is AccountStatus.ACTIVE
    assert is_about(waits[0], MINUTE)
    assert is_about(waits[1], 2 * MINUTE)
    assert is_about(waits[-1], MAX_RETRY_WAIT)
    rare = transitions.poll_failed(replace(account, poll_interval=MAX_POLL_INTERVAL), error, now=NOW)
    assert is_about(rare.next_poll_at - NOW, MAX_POLL_INTERVAL)


def test_a_name_that_cannot_be_is_not_tried_again() -> None:
    assert (
        transitions.poll_failed(BEFORE, InvalidActor("Invalid AT identifier"), now=NOW).status
        is AccountStatus.SUSPENDED
    )


def test_a_failure_leaves_what_is_known() -> None:
    after = transitions.poll_failed(BEFORE, SourceUnavailable("cut"), now=NOW)
    assert (after.watermark, after.gaps, after.poll_interval) == (
        BEFORE.watermark,
        BEFORE.gaps,
        BEFORE.poll_interval,
    )


# Profiles


def profile(posts: int | None, handle: str = "a") -> Profile:
    return Profile(account_id="", handle=handle, post_count=posts)


def read(account: Account, new: int = 0, posts: int | None = None) -> Account:
    posts = new if posts is None else posts
    return transitions.page_read(account, new=new, counted=posts, uncounted=posts, invalid=0, now=NOW)


def test_posts_that_a_profile_counts_and_no_poll_finds_add_up_until_one_does() -> None:
    account = transitions.profile_updated(replace(BEFORE, profile_posts=10), profile(12, "b"), now=1)
    account = transitions.profile_updated(account, profile(15, "c"), now=2)
    assert (account.unseen_posts, account.profile_posts, account.handle, account.profile_read_at) == (
        5,
        15,
        "c",
        2,
    )
    assert read(account).unseen_posts == 5
    assert read(account, new=1).unseen_posts == 4
    found = read(account, new=6)
    assert (found.unseen_posts, found.unseen_since) == (0, None)


def test_what_was_found_since_the_profile_was_read_is_not_unseen() -> None:
    before = replace(BEFORE, profile_posts=10, posts_since_profile=2)
    after = transitions.profile_updated(before, profile(12), now=1)
    assert (after.unseen_posts, after.posts_since_profile) == (0, 0)
    assert transitions.profile_updated(after, profile(13), now=2).unseen_posts == 1


def test_a_poll_may_be_quicker_than_the_profile_that_counts_what_it_found() -> None:
    account = read(replace(BEFORE, profile_posts=10), new=1)
    account = transitions.profile_updated(account, profile(10), now=1)  # which was asked for before the post
    assert transitions.profile_updated(account, profile(11), now=2).unseen_posts == 0


def test_what_is_read_of_the_past_says_nothing_about_a_count() -> None:
    account = replace(BEFORE, profile_posts=10, profile_read_at=NOW)
    items = [
        Item(uri="at://a", time=NOW - each * HOUR, kind="post", post_uri="", author_id="")
        for each in range(5)
    ]
    assert transitions.posts_after_profile(account, items) == 1


def test_what_was_found_before_the_first_profile_is_not_unseen_at_the_second() -> None:
    account = read(replace(BEFORE, profile_posts=None), new=1)
    account = transitions.profile_updated(account, profile(10), now=1)  # which was asked for before the post
    assert transitions.profile_updated(account, profile(11), now=2).unseen_posts == 0


def test_new_posts_do_not_make_up_for_those_that_no_poll_has_found() -> None:
    account = transitions.profile_updated(replace(BEFORE, profile_posts=10), profile(15), now=NOW)
    items = [Item(uri="at://a", time=NOW + HOUR, kind="post", post_uri="", author_id="")] * 5
    assert (
        transitions.posts_before_profile(account, items),
        transitions.posts_after_profile(account, items),
    ) == (0, 5)


def test_a_poll_by_hand_says_nothing_about_how_often_there_are_polls() -> None:
    hourly = replace(BEFORE, cadence=HOUR, last_wait=HOUR)
    after = transitions.poll_finished(
        hourly, new=0, newer=0, elapsed=5, waited=None, made_progress=True, now=NOW
    )
    assert (after.cadence, after.last_wait) == (HOUR, HOUR)


def test_a_repost_is_no_post_that_a_profile_counts() -> None:
    account = read(replace(BEFORE, profile_posts=10), new=3, posts=0)
    assert transitions.profile_updated(account, profile(12), now=1).unseen_posts == 2


def test_posts_that_were_deleted_before_a_poll_saw_them_are_no_longer_unseen() -> None:
    risen = transitions.profile_updated(replace(BEFORE, profile_posts=10), profile(13), now=1)
    assert risen.unseen_posts == 3
    assert transitions.profile_updated(risen, profile(10), now=2).unseen_posts == 0


def test_a_first_count_and_a_falling_one_are_no_news() -> None:
    first = transitions.profile_updated(BEFORE, profile(10), now=1)
    assert (first.unseen_posts, first.profile_posts) == (0, 10)
    fallen = transitions.profile_updated(first, profile(8), now=1)
    assert (fallen.unseen_posts, fallen.profile_posts) == (0, 8)
    assert transitions.profile_updated(first, profile(None), now=1).profile_posts == 10


def test_an_audit_settles_what_was_unseen_and_counts_what_it_stored() -> None:
    account = transitions.audited(replace(BEFORE, profile_posts=10, unseen_posts=4), posts=7)
    assert account.unseen_posts == 0
    assert transitions.profile_updated(account, profile(17), now=1).unseen_posts == 0


@pytest.mark.parametrize("is_released", [True, False])
def test_after_a_poll_that_broke_off_the_counts_are_not_compared(*, is_released: bool) -> None:
    """It may have stored posts, and not have counted them."""
    before = replace(BEFORE, profile_posts=10, unseen_posts=2)
    after = transitions.released(before) if is_released else transitions.leased(before, Lease("another", NOW))
    compared = transitions.profile_updated(after, profile(18), now=1)
    assert (compared.unseen_posts, compared.profile_posts) == (0, 18)
    assert transitions.profile_updated(compared, profile(19), now=2).unseen_posts == 1


def test_a_lease_that_is_renewed_leaves_the_counts_as_they_are() -> None:
    assert transitions.leased(replace(BEFORE, profile_posts=10), Lease("me", NOW + 9)).profile_posts == 10


def test_the_summary_has_the_share_of_accounts_with_a_watermark() -> None:
    summary = summarize(
        [BEFORE, replace(BEFORE, watermark=None), replace(BEFORE, status=AccountStatus.SUSPENDED)], now=NOW
    )
    assert (summary.accounts, summary.active, summary.suspended, summary.with_watermark) == (3, 2, 1, 2)
    assert summary.watermark_share == pytest.approx(2 / 3)
    assert summarize([], now=NOW).watermark_share == 0


# Hints


def test_a_hint_makes_an_account_due_only_when_it_is_news() -> None:
    later = replace(BEFORE, next_poll_at=NOW + HOUR)
    assert transitions.hinted(later, newest=NOW, now=NOW).next_poll_at == NOW
    assert transitions.hinted(later, newest=NOW - HOUR, now=NOW) == later
    assert transitions.hinted(replace(later, watermark=None), newest=1, now=NOW).next_poll_at == NOW
    gone = replace(later, status=AccountStatus.UNAVAILABLE)
    assert transitions.hinted(gone, newest=NOW, now=NOW) == gone
