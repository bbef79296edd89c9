"""The walk through a feed: what a page that was read, and whose items are stored, makes of an account. Pure.

A source cannot be asked for what is new since a time; it can only be read from the newest item downward. So
a poll reads the newest page, and if that does not reach what is known, the rest is a gap, which later pages
close. The five rules:

1. Items are stored before the state says that they were read.
2. The mark rises to the newest item that was read, and never falls; no clock of ours has a part in it.
3. A page reaches a floor when it holds an item older than that. Items at exactly the mark are read again.
4. Below the floor the walk goes on only while it finds items that nobody knew, and at most `LATE` deep.
5. A walk ends below its floor, where there is no cursor, or where the cursor repeats.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from ..storage import Micros
from .account import Account, Gap
from .settings import MINUTE, Polling

LATE: Micros = 30 * MINUTE
"""How far behind the newest known item one that comes late is still looked for."""

MOST_GAPS = 16
MOST_REFUSALS = 2
"""How often a cursor is tried that the source refuses."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a page said, once its items are stored."""

    cursor: str | None
    newest: Micros | None
    oldest: Micros | None
    found: tuple[Micros, ...] = ()
    """The times of the items that nobody knew."""
    is_resumed: bool = False
    """Whether its cursor was remembered from an earlier poll. The source may no longer know it."""


def after_head(account: Account, read: Reading, *, now: Micros, polling: Polling) -> Account:
    """The newest page was read: raise the mark, and remember the rest if known items were not reached."""
    if account.mark is None:
        floor = depth = max(0, now - polling.lookback)
    else:
        floor, depth = account.mark, account.mark - LATE
    rest = _rest(Gap(floor=floor, depth=depth), read)
    marks = [mark for mark in (account.mark, read.newest) if mark is not None]
    gaps = account.gaps if rest is None else _bounded((rest, *account.gaps))
    return replace(account, mark=max(marks, default=None), gaps=gaps)


def after_gap(account: Account, gap: Gap, read: Reading) -> Account:
    """A page of a gap was read: the gap gets smaller, or is closed. It holds something newer than the mark
    where the newest page was empty and not the last.
    """
    after = _with(account, gap, _rest(gap, read))
    if None in (account.mark, read.newest) or gap not in account.gaps or gap.floor > (account.mark or 0):
        return after
    return replace(after, mark=max(account.mark or 0, read.newest or 0))


def after_refusal(account: Account, gap: Gap) -> Account:
    """The source does not take the gap's cursor: try once more, then walk it again from the top."""
    if gap.refusals + 1 < MOST_REFUSALS:
        return _with(account, gap, replace(gap, refusals=gap.refusals + 1))
    return _with(account, gap, replace(gap, cursor=None, refusals=0))


def back_to(account: Account, since: Micros, *, now: Micros) -> Account:
    """Read everything again, down to a time, whatever is known; and soon."""
    gaps = _bounded((Gap(floor=since, depth=since), *account.gaps))
    return replace(account, gaps=gaps, etag=None, next_at=min(account.next_at, now))


def _rest(gap: Gap, read: Reading) -> Gap | None:
    """What is left of a walk after a page."""
    if read.cursor is None and read.oldest is None and read.is_resumed and not gap.rewalked:
        return replace(gap, cursor=None, refusals=0, rewalked=True)  # so answers a source to a foreign cursor
    if read.cursor is None or read.cursor == gap.cursor:
        return None
    if read.oldest is None or read.oldest >= gap.floor or _finds_late_ones(gap, read, read.oldest):
        return replace(gap, cursor=read.cursor, refusals=0)
    return None


def _finds_late_ones(gap: Gap, read: Reading, oldest: Micros) -> bool:
    return oldest >= gap.depth and any(time < gap.floor for time in read.found)


def _with(account: Account, gap: Gap, rest: Gap | None) -> Account:
    """Put what is left in the gap's place. One that is no longer there was reset meanwhile."""
    left = [rest if each == gap else each for each in account.gaps]
    return replace(account, gaps=tuple(each for each in left if each is not None))


def _bounded(gaps: tuple[Gap, ...]) -> tuple[Gap, ...]:
    """Of too many gaps the two oldest become one: what lies between them is read once more."""
    while len(gaps) > MOST_GAPS:
        *newer, upper, lower = gaps
        both = replace(upper, floor=min(upper.floor, lower.floor), depth=min(upper.depth, lower.depth))
        gaps = (*newer, both)
    return gaps
