"""The charts show the ended tasks, and samples for times whose tasks have expired."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.operating import Bucket
from perdure.storage.time_types import SECOND
from perdure.tasks import Status
from perdure.web.charts import (
    MAX_COARSE_SAMPLES,
    MAX_FINE_SAMPLES,
    CountHistory,
    Counts,
    CountSample,
    chart_points,
)

WIDTH = 10 * SECOND


def sample(seconds: int, **counts: int) -> CountSample:
    return CountSample(seconds * SECOND, {Status(name): count for name, count in counts.items()})


def test_what_was_forgotten_meanwhile_is_still_in_the_chart() -> None:
    buckets = [Bucket(start=0, completed=1), Bucket(start=WIDTH)]
    sampled = [sample(1, completed=5), sample(8, completed=9), sample(12, completed=2)]
    assert [moment.completed for moment in chart_points(buckets, sampled, WIDTH)] == [4, 0]


def test_what_ended_just_before_a_sample_of_the_next_part_is_counted_once() -> None:
    buckets = [Bucket(start=0, completed=1), Bucket(start=WIDTH)]
    sampled = [sample(4, completed=0), sample(8, completed=0), sample(12, completed=1)]
    assert [moment.completed for moment in chart_points(buckets, sampled, WIDTH)] == [1, 0]
    buckets = [Bucket(start=0, completed=1), Bucket(start=WIDTH, completed=2)]
    sampled = [
        sample(4, completed=0),
        sample(8, completed=0),
        sample(12, completed=2),
        sample(17, completed=6),
    ]
    assert [moment.completed for moment in chart_points(buckets, sampled, WIDTH)] == [
        1,
        5,
    ]  # three are forgotten


@given(st.lists(st.integers(0, 59), max_size=30), st.integers(0, 4))
def test_as_many_are_counted_as_ended_whenever_samples_are_taken(ends: list[int], first: int) -> None:
    """As long as nothing has expired, tasks and samples agree."""
    buckets = [Bucket(start=at * WIDTH, completed=sum(each // 10 == at for each in ends)) for at in range(6)]
    times = range(first, 65, 5)
    sampled = [sample(at, completed=sum(each <= at for each in ends)) for at in times]
    counted = [moment.completed for moment in chart_points(buckets, sampled, WIDTH)]
    assert counted == [bucket.completed for bucket in buckets]


def test_active_tasks_are_those_of_the_last_sample_and_unknown_without_one() -> None:
    buckets = [Bucket(start=0), Bucket(start=WIDTH), Bucket(start=2 * WIDTH)]
    moments = chart_points(buckets, [sample(11, working=3), sample(19, working=5, input_required=1)], WIDTH)
    assert [(each.working, each.input_required) for each in moments] == [(None, None), (5, 1), (None, None)]


@pytest.mark.anyio
async def test_samples_of_two_days_take_no_more_room_than_those_of_one() -> None:
    now = [0]

    async def counts() -> Counts:
        return {Status.WORKING: 1}

    sampler = CountHistory(counts, lambda: now[0])
    for _ in range(2 * 24 * 3600 // 60):
        now[0] += 60 * SECOND
        await sampler.sample()
    samples = sampler.samples
    assert len(samples) <= MAX_FINE_SAMPLES + MAX_COARSE_SAMPLES
    assert samples[-1].at - samples[0].at >= 23 * 3600 * SECOND
    assert [each.at for each in samples] == sorted({each.at for each in samples})
