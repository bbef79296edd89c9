"""A create that is cancelled, or of which nothing was heard, leaves nothing or a task that is run once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from perdure.runtime import App, Runtime, Task
from perdure.storage import Change
from perdure.storage.errors import StorageFailed

from ..markers import row
from .faulty_storage import ME, FaultyLink, creates_a_task, open_faulty
from .replicas import UNHURRIED, Replicas, new_app, value_of

pytestmark = pytest.mark.anyio


def quick() -> tuple[App, list[str]]:
    app, runs = new_app(), list[str]()

    @app.function()
    async def quick(task: Task) -> int:
        runs.append(task.id)
        return task.attempt

    return app, runs


@row(69)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_create_that_is_cancelled_leaves_nothing_or_a_task_that_runs(
    replicas: Replicas, when: str
) -> None:
    app, runs = quick()
    wire, reached = FaultyLink(), asyncio.Event()

    async def hold_up(changes: Sequence[Change]) -> None:
        if creates_a_task(changes):
            reached.set()
            await asyncio.Event().wait()

    setattr(wire, when, hold_up)
    async with open_faulty(replicas, wire, app, replace(UNHURRIED, concurrency=1)) as runtime:
        creating = asyncio.create_task(runtime.submit("quick"))
        await reached.wait()
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        wire.mend()
        await the_only_tasks_end(runtime, 0 if when == "before" else 1)
        await until_free(runtime)
    assert len(runs) == (1 if when == "before" else 2)


async def the_only_tasks_end(runtime: Runtime, count: int) -> None:
    page = await runtime.store.list(ME)
    assert len(page.tasks) == count
    for each in page.tasks:
        assert value_of(await runtime.wait(ME, each.task.task_id, 60)) == 1


async def until_free(runtime: Runtime) -> None:
    """The slot of what was not begun is free again, in the end."""
    made = await runtime.submit("quick")
    assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == 1


@row(69)
@pytest.mark.parametrize("failures", [1, 2])
async def test_a_create_of_which_nothing_was_heard_is_begun_if_it_was_written(
    replicas: Replicas, failures: int
) -> None:
    """A function of one attempt, which would fail if it had to be recovered. All of it is written."""
    app, runs = quick()
    wire, left = FaultyLink(), [StorageFailed("the line was lost")] * failures

    async def lose(_: Sequence[Change]) -> None:
        if left:
            raise left.pop()

    wire.after = lose
    other = await replicas.start(app, work=False)
    async with open_faulty(replicas, wire, app, replace(UNHURRIED, heartbeat_interval=1.0)) as runtime:
        with pytest.raises(StorageFailed):
            await runtime.submit("quick")
        await the_only_tasks_end(other, 1)
    assert len(runs) == 1


@row(8, 69)
async def test_a_client_that_creates_again_with_its_key_gets_the_task_that_was_made(
    replicas: Replicas,
) -> None:
    app, runs = quick()
    wire, left = FaultyLink(), [StorageFailed("the line was lost")]

    async def lose(_: Sequence[Change]) -> None:
        if left:
            raise left.pop()

    wire.after = lose
    async with open_faulty(replicas, wire, app, UNHURRIED) as runtime:
        with pytest.raises(StorageFailed):
            await runtime.submit("quick", idempotency_key="k")
        made = await runtime.submit("quick", idempotency_key="k")
        assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == 1
        await the_only_tasks_end(runtime, 1)
    assert runs == [made.task.task_id]
