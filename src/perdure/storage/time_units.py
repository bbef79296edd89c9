"""Units of time, the types of times and durations, and the clock of this machine."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Annotated, TypeAlias

import msgspec

from .record import Micros

SECOND: Micros = 1_000_000
MINUTE: Micros = 60 * SECOND
HOUR: Micros = 60 * MINUTE
DAY: Micros = 24 * HOUR

Timestamp: TypeAlias = Annotated[Micros, msgspec.Meta(extra={"json": "time"})]
"""A point in time: microseconds since 1970 in UTC. Encoders recognize it by its metadata."""

Interval: TypeAlias = Annotated[Micros, msgspec.Meta(extra={"json": "interval"})]
"""A length of time in microseconds. Encoders recognize it by its metadata."""

Duration: TypeAlias = float | timedelta
"""A length of time in the public API: seconds, or a timedelta."""


def to_seconds(duration: Duration) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def to_milliseconds(duration: Duration) -> int:
    return round(to_seconds(duration) * 1000)


def system_clock() -> Micros:
    return time.time_ns() // 1000
