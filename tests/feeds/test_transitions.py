"""When an account is polled again: at its own pace, soon after a failure, rarely when it is gone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure.feeds import transitions
from perdure.feeds.account import Account, Gap, Hold, Status
from perdure.feeds.errors import (
    AccountBlocked,
    AccountUnavailable,
    InvalidActor,
    RequestRefused,
    SourceError,
    SourceUnavailable,
)
from perdure.feeds.health import summary_of
from perdure.feeds.item import Item
from perdure.feeds.source import Profile
from perdure.feeds.transitions import JITTER, LONGEST, MAX_RETRY_WAIT, PROBES, SHORTEST
from perdure.storage.clock import HOUR, MINUTE

NOW = 1_700_000_000_000_000
BEFORE = Account(
    account_id="did:plc:a",
    handle="a.test",
    added_at=1,
    next_at=NOW,
    interval=15 * MINUTE,
    hold=Hold("me", NOW + 1),
    mark=NOW - HOUR,
)


def settle(
    account: Account = BEFORE,
    *,
    found: int = 0,
    fresh: int = 0,
    elapsed: int | None = None,
    got_on: bool = True,
) -> Account:
    return transitions.settled(account, found=found, fresh=fresh, elapsed=elapsed, got_on=got_on, now=NOW)


def is_about(actual: int, wanted: int) -> bool:
    return abs(actual - wanted) <= wanted * JITTER + 1


# The interval


@given(
    before=st.integers(SHORTEST, LONGEST), new=st.integers(0, 10_000), elapsed=st.integers(1, 90 * 24 * HOUR)
)
def test_an_interval_stays_within_its_bounds(before: int, new: int, elapsed: int) -> None:
    assert SHORTEST <= transitions.interval_after(before, new, elapsed) <= LONGEST


@pytest.mark.parametrize(
    ("per_day", "wanted"), [(0, LONGEST), (1, LONGEST), (24, HOUR), (144, 10 * MINUTE), (10_000, SHORTEST)]
)
@pytest.mark.parametrize("start", [SHORTEST, 15 * MINUTE, LONGEST])
def test_an_interval_follows_how_often_the_account_posts(per_day: int, wanted: int, start: int) -> None:
    interval, owed = start, 0.0
    for _ in range(60):
        owed += per_day * interval / (24 * HOUR)
        new = int(owed)
        owed -= new
        interval = transitions.interval_after(interval, new, interval)
    assert wanted / 2 <= interval <= wanted * 2


def test_a_poll_soon_after_another_that_found_nothing_proves_nothing() -> None:
    assert transitions.interval_after(HOUR, 0, 5) == HOUR


def test_the_next_poll_is_an_interval_away_give_or_take_a_tenth() -> None:
    spread = {settle().next_at - NOW for _ in range(200)}
    assert all(is_about(each, 15 * MINUTE) for each in spread)
    assert len(spread) > 100


def test_an_open_gap_is_due_at_once_unless_the_poll_did_not_get_on_with_it() -> None:
    opened = replace(BEFORE, gaps=(Gap(cursor="c", floor=1, depth=1),))
    assert settle(opened).next_at == NOW
    assert settle(opened, got_on=False).next_at > NOW


def test_a_poll_that_ended_well_forgets_the_failures() -> None:
    after = settle(replace(BEFORE, failures=3, reason="x", status=Status.UNAVAILABLE))
    assert (after.failures, after.reason, after.status, after.hold) == (0, "", Status.ACTIVE, None)


def test_an_account_that_was_suspended_meanwhile_stays_so() -> None:
    assert settle(replace(BEFORE, status=Status.SUSPENDED)).status is Status.SUSPENDED
    failed = transitions.failed(
        replace(BEFORE, status=Status.SUSPENDED), AccountUnavailable("Profile not found"), now=NOW
    )
    assert failed.status is Status.SUSPENDED


# Failures


@pytest.mark.parametrize("error", [AccountUnavailable("Profile not found"), AccountBlocked("blocked")])
def test_what_the_source_does_not_show_is_probed_more_and_more_rarely(error: SourceError) -> None:
    account, waits = BEFORE, list[int]()
    for _ in range(6):
        account = transitions.failed(account, error, now=NOW)
        waits.append(account.next_at - NOW)
        assert account.status is Status.UNAVAILABLE
        assert account.reason == str(error)
    wanted = [*PROBES, PROBES[-1], PROBES[-1]]
    assert all(is_about(wait, each) for wait, each in zip(waits, wanted, strict=True))
    assert PROBES == (HOUR, 6 * HOUR, 24 * HOUR, 7 * 24 * HOUR)


def test_failures_of_another_kind_do_not_put_the_first_probe_off() -> None:
    failing = replace(BEFORE, failures=5)
    gone = transitions.failed(failing, AccountUnavailable("Profile not found"), now=NOW)
    assert is_about(gone.next_at - NOW, PROBES[0])


@pytest.mark.parametrize("error", [SourceUnavailable("cut"), RequestRefused("no")])
def test_what_failed_for_another_reason_stays_active_and_is_tried_soon(error: SourceError) -> None:
    account, waits = BEFORE, list[int]()
    for _ in range(12):
        account = transitions.failed(account, error, now=NOW)
        waits.append(account.next_at - NOW)
    assert account.status is Status.ACTIVE
    assert is_about(waits[0], MINUTE)
    assert is_about(waits[1], 2 * MINUTE)
    assert is_about(waits[-1], MAX_RETRY_WAIT)
    rare = transitions.failed(replace(account, interval=LONGEST), error, now=NOW)
    assert is_about(rare.next_at - NOW, LONGEST)


def test_a_name_that_cannot_be_is_not_tried_again() -> None:
    assert (
        transitions.failed(BEFORE, InvalidActor("Invalid AT identifier"), now=NOW).status is Status.SUSPENDED
    )


def test_a_failure_leaves_what_is_known() -> None:
    after = transitions.failed(BEFORE, SourceUnavailable("cut"), now=NOW)
    assert (after.mark, after.gaps, after.interval) == (BEFORE.mark, BEFORE.gaps, BEFORE.interval)


# Profiles


def profile(posts: int | None, handle: str = "a") -> Profile:
    return Profile(account_id="", handle=handle, posts=posts)


def read(account: Account, new: int = 0, posts: int | None = None) -> Account:
    posts = new if posts is None else posts
    return transitions.read(account, new=new, counted=posts, uncounted=posts, pages=1, set_aside=0, now=NOW)


def test_posts_that_a_profile_counts_and_no_poll_finds_add_up_until_one_does() -> None:
    account = transitions.profiled(replace(BEFORE, posts=10), profile(12, "b"), now=1)
    account = transitions.profiled(account, profile(15, "c"), now=2)
    assert (account.unseen, account.posts, account.handle, account.profiled_at) == (5, 15, "c", 2)
    assert read(account).unseen == 5
    assert read(account, new=1).unseen == 4
    found = read(account, new=6)
    assert (found.unseen, found.unseen_since) == (0, None)


def test_what_was_found_since_the_profile_was_read_is_not_unseen() -> None:
    before = replace(BEFORE, posts=10, posts_found=2)
    after = transitions.profiled(before, profile(12), now=1)
    assert (after.unseen, after.posts_found) == (0, 0)
    assert transitions.profiled(after, profile(13), now=2).unseen == 1


def test_a_poll_may_be_quicker_than_the_profile_that_counts_what_it_found() -> None:
    account = read(replace(BEFORE, posts=10), new=1)
    account = transitions.profiled(account, profile(10), now=1)  # which was asked for before the post
    assert transitions.profiled(account, profile(11), now=2).unseen == 0


def test_what_is_read_of_the_past_says_nothing_about_a_count() -> None:
    account = replace(BEFORE, posts=10, profiled_at=NOW)
    items = [Item(uri="at://a", time=NOW - each * HOUR, kind="post", post="", author="") for each in range(5)]
    assert transitions.posts_since(account, items) == 1


def test_what_was_found_before_the_first_profile_is_not_unseen_at_the_second() -> None:
    account = read(replace(BEFORE, posts=None), new=1)
    account = transitions.profiled(account, profile(10), now=1)  # which was asked for before the post
    assert transitions.profiled(account, profile(11), now=2).unseen == 0


def test_new_posts_do_not_make_up_for_those_that_no_poll_has_found() -> None:
    account = transitions.profiled(replace(BEFORE, posts=10), profile(15), now=NOW)
    items = [Item(uri="at://a", time=NOW + HOUR, kind="post", post="", author="")] * 5
    assert (transitions.posts_until(account, items), transitions.posts_since(account, items)) == (0, 5)


def test_a_poll_by_hand_says_nothing_about_how_often_there_are_polls() -> None:
    hourly = replace(BEFORE, cadence=HOUR, last_wait=HOUR)
    after = transitions.settled(hourly, found=0, fresh=0, elapsed=5, waited=None, got_on=True, now=NOW)
    assert (after.cadence, after.last_wait) == (HOUR, HOUR)


def test_a_repost_is_no_post_that_a_profile_counts() -> None:
    account = read(replace(BEFORE, posts=10), new=3, posts=0)
    assert transitions.profiled(account, profile(12), now=1).unseen == 2


def test_posts_that_were_deleted_before_a_poll_saw_them_are_no_longer_unseen() -> None:
    risen = transitions.profiled(replace(BEFORE, posts=10), profile(13), now=1)
    assert risen.unseen == 3
    assert transitions.profiled(risen, profile(10), now=2).unseen == 0


def test_a_first_count_and_a_falling_one_are_no_news() -> None:
    first = transitions.profiled(BEFORE, profile(10), now=1)
    assert (first.unseen, first.posts) == (0, 10)
    fallen = transitions.profiled(first, profile(8), now=1)
    assert (fallen.unseen, fallen.posts) == (0, 8)
    assert transitions.profiled(first, profile(None), now=1).posts == 10


def test_an_audit_settles_what_was_unseen_and_counts_what_it_stored() -> None:
    account = transitions.audited(replace(BEFORE, posts=10, unseen=4), posts=7)
    assert account.unseen == 0
    assert transitions.profiled(account, profile(17), now=1).unseen == 0


@pytest.mark.parametrize("is_released", [True, False])
def test_after_a_poll_that_broke_off_the_counts_are_not_compared(*, is_released: bool) -> None:
    """It may have stored posts, and not have counted them."""
    before = replace(BEFORE, posts=10, unseen=2)
    after = transitions.released(before) if is_released else transitions.claimed(before, Hold("another", NOW))
    compared = transitions.profiled(after, profile(18), now=1)
    assert (compared.unseen, compared.posts) == (0, 18)
    assert transitions.profiled(compared, profile(19), now=2).unseen == 1


def test_a_lease_that_is_renewed_leaves_the_counts_as_they_are() -> None:
    assert transitions.claimed(replace(BEFORE, posts=10), Hold("me", NOW + 9)).posts == 10


def test_the_summary_tells_the_share_with_a_mark() -> None:
    summary = summary_of(
        [BEFORE, replace(BEFORE, mark=None), replace(BEFORE, status=Status.SUSPENDED)], now=NOW
    )
    assert (summary.accounts, summary.active, summary.suspended, summary.with_mark) == (3, 2, 1, 2)
    assert summary.marked_share == pytest.approx(2 / 3)
    assert summary_of([], now=NOW).marked_share == 0


# Hints


def test_a_hint_makes_an_account_due_only_when_it_is_news() -> None:
    later = replace(BEFORE, next_at=NOW + HOUR)
    assert transitions.hinted(later, newest=NOW, now=NOW).next_at == NOW
    assert transitions.hinted(later, newest=NOW - HOUR, now=NOW) == later
    assert transitions.hinted(replace(later, mark=None), newest=1, now=NOW).next_at == NOW
    gone = replace(later, status=Status.UNAVAILABLE)
    assert transitions.hinted(gone, newest=NOW, now=NOW) == gone
