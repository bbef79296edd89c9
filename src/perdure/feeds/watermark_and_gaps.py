"""The rules of reading a feed: how a page changes the watermark and the gaps after its items are stored.

A source has no query for the items since a time. It can only be read from the newest item to older ones. So
a poll reads the newest page. If that page does not reach known items, the rest is a gap, which later pages
close. These functions are pure. The rules:

1. Items are stored before the state says that they were read.
2. The watermark rises to the newest item that was read, and never decreases. It does not use our clock.
3. A page reaches a floor when its last item is older than the floor. The floor is a minute below the
   watermark, because items within a minute are often out of order.
4. Below the floor, reading continues only while it finds new items, and at most down to `LATE_WINDOW` below
   the watermark.
5. Reading ends below the floor, when there is no cursor, or when the cursor repeats.
6. If an account posts so often that its newest page does not reach back to `LATE_WINDOW`, it is read deeper
   once per `DEEP_READ_INTERVAL`: down to `LATE_WINDOW` below the watermark of the last deep read. So a post
   that is back-dated by at most `LATE_WINDOW` is found after about `DEEP_READ_INTERVAL`.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from ..storage import Micros
from ..storage.time_units import MINUTE
from .account import Account, Gap
from .settings import PollSettings

OVERLAP: Micros = MINUTE
"""How far below the watermark all items are read again, because the clocks of authors differ."""
LATE_WINDOW: Micros = 30 * MINUTE
"""How far below the watermark polls search for late items."""
DEEP_READ_INTERVAL: Micros = 60 * MINUTE
"""How far the watermark rises between two deep reads."""
MAX_CLOCK_AHEAD: Micros = 60 * MINUTE
"""Maximum time that an item can be ahead of our clock and still raise the watermark. Without this limit, one
wrong time would hide all later items."""

MAX_GAPS = 16
MAX_CURSOR_REJECTIONS = 2
"""Number of rejections of a cursor after which the gap is read from the newest item again."""


class PageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A page whose items are stored."""

    cursor: str | None
    item_times: tuple[Micros, ...] = ()
    """The times of its items, in the order of the page."""
    new_times: tuple[Micros, ...] = ()
    """The times of the items that were new."""

    @property
    def last_time(self) -> Micros | None:
        """The time of the last item. Other items can have wrong times."""
        return self.item_times[-1] if self.item_times else None


def apply_head_page(account: Account, page: PageSummary, *, now: Micros, settings: PollSettings) -> Account:
    """Apply the newest page: raise the watermark, and add a gap if the page does not reach known items."""
    since = max(0, now - settings.lookback) if account.history_start is None else account.history_start
    gap = Gap(floor=since, late_floor=since)
    deep_watermark = account.deep_watermark
    if account.watermark is not None:
        gap = Gap(floor=account.watermark - OVERLAP, late_floor=account.watermark - LATE_WINDOW)
        if deep_watermark is not None and account.watermark - deep_watermark >= DEEP_READ_INTERVAL:
            gap = replace(gap, floor=deep_watermark - LATE_WINDOW, late_floor=deep_watermark - LATE_WINDOW)
        if deep_watermark is None or gap.floor < deep_watermark:
            deep_watermark = account.watermark
    remaining = _remaining_gap(gap, page)
    gaps = account.gaps if remaining is None else _merge_excess_gaps((remaining, *account.gaps))
    return replace(
        account,
        history_start=since,
        watermark=_raise_watermark(account, page, now),
        gaps=gaps,
        deep_watermark=deep_watermark,
    )


def reaches_known_items(account: Account, page: PageSummary) -> bool:
    """Return whether the newest page reaches known items. Then an equal page means that nothing is new."""
    if page.cursor is None:
        return True
    return (
        page.last_time is not None
        and account.watermark is not None
        and page.last_time < account.watermark - OVERLAP
    )


def apply_gap_page(account: Account, gap: Gap, page: PageSummary, *, now: Micros) -> Account:
    """Apply a page of a gap: shrink or close the gap.

    If the newest page was empty but not the last, a page of the gap can have items that are newer than the
    watermark. Then the watermark rises, unless it would skip items below the gap.
    """
    if gap not in account.gaps:
        return account
    after = _replace_gap(account, gap, _remaining_gap(gap, page))
    known = account.history_start if account.watermark is None else account.watermark
    if known is None or gap.floor > known:
        return after
    return replace(after, watermark=_raise_watermark(account, page, now))


def _raise_watermark(account: Account, page: PageSummary, now: Micros) -> Micros | None:
    known = () if account.watermark is None else (account.watermark,)
    times = [time for time in page.item_times if time <= now + MAX_CLOCK_AHEAD]
    return max((*known, *times), default=None)


def apply_cursor_rejection(account: Account, gap: Gap) -> Account:
    """Count a rejected cursor. After `MAX_CURSOR_REJECTIONS`, restart the gap from the newest item."""
    if gap.cursor_rejections + 1 < MAX_CURSOR_REJECTIONS:
        return _replace_gap(account, gap, replace(gap, cursor_rejections=gap.cursor_rejections + 1))
    return _replace_gap(account, gap, replace(gap, cursor=None, cursor_rejections=0))


def add_backfill_gap(account: Account, since: Micros, *, now: Micros) -> Account:
    """Add a gap down to a time, so that the next polls read everything since then again."""
    gaps = _merge_excess_gaps((Gap(floor=since, late_floor=since), *account.gaps))
    return replace(account, gaps=gaps, etag=None, next_poll_at=min(account.next_poll_at, now))


def _remaining_gap(gap: Gap, page: PageSummary) -> Gap | None:
    """Return the rest of a gap after a page, or None if the gap is closed."""
    if page.cursor is None and not page.item_times and gap.cursor is not None and not gap.is_restarted:
        # Some sources respond to an unknown cursor with an empty page.
        return replace(gap, cursor=None, cursor_rejections=0, is_restarted=True)
    if page.cursor is None or page.cursor == gap.cursor:
        return None
    if page.last_time is None or page.last_time >= gap.floor or _found_late_items(gap, page, page.last_time):
        return replace(gap, cursor=page.cursor, cursor_rejections=0)
    return None


def late_threshold(gap: Gap) -> Micros | None:
    """Return the time below which new items are late, or None if the gap has no known items."""
    return gap.floor + OVERLAP if gap.late_floor < gap.floor else None


def _found_late_items(gap: Gap, page: PageSummary, reach: Micros) -> bool:
    below = late_threshold(gap)
    return below is not None and reach >= gap.late_floor and any(time < below for time in page.new_times)


def _replace_gap(account: Account, gap: Gap, rest: Gap | None) -> Account:
    """Replace a gap with its rest, or remove it. Do nothing if the account no longer has the gap."""
    left = [rest if each == gap else each for each in account.gaps]
    return replace(account, gaps=tuple(each for each in left if each is not None))


def _merge_excess_gaps(gaps: tuple[Gap, ...]) -> tuple[Gap, ...]:
    """Merge the two oldest gaps while there are too many. The range between them is then read again."""
    while len(gaps) > MAX_GAPS:
        *newer, upper, lower = gaps
        both = replace(
            upper, floor=min(upper.floor, lower.floor), late_floor=min(upper.late_floor, lower.late_floor)
        )
        gaps = (*newer, both)
    return gaps
