"""Dirty hours: hours whose items are changing, so that a link summary made meanwhile is not final.

An hour is open until an hour after its end, and is not summarized before that. A process that stores or
deletes items of an earlier hour first marks the hour as dirty for some minutes: a summary is final only if
reading the items started after the last mark expired. The mark comes first, so a process that is killed at
any moment leaves at worst an unnecessary mark. One small record for each day has its marks.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import anyio
import msgspec

from ..storage import Address, Committed, Insert, Micros, Position, Record, Replace, Space, Storage
from ..storage.body_format import FORMAT_FIELD, BodyFormat
from ..storage.clock import DAY, HOUR, MINUTE
from ..storage.errors import NewerFormat, StorageCorrupt
from .errors import CorruptFeedRecord
from .link_summary import HOURS_PER_DAY

log = logging.getLogger("perdure.feeds")

LINKS = Space("links")
MARKS, HOURS, DAYS = "marks", "hours", "days"
"""The partitions of this space."""

OPEN_AFTER_END: Micros = HOUR
"""How long after its end an hour is not summarized."""
MARK_AFTER_END: Micros = HOUR // 2
"""How long after the end of an hour its items are stored without a mark. The difference to `OPEN_AFTER_END`
allows for slow commits and different clocks."""
MARK_LIFETIME: Micros = 10 * MINUTE
MAX_CLOCK_SKEW: Micros = MINUTE
"""Maximum difference of the clocks of processes."""
SUMMARY_RETENTION: Micros = 32 * DAY
"""How long after the end of its hour or day a summary is stored."""
MAX_CACHED_HOURS = 4000


class DirtyMarks(msgspec.Struct, frozen=True, kw_only=True, tag_field=FORMAT_FIELD, tag=1):
    """The marks of the hours of a day."""

    until: tuple[tuple[int, Micros], ...]
    """Hours, as numbers since 1970, and until when their items may be changing."""


def parse_marks(record: Record) -> DirtyMarks:
    """Decode a record. Raise NewerFormat or CorruptFeedRecord."""
    try:
        return _format.decode(record.key, record.body)
    except StorageCorrupt as error:
        raise CorruptFeedRecord(record.key, f"invalid record of dirty hours: {error}") from error


def number_key(number: int) -> str:
    """Return the key of an hour or a day, by its number since 1970."""
    return f"{number:010}"


def position_before(partition: str, time: Micros) -> Position:
    """Return the position right before everything from this time on."""
    return Position(max(time - 1, 0), "~", partition)


class DirtyHours:
    """The marks in a storage. It caches what its process has marked."""

    def __init__(self, storage: Storage, clock: Callable[[], Micros]) -> None:
        self._storage = storage
        self._clock = clock
        self._dirty_until: dict[int, Micros] = {}
        self._marking = anyio.Lock()

    async def mark(self, times: Iterable[Micros]) -> None:
        """Mark the hours of these times, if they may be summarized already.

        Call it before items of these times are stored or deleted. The mark is valid for at least half of
        `MARK_LIFETIME`.
        """
        now = self._clock()
        wanted = {hour for hour in {time // HOUR for time in times} if self._needs_mark(hour, now)}
        if not wanted:
            return
        async with self._marking:
            days: defaultdict[int, list[int]] = defaultdict(list)
            for hour in wanted:
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
                record = await self._storage.get(Address(LINKS, MARKS, number_key(day)), now=now)
                change = _change(day, record, marked)
            except (NewerFormat, StorageCorrupt) as error:
                log.warning("link counts of a day may be wrong: %s", error)
                break
            if isinstance(await self._storage.commit([change], now=now), Committed):
                break
        self._cache(marked)

    def _cache(self, marked: Mapping[int, Micros]) -> None:
        if len(self._dirty_until) > MAX_CACHED_HOURS:
            self._dirty_until.clear()
        self._dirty_until |= marked

    async def read(self, first_day: int, last_day: int) -> dict[int, Micros]:
        """Return until when each marked hour of these days may be changing."""
        until: dict[int, Micros] = {}
        after = position_before(MARKS, first_day * DAY)
        while records := await self._storage.page(LINKS, MARKS, after=after, limit=100, now=self._clock()):
            for record in records:
                if record.order > last_day * DAY:
                    return until
                until |= await self._read_marks(record)
            after = records[-1].position
        return until

    async def _read_marks(self, record: Record) -> Mapping[int, Micros]:
        """Read the marks of a day. If they are damaged, replace them and treat every hour as marked."""
        try:
            return dict(parse_marks(record).until)
        except (CorruptFeedRecord, NewerFormat) as error:
            log.warning("counting the links of a day again: %s", error)
            first = record.order // HOUR
            hours = range(first, first + HOURS_PER_DAY)
            if isinstance(error, CorruptFeedRecord):
                await self._mark(record.order // DAY, hours)
            return dict.fromkeys(hours, self._clock() + MARK_LIFETIME)


def _change(day: int, record: Record | None, marked: Mapping[int, Micros]) -> Insert | Replace:
    """Return the change that adds marks to those of a day."""
    expires_at = (day + 1) * DAY + SUMMARY_RETENTION
    if record is None:
        body = _format.encode(DirtyMarks(until=tuple(sorted(marked.items()))))
        return Insert(
            record=Record(
                space=LINKS,
                partition=MARKS,
                key=number_key(day),
                order=day * DAY,
                body=body,
                expires_at=expires_at,
            )
        )
    try:
        known = dict(parse_marks(record).until)
    except CorruptFeedRecord:  # any hour of the day may have been marked
        first = day * HOURS_PER_DAY
        known = dict.fromkeys(range(first, first + HOURS_PER_DAY), max(marked.values()))
    later = {hour: max(until, known.get(hour, 0)) for hour, until in marked.items()}
    body = _format.encode(DirtyMarks(until=tuple(sorted((known | later).items()))))
    return record.replace_with(body=body, tag="", expires_at=expires_at)


_format = BodyFormat(DirtyMarks)
