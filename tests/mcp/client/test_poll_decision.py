"""What a client does after each poll is a pure decision: it ends, answers, or waits within bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.mcp.client import TaskState
from perdure.tasks import Status

from ...markers import row
from ..raw_clients import Json

statuses = st.sampled_from(Status)
keys = st.lists(st.text(max_size=3), unique=True, max_size=5)
advised = st.none() | st.integers(-(10**6), 10**6)


def state_of(status: Status, asked: list[str], interval: int | None = None) -> TaskState:
    response: Json = {
        "taskId": "1",
        "status": status.value,
        "createdAt": "",
        "lastUpdatedAt": "",
        "pollIntervalMs": interval,
        "inputRequests": dict.fromkeys(asked, ""),
    }
    return TaskState.read(response)


@row(91)
@given(status=statuses, asked=keys, answered=keys)
def test_a_client_answers_new_questions_of_a_task_that_asks_and_none_twice(
    status: Status, asked: list[str], answered: list[str]
) -> None:
    unanswered = state_of(status, asked).unanswered(answered)

    new = tuple(key for key in asked if key not in answered)
    assert unanswered == (new if status is Status.INPUT_REQUIRED else ())


@row(91)
@given(status=statuses, interval=advised)
def test_a_client_polls_as_advised_within_bounds(status: Status, interval: int | None) -> None:
    milliseconds = 1000 if interval is None else interval

    assert state_of(status, [], interval).poll_delay == min(max(milliseconds, 50), 30_000) / 1000


@row(91)
@given(interval=st.integers(0, 10**6))
def test_both_generations_advise_alike(interval: int) -> None:
    task = {"taskId": "1", "status": "working", "createdAt": "", "lastUpdatedAt": "", "ttl": 5}

    state = TaskState.read({**task, "pollInterval": interval})

    assert (state.ttl_ms, state.poll_interval_ms) == (5, interval)
