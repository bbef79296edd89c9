"""An executor is two verbs, and what it does not take goes back to the queue."""

from __future__ import annotations

import asyncio

import pytest

from perdure.runtime import Executor, InProcessExecutor, Job, RuntimeConfig, Stop, Task
from perdure.tasks import Status, TaskId, TaskStore

from ..conditions import wait_until
from ..markers import row
from .apps import hanging
from .faulty_storage import ME
from .replicas import Replicas, new_app, value_of

pytestmark = pytest.mark.anyio


class Refusing(Executor):
    """An executor that takes nothing."""

    def __init__(self) -> None:
        self.asked = 0

    async def submit(self, job: Job) -> None:
        self.asked += 1
        raise RuntimeError("the cluster is full")

    def cancel(self, task_id: TaskId, why: Stop) -> None: ...


@row(69)
async def test_what_an_executor_does_not_take_goes_back_to_the_queue_for_another(replicas: Replicas) -> None:
    app, executor = new_app(), Refusing()

    @app.function()
    async def work(task: Task) -> int:
        return task.attempt

    refusing = await replicas.start(app, executor=lambda _store, _config: executor)
    made = await refusing.submit("work")
    await wait_until(lambda: executor.asked > 0)
    await replicas.start(app)
    ended = await refusing.wait(ME, made.task.task_id, 60)
    assert (value_of(ended), ended.task.last_failure) == (
        1,
        "the worker could not start the task: the cluster is full",
    )


@row(69)
async def test_an_executor_that_takes_nothing_is_not_asked_without_a_pause(replicas: Replicas) -> None:
    app, executor = hanging(), Refusing()
    runtime = await replicas.start(app, executor=lambda _store, _config: executor)
    await runtime.submit("hang")
    await wait_until(lambda: executor.asked > 0)
    await asyncio.sleep(0.5)
    assert executor.asked <= 8


class Remote(Executor):
    """An executor of somebody's own, as thin as can be."""

    def __init__(self, store: TaskStore, config: RuntimeConfig) -> None:
        self._inner = InProcessExecutor(store, config)
        self.seen: list[str] = []

    async def submit(self, job: Job) -> None:
        self.seen.append(f"submit {job.function.name}")
        await self._inner.submit(job)

    def cancel(self, task_id: TaskId, why: Stop) -> None:
        self.seen.append(f"cancel: {why}")
        self._inner.cancel(task_id, why)


@row(66)
async def test_an_executor_is_two_verbs(replicas: Replicas) -> None:
    made_here: list[Remote] = []

    def make(store: TaskStore, config: RuntimeConfig) -> Executor:
        made_here.append(Remote(store, config))
        return made_here[0]

    runtime = await replicas.start(hanging(), executor=make)
    made = await runtime.submit("hang")
    await wait_until(lambda: bool(made_here[0].seen))
    await runtime.cancel(ME, made.task.task_id)
    assert (await runtime.wait(ME, made.task.task_id, 60)).task.status is Status.CANCELLED
    assert made_here[0].seen == ["submit hang", "cancel: cancelled"]
