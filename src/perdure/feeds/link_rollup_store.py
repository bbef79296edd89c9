"""Stores link summaries: one for each hour, and one for each day, merged from the summaries of its hours.

`SummaryReader` reads the summaries of a time window, and creates missing summaries. A summary is not final if
its items may have changed since they were read. It is then created again (see `link_invalidation`). Summaries
expire after about a month.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing

import msgspec

from ..storage import Committed, Insert, Micros, Record, Replace
from ..storage.errors import NewerFormat, StorageError
from ..storage.time_types import DAY, HOUR, MINUTE
from .errors import CorruptFeedRecord
from .item import ITEMS, Item
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
from .link_rollup import LinkSummary, merge_hours, parse_summary, summarize_hour, summary_format
from .store import FeedStore, older_than

log = logging.getLogger("perdure.feeds")

SUMMARIES_PER_COMMIT = 20
MAX_COMMIT_CHARS = 512 * 1024
"""A new commit is started when the summaries in the current commit contain at least this many characters."""
MIN_REBUILD_AGE: Micros = MINUTE
"""If `max_items` is set, a summary that is not final is created again only if it is older than this."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The time span of a ranking. Hours and days are numbered from 1970-01-01."""

    since: Micros
    now: Micros

    @property
    def closed_until(self) -> int:
        """The number of the first hour that is too recent to be summarized."""
        return (self.now - OPEN_AFTER_END) // HOUR

    @property
    def trend_hour(self) -> int:
        """The number of the hour that was 48 hours ago.

        The fields `today` and `day_before` of a ranked link are computed from the shares since then.
        """
        return (self.now - 2 * DAY) // HOUR

    @property
    def first_hour(self) -> int:
        """The number of the first hour to read. Before the last 48 hours, only whole days are read."""
        hour = self.since // HOUR
        return min(hour // HOURS_PER_DAY * HOURS_PER_DAY if hour < self.trend_hour else hour, self.trend_hour)

    def is_recent(self, day: int) -> bool:
        """Return whether a day overlaps the last 48 hours."""
        return (day + 1) * HOURS_PER_DAY > self.trend_hour

    def counts_day(self, day: int) -> bool:
        """Return whether the ranking counts the summary of a day, if any, instead of those of its hours."""
        return self.since <= day * DAY or not self.is_recent(day)


class DaySummaries(msgspec.Struct, frozen=True, kw_only=True):
    """The summaries that a ranking uses for one day."""

    counted: Sequence[LinkSummary]
    """The summaries that the ranking counts: that of the whole day, or those of its hours."""
    recent: Sequence[LinkSummary] = ()
    """The hourly summaries used to compute `today` and `day_before`. Empty if this day ended more than 48
    hours ago."""


class SummaryReader:
    """Reads the link summaries of a time window, and creates and stores missing summaries."""

    def __init__(
        self, store: FeedStore, window: Window, *, max_items: int | None, is_refresh: bool = False
    ) -> None:
        """Create a reader that stops reading items after about `max_items` items. None means no limit.

        With `is_refresh`, skip hours whose items may still change, and days that already have a final
        summary.
        """
        self._store = store
        self._storage = store.storage
        self._window = window
        self._items_left = math.inf if max_items is None else max_items
        self._is_refresh = is_refresh
        self._settled_at: Mapping[int, Micros] = {}
        """For each hour that was marked as dirty, the time from which a final summary can be created."""
        self.missing_hours = 0
        """Number of hours without a summary because the limit `max_items` was reached."""

    async def days(self) -> AsyncGenerator[DaySummaries]:
        """Yield the summaries of each day in the window, newest day first."""
        oldest = await self._storage.page(ITEMS, limit=1, now=self._store.clock())
        if not oldest:
            return
        first, last = max(self._window.first_hour, oldest[0].order // HOUR), self._window.closed_until - 1
        first_day, last_day = first // HOURS_PER_DAY, last // HOURS_PER_DAY
        margin = round(self._storage.lag * 1e6) + MAX_CLOCK_SKEW
        dirty_until = await self._store.dirty_hours.read(first_day, last_day)
        self._settled_at = {hour: until + margin for hour, until in dirty_until.items()}
        stored, replaceable = await self._read(DAYS, first_day * DAY, (last_day + 1) * DAY)
        for day in range(last_day, first_day - 1, -1):
            hours = range(max(first, day * HOURS_PER_DAY), min(last + 1, (day + 1) * HOURS_PER_DAY))
            if hours:
                yield await self._day(day, hours, stored.get(day * DAY), replaceable.get(day * DAY))

    async def _day(
        self, day: int, hours: range, stored: LinkSummary | None, record: Record | None
    ) -> DaySummaries:
        window, final = self._window, stored
        if stored is not None and not all(self._is_final(stored, hour) for hour in hours_of_day(day)):
            final = None
        if final is not None and self._is_refresh:
            return DaySummaries(counted=[])
        if final is not None and window.counts_day(day):
            recent = range(max(hours[0], window.trend_hour), hours[-1] + 1)
            return DaySummaries(counted=[final], recent=tuple((await self._hours(recent)).values()))
        made = await self._hours(hours)
        has_final_hours = all(self._is_final(summary, hour) for hour, summary in made.items())
        if final is None and len(made) == HOURS_PER_DAY and has_final_hours:
            # A mark that is set later expires after `read_at`, so it invalidates this summary.
            final = merge_hours(made.values(), start=day * DAY, read_at=window.now)
            await self._write(DAYS, [(final, record)])
        each = tuple(made.values())
        return DaySummaries(
            counted=[final] if final is not None and window.counts_day(day) else each,
            recent=each if window.is_recent(day) else (),
        )

    def _is_final(self, summary: LinkSummary, hour: int) -> bool:
        """Return whether the items of `hour` cannot have changed since they were read for `summary`."""
        return summary.read_at >= self._settled_at.get(hour, 0)

    async def _hours(self, hours: range) -> dict[int, LinkSummary]:
        """Return the summaries of `hours`. Create missing summaries until `max_items` is reached."""
        if not hours:
            return {}
        stored, replaceable = await self._read(HOURS, hours[0] * HOUR, (hours[-1] + 1) * HOUR)
        found = {start // HOUR: summary for start, summary in stored.items()}
        outdated = [hour for hour in hours if self._needs_summary(hour, found.get(hour))]
        for run in _consecutive_runs(outdated):
            made = await self._summarize(run)
            await self._write(HOURS, [(each, replaceable.get(each.start)) for each in made.values()])
            found |= made
        self.missing_hours += sum(hour not in found for hour in hours)
        return found

    def _needs_summary(self, hour: int, summary: LinkSummary | None) -> bool:
        """Return whether the summary of an hour should be created or recreated now."""
        if self._is_refresh and self._settled_at.get(hour, 0) > self._window.now:
            return False
        if summary is None:
            return True
        if self._is_final(summary, hour):
            return False
        return self._items_left == math.inf or summary.read_at < self._window.now - MIN_REBUILD_AGE

    async def _summarize(self, run: range) -> dict[int, LinkSummary]:
        """Summarize consecutive hours, newest first, until `max_items` is reached."""
        if self._items_left <= 0:
            return {}
        read_at, oldest = self._store.clock(), run[-1]
        items: dict[int, list[tuple[str, Item]]] = {hour: [] for hour in run}
        async with aclosing(self._store.item_records(after=older_than((run[-1] + 1) * HOUR))) as records:
            async for record in records:
                hour = record.order // HOUR
                if hour < oldest and self._items_left <= 0:
                    break  # older hours of the run remain missing
                oldest = max(hour, run[0])
                if hour < run[0]:
                    break
                self._items_left -= 1
                if (item := self._store.parse_item(record)) is not None:
                    items[hour].append((record.partition, item))
            else:
                oldest = run[0]
        return {
            hour: summarize_hour(items[hour], start=hour * HOUR, read_at=read_at)
            for hour in range(run[-1], oldest - 1, -1)
        }

    async def _read(
        self, partition: str, first: Micros, until: Micros
    ) -> tuple[dict[Micros, LinkSummary], dict[Micros, Record]]:
        """Return the valid summaries in a time range, and the stored records that may be replaced.

        Both are mappings by start time.
        """
        summaries: dict[Micros, LinkSummary] = {}
        replaceable: dict[Micros, Record] = {}
        async for record in read_links(self._storage, partition, first, until, self._store.clock):
            try:
                summaries[record.order] = parse_summary(record)
            except NewerFormat:  # the record is kept, because an insertion does not replace it
                continue
            except CorruptFeedRecord as error:
                log.warning("a link summary is damaged and will be created again: %s", error)
            replaceable[record.order] = record
        return summaries, replaceable

    async def _write(self, partition: str, made: Iterable[tuple[LinkSummary, Record | None]]) -> None:
        """Store the summaries in `made`. A summary that is paired with a record replaces that record.

        If another process has already stored a summary, keep it. A summary that cannot be stored is
        created again the next time it is needed.
        """
        changes = [
            link_change(partition, summary.start, summary_format.encode(summary), record)
            for summary, record in made
        ]
        try:
            for some in _split_commits(changes):
                await self._commit(some)
        except StorageError as error:
            log.warning("could not store link summaries: %s", error)

    async def _commit(self, changes: Sequence[Insert | Replace]) -> None:
        answer = await self._storage.commit(changes, now=self._store.clock())
        if not isinstance(answer, Committed) and len(changes) > 1:
            for change in changes:
                await self._commit([change])


def _consecutive_runs(hours: Iterable[int]) -> Iterator[range]:
    """Group hours into ranges of consecutive hours. Yield the newest range first."""
    ordered = sorted(hours, reverse=True)
    while ordered:
        last = first = ordered.pop(0)
        while ordered and ordered[0] == first - 1:
            first = ordered.pop(0)
        yield range(first, last + 1)


def _split_commits(changes: Iterable[Insert | Replace]) -> Iterator[list[Insert | Replace]]:
    """Split changes into lists that each fit into one commit."""
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
    """Decode any record in the space `LINKS`. Raise NewerFormat if a newer version of perdure has written it.

    Return None if the record is damaged. That is not an error, because the record will be created again.
    """
    try:
        return parse_marks(record) if record.partition == MARKS else parse_summary(record)
    except CorruptFeedRecord:
        return None
