"""Who watches sees what others change, from another client of the storage."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from perdure.operating import Operator, WatchConfig
from perdure.storage.kit import Subject
from perdure.storage.time_types import SECOND
from perdure.tasks import Progress, Status, Success, TaskStore
from perdure.tasks.errors import NotFound

from .. import task_edits
from ..markers import strong_memory
from ..tasks.samples import ANA, Clock, created
from .conftest import close

pytestmark = [pytest.mark.anyio, strong_memory("operators read across partitions, and each test at once")]

QUICK = WatchConfig(min_interval=0.01, poll_interval=0.1)


async def test_only_changes_are_sent_after_everything_was_sent_once(
    subject: Subject, store: TaskStore, clock: Clock
) -> None:
    other = await subject.another_client()
    (first,) = await created(store, 1)
    clock.advance(SECOND)
    (second,) = await created(store, 1)
    async with (
        other,
        aclosing(Operator(other, clock).watch(limit=2, config=QUICK)) as seen,
        asyncio.timeout(30),
    ):
        everything = await anext(seen)
        ids = [second.task.task_id, first.task.task_id]
        assert (
            [row.task_id for row in everything.changed]
            == [row.task_id for row in everything.page.tasks]
            == ids
        )
        await task_edits.report(store, second, progress=Progress(done=1, total=2))
        changed = await anext(seen)
        assert [(row.task_id, row.progress_fraction) for row in changed.changed] == [(ids[0], 0.5)]
        assert changed.removed == ()
        clock.advance(SECOND)
        (third,) = await created(store, 1)
        pushed = await anext(seen)
        assert [row.task_id for row in pushed.changed] == [third.task.task_id]
        assert [row.task_id for row in pushed.removed] == [ids[1]]
    await close(subject, other)


async def test_one_task_is_watched_to_its_end(subject: Subject, store: TaskStore, clock: Clock) -> None:
    other = await subject.another_client()
    operator = Operator(other, clock)
    (task,) = await created(store, 1)
    row = (await operator.find(task.task.task_id)).summary
    states: list[Status] = []
    async with aclosing(operator.watch_task(row.locator, row.task_id, config=QUICK)) as seen:
        async with asyncio.timeout(30):
            async for detail in seen:
                states.append(detail.summary.status)
                if not detail.summary.status.is_terminal:
                    await task_edits.finish(store, await store.get(ANA, row.task_id), Success.of(1))
    assert states == [Status.WORKING, Status.COMPLETED]
    await close(subject, other)


async def test_watching_a_task_that_is_removed_ends_with_not_found(
    store: TaskStore, operator: Operator
) -> None:
    (task,) = await created(store, 1)
    row = (await operator.find(task.task.task_id)).summary
    async with (
        aclosing(operator.watch_task(row.locator, row.task_id, config=QUICK)) as seen,
        asyncio.timeout(30),
    ):
        await anext(seen)
        await store.delete(ANA, row.task_id)
        with pytest.raises(NotFound):
            await anext(seen)
