"""Times as Bluesky writes them: the forms that people's programs use, and the time in a record's key."""

from __future__ import annotations

import pytest

from perdure.feeds.bluesky.items import parse_timestamp, tid_time

NOON = 1_794_744_000_000_000
"""2026-11-15, twelve o'clock UTC."""


@pytest.mark.parametrize(
    ("written", "micros"),
    [
        ("2026-11-15T12:00:00Z", NOON),
        ("2026-11-15T12:00:00.000Z", NOON),
        ("2026-11-15T12:00:00.5Z", NOON + 500_000),
        ("2026-11-15T12:00:00.123456Z", NOON + 123_456),
        ("2026-11-15T12:00:00.123456789Z", NOON + 123_456),
        ("2026-11-15T14:00:00+02:00", NOON),
        ("2026-11-15T06:30:00.25-05:30", NOON + 250_000),
        ("2026-11-15t12:00:00z", NOON),
        ("2026-11-15T12:00:00", NOON),
        (" 2026-11-15T12:00:00Z\n", NOON),
        ("1970-01-01T00:00:00Z", 0),
        ("1969-12-31T23:59:59Z", 0),
        ("0001-01-01T00:00:00+14:00", 0),
    ],
)
def test_a_time_is_read_in_every_form_that_is_used(written: str, micros: int) -> None:
    assert parse_timestamp(written) == micros


@pytest.mark.parametrize(
    "written", ["", "yesterday", "2026-13-01T00:00:00Z", "2026-11-15T25:00:00Z", None, 1_794_744_000, [], {}]
)
def test_what_is_no_time_is_none(written: object) -> None:
    assert parse_timestamp(written) is None


def test_a_key_contains_the_time_at_which_it_was_made() -> None:
    """Recorded: the key of a post that says 2026-11-15T18:23:21.808Z of itself."""
    time = parse_timestamp("2026-11-15T18:23:21.808Z")
    made = tid_time("3n2en2tmbuc2r")
    assert time is not None
    assert made is not None
    assert abs(made - time) < 1_000_000


@pytest.mark.parametrize(
    "key", ["", "self", "3n2en2tmbuc2", "3n2en2tmbuc2r2", "3n2en2tmbuc21", "zzzzzzzzzzzzz"]
)
def test_a_key_that_is_not_a_tid_has_no_time(key: str) -> None:
    assert tid_time(key) is None
