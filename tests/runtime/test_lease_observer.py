"""Recovery leaves alone the leases that are renewed, whatever the clocks say."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from perdure.runtime.recovery import LeaseObserver
from perdure.storage import Record
from perdure.tasks.task_snapshot import LEASES

from ..markers import row

SECONDS = 10.0
looks = st.lists(
    st.tuples(st.floats(0.1, 30), st.dictionaries(st.sampled_from("abc"), st.integers(0, 2), max_size=3)),
    max_size=30,
)
"""At each look: the time since the last, and by how much the version of each overdue lease has grown."""


def lease(key: str, version: int) -> Record:
    return Record(space=LEASES, partition="p", key=key, order=1, body="{}", version=version)


@row(63)
@given(looks)
def test_a_lease_is_taken_only_after_it_was_observed_unchanged_for_long_enough(
    history: list[tuple[float, dict[str, int]]],
) -> None:
    observer = LeaseObserver(SECONDS)
    at = 0.0
    versions = dict.fromkeys("abc", 1)
    since: dict[str, float] = {}
    for pause, grown in history:
        at += pause
        if pause > 2 * SECONDS:  # the observer was late itself
            since.clear()
        for key in "abc":
            versions[key] += grown.get(key, 0)
            if key not in grown or grown[key] or key not in since:
                since.pop(key, None)
                if key in grown:
                    since[key] = at
        found = observer.not_renewed([lease(key, versions[key]) for key in grown], at)
        assert {each.key for each in found} == {key for key in grown if at - since[key] >= SECONDS}


def test_an_observer_that_cannot_write_starts_over() -> None:
    observer = LeaseObserver(SECONDS)
    assert observer.not_renewed([lease("a", 1)], 0.0) == []
    observer.reset()
    assert observer.not_renewed([lease("a", 1)], 10.0) == []
    assert observer.not_renewed([lease("a", 1)], 20.0) == [lease("a", 1)]
