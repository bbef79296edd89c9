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
from .settings import Polling

SLACK: Micros = MINUTE
"""How far below the mark everything is read again: writers' clocks differ."""
LATE: Micros = 30 * MINUTE
"""How far behind the newest known item one that comes late is still looked for."""
DEEP_EVERY: Micros = 60 * MINUTE
"""How far the mark rises between two walks that go down to `LATE` in any case."""
EARLY: Micros = 60 * MINUTE
"""How far ahead of our clock an item may be, and still raise the mark: else one wrong time would hide all."""

MOST_GAPS = 16
MOST_REFUSALS = 2
"""How often a cursor is tried that the source refuses."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a page said, once its items are stored."""

    cursor: str | None
    times: tuple[Micros, ...] = ()
    """Of its items, as it shows them."""
    found: tuple[Micros, ...] = ()
    """Of those that nobody knew."""

    @property
    def reach(self) -> Micros | None:
        """How far down it goes, by its last item; one in the middle may be dated wrongly."""
        return self.times[-1] if self.times else None

    def newest(self, now: Micros) -> Micros | None:
        return max((time for time in self.times if time <= now + EARLY), default=None)


def after_head(account: Account, read: Reading, *, now: Micros, polling: Polling) -> Account:
    """The newest page was read: raise the mark, and remember the rest if known items were not reached."""
    since = max(0, now - polling.lookback) if account.since is None else account.since
    whole = Gap(floor=since, depth=since)
    deep_mark = account.deep_mark
    if account.mark is not None:
        whole = Gap(floor=account.mark - SLACK, depth=account.mark - LATE)
        if deep_mark is not None and account.mark - deep_mark >= DEEP_EVERY:
            whole = replace(whole, floor=deep_mark - LATE, depth=deep_mark - LATE)
        if deep_mark is None or whole.floor < deep_mark:
            deep_mark = account.mark
    rest = _rest(whole, read)
    gaps = account.gaps if rest is None else _bounded((rest, *account.gaps))
    return replace(account, since=since, mark=_raised(account, read, now), gaps=gaps, deep_mark=deep_mark)


def says_all(account: Account, read: Reading) -> bool:
    """Whether a newest page holds everything that the next poll would look for, if nothing were new."""
    if read.cursor is None:
        return True
    return read.reach is not None and account.mark is not None and read.reach < account.mark - SLACK


def after_gap(account: Account, gap: Gap, read: Reading, *, now: Micros) -> Account:
    """A page of a gap was read: the gap gets smaller, or is closed. It holds something newer than the mark
    where the newest page was empty and not the last; then the mark rises, if nothing below it is left out.
    """
    if gap not in account.gaps:
        return account
    after = _with(account, gap, _rest(gap, read))
    known = account.since if account.mark is None else account.mark
    if known is None or gap.floor > known:
        return after
    return replace(after, mark=_raised(account, read, now))


def _raised(account: Account, read: Reading, now: Micros) -> Micros | None:
    marks = [mark for mark in (account.mark, read.newest(now)) if mark is not None]
    return max(marks, default=None)


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
    if read.cursor is None and not read.times and gap.cursor is not None and not gap.rewalked:
        return replace(gap, cursor=None, refusals=0, rewalked=True)  # so answers a source to a foreign cursor
    if read.cursor is None or read.cursor == gap.cursor:
        return None
    if read.reach is None or read.reach >= gap.floor or _finds_late_ones(gap, read, read.reach):
        return replace(gap, cursor=read.cursor, refusals=0)
    return None


def late_below(gap: Gap) -> Micros | None:
    """The time below which what nobody knew comes late. None: nothing is known where this gap goes."""
    return gap.floor + SLACK if gap.depth < gap.floor else None


def _finds_late_ones(gap: Gap, read: Reading, reach: Micros) -> bool:
    below = late_below(gap)
    return below is not None and reach >= gap.depth and any(time < below for time in read.found)


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
