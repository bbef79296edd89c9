"""Times as Bluesky writes them, and record keys, which are times too."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from perdure.storage import Micros

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LETTERS = "234567abcdefghijklmnopqrstuvwxyz"
_PAIRS = [one + other for one in _LETTERS for other in _LETTERS]


def whole(time: Micros) -> Micros:
    """In whole milliseconds, as the server keeps times."""
    return time - time % 1000


def iso(time: Micros) -> str:
    """As the server writes it, in milliseconds."""
    return (_EPOCH + timedelta(microseconds=time)).isoformat(timespec="milliseconds")[:-6] + "Z"


def parsed(value: object) -> Micros | None:
    """None where this is no time. Without an offset it is UTC; there is nothing before 1970."""
    try:
        time = datetime.fromisoformat(value.strip().upper()) if isinstance(value, str) else None
    except ValueError:
        return None
    if time is None:
        return None
    return max(0, micros(time if time.tzinfo is not None else time.replace(tzinfo=UTC)))


def micros(time: datetime) -> Micros:
    return (time - _EPOCH) // timedelta(microseconds=1)


def tid(time: Micros) -> str:
    """A record's key: its time of writing, so that keys are in the order of writing."""
    number, letters = time << 10, ""
    for _ in range(6):
        number, two = divmod(number, 1024)
        letters = _PAIRS[two] + letters
    return _LETTERS[number] + letters


def time_of(tid: str) -> Micros:
    """When a record's key was made."""
    number = 0
    for letter in tid:
        number = number * 32 + _LETTERS.index(letter)
    return number >> 10
