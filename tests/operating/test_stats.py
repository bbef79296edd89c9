"""The figures are those of the tasks."""

from __future__ import annotations

import pytest

from perdure.operating import Operator, stats
from perdure.runtime.lease import Holder
from perdure.storage.time_types import SECOND
from perdure.tasks import Failure, NewTask, Status, Success, TaskStore

from .. import task_edits
from ..markers import strong_memory
from ..tasks.samples import ANA, BOB, Clock, created
from .test_queries import QUESTION

pytestmark = [pytest.mark.anyio, strong_memory("operators read across partitions, and each test at once")]

RUNS = NewTask(method="tools/call", function="f")


async def test_queued_claimed_and_asking_tasks_are_distinguished(
    store: TaskStore, operator: Operator, clock: Clock
) -> None:
    for worker in ("a#1", "a#2", "b#1"):
        holder = Holder(worker, "tests", 10 * SECOND, clock)
        await store.create(ANA, RUNS, lease=lambda task, holder=holder: holder.take(task, None))
        clock.advance(4 * SECOND)
    waits, _ = await created(store, 2, BOB, RUNS)
    (asks,) = await created(store, 1)
    await task_edits.ask(store, asks, {"q": QUESTION})
    seen = await operator.stats()
    assert seen.counts == {
        Status.WORKING: 5,
        Status.INPUT_REQUIRED: 1,
        Status.COMPLETED: 0,
        Status.FAILED: 0,
        Status.CANCELLED: 0,
    }
    assert (seen.claimed, seen.unclaimed) == (3, 3)
    assert seen.oldest_queued is not None
    assert seen.oldest_queued.created_at == waits.task.created_at
    assert seen.oldest_open_question is not None
    assert seen.oldest_open_question.task_id == asks.task.task_id
    assert [(each.name, each.claimed, each.expired_leases) for each in seen.workers] == [
        ("a", 2, 1),
        ("b", 1, 0),
    ]


async def test_what_ended_is_counted_in_the_part_of_the_window_in_which_it_ended(
    store: TaskStore, operator: Operator, clock: Clock
) -> None:
    tasks = await created(store, 5)
    await task_edits.finish(store, tasks[0], Success.of(1))  # before the window
    clock.advance(30 * SECOND)
    await task_edits.finish(store, tasks[1], Success.of(1))
    clock.advance(40 * SECOND)
    await task_edits.finish(store, tasks[2], Failure.of(-1, "no"))
    await task_edits.cancel(store, tasks[3])
    await task_edits.finish(store, tasks[4], Success.of(1, error="no disk"))
    clock.advance(10 * SECOND)
    seen = await operator.throughput(60 * SECOND, buckets=3)
    assert [(each.completed, each.failed, each.cancelled) for each in seen.buckets] == [
        (1, 0, 0),
        (0, 0, 0),
        (0, 2, 1),
    ]
    assert seen.finished == seen.per_minute == 4
    assert seen.median_duration == 70 * SECOND
    assert seen.is_complete


async def test_no_more_is_read_of_large_tasks_than_there_is_room_for(
    store: TaskStore, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "FIRST_PAGE_SIZE", 2)
    monkeypatch.setattr(stats, "MAX_READ_CHARS", 40_000)
    for task in await created(store, 12):
        await task_edits.finish(store, task, Success.of("x" * 9_000))
    seen = await operator.throughput(60 * SECOND, buckets=1)
    assert not seen.is_complete
    assert 2 <= seen.finished <= 5


async def test_a_storage_without_tasks_has_figures_too(operator: Operator) -> None:
    seen = await operator.stats()
    assert (sum(seen.counts.values()), seen.claimed, seen.unclaimed, seen.workers) == (0, 0, 0, ())
    assert (seen.oldest_queued, seen.throughput.median_duration, seen.throughput.finished) == (None, None, 0)
