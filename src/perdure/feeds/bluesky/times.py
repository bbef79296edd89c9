"""Times as Bluesky writes them, in microseconds. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from ...storage import Micros

_FORM = re.compile(r"\s*\d{4}-\d\d-\d\d(?:[Tt ]\d\d:\d\d|\s*$)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DIGITS = {letter: value for value, letter in enumerate("234567abcdefghijklmnopqrstuvwxyz")}
_KEY_LENGTH = 13
_CLOCK_BITS = 10


def micros_of(written: object) -> Micros | None:
    """A time as the server itself reads it: a date with dashes, and a time of day. Without an offset it is
    UTC, and before 1970 it is 1970. None: it is no time. People's programs write it, so it may be anything.
    """
    if not isinstance(written, str) or not _FORM.match(written):
        return None
    try:
        time = datetime.fromisoformat(written.strip().upper())
    except ValueError:
        return None
    passed = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - _EPOCH
    return max((passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds, 0)


def time_of_key(key: str) -> Micros | None:
    """When a record's key was made: a TID is a time, and ten bits that tell writers apart. None: no TID."""
    if len(key) != _KEY_LENGTH or not all(letter in _DIGITS for letter in key):
        return None
    number = 0
    for letter in key:
        number = number << 5 | _DIGITS[letter]
    return None if number >> 63 else number >> _CLOCK_BITS
