"""The rules for reading a feed: how each page changes the watermark and the gaps of an account.

A source cannot return only the items since a given time. A feed can only be read backwards from its newest
item. So a poll first reads the newest page. If this page does not reach back to items that are already
stored, the unread items that follow it form a gap, which later pages close. The functions in this module are
pure. The rules:

1. The state of an account never marks an item as read before the item is stored.
2. The watermark rises to the time of the newest item on a page, and never falls. An item that is dated more
   than `MAX_CLOCK_AHEAD` in the future does not raise it.
3. The floor of a new gap is `OVERLAP` before the old watermark (the watermark before the poll), because items
   less than a minute apart are often out of order. If there is no old watermark, the floor is
   `Account.history_start`. A page reaches the floor if its last item is older than the floor.
4. Past the floor, reading continues only while pages contain late items: new items that are older than the
   old watermark. It stops at the latest when it has reached the time `LATE_WINDOW` before that
   watermark.
5. Reading also ends when the source returns no cursor or repeats a cursor. However, an empty page without a
   cursor can mean that the source does not know the gap's cursor. Reading then restarts once from the newest
   item.
6. If an account posts often, a backdated post can be missing from the newest page. So a poll is a deep read
   if the watermark has risen by `DEEP_READ_INTERVAL` since the previous deep read. A deep read continues back
   to `LATE_WINDOW` before the watermark of the previous deep read. It therefore finds every post that was
   added since then and backdated by at most `LATE_WINDOW`.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from ..storage import Micros
from ..storage.time_types import MINUTE
from .account import Account, Gap
from .settings import PollSettings

OVERLAP: Micros = MINUTE
"""The floor of a new gap is this long before the watermark, because the clocks of authors differ."""
LATE_WINDOW: Micros = 30 * MINUTE
"""Polls search for backdated items that are up to this much older than the watermark."""
DEEP_READ_INTERVAL: Micros = 60 * MINUTE
"""A deep read is due when the watermark has risen by this much since the previous deep read."""
MAX_CLOCK_AHEAD: Micros = 60 * MINUTE
"""An item that is dated more than this far in the future does not raise the watermark. Without this limit,
one wrong time would make polls miss later items."""

MAX_GAPS = 16
MAX_CURSOR_REJECTIONS = 2
"""If the source rejects the cursor of a gap this many times, reading restarts from the newest item."""


class PageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The cursor of a page, and the times of its items."""

    cursor: str | None
    item_times: tuple[Micros, ...] = ()
    """The times of all items, in the order in which the page lists them."""
    new_times: tuple[Micros, ...] = ()
    """The times of the items that were not stored before."""

    @property
    def last_time(self) -> Micros | None:
        """The time of the last item, which shows how far back the page reaches. None if the page is empty."""
        return self.item_times[-1] if self.item_times else None


def apply_head_page(account: Account, page: PageSummary, *, now: Micros, settings: PollSettings) -> Account:
    """Apply the newest page: raise the watermark, and add a gap if polls must read further pages."""
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
    """Return whether the newest page reaches back to `OVERLAP` before the watermark, or is the last page."""
    if page.cursor is None:
        return True
    return (
        page.last_time is not None
        and account.watermark is not None
        and page.last_time < account.watermark - OVERLAP
    )


def apply_gap_page(account: Account, gap: Gap, page: PageSummary, *, now: Micros) -> Account:
    """Apply a page that was read for a gap: shrink or close the gap.

    If the newest page was empty but was followed by further pages, this page can contain items that are newer
    than the watermark. In that case, raise the watermark, unless unread items lie between it and the gap.
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
    """Count a rejection of the gap's cursor. After `MAX_CURSOR_REJECTIONS`, remove the cursor.

    The gap is then read again from the newest item of the feed.
    """
    if gap.cursor_rejections + 1 < MAX_CURSOR_REJECTIONS:
        return _replace_gap(account, gap, replace(gap, cursor_rejections=gap.cursor_rejections + 1))
    return _replace_gap(account, gap, replace(gap, cursor=None, cursor_rejections=0))


def add_backfill_gap(account: Account, since: Micros, *, now: Micros) -> Account:
    """Add a gap, so that the next polls read the feed back to the time `since`.

    Items that have already been read are read again.
    """
    gaps = _merge_excess_gaps((Gap(floor=since, late_floor=since), *account.gaps))
    return replace(account, gaps=gaps, etag=None, next_poll_at=min(account.next_poll_at, now))


def _remaining_gap(gap: Gap, page: PageSummary) -> Gap | None:
    """Return what remains of a gap after a page was read, or None if the gap is closed."""
    if page.cursor is None and not page.item_times and gap.cursor is not None and not gap.is_restarted:
        # Some sources respond to an unknown cursor with an empty page.
        return replace(gap, cursor=None, cursor_rejections=0, is_restarted=True)
    if page.cursor is None or page.cursor == gap.cursor:
        return None
    if page.last_time is None or page.last_time >= gap.floor or _found_late_items(gap, page, page.last_time):
        return replace(gap, cursor=page.cursor, cursor_rejections=0)
    return None


def late_threshold(gap: Gap) -> Micros | None:
    """Return the time before which new items count as late.

    Return None if the gap is not searched for late items.
    """
    return gap.floor + OVERLAP if gap.late_floor < gap.floor else None


def _found_late_items(gap: Gap, page: PageSummary, reach: Micros) -> bool:
    below = late_threshold(gap)
    return below is not None and reach >= gap.late_floor and any(time < below for time in page.new_times)


def _replace_gap(account: Account, gap: Gap, rest: Gap | None) -> Account:
    """Replace a gap, or remove it if `rest` is None. Do nothing if the account no longer has the gap."""
    left = [rest if each == gap else each for each in account.gaps]
    return replace(account, gaps=tuple(each for each in left if each is not None))


def _merge_excess_gaps(gaps: tuple[Gap, ...]) -> tuple[Gap, ...]:
    """Merge the two oldest gaps, repeatedly, until at most `MAX_GAPS` remain.

    The items between merged gaps are read again.
    """
    while len(gaps) > MAX_GAPS:
        *newer, upper, lower = gaps
        both = replace(
            upper, floor=min(upper.floor, lower.floor), late_floor=min(upper.late_floor, lower.late_floor)
        )
        gaps = (*newer, both)
    return gaps
