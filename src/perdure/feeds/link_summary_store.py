"""Stored link summaries: closed hours are summarized once, and a day is merged from its hours.

`SummaryReader` reads the summaries of a window of time and makes those that are missing. A summary that is
final is used from then on; any other one is made again (see `link_invalidation`). Summaries expire after a
month.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing

import msgspec

from ..storage import Committed, Insert, Micros, Record, Replace
from ..storage.clock import DAY, HOUR, MINUTE
from ..storage.errors import NewerFormat, StorageError
from .errors import CorruptFeedRecord
from .item import ITEMS
from .link_invalidation import (
    DAYS,
    HOURS,
    HOURS_PER_DAY,
    MARKS,
    MAX_CLOCK_SKEW,
    OPEN_AFTER_END,
    hours_of_day,
    link_change,
    parse_marks,
    read_links,
)
from .link_summary import (
    LinkSummary,
    Share,
    item_shares,
    merge_hours,
    parse_summary,
    summarize_hour,
    summary_format,
)
from .store import FeedStore, older_than

log = logging.getLogger("perdure.feeds")

SUMMARIES_PER_COMMIT = 20
MAX_COMMIT_CHARS = 512 * 1024
"""Maximum number of summaries in one commit, and of characters in their bodies."""
MIN_REBUILD_AGE: Micros = MINUTE
"""How old a summary that is not final must be to be made again, if the number of items is limited."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The hours and days of a ranking. Hours and days are numbered since 1970."""

    since: Micros
    now: Micros

    @property
    def closed_until(self) -> int:
        """The first hour that is still open."""
        return (self.now - OPEN_AFTER_END) // HOUR

    @property
    def trend_hour(self) -> int:
        """The first hour of the two days of the trend."""
        return (self.now - 2 * DAY) // HOUR

    @property
    def first_hour(self) -> int:
        """The first hour that is read. Days before the trend are read as a whole."""
        hour = self.since // HOUR
        return min(hour // HOURS_PER_DAY * HOURS_PER_DAY if hour < self.trend_hour else hour, self.trend_hour)

    def is_recent(self, day: int) -> bool:
        """Whether a day has hours that belong to the two days of the trend."""
        return (day + 1) * HOURS_PER_DAY > self.trend_hour

    def counts_day(self, day: int) -> bool:
        """Whether a day is counted as a whole instead of hour by hour, although its hours list more links."""
        return self.since <= day * DAY or not self.is_recent(day)


class DaySummaries(msgspec.Struct, frozen=True, kw_only=True):
    """What a day adds to a ranking."""

    counted: Sequence[LinkSummary]
    """The summary of the day, or those of its hours."""
    recent: Sequence[LinkSummary] = ()
    """The summaries of its hours that belong to the two days of the trend."""


class _StoredSummary(msgspec.Struct, frozen=True):
    """A stored summary, and the record that a new one replaces."""

    record: Record
    summary: LinkSummary | None
    """None if it is invalid."""
    is_newer: bool = False
    """Whether a newer version of perdure wrote it. It is not replaced."""

    @classmethod
    def from_record(cls, record: Record) -> _StoredSummary:
        try:
            return cls(record, parse_summary(record))
        except NewerFormat:
            return cls(record, None, is_newer=True)
        except CorruptFeedRecord as error:
            log.warning("making a link summary again: %s", error)
            return cls(record, None)


class SummaryReader:
    """Reads the summaries of a window, and makes those that are missing."""

    def __init__(
        self, store: FeedStore, window: Window, *, max_items: int | None, is_refresh: bool = False
    ) -> None:
        """`is_refresh` skips hours that are still changing, and days that are final."""
        self._store = store
        self._storage = store.storage
        self._window = window
        self._items_left = max_items
        self._is_refresh = is_refresh
        self._settled_at: Mapping[int, Micros] = {}
        """When a read of each marked hour must start to include everything that was stored under the mark."""
        self.missing_hours = 0
        """How many hours were not summarized because of `max_items`."""

    async def days(self) -> AsyncGenerator[DaySummaries]:
        """Yield the days of the window, newest first."""
        oldest = await self._storage.page(ITEMS, limit=1, now=self._store.clock())
        if not oldest:
            return
        first, last = max(self._window.first_hour, oldest[0].order // HOUR), self._window.closed_until - 1
        first_day, last_day = first // HOURS_PER_DAY, last // HOURS_PER_DAY
        margin = round(self._storage.lag * 1e6) + MAX_CLOCK_SKEW
        dirty_until = await self._store.dirty_hours.read(first_day, last_day)
        self._settled_at = {hour: until + margin for hour, until in dirty_until.items()}
        stored = await self._read(DAYS, first_day * DAY, (last_day + 1) * DAY)
        for day in range(last_day, first_day - 1, -1):
            hours = range(max(first, day * HOURS_PER_DAY), min(last + 1, (day + 1) * HOURS_PER_DAY))
            if hours:
                yield await self._day(day, hours, stored.get(day * DAY))

    async def _day(self, day: int, hours: range, stored: _StoredSummary | None) -> DaySummaries:
        window, final = self._window, self._final_day(stored, day)
        if final is not None and self._is_refresh:
            return DaySummaries(counted=[])
        if final is not None and window.counts_day(day):
            recent = range(max(hours[0], window.trend_hour), hours[-1] + 1)
            return DaySummaries(counted=[final], recent=tuple((await self._hours(recent)).values()))
        made = await self._hours(hours)
        if final is None and len(made) == HOURS_PER_DAY:
            final = await self._merge(day, made, stored)
        each = tuple(made.values())
        return DaySummaries(
            counted=[final] if final is not None and window.counts_day(day) else each,
            recent=each if window.is_recent(day) else (),
        )

    def _is_final(self, summary: LinkSummary, hour: int) -> bool:
        """Whether no item of this hour was stored or deleted since its items were read for the summary."""
        return summary.read_at >= self._settled_at.get(hour, 0)

    def _final_day(self, stored: _StoredSummary | None, day: int) -> LinkSummary | None:
        """Return the summary of a day if it is final, else None."""
        if stored is None or stored.summary is None:
            return None
        summary = stored.summary
        return summary if all(self._is_final(summary, hour) for hour in hours_of_day(day)) else None

    async def _merge(
        self, day: int, hours: Mapping[int, LinkSummary], stored: _StoredSummary | None
    ) -> LinkSummary | None:
        """Merge and store the summary of a day if its hours are final, else return None.

        A mark that was set after the marks were read expires later than `now`, so the day is not final then.
        """
        if not all(self._is_final(summary, hour) for hour, summary in hours.items()):
            return None
        summary = merge_hours(hours.values(), start=day * DAY, read_at=self._window.now)
        await self._write(DAYS, [(summary, stored)])
        return summary

    async def _hours(self, hours: range) -> dict[int, LinkSummary]:
        """Return the summaries of hours of one day. Make missing ones within the limit of items."""
        if not hours:
            return {}
        stored = await self._read(HOURS, hours[0] * HOUR, (hours[-1] + 1) * HOUR)
        found = {start // HOUR: each.summary for start, each in stored.items() if each.summary is not None}
        wanted = [hour for hour in hours if self._needs_summary(hour, found.get(hour))]
        for run in _consecutive_runs(wanted):
            made = await self._summarize(run)
            await self._write(HOURS, [(summary, stored.get(summary.start)) for summary in made.values()])
            found |= made
        self.missing_hours += sum(hour not in found for hour in hours)
        return found

    def _needs_summary(self, hour: int, summary: LinkSummary | None) -> bool:
        """Whether a summary is missing, or not final and old enough."""
        if self._is_refresh and self._settled_at.get(hour, 0) > self._window.now:
            return False
        if summary is None:
            return True
        if self._is_final(summary, hour):
            return False
        return self._items_left is None or summary.read_at < self._window.now - MIN_REBUILD_AGE

    async def _summarize(self, run: range) -> dict[int, LinkSummary]:
        """Summarize consecutive hours, newest first, within the limit of items."""
        made: dict[int, LinkSummary] = {}
        if self._items_left is not None and self._items_left <= 0:
            return made
        read_at = self._store.clock()
        async with aclosing(self._shares_by_hour(run[0], run[-1])) as hours:
            async for hour, shares, items in hours:
                made[hour] = summarize_hour(shares, start=hour * HOUR, read_at=read_at)
                if self._items_left is not None:
                    self._items_left -= items
                    if self._items_left <= 0:
                        break
        return made

    async def _shares_by_hour(self, first: int, last: int) -> AsyncGenerator[tuple[int, list[Share], int]]:
        """Yield each of these hours with its shares and its number of items, newest first."""
        hour, found, items = last, list[Share](), 0
        async with aclosing(self._store.item_records(after=older_than((last + 1) * HOUR))) as records:
            async for record in records:
                while hour > max(record.order // HOUR, first - 1):
                    yield hour, found, items
                    hour, found, items = hour - 1, [], 0
                if hour < first:
                    return
                items += 1
                if (item := self._store.parse_item(record)) is not None:
                    found += item_shares(record.partition, item)
        while hour >= first:
            yield hour, found, items
            hour, found, items = hour - 1, [], 0

    async def _read(self, partition: str, first: Micros, until: Micros) -> dict[Micros, _StoredSummary]:
        """Return the summaries that start in a range of time, by their start."""
        records = read_links(self._storage, partition, first, until, self._store.clock)
        return {record.order: _StoredSummary.from_record(record) async for record in records}

    async def _write(self, partition: str, made: Sequence[tuple[LinkSummary, _StoredSummary | None]]) -> None:
        """Store summaries, replacing those that were read. If another process was faster, its summaries stay.

        A summary that cannot be stored is made again when it is needed.
        """
        changes = [
            link_change(partition, summary.start, summary_format.encode(summary), stored and stored.record)
            for summary, stored in made
            if stored is None or not stored.is_newer
        ]
        try:
            for some in _split_commits(changes):
                await self._commit(some)
        except StorageError as error:
            log.warning("link summaries not stored: %s", error)

    async def _commit(self, changes: Sequence[Insert | Replace]) -> None:
        answer = await self._storage.commit(changes, now=self._store.clock())
        if not isinstance(answer, Committed) and len(changes) > 1:
            for change in changes:
                await self._commit([change])


def _consecutive_runs(hours: Iterable[int]) -> Iterator[range]:
    """Yield ranges of consecutive hours, newest first."""
    ordered = sorted(hours, reverse=True)
    while ordered:
        last = first = ordered.pop(0)
        while ordered and ordered[0] == first - 1:
            first = ordered.pop(0)
        yield range(first, last + 1)


def _split_commits(changes: Iterable[Insert | Replace]) -> Iterator[list[Insert | Replace]]:
    """Yield lists of changes that fit into one commit each."""
    some: list[Insert | Replace] = []
    length = 0
    for change in changes:
        some.append(change)
        length += len((change.after if isinstance(change, Replace) else change.record).body)
        if len(some) == SUMMARIES_PER_COMMIT or length >= MAX_COMMIT_CHARS:
            yield some
            some, length = [], 0
    if some:
        yield some


def parse_link_record(record: Record) -> object:
    """Decode a record of the space `LINKS`. Raise NewerFormat.

    Return None for a damaged one: it is made again when it is needed, so it is not reported.
    """
    try:
        return parse_marks(record) if record.partition == MARKS else parse_summary(record)
    except CorruptFeedRecord:
        return None
