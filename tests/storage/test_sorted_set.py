"""The sorted set under the memory engine, compared with a sorted list."""

from __future__ import annotations

from typing import TypeAlias

import hypothesis.strategies as st
import pytest
from hypothesis import given

from perdure.storage import sorted_set
from perdure.storage.sorted_set import SortedSet

Key: TypeAlias = tuple[int, str]
keys = st.tuples(st.integers(0, 60), st.sampled_from("ab"))


@given(st.lists(keys, max_size=80), st.lists(keys, max_size=40), keys)
def test_it_behaves_like_a_sorted_list(added: list[Key], gone: list[Key], at: Key) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_set, "BLOCK_SIZE", 3)  # so that blocks split and vanish
        model: set[Key] = set()
        subject: SortedSet[Key] = SortedSet()
        for key in added:
            if key not in model:
                model.add(key)
                subject.add(key)
        for key in gone:
            if key in model:
                model.remove(key)
                subject.remove(key)
    in_order = sorted(model)
    assert bool(subject) == bool(model)
    assert list(subject.after(None)) == in_order
    assert list(subject.before(None)) == in_order[::-1]
    assert list(subject.after(at)) == [key for key in in_order if key > at]
    assert list(subject.before(at)) == [key for key in in_order[::-1] if key < at]


class Counted(int):
    """A number that counts how often it is compared."""

    comparisons = 0

    def __lt__(self, other: int) -> bool:
        Counted.comparisons += 1
        return int(self) < int(other)


def test_a_seek_costs_the_logarithm_wherever_it_goes() -> None:
    subject: SortedSet[tuple[int]] = SortedSet()
    for number in range(100_000):
        subject.add((Counted(number),))
    for number in (0, 50_000, 99_998):
        Counted.comparisons = 0
        assert next(subject.after((Counted(number),))) == (number + 1,)
        assert Counted.comparisons < 40
