"""Units of time, types for times and durations, and the system clock."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Annotated, TypeAlias

import msgspec

from .records_and_changes import Micros

SECOND: Micros = 1_000_000
MINUTE: Micros = 60 * SECOND
HOUR: Micros = 60 * MINUTE
DAY: Micros = 24 * HOUR

Timestamp: TypeAlias = Annotated[Micros, msgspec.Meta(extra={"json": "time"})]
"""A time in microseconds since the Unix epoch. The command-line interface recognizes this type by its
metadata, and shows the time as an ISO 8601 string in JSON output.
"""

Interval: TypeAlias = Annotated[Micros, msgspec.Meta(extra={"json": "interval"})]
"""A duration in microseconds. The command-line interface recognizes this type by its metadata, and shows the
duration in seconds in JSON output.
"""

Duration: TypeAlias = float | timedelta
"""A duration in the public API: a number of seconds, or a timedelta."""


def to_seconds(duration: Duration) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def to_milliseconds(duration: Duration) -> int:
    return round(to_seconds(duration) * 1000)


def system_clock() -> Micros:
    return time.time_ns() // 1000
