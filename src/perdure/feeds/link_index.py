"""`LinkIndex`: ranks the links that the most accounts share, over a day, a week or a month at a similar cost.

Closed hours are summarized once, and a day is merged from its hours; both are stored with the feeds and
expire after a month. The newest hours, which are still open, are read from the items each time. A final
summary is used from then on, and others are made again: see `dirty_hours`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing

import msgspec

from ..storage import Committed, Insert, Micros, Position, Record, Replace
from ..storage.clock import DAY, HOUR, MINUTE
from ..storage.errors import NewerFormat, StorageError
from .dirty_hours import (
    DAYS,
    HOURS,
    LINKS,
    MARKS,
    MAX_CLOCK_SKEW,
    OPEN_AFTER_END,
    SUMMARY_RETENTION,
    number_key,
    parse_marks,
    position_before,
)
from .errors import CorruptFeedRecord
from .item import ITEMS
from .link_summary import (
    HOURS_PER_DAY,
    LinkSummary,
    LinkTotals,
    Share,
    SharedLink,
    item_shares,
    merge_hours,
    parse_summary,
    summarize_all,
    summarize_hour,
    summary_format,
)
from .store import FeedStore, older_than

log = logging.getLogger("perdure.feeds")

MAX_WINDOW: Micros = 31 * DAY
"""The longest window that uses summaries. A longer one is counted from its items."""
SUMMARIES_PER_PAGE = 100
SUMMARIES_PER_COMMIT = 20
MAX_COMMIT_CHARS = 512 * 1024
"""Maximum number of summaries in one commit, and of characters in their bodies."""
MIN_REBUILD_AGE: Micros = MINUTE
"""How old a summary that is not final must be to be made again, if the number of items is limited."""


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """The links that the most accounts share."""

    links: tuple[SharedLink, ...]
    missing_hours: int = 0
    """How many hours of the window are not summarized yet, because the number of items is limited."""


class LinkIndex:
    """The link summaries of a store."""

    def __init__(self, store: FeedStore) -> None:
        self._store = store
        self._storage = store.storage

    async def ranking(self, since: Micros, *, limit: int, max_items: int | None = None) -> Ranking:
        """Return the links that the most accounts shared since a time.

        `max_items` limits how many items are read for hours that are not summarized yet.
        """
        now = self._store.clock()
        totals = LinkTotals(since=since, now=now)
        if since < now - MAX_WINDOW:
            items = await self._items_since(since)
            totals.add(items)
            totals.add_trend(items)
            return Ranking(links=tuple(totals.links(limit)))
        window = Window(since=since, now=now)
        newest = await self._items_since(window.closed_until * HOUR)
        totals.add(newest)
        totals.add_trend(newest)
        reading = _WindowReader(self, window, max_items=max_items)
        async for day in reading.days():
            for summary in day.counted:
                totals.add(summary)
            for summary in day.recent:
                totals.add_trend(summary)
        return Ranking(links=tuple(totals.links(limit)), missing_hours=reading.missing)

    async def refresh(self, *, max_items: int) -> None:
        """Make missing summaries, newest hours first, except for hours that are still changing."""
        now = self._store.clock()
        reading = _WindowReader(
            self, Window(since=now - MAX_WINDOW, now=now), max_items=max_items, is_refresh=True
        )
        async for _ in reading.days():
            pass

    async def _items_since(self, start: Micros) -> LinkSummary:
        found = [
            share
            async for account_id, item in self._store.newest_items(since=start)
            for share in item_shares(account_id, item)
        ]
        return summarize_all(found, start=start)

    # Reading and writing summaries

    async def oldest_hour(self) -> int | None:
        """Return the hour of the oldest item. Earlier hours need no summary."""
        records = await self._storage.page(ITEMS, limit=1, now=self._store.clock())
        return records[0].order // HOUR if records else None

    async def read_summaries(
        self, partition: str, first: Micros, until: Micros
    ) -> dict[Micros, _StoredSummary]:
        """Return the summaries that start in a range of time, by their start."""
        found: dict[Micros, _StoredSummary] = {}
        after: Position = position_before(partition, first)
        while records := await self._storage.page(
            LINKS, partition, after=after, limit=SUMMARIES_PER_PAGE, now=self._store.clock()
        ):
            for record in records:
                if record.order >= until:
                    return found
                found[record.order] = _StoredSummary.from_record(record)
            after = records[-1].position
        return found

    async def store_summaries(
        self, partition: str, made: Sequence[tuple[LinkSummary, _StoredSummary | None]]
    ) -> None:
        """Store summaries, replacing those that were read. If another process was faster, its summaries stay.

        A summary that cannot be stored is made again when it is needed.
        """
        changes = [
            _change(partition, summary, stored)
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

    async def shares_by_hour(self, first: int, last: int) -> AsyncGenerator[tuple[int, list[Share], int]]:
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

    @property
    def dirty_margin(self) -> Micros:
        """How long after the end of a mark a read must start to include everything stored under it."""
        return round(self._storage.lag * 1e6) + MAX_CLOCK_SKEW

    async def dirty_until(self, first_day: int, last_day: int) -> dict[int, Micros]:
        return await self._store.dirty_hours.read(first_day, last_day)

    @property
    def now(self) -> Micros:
        return self._store.clock()


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The hours and days of a ranking."""

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


class _Day(msgspec.Struct, frozen=True, kw_only=True):
    """What a day adds to a ranking: its summary, or those of its hours."""

    counted: Sequence[LinkSummary]
    recent: Sequence[LinkSummary] = ()
    """Its hours that belong to the two days of the trend."""


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


class _WindowReader:
    """Reads the summaries of a window, and makes those that are missing."""

    def __init__(
        self, index: LinkIndex, window: Window, *, max_items: int | None, is_refresh: bool = False
    ) -> None:
        self._index = index
        self._window = window
        self._items_left = max_items
        self._is_refresh = is_refresh
        self._dirty_until: Mapping[int, Micros] = {}
        self.missing = 0

    async def days(self) -> AsyncGenerator[_Day]:
        """Yield the days of the window, newest first."""
        oldest = await self._index.oldest_hour()
        if oldest is None:
            return
        first, last = max(self._window.first_hour, oldest), self._window.closed_until - 1
        first_day, last_day = first // HOURS_PER_DAY, last // HOURS_PER_DAY
        self._dirty_until = await self._index.dirty_until(first_day, last_day)
        stored = await self._index.read_summaries(DAYS, first_day * DAY, (last_day + 1) * DAY)
        for day in range(last_day, first_day - 1, -1):
            hours = range(max(first, day * HOURS_PER_DAY), min(last + 1, (day + 1) * HOURS_PER_DAY))
            if hours:
                yield await self._day(day, hours, stored.get(day * DAY))

    async def _day(self, day: int, hours: range, stored: _StoredSummary | None) -> _Day:
        window, final = self._window, self._final_day(stored, day)
        if final is not None and self._is_refresh:
            return _Day(counted=[])
        if final is not None and window.counts_day(day):
            recent = range(max(hours[0], window.trend_hour), hours[-1] + 1)
            return _Day(counted=[final], recent=tuple((await self._hours(recent)).values()))
        made = await self._hours(hours)
        if final is None and len(made) == HOURS_PER_DAY:
            final = await self._merge(day, made, stored)
        each = tuple(made.values())
        return _Day(
            counted=[final] if final is not None and window.counts_day(day) else each,
            recent=each if window.is_recent(day) else (),
        )

    def _is_final(self, summary: LinkSummary, hour: int) -> bool:
        """Whether no item of this hour was stored or deleted since its items were read for the summary."""
        return (
            summary.read_at
            >= self._dirty_until.get(hour, -self._index.dirty_margin) + self._index.dirty_margin
        )

    def _final_day(self, stored: _StoredSummary | None, day: int) -> LinkSummary | None:
        """Return the summary of a day if it is final, else None."""
        if stored is None or stored.summary is None:
            return None
        summary, first = stored.summary, day * HOURS_PER_DAY
        is_final = all(self._is_final(summary, hour) for hour in range(first, first + HOURS_PER_DAY))
        return summary if is_final else None

    async def _merge(
        self, day: int, hours: Mapping[int, LinkSummary], stored: _StoredSummary | None
    ) -> LinkSummary | None:
        """Merge and store the summary of a day if its hours are final, else return None.

        A mark that was set after the marks were read expires later than `now`, so the day is not final then.
        """
        if not all(self._is_final(summary, hour) for hour, summary in hours.items()):
            return None
        summary = merge_hours(hours.values(), start=day * DAY, read_at=self._window.now)
        await self._index.store_summaries(DAYS, [(summary, stored)])
        return summary

    async def _hours(self, hours: range) -> dict[int, LinkSummary]:
        """Return the summaries of hours of one day. Make missing ones within the limit of items."""
        if not hours:
            return {}
        stored = await self._index.read_summaries(HOURS, hours[0] * HOUR, (hours[-1] + 1) * HOUR)
        found = {
            hour: each.summary
            for hour in hours
            if (each := stored.get(hour * HOUR)) is not None and each.summary is not None
        }
        wanted = [hour for hour in hours if self._needs_summary(hour, found.get(hour))]
        for run in _consecutive_runs(wanted):
            made = await self._summarize(run)
            await self._index.store_summaries(
                HOURS, [(summary, stored.get(summary.start)) for summary in made.values()]
            )
            found |= made
        self.missing += sum(hour not in found for hour in hours)
        return found

    def _needs_summary(self, hour: int, summary: LinkSummary | None) -> bool:
        """Whether a summary is missing, or not final and old enough."""
        if self._is_refresh and self._dirty_until.get(hour, 0) + self._index.dirty_margin > self._window.now:
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
        read_at = self._index.now
        async with aclosing(self._index.shares_by_hour(run[0], run[-1])) as hours:
            async for hour, shares, items in hours:
                made[hour] = summarize_hour(shares, start=hour * HOUR, read_at=read_at)
                if self._items_left is not None:
                    self._items_left -= items
                    if self._items_left <= 0:
                        break
        return made


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


def _change(partition: str, summary: LinkSummary, stored: _StoredSummary | None) -> Insert | Replace:
    lasts = HOUR if partition == HOURS else DAY
    expires_at = summary.start + lasts + SUMMARY_RETENTION
    body = summary_format.encode(summary)
    if stored is not None:
        return stored.record.replace_with(body=body, tag="", expires_at=expires_at)
    record = Record(
        space=LINKS,
        partition=partition,
        key=number_key(summary.start // lasts),
        order=summary.start,
        body=body,
        expires_at=expires_at,
    )
    return Insert(record=record)


def parse_link_record(record: Record) -> object:
    """Decode a record of the space `LINKS`. Raise NewerFormat.

    Return None for a damaged one: it is made again when it is needed, so it is not reported.
    """
    try:
        return parse_marks(record) if record.partition == MARKS else parse_summary(record)
    except CorruptFeedRecord:
        return None
