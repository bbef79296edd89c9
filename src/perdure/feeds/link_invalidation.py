"""Marks hours whose items change, so that the link summaries of these hours are created again.

A link summary lists the links that accounts shared in an hour or a day (see `link_rollup`). An hour is
summarized no sooner than one hour after it ends. Before a process stores or deletes items of an hour that
ended more than half an hour ago, it marks the hour as dirty. A dirty mark means that the items may change
during the next few minutes. A summary is final only if its items were read after the latest mark of the hour
had expired. If the process is killed after marking the hour but before changing the items, the mark is
harmless. All marks of a day are stored in one small record. Hours and days are numbered from 1970-01-01.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping

import anyio
import msgspec

from ..storage import Address, Committed, Insert, Micros, Position, Record, Replace, Space, Storage
from ..storage.body_format import FORMAT_FIELD, BodyFormat
from ..storage.errors import NewerFormat, StorageCorrupt
from ..storage.time_types import DAY, HOUR, MINUTE
from .errors import CorruptFeedRecord

log = logging.getLogger("perdure.feeds")

LINKS = Space("links")
MARKS, HOURS, DAYS = "marks", "hours", "days"
"""The partitions of the space `LINKS`: dirty marks, summaries of hours, and summaries of days."""
HOURS_PER_DAY = 24

OPEN_AFTER_END: Micros = HOUR
"""An hour can be summarized when this much time has passed since its end."""
MARK_AFTER_END: Micros = HOUR // 2
"""When this much time has passed since the end of an hour, changes to its items need a dirty mark. This time
is shorter than `OPEN_AFTER_END` to allow for slow commits and differing clocks."""
MARK_LIFETIME: Micros = 10 * MINUTE
MAX_CLOCK_SKEW: Micros = MINUTE
"""The maximum expected difference between the clocks of two processes."""
SUMMARY_RETENTION: Micros = 32 * DAY
"""How long a summary is kept after the end of its hour or day."""
RECORDS_PER_PAGE = 100
MAX_CACHED_HOURS = 4000


class DirtyMarks(msgspec.Struct, frozen=True, kw_only=True, tag_field=FORMAT_FIELD, tag=1):
    """The dirty marks of all hours of one day."""

    until: tuple[tuple[int, Micros], ...]
    """Pairs of the number of an hour and the time until which its items may change."""


def parse_marks(record: Record) -> DirtyMarks:
    """Decode a record of dirty marks. Raise NewerFormat or CorruptFeedRecord if that fails."""
    try:
        return _format.decode(record.key, record.body)
    except StorageCorrupt as error:
        raise CorruptFeedRecord(record.key, f"invalid record of changed hours: {error}") from error


def hours_of_day(day: int) -> range:
    """Return the numbers of the hours in a day, counted from 1970-01-01. `day` is counted in the same way."""
    return range(day * HOURS_PER_DAY, (day + 1) * HOURS_PER_DAY)


def link_change(partition: str, start: Micros, body: str, stored: Record | None) -> Insert | Replace:
    """Return the storage change that replaces `stored` or, if it is None, inserts a record into `LINKS`."""
    length = HOUR if partition == HOURS else DAY
    expires_at = start + length + SUMMARY_RETENTION
    if stored is not None:
        return stored.replace_with(body=body, tag="", expires_at=expires_at)
    key = _key(start // length)
    return Insert(
        record=Record(
            space=LINKS, partition=partition, key=key, order=start, body=body, expires_at=expires_at
        )
    )


async def read_links(
    storage: Storage, partition: str, first: Micros, until: Micros, clock: Callable[[], Micros]
) -> AsyncGenerator[Record]:
    """Yield the records in a partition of `LINKS` with `first` <= time < `until`, oldest first."""
    after = Position(max(first - 1, 0), "~", partition)
    while records := await storage.page(LINKS, partition, after=after, limit=RECORDS_PER_PAGE, now=clock()):
        for record in records:
            if record.order >= until:
                return
            yield record
        after = records[-1].position


class DirtyHours:
    """Reads and writes dirty marks, and caches the marks that this process has written."""

    def __init__(self, storage: Storage, clock: Callable[[], Micros]) -> None:
        self._storage = storage
        self._clock = clock
        self._dirty_until: dict[int, Micros] = {}
        self._marking = anyio.Lock()

    async def mark(self, times: Iterable[Micros]) -> None:
        """Mark the hours that contain `times` as dirty, before items with these times are stored or deleted.

        Skip hours that cannot have been summarized yet, and hours whose summaries are too old to be used. The
        marks remain valid for at least half of `MARK_LIFETIME`.
        """
        now = self._clock()
        unmarked = {hour for hour in {time // HOUR for time in times} if self._needs_mark(hour, now)}
        if not unmarked:
            return
        async with self._marking:
            days: defaultdict[int, list[int]] = defaultdict(list)
            for hour in unmarked:
                if self._needs_mark(hour, now):
                    days[hour // HOURS_PER_DAY].append(hour)
            for day, hours in days.items():
                await self._mark(day, hours)

    def _needs_mark(self, hour: int, now: Micros) -> bool:
        end = (hour + 1) * HOUR
        is_late = end + MARK_AFTER_END <= now < end + SUMMARY_RETENTION - DAY
        return is_late and self._dirty_until.get(hour, 0) < now + MARK_LIFETIME // 2

    async def _mark(self, day: int, hours: Iterable[int]) -> None:
        while True:
            now = self._clock()
            marked = dict.fromkeys(hours, now + MARK_LIFETIME)
            try:
                record = await self._storage.get(Address(LINKS, MARKS, _key(day)), now=now)
                change = _add_marks(day, record, marked)
            except (NewerFormat, StorageCorrupt) as error:
                log.warning("could not store which hours changed, so link counts may be wrong: %s", error)
                break
            if isinstance(await self._storage.commit([change], now=now), Committed):
                break
        if len(self._dirty_until) > MAX_CACHED_HOURS:
            self._dirty_until.clear()
        self._dirty_until |= marked

    async def read(self, first_day: int, last_day: int) -> dict[int, Micros]:
        """Return the expiry times of the marks in a range of days, by hour. Some may already have passed."""
        until: dict[int, Micros] = {}
        records = read_links(self._storage, MARKS, first_day * DAY, (last_day + 1) * DAY, self._clock)
        async for record in records:
            until |= await self._read_marks(record)
        return until

    async def _read_marks(self, record: Record) -> Mapping[int, Micros]:
        """Return the marks in the record of a day. If it cannot be decoded, return marks for all hours.

        Replace a damaged record. Keep a record that a newer version of perdure wrote.
        """
        try:
            return dict(parse_marks(record).until)
        except (CorruptFeedRecord, NewerFormat) as error:
            log.warning("counting the links of a whole day again because a record is unreadable: %s", error)
            day = record.order // DAY
            if isinstance(error, CorruptFeedRecord):
                await self._mark(day, hours_of_day(day))
            return dict.fromkeys(hours_of_day(day), self._clock() + MARK_LIFETIME)


def _add_marks(day: int, record: Record | None, marked: Mapping[int, Micros]) -> Insert | Replace:
    """Return the storage change that adds marks to the record of a day."""
    try:
        known = {} if record is None else dict(parse_marks(record).until)
    except CorruptFeedRecord:  # any hour of the day may have been marked
        known = dict.fromkeys(hours_of_day(day), max(marked.values()))
    later = {hour: max(until, known.get(hour, 0)) for hour, until in marked.items()}
    body = _format.encode(DirtyMarks(until=tuple(sorted((known | later).items()))))
    return link_change(MARKS, day * DAY, body, record)


def _key(number: int) -> str:
    """Return the record key for the number of an hour or a day."""
    return f"{number:010}"


_format = BodyFormat(DirtyMarks)
