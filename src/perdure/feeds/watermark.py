"""The rules of reading a feed: how a page whose items are stored changes watermark and gaps.

A source cannot be asked for what is new since a time; it can only be read from the newest item downward. So
a poll reads the newest page, and if that does not reach known items, the rest is a gap, which later pages
close. These functions are pure. The rules:

1. Items are stored before the state says that they were read.
2. The watermark rises to the newest item that was read, and never decreases. It does not use our clock.
3. A page reaches a floor when its last item is older than the floor. The floor is a minute below the
   watermark: items within a minute are often out of order, and those at exactly the watermark are read again.
4. Below the floor, reading continues only while it finds new items, and at most `LATE_WINDOW` deep.
5. Reading ends below the floor, when there is no cursor, or when the cursor repeats.
6. If an account posts so much that its newest page does not reach back to `LATE_WINDOW`, it is read deeper
   once in `DEEP_READ_INTERVAL`: down to `LATE_WINDOW` below the watermark of the last deep read. So a post
   that is back-dated by at most `LATE_WINDOW` is found after about that time.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from ..storage import Micros
from ..storage.clock import MINUTE
from .account import Account, Gap
from .settings import PollSettings

OVERLAP: Micros = MINUTE
"""How far below the watermark everything is read again, because clocks of authors differ."""
LATE_WINDOW: Micros = 30 * MINUTE
"""How far behind the newest known item a late item is still searched for."""
DEEP_READ_INTERVAL: Micros = 60 * MINUTE
"""How far the watermark rises between two deep reads."""
MAX_CLOCK_AHEAD: Micros = 60 * MINUTE
"""How far ahead of our clock an item can be and still raise the watermark. Without a limit, one wrong time
would hide all later items."""

MAX_GAPS = 16
MAX_CURSOR_REJECTIONS = 2
"""How often a rejected cursor is tried before the gap is read from the newest item again."""


class PageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A page whose items are stored."""

    cursor: str | None
    item_times: tuple[Micros, ...] = ()
    """The times of its items, in the order of the page."""
    new_times: tuple[Micros, ...] = ()
    """The times of the items that were new."""

    @property
    def last_time(self) -> Micros | None:
        """The time of its last item. An item in the middle can have a wrong date."""
        return self.item_times[-1] if self.item_times else None

    def newest_time(self, now: Micros) -> Micros | None:
        return max((time for time in self.item_times if time <= now + MAX_CLOCK_AHEAD), default=None)


def apply_head_page(account: Account, page: PageSummary, *, now: Micros, settings: PollSettings) -> Account:
    """Apply the newest page: raise the watermark, and add a gap if known items were not reached."""
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
    """Whether a newest page reaches items that are known, so that an equal page means that nothing is new."""
    if page.cursor is None:
        return True
    return (
        page.last_time is not None
        and account.watermark is not None
        and page.last_time < account.watermark - OVERLAP
    )


def apply_gap_page(account: Account, gap: Gap, page: PageSummary, *, now: Micros) -> Account:
    """Apply a page of a gap: shrink or close the gap.

    It has items newer than the watermark if the newest page was empty and not the last. Then the watermark
    rises, unless items below it would be skipped.
    """
    if gap not in account.gaps:
        return account
    after = _replace_gap(account, gap, _remaining_gap(gap, page))
    known = account.history_start if account.watermark is None else account.watermark
    if known is None or gap.floor > known:
        return after
    return replace(after, watermark=_raise_watermark(account, page, now))


def _raise_watermark(account: Account, page: PageSummary, now: Micros) -> Micros | None:
    times = [time for time in (account.watermark, page.newest_time(now)) if time is not None]
    return max(times, default=None)


def apply_cursor_rejection(account: Account, gap: Gap) -> Account:
    """Count a rejected cursor. After `MAX_CURSOR_REJECTIONS`, restart the gap from the newest item."""
    if gap.cursor_rejections + 1 < MAX_CURSOR_REJECTIONS:
        return _replace_gap(account, gap, replace(gap, cursor_rejections=gap.cursor_rejections + 1))
    return _replace_gap(account, gap, replace(gap, cursor=None, cursor_rejections=0))


def add_backfill_gap(account: Account, since: Micros, *, now: Micros) -> Account:
    """Add a gap down to a time, so that the next poll reads everything since then again."""
    gaps = _merge_excess_gaps((Gap(floor=since, late_floor=since), *account.gaps))
    return replace(account, gaps=gaps, etag=None, next_poll_at=min(account.next_poll_at, now))


def _remaining_gap(gap: Gap, page: PageSummary) -> Gap | None:
    """Return what is left of a gap after a page, or None if it is closed."""
    if page.cursor is None and not page.item_times and gap.cursor is not None and not gap.is_restarted:
        return replace(
            gap, cursor=None, cursor_rejections=0, is_restarted=True
        )  # some sources respond so to an unknown cursor
    if page.cursor is None or page.cursor == gap.cursor:
        return None
    if page.last_time is None or page.last_time >= gap.floor or _found_late_items(gap, page, page.last_time):
        return replace(gap, cursor=page.cursor, cursor_rejections=0)
    return None


def late_threshold(gap: Gap) -> Micros | None:
    """Return the time below which new items are late, or None if no item in the range of the gap is known."""
    return gap.floor + OVERLAP if gap.late_floor < gap.floor else None


def _found_late_items(gap: Gap, page: PageSummary, reach: Micros) -> bool:
    below = late_threshold(gap)
    return below is not None and reach >= gap.late_floor and any(time < below for time in page.new_times)


def _replace_gap(account: Account, gap: Gap, rest: Gap | None) -> Account:
    """Replace a gap, or remove it. A gap that is missing was reset in the meantime."""
    left = [rest if each == gap else each for each in account.gaps]
    return replace(account, gaps=tuple(each for each in left if each is not None))


def _merge_excess_gaps(gaps: tuple[Gap, ...]) -> tuple[Gap, ...]:
    """Merge the two oldest gaps while there are too many: the range between them is read again."""
    while len(gaps) > MAX_GAPS:
        *newer, upper, lower = gaps
        both = replace(
            upper, floor=min(upper.floor, lower.floor), late_floor=min(upper.late_floor, lower.late_floor)
        )
        gaps = (*newer, both)
    return gaps
