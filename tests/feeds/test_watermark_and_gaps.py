"""The rules of the walk, one by one. That together they lose nothing is shown by `test_histories`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure.feeds import watermark_and_gaps
from perdure.feeds.account import Account, Gap
from perdure.feeds.settings import PollSettings
from perdure.feeds.watermark_and_gaps import (
    DEEP_READ_INTERVAL,
    LATE_WINDOW,
    MAX_CLOCK_AHEAD,
    MAX_GAPS,
    OVERLAP,
    PageSummary,
)
from perdure.storage.time_types import HOUR, MINUTE

NOW = 1_794_000_000_000_000
MARK = NOW - HOUR
NEW = Account(
    account_id="did:plc:a", handle="a.test", added_at=1, next_poll_at=NOW, poll_interval=15 * MINUTE
)
KNOWN = replace(NEW, watermark=MARK)


def head(account: Account, read: PageSummary) -> Account:
    return watermark_and_gaps.apply_head_page(account, read, now=NOW, settings=PollSettings())


FLOOR = MARK - OVERLAP
"""How far down a page must go."""


def page(
    newest: int | None, last: int | None, cursor: str | None = "next", found: tuple[int, ...] = ()
) -> PageSummary:
    times = tuple(time for time in (newest, last) if time is not None)
    return PageSummary(cursor=cursor, item_times=times, new_times=found)


def after_gap(account: Account, gap: Gap, read: PageSummary) -> Account:
    return watermark_and_gaps.apply_gap_page(account, gap, read, now=NOW)


# The newest page


def test_a_page_that_reaches_the_mark_leaves_no_gap() -> None:
    after = head(KNOWN, page(NOW, FLOOR - 1))
    assert (after.watermark, after.gaps) == (NOW, ())


@pytest.mark.parametrize("last", [MARK, MARK - 1, FLOOR])
def test_a_page_that_ends_at_the_mark_or_right_below_does_not_reach_it(last: int) -> None:
    """There may be more items of the same instant, and clocks differ."""
    assert head(KNOWN, page(NOW, last)).gaps == (
        Gap(cursor="next", floor=FLOOR, late_floor=MARK - LATE_WINDOW),
    )


def test_the_last_item_decides_how_far_a_page_goes_not_one_with_an_odd_time() -> None:
    read = PageSummary(cursor="next", item_times=(NOW, 5, NOW - 9))
    assert len(head(KNOWN, read).gaps) == 1


def test_a_page_that_does_not_reach_the_mark_opens_a_gap_down_to_it() -> None:
    after = head(KNOWN, page(NOW, MARK + 5))
    assert (after.watermark, after.gaps) == (
        NOW,
        (Gap(cursor="next", floor=FLOOR, late_floor=MARK - LATE_WINDOW),),
    )


def test_a_new_account_is_read_down_to_the_look_back() -> None:
    floor = NOW - 24 * HOUR
    assert head(NEW, page(NOW, floor)).gaps == (Gap(cursor="next", floor=floor, late_floor=floor),)
    assert head(NEW, page(NOW, floor - 1)).gaps == ()


def test_older_items_of_a_new_account_are_not_taken_for_late_ones() -> None:
    floor = NOW - 24 * HOUR
    assert head(NEW, page(NOW, floor - 9, found=(floor - 9, floor - 3))).gaps == ()


def test_an_empty_page_with_a_cursor_is_not_the_end() -> None:
    assert len(head(KNOWN, page(None, None)).gaps) == 1
    assert head(KNOWN, page(None, None, cursor=None)).gaps == ()


def test_an_account_without_items_has_no_mark() -> None:
    assert head(NEW, page(None, None, cursor=None)).watermark is None


@given(st.integers(0, NOW), st.none() | st.integers(0, NOW))
def test_the_mark_never_falls(mark: int, newest: int | None) -> None:
    after = head(replace(NEW, watermark=mark), page(newest, newest))
    assert after.watermark == max(mark, newest or 0)


def test_an_item_from_the_future_does_not_raise_the_mark() -> None:
    """All that comes before its time would else count as known."""
    read = PageSummary(cursor="next", item_times=(NOW + MAX_CLOCK_AHEAD + 1, NOW - 7, NOW - 9))
    assert head(KNOWN, read).watermark == NOW - 7


def test_what_a_new_account_is_read_down_to_does_not_move_with_the_clock() -> None:
    quiet = head(NEW, page(None, None, None))
    later = watermark_and_gaps.apply_head_page(
        quiet, page(NOW + 50 * HOUR, NOW + 49 * HOUR), now=NOW + 50 * HOUR, settings=PollSettings()
    )
    assert [gap.floor for gap in later.gaps] == [NOW - 24 * HOUR]


def test_where_the_newest_page_of_a_new_account_was_empty_the_next_one_sets_its_mark() -> None:
    opened = head(NEW, page(None, None))
    assert after_gap(opened, opened.gaps[0], page(NOW - 5, NOW - 9, "d")).watermark == NOW - 5


# Late items


def test_late_items_below_the_watermark_make_the_poll_read_on() -> None:
    after = head(KNOWN, page(NOW, FLOOR - 5, found=(MARK - 2,)))
    assert after.gaps == (Gap(cursor="next", floor=FLOOR, late_floor=MARK - LATE_WINDOW),)


def test_it_ends_with_the_first_page_that_has_none() -> None:
    (gap,) = head(KNOWN, page(NOW, FLOOR - 5, found=(MARK - 2,))).gaps
    account = replace(KNOWN, gaps=(gap,))
    assert after_gap(account, gap, page(FLOOR - 5, FLOOR - 9, "more")).gaps == ()
    on = after_gap(account, gap, page(FLOOR - 5, FLOOR - 9, "more", found=(FLOOR - 7,)))
    assert [each.cursor for each in on.gaps] == ["more"]


def test_it_goes_no_deeper_than_half_an_hour() -> None:
    found = (MARK - 2,)
    assert head(KNOWN, page(NOW, MARK - LATE_WINDOW, found=found)).gaps != ()
    assert head(KNOWN, page(NOW, MARK - LATE_WINDOW - 1, found=found)).gaps == ()


# Gaps


GAP = Gap(cursor="c", floor=FLOOR, late_floor=MARK - LATE_WINDOW)
OPEN = replace(KNOWN, gaps=(GAP,))


def test_a_page_of_a_gap_moves_its_cursor() -> None:
    account = replace(OPEN, watermark=NOW)
    after = after_gap(account, GAP, page(NOW - 1, MARK + 9, "d"))
    assert after == replace(account, gaps=(replace(GAP, cursor="d"),))


def test_where_the_newest_page_was_empty_the_next_one_raises_the_mark() -> None:
    assert after_gap(OPEN, GAP, page(NOW - 1, MARK + 9, "d")).watermark == NOW - 1


def test_a_gap_that_ends_above_the_mark_does_not_raise_it() -> None:
    """There would be items below it that are never read."""
    shallow = replace(GAP, floor=MARK + 5)
    account = replace(KNOWN, gaps=(shallow,))
    assert after_gap(account, shallow, page(NOW - 1, MARK + 9, "d")).watermark == MARK


@pytest.mark.parametrize(
    "read",
    [
        page(NOW - 1, FLOOR - 1, "d"),
        page(NOW - 1, MARK + 9, None),
        page(NOW - 1, MARK + 9, "c"),
    ],
    ids=["its floor is passed", "there is no cursor", "the cursor repeats"],
)
def test_a_gap_is_closed_when(read: PageSummary) -> None:
    assert after_gap(OPEN, GAP, read).gaps == ()


def test_an_empty_answer_to_a_cursor_is_not_believed_at_once() -> None:
    """So answers a source to a cursor of another kind. Walked again from the top, it is believed."""
    nothing = page(None, None, None)
    after = after_gap(OPEN, GAP, nothing)
    assert after.gaps == (replace(GAP, cursor=None, is_restarted=True),)
    moved = after_gap(after, after.gaps[0], page(NOW, NOW - 5, "d"))
    assert after_gap(moved, moved.gaps[0], nothing).gaps == ()


def test_a_refused_cursor_is_tried_twice_and_then_dropped() -> None:
    once = watermark_and_gaps.apply_cursor_rejection(OPEN, GAP)
    assert once.gaps == (replace(GAP, cursor_rejections=1),)
    twice = watermark_and_gaps.apply_cursor_rejection(once, once.gaps[0])
    assert twice.gaps == (replace(GAP, cursor=None),)


def test_a_gap_that_was_reset_meanwhile_does_not_come_back() -> None:
    assert after_gap(KNOWN, GAP, page(NOW - 1, MARK + 9, "d")) == KNOWN
    assert watermark_and_gaps.apply_cursor_rejection(KNOWN, GAP) == KNOWN


def test_too_many_gaps_become_fewer_and_cover_the_same() -> None:
    account = KNOWN
    for number in range(3 * MAX_GAPS):
        newest = MARK + 100 * (number + 1)
        account = head(account, page(newest, newest - 5, f"c{number}"))
    assert len(account.gaps) == MAX_GAPS
    assert min(gap.floor for gap in account.gaps) == FLOOR
    assert account.gaps[-1].cursor == f"c{2 * MAX_GAPS}"


def test_backfilling_reads_everything_again_down_to_a_time() -> None:
    after = watermark_and_gaps.add_backfill_gap(replace(KNOWN, etag="x", next_poll_at=NOW + HOUR), 5, now=NOW)
    assert after == replace(KNOWN, gaps=(Gap(floor=5, late_floor=5),), next_poll_at=NOW)


# Posts that come late


def test_a_busy_account_is_walked_deeper_once_in_an_hour() -> None:
    """Else a post that is dated back by a quarter of an hour is below every newest page."""
    began, soon = replace(KNOWN, deep_watermark=MARK - DEEP_READ_INTERVAL), MARK + 30 * MINUTE
    deep = head(began, page(soon, soon - MINUTE))
    assert deep.gaps == (
        Gap(
            cursor="next",
            floor=MARK - DEEP_READ_INTERVAL - LATE_WINDOW,
            late_floor=MARK - DEEP_READ_INTERVAL - LATE_WINDOW,
        ),
    )
    assert deep.deep_watermark == MARK
    again = head(replace(deep, gaps=()), page(NOW, NOW - MINUTE))
    assert again.gaps == (Gap(cursor="next", floor=soon - OVERLAP, late_floor=soon - LATE_WINDOW),)
    assert again.deep_watermark == MARK


def test_an_account_that_posts_little_is_not_walked_for_that() -> None:
    began = replace(KNOWN, deep_watermark=MARK - DEEP_READ_INTERVAL)
    after = head(began, page(NOW, MARK - 2 * DEEP_READ_INTERVAL))
    assert (after.gaps, after.deep_watermark) == ((), MARK)
