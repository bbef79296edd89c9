"""The walk through a feed: what a page that was read, and whose items are stored, makes of an account. Pure.

A source cannot be asked for what is new since a time; it can only be read from the newest item downward. So
a poll reads the newest page, and if that does not reach what is known, the rest is a gap, which later pages
close. The five rules:

1. Items are stored before the state says that they were read.
2. The mark rises to the newest item that was read, and never falls; no clock of ours has a part in it.
3. A page reaches a floor when its last item is older than that. The floor is a minute below the mark: within
   that, items are seldom in order, and those at exactly the mark are read again.
4. Below the floor the walk goes on only while it finds items that nobody knew, and at most `LATE` deep.
5. A walk ends below its floor, where there is no cursor, or where the cursor repeats.
6. An account that posts so much that its newest page does not reach back to `LATE` is walked deeper once in
   `DEEP_EVERY`: down to `LATE` below where the last such walk began. So a post that is dated back by at most
   `LATE` is found after about that time.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from ..storage import Micros
from ..storage.clock import MINUTE
from .account import Account, Gap
from .settings import PollSettings

OVERLAP: Micros = MINUTE
"""How far below the mark everything is read again: writers' clocks differ."""
LATE_WINDOW: Micros = 30 * MINUTE
"""How far behind the newest known item one that comes late is still looked for."""
DEEP_READ_INTERVAL: Micros = 60 * MINUTE
"""How far the mark rises between two walks that go down to `LATE` in any case."""
MAX_CLOCK_AHEAD: Micros = 60 * MINUTE
"""How far ahead of our clock an item may be, and still raise the mark: else one wrong time would hide all."""

MAX_GAPS = 16
MAX_CURSOR_REJECTIONS = 2
"""How often a cursor is tried that the source refuses."""


class PageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a page said, once its items are stored."""

    cursor: str | None
    item_times: tuple[Micros, ...] = ()
    """Of its items, as it shows them."""
    new_times: tuple[Micros, ...] = ()
    """Of those that nobody knew."""

    @property
    def last_time(self) -> Micros | None:
        """How far down it goes, by its last item; one in the middle may be dated wrongly."""
        return self.item_times[-1] if self.item_times else None

    def newest_time(self, now: Micros) -> Micros | None:
        return max((time for time in self.item_times if time <= now + MAX_CLOCK_AHEAD), default=None)


def apply_head_page(account: Account, page: PageSummary, *, now: Micros, settings: PollSettings) -> Account:
    """The newest page was read: raise the mark, and remember the rest if known items were not reached."""
    since = max(0, now - settings.lookback) if account.history_start is None else account.history_start
    gap = Gap(floor=since, late_floor=since)
    deep_mark = account.deep_watermark
    if account.watermark is not None:
        gap = Gap(floor=account.watermark - OVERLAP, late_floor=account.watermark - LATE_WINDOW)
        if deep_mark is not None and account.watermark - deep_mark >= DEEP_READ_INTERVAL:
            gap = replace(gap, floor=deep_mark - LATE_WINDOW, late_floor=deep_mark - LATE_WINDOW)
        if deep_mark is None or gap.floor < deep_mark:
            deep_mark = account.watermark
    remaining = _remaining_gap(gap, page)
    gaps = account.gaps if remaining is None else _merge_excess_gaps((remaining, *account.gaps))
    return replace(
        account,
        history_start=since,
        watermark=_raise_watermark(account, page, now),
        gaps=gaps,
        deep_watermark=deep_mark,
    )


def reaches_known_items(account: Account, page: PageSummary) -> bool:
    """Whether a newest page holds everything that the next poll would look for, if nothing were new."""
    if page.cursor is None:
        return True
    return (
        page.last_time is not None
        and account.watermark is not None
        and page.last_time < account.watermark - OVERLAP
    )


def apply_gap_page(account: Account, gap: Gap, page: PageSummary, *, now: Micros) -> Account:
    """A page of a gap was read: the gap gets smaller, or is closed. It holds something newer than the mark
    where the newest page was empty and not the last; then the mark rises, if nothing below it is left out.
    """
    if gap not in account.gaps:
        return account
    after = _replace_gap(account, gap, _remaining_gap(gap, page))
    known = account.history_start if account.watermark is None else account.watermark
    if known is None or gap.floor > known:
        return after
    return replace(after, watermark=_raise_watermark(account, page, now))


def _raise_watermark(account: Account, page: PageSummary, now: Micros) -> Micros | None:
    marks = [mark for mark in (account.watermark, page.newest_time(now)) if mark is not None]
    return max(marks, default=None)


def apply_cursor_rejection(account: Account, gap: Gap) -> Account:
    """The source does not take the gap's cursor: try once more, then walk it again from the top."""
    if gap.cursor_rejections + 1 < MAX_CURSOR_REJECTIONS:
        return _replace_gap(account, gap, replace(gap, cursor_rejections=gap.cursor_rejections + 1))
    return _replace_gap(account, gap, replace(gap, cursor=None, cursor_rejections=0))


def add_backfill_gap(account: Account, since: Micros, *, now: Micros) -> Account:
    """Read everything again, down to a time, whatever is known; and soon."""
    gaps = _merge_excess_gaps((Gap(floor=since, late_floor=since), *account.gaps))
    return replace(account, gaps=gaps, etag=None, next_poll_at=min(account.next_poll_at, now))


def _remaining_gap(gap: Gap, page: PageSummary) -> Gap | None:
    """What is left of a walk after a page."""
    if page.cursor is None and not page.item_times and gap.cursor is not None and not gap.is_restarted:
        return replace(
            gap, cursor=None, cursor_rejections=0, is_restarted=True
        )  # so answers a source to a foreign cursor
    if page.cursor is None or page.cursor == gap.cursor:
        return None
    if page.last_time is None or page.last_time >= gap.floor or _found_late_items(gap, page, page.last_time):
        return replace(gap, cursor=page.cursor, cursor_rejections=0)
    return None


def late_threshold(gap: Gap) -> Micros | None:
    """The time below which what nobody knew comes late. None: nothing is known where this gap goes."""
    return gap.floor + OVERLAP if gap.late_floor < gap.floor else None


def _found_late_items(gap: Gap, page: PageSummary, reach: Micros) -> bool:
    below = late_threshold(gap)
    return below is not None and reach >= gap.late_floor and any(time < below for time in page.new_times)


def _replace_gap(account: Account, gap: Gap, rest: Gap | None) -> Account:
    """Put what is left in the gap's place. One that is no longer there was reset meanwhile."""
    left = [rest if each == gap else each for each in account.gaps]
    return replace(account, gaps=tuple(each for each in left if each is not None))


def _merge_excess_gaps(gaps: tuple[Gap, ...]) -> tuple[Gap, ...]:
    """Of too many gaps the two oldest become one: what lies between them is read once more."""
    while len(gaps) > MAX_GAPS:
        *newer, upper, lower = gaps
        both = replace(
            upper, floor=min(upper.floor, lower.floor), late_floor=min(upper.late_floor, lower.late_floor)
        )
        gaps = (*newer, both)
    return gaps
