"""Times as people write and read them. All of them are UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from ..storage import Micros

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST: Micros = 253_402_300_799_999_999
"""The last moment that a calendar of four digits knows."""
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SPAN = re.compile(r"(\d{1,9})([smhdw])")


def moment(text: str, now: Micros) -> Micros:
    """`24h` or `7d` before now, or a date, or a date with a time."""
    from .errors import CommandError  # noqa: PLC0415 (errors imports output, which imports this module)

    if span := _SPAN.fullmatch(text.strip()):
        return max(0, now - int(span[1]) * _SECONDS[span[2]] * 1_000_000)
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise CommandError(
            f"{text!r} is not a time; write 24h, 7d, 2026-11-01 or 2026-11-01T08:30"
        ) from error
    told = (when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH
    if not 0 <= told // timedelta(microseconds=1) <= now:
        raise CommandError(f"{text!r} is not in the past; write 24h, 7d or an earlier date")
    return told // timedelta(microseconds=1)


def iso(time: Micros) -> str:
    """For programs."""
    return f"{_at(time):%Y-%m-%dT%H:%M:%S.%f}Z"


def clock(time: Micros) -> str:
    """For people who look at it today."""
    return f"{_at(time):%H:%M:%S} UTC"


def minute(time: Micros) -> str:
    return f"{_at(time):%Y-%m-%d %H:%M}"


def when(time: Micros | None, now: Micros) -> str:
    """For people: a time, and how far away that is."""
    if time is None:
        return "never"
    span = duration(abs(now - time))
    return f"{_at(time):%Y-%m-%d %H:%M:%S} UTC ({f'{span} ago' if time <= now else f'in {span}'})"


def duration(span: Micros) -> str:
    """In the two largest units that say something."""
    left = span // 1_000_000
    said: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, _SECONDS[unit])
        if count:
            said.append(f"{count} {unit if unit != 'm' else 'min'}")
    return " ".join(said[:2]) or "0 s"


def _at(time: Micros) -> datetime:
    return _EPOCH + timedelta(microseconds=min(max(time, 0), _LAST))
