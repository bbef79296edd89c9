"""The attempts at a task: the newest are stored, and they never prevent a write."""

from __future__ import annotations

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given
from msgspec import UNSET, Raw, UnsetType

from perdure.storage.time_types import SECOND
from perdure.tasks import Attempt, Json, TaskStore, attempt_history
from perdure.tasks.attempt_history import MAX_ATTEMPTS_KEPT, MAX_REASON_CHARACTERS
from perdure.tasks.canonical_json import encode_checked
from perdure.tasks.task_snapshot import BOOKKEEPING_RESERVE_BYTES

from .. import task_edits
from .samples import ANA, CALL, START, Clock, json_values

pytestmark = pytest.mark.anyio


async def test_each_attempt_has_its_start_its_end_and_its_reason(store: TaskStore, clock: Clock) -> None:
    task = await store.create(ANA, CALL)
    assert task.task.attempt_history == ()
    for reason in ("the worker was lost", None):
        task = await task_edits.claim(store, task)
        clock.advance(SECOND)
        task = await task_edits.release(store, task, reason)
        clock.advance(SECOND)
    task = await task_edits.claim(store, task)
    assert (await store.get(ANA, task.task.task_id)).task.attempt_history == (
        Attempt(started_at=START, ended_at=START + SECOND, reason="the worker was lost"),
        Attempt(started_at=START + 2 * SECOND, ended_at=START + 3 * SECOND),
        Attempt(started_at=START + 4 * SECOND),
    )


async def test_a_release_of_an_unclaimed_task_adds_no_attempt(store: TaskStore, clock: Clock) -> None:
    task = await task_edits.release(
        store, await task_edits.claim(store, await store.create(ANA, CALL)), "first"
    )
    clock.advance(SECOND)
    again = await task_edits.release(store, task, "second")
    assert again.task.attempt_history == task.task.attempt_history


async def test_times_of_attempts_do_not_run_backwards_though_clocks_do(
    store: TaskStore, clock: Clock
) -> None:
    task = await task_edits.claim(store, await store.create(ANA, CALL))
    clock.advance(-SECOND)
    task = await task_edits.release(store, task)
    assert task.task.attempt_history == (Attempt(started_at=START, ended_at=START),)


@given(st.lists(st.text(st.characters(codec="utf-8")) | st.none(), max_size=3 * MAX_ATTEMPTS_KEPT))
def test_the_newest_attempts_are_kept_in_little_room(reasons: list[str | None]) -> None:
    raw: Raw | UnsetType = UNSET
    for at, reason in enumerate(reasons):
        raw = attempt_history.end_attempt(attempt_history.start_attempt(raw, at), at + 1, reason)
    expected = [
        Attempt(
            started_at=at, ended_at=at + 1, reason=None if reason is None else reason[:MAX_REASON_CHARACTERS]
        )
        for at, reason in enumerate(reasons)
    ]
    assert list(attempt_history.decode_attempts(raw)) == expected[-MAX_ATTEMPTS_KEPT:]


def test_the_longest_reasons_fit_into_the_room_for_bookkeeping() -> None:
    raw: Raw | UnsetType = UNSET
    for at in range(MAX_ATTEMPTS_KEPT):
        raw = attempt_history.end_attempt(
            attempt_history.start_attempt(raw, START + at), START + at, "\0" * 5000
        )
    assert isinstance(raw, Raw)
    assert len(memoryview(raw)) < BOOKKEEPING_RESERVE_BYTES / 3


def test_fields_of_a_later_version_are_kept() -> None:
    stored = encode_checked("history", [{"begun_at": 1, "worker": "a"}])
    raw = attempt_history.start_attempt(attempt_history.end_attempt(stored, 2, "lost"), 3)
    assert json.loads(bytes(raw)) == [
        {"begun_at": 1, "worker": "a", "ended_at": 2, "reason": "lost"},
        {"begun_at": 3},
    ]


def test_a_task_that_an_earlier_version_started_is_released_all_the_same() -> None:
    assert attempt_history.end_attempt(UNSET, 1, "lost") is UNSET


@given(json_values)
def test_an_unreadable_list_counts_as_empty_and_is_replaced(value: Json) -> None:
    raw = Raw(json.dumps(value).encode())
    assert len(attempt_history.decode_attempts(raw)) <= (len(value) if isinstance(value, list) else 0)
    assert json.loads(bytes(attempt_history.start_attempt(raw, 1)))[-1] == {"begun_at": 1}
