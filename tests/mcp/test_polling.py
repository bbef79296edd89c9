"""When a client does best to look at a task again, and what it does when it has looked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import Tasks
from perdure.mcp.polling import Answer as AnswerThese
from perdure.mcp.polling import Ended, Wait, decide
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


statuses = st.sampled_from(Status)
keys = st.lists(st.text(max_size=3), unique=True, max_size=5)
advised = st.none() | st.integers(-(10**6), 10**6)


@row(91)
@given(status=statuses.filter(lambda status: status.is_terminal), asked=keys, answered=keys, interval=advised)
def test_a_client_is_done_when_the_task_has_ended_whatever_else_it_says(
    status: Status, asked: list[str], answered: list[str], interval: int | None
) -> None:
    assert decide(status, asked, answered, interval) == Ended()


@row(91)
@given(asked=keys, answered=keys, interval=advised)
def test_a_client_answers_what_is_new_and_never_the_same_twice(
    asked: list[str], answered: list[str], interval: int | None
) -> None:
    decision = decide(Status.INPUT_REQUIRED, asked, answered, interval)

    new = tuple(key for key in asked if key not in answered)
    assert decision == AnswerThese(new) if new else isinstance(decision, Wait)


@row(91)
@given(asked=keys, interval=advised)
def test_a_client_otherwise_waits_as_it_is_advised_within_bounds(
    asked: list[str], interval: int | None
) -> None:
    for status, answered in ((Status.WORKING, []), (Status.INPUT_REQUIRED, asked)):
        decision = decide(status, asked, answered, interval)

        wanted = 1000 if interval is None else interval
        assert decision == Wait(min(max(wanted, 50), 30_000) / 1000)
