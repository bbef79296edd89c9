"""Shards: the number of a name never changes, and several answers in order become one."""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

import hypothesis.strategies as st
import pytest
from hypothesis import given

from perdure.storage.kit.sample_records import HOSTILE_NAMES, make_record
from perdure.storage.shards import SHARD_COUNT, merge_sorted, shard_of

GOLDEN = {
    "a": 3,
    "someone": 41,
    "perdure": 31,
    "{a}b": 25,
    "https://issuer.example|subject-42": 52,
    "á": 12,
    "a\u0301": 49,
    "日本": 12,
    "😀": 4,
    "\U0010ffff": 59,
    "a" * 512: 17,
}
"""Written down once: records are found again only where they were put."""

Item: TypeAlias = tuple[int, str]
items = st.tuples(st.integers(0, 20), st.sampled_from("ab"))


@pytest.mark.parametrize(("partition", "shard"), GOLDEN.items())
def test_the_shard_of_a_name_is_what_it_always_was(partition: str, shard: int) -> None:
    assert shard_of(partition) == shard


def test_there_are_as_many_shards_as_there_always_were() -> None:
    assert SHARD_COUNT == 64
    assert {shard_of(f"owner-{n}") for n in range(2000)} == set(range(SHARD_COUNT))


@pytest.mark.parametrize("pattern", ["{}", "owner-{}", "{:032x}", "https://issuer.example|{}", "ß{}日本"])
def test_names_that_differ_little_are_spread_over_all_shards(pattern: str) -> None:
    names, fair = 6400, 100
    shards = Counter(shard_of(pattern.format(n)) for n in range(names))
    assert len(shards) == SHARD_COUNT
    assert max(shards.values()) < 2 * fair
    assert min(shards.values()) > fair // 2


@given(
    parts=st.lists(st.lists(items, max_size=10), max_size=6),
    limit=st.integers(1, 70),
    descending=st.booleans(),
)
def test_merged_answers_are_the_first_of_all_in_order(
    *, parts: list[list[Item]], limit: int, descending: bool
) -> None:
    ordered = [sorted(part, reverse=descending) for part in parts]
    everything = sorted((item for part in parts for item in part), reverse=descending)
    assert merge_sorted(ordered, lambda item: item, limit, descending=descending) == everything[:limit]


@given(st.permutations([(order, key) for order in (1, 2) for key in HOSTILE_NAMES[:6]]))
def test_a_listing_is_in_order_of_time_then_key_then_partition(places: list[Item]) -> None:
    records = [
        make_record(key, order=order, partition=partition) for order, key in places for partition in "pq"
    ]
    in_order = sorted(records, key=lambda each: each.position)
    assert [(each.order, each.key, each.partition) for each in in_order] == sorted(
        (order, key, partition) for order, key in places for partition in "pq"
    )
