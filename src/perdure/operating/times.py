"""Parses and formats times and durations. Times are in UTC, unless the user enters another offset."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from ..storage import Micros

MAX_TIME: Micros = 253_402_300_799_999_999
"""The last microsecond of the year 9999. `datetime` cannot represent later times."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(\d{1,9})([smhdw])")


def parse_time(text: str, now: Micros) -> Micros:
    """Parse a time in the past, written as an age (`24h`, `7d`), a date, or a date and time.

    Raise ValueError if the text is invalid, or if the time is in the future or before 1970.
    """
    text = text.strip()
    if match := _DURATION.fullmatch(text):
        return max(0, now - int(match[1]) * _SECONDS_PER_UNIT[match[2]] * 1_000_000)
    try:
        date = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"invalid time {text!r}; use 24h, 7d, 2026-11-01 or 2026-11-01T08:30") from error
    time = ((date if date.tzinfo else date.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)
    if not 0 <= time <= now:
        raise ValueError(f"{text!r} must be in the past, but not before 1970; use 24h, 7d or another date")
    return time


def iso(time: Micros) -> str:
    """Return a time in ISO 8601 format, with microseconds."""
    return f"{_datetime(time):%Y-%m-%dT%H:%M:%S.%f}Z"


def format_clock(time: Micros) -> str:
    return f"{_datetime(time):%H:%M:%S} UTC"


def format_minute(time: Micros) -> str:
    """Return a time like `2026-11-01 08:30`."""
    return f"{_datetime(time):%Y-%m-%d %H:%M}"


def format_second(time: Micros) -> str:
    """Return a time like `2026-11-01 08:30:00 UTC`."""
    return f"{_datetime(time):%Y-%m-%d %H:%M:%S} UTC"


def format_moment(time: Micros, now: Micros) -> str:
    """Return the time of day, such as `08:30:00`.

    If `now` is on another day, return a time like `2026-11-01 08:30` instead.
    """
    is_today = _datetime(time).date() == _datetime(now).date()
    return f"{_datetime(time):%H:%M:%S}" if is_today else format_minute(time)


def format_when(time: Micros | None, now: Micros) -> str:
    """Return a time like `2026-11-01 08:30:00 UTC (5 min ago)`, or "never" for `None`."""
    if time is None:
        return "never"
    distance = format_duration(abs(now - time))
    return f"{format_second(time)} ({f'{distance} ago' if time <= now else f'in {distance}'})"


def format_duration(duration: Micros, *, precise: bool = False) -> str:
    """Return a duration in its largest unit and the next smaller one, such as `2 h 5 min`.

    With `precise`, durations of less than ten seconds have a higher precision, such as `250 ms` or `2.5 s`.
    """
    if precise and duration < 1_000_000:
        return f"{duration / 1000:.0f} ms"
    if precise and duration < 10_000_000:
        return f"{duration / 1_000_000:.1f} s"
    seconds = duration // 1_000_000
    for unit, length, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= length:
            rest = seconds % length // part
            return f"{seconds // length} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds} s"


def _datetime(time: Micros) -> datetime:
    return _EPOCH + timedelta(microseconds=min(max(time, 0), MAX_TIME))
