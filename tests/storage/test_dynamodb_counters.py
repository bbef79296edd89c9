"""Counts of live records, from counters that include expired ones."""

from __future__ import annotations

import pytest

from perdure.storage.dynamodb.counters import subtract_expired


@pytest.mark.parametrize(
    ("counts", "expired", "expected"),
    [
        ({"a": 3, "b": 1}, [], {"a": 3, "b": 1}),
        ({"a": 3, "b": 1}, ["a", "b"], {"a": 2}),
        ({"completed": 3}, ["completed"] * 10, {}),  # the index still lists records that were purged
        ({}, ["gone"], {}),
    ],
)
def test_no_count_is_negative(counts: dict[str, int], expired: list[str], expected: dict[str, int]) -> None:
    assert subtract_expired(counts, expired) == expected
