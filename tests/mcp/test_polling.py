"""The interval in which clients are advised to poll."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import Tasks
from perdure.mcp.wire import poll_interval_ms
from perdure.tasks import Owner, Status, TaskRecord
from perdure.tasks.errors import InvalidValue
from perdure.tasks.task_record import new_task_id

from ..markers import row

pytestmark = pytest.mark.anyio

ages = st.integers(0, 10**13)
intervals = st.integers(50, 30_000)


def task_of(poll_interval: int, status: Status = Status.WORKING) -> TaskRecord:
    return TaskRecord(
        task_id=new_task_id(),
        owner=Owner.local(),
        application="tests",
        status=status,
        created_at=10**15,
        last_updated_at=10**15,
        ttl_ms=None,
        poll_interval_ms=poll_interval,
        original_method="tools/call",
    )


@row(90)
@given(age=ages, later=ages, interval=intervals)
def test_the_advice_starts_small_never_shrinks_and_stays_within_what_is_stored(
    age: int, later: int, interval: int
) -> None:
    task = task_of(interval)

    assert poll_interval_ms(task, task.created_at) == 50
    advice, then = (poll_interval_ms(task, task.created_at + at) for at in (age, age + later))
    assert 50 <= advice <= then <= interval


@row(90)
@given(age=ages, interval=intervals)
def test_whoever_follows_the_advice_learns_of_the_end_a_sixth_of_the_age_too_late_at_most(
    age: int, interval: int
) -> None:
    task = task_of(interval)

    advice = poll_interval_ms(task, task.created_at + age)

    assert advice == 50 or advice <= age / 1000 / 6


@row(90)
@given(ahead=ages, interval=intervals)
def test_a_clock_that_lags_behind_the_creator_of_the_task_gives_the_smallest_advice(
    ahead: int, interval: int
) -> None:
    task = task_of(interval)

    assert poll_interval_ms(task, task.created_at - ahead) == 50


@row(90)
@pytest.mark.parametrize("interval", [0.049, 30.001, 0, -1, "x", True, None])
def test_a_tool_cannot_ask_for_less_than_50_ms_or_more_than_30_s(interval: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        Tasks("memory:").durable(poll_interval=interval)(lambda: None)

    assert caught.value.field == "poll_interval"
