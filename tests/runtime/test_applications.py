"""Two applications on one storage, with functions of one name: each runs, recovers and ends its own alone."""

from __future__ import annotations

import asyncio

import pytest

from perdure.runtime import App, Pause, Runtime, Task
from perdure.runtime.deadline import Deadlines
from perdure.storage.time_types import DAY
from perdure.tasks import Failure, InputKind, InputRequest, Snapshot, Status
from perdure.tasks.errors import NotFound

from ..markers import row
from .faulty_storage import ME, MovedClock, now, until_released, until_status
from .replicas import QUICK, UNHURRIED, Replicas, leave_with_a_dead_worker, new_app, value_of

pytestmark = pytest.mark.anyio

NAME = InputRequest(kind=InputKind.ELICITATION, params={"message": "Whose name?"})


def exporting(application: str) -> App:
    app = new_app(application)

    @app.function
    async def export() -> str:
        return application

    return app


async def pass_some_time(runtime: Runtime) -> None:
    """Return after a worker has had the time to claim, recover and check deadlines several times."""
    await runtime.wait(ME, (await runtime.submit("export")).task.task_id, 60)
    await asyncio.sleep(0.5)


@row(113)
async def test_a_queued_task_waits_for_a_worker_of_its_application(replicas: Replicas) -> None:
    front = await replicas.start(exporting("shop"), work=False)
    other = await replicas.start(exporting("other"))
    queued = await front.submit("export")
    await pass_some_time(other)
    assert (await now(front, queued)).task.attempts == 0
    await replicas.start(exporting("shop"))
    assert value_of(await front.wait(ME, queued.task.task_id, 60)) == "shop"


@row(113)
async def test_a_task_of_another_application_cannot_be_read_or_cancelled(replicas: Replicas) -> None:
    shop = await replicas.start(exporting("shop"), work=False)
    other = await replicas.start(exporting("other"))
    task_id = (await shop.submit("export")).task.task_id
    for refused in (other.get(ME, task_id), other.cancel(ME, task_id), other.cancel_now(ME, task_id)):
        with pytest.raises(NotFound):
            await refused


@row(113)
async def test_a_lost_worker_is_missed_by_its_own_application(replicas: Replicas) -> None:
    """The other one has a function of the same name that may be restarted, and this one must not be."""
    shop = new_app("shop")

    @shop.function(restart=False)
    async def export() -> str:
        return "shop"

    front = await replicas.start(shop, QUICK, work=False)
    other = await replicas.start(exporting("other"), QUICK)
    lost = await front.get(ME, await leave_with_a_dead_worker(front, ME, "export"))
    await asyncio.sleep(1)
    await pass_some_time(other)
    assert (await now(front, lost)).task.is_claimed
    await replicas.start(shop, QUICK)
    task = (await front.wait(ME, lost.task.task_id, 60)).task
    assert task.status is Status.FAILED
    assert isinstance(task.outcome, Failure)
    assert task.outcome.data == {"reason": "interrupted"}


def asking(application: str) -> App:
    app = exporting(application)

    @app.function
    async def sign(task: Task) -> str:
        raise Pause({"name": NAME})

    return app


async def ask_and_release(replicas: Replicas, app: App, clock: MovedClock) -> tuple[Runtime, Snapshot]:
    async with replicas.running(app, clock=clock) as doomed:
        asked = await doomed.submit("sign")
        await until_status(doomed, asked, Status.INPUT_REQUIRED)
        await until_released(doomed, asked)
    front = await replicas.start(app, work=False, clock=clock)
    return front, asked


@row(113)
async def test_a_question_is_ended_by_a_worker_of_its_application(replicas: Replicas) -> None:
    clock = MovedClock()
    front, asked = await ask_and_release(replicas, asking("shop"), clock)
    clock.ahead += 2 * DAY
    await replicas.subject.caught_up()
    other = await replicas.start(asking("other"), work=False, clock=clock)
    await Deadlines(other.store, UNHURRIED).end_unanswered()
    assert (await now(front, asked)).task.status is Status.INPUT_REQUIRED
    await Deadlines(front.store, UNHURRIED).end_unanswered()
    assert (await now(front, asked)).task.status is Status.FAILED


@row(113)
async def test_abandoned_work_is_ended_by_a_worker_of_its_application(replicas: Replicas) -> None:
    clock, app = MovedClock(), new_app("shop")
    started = asyncio.Event()

    @app.function
    async def export() -> None:
        started.set()
        await asyncio.Event().wait()

    async with replicas.running(app, QUICK, clock=clock) as doomed:
        released = await doomed.submit("export")
        await started.wait()
    front = await replicas.start(app, work=False, clock=clock)
    assert not (await now(front, released)).task.is_claimed
    clock.ahead += 31 * DAY
    await replicas.subject.caught_up()
    other = await replicas.start(exporting("other"), work=False, clock=clock)
    await Deadlines(other.store, UNHURRIED).end_abandoned()
    assert (await now(front, released)).task.status is Status.WORKING
    await Deadlines(front.store, UNHURRIED).end_abandoned()
    assert (await now(front, released)).task.status is Status.FAILED


@row(113, 124)
async def test_a_worker_that_lacks_a_function_never_claims_its_tasks(replicas: Replicas) -> None:
    """It recovers them from a lost worker, and leaves them to those that have the function."""
    full, lacking = exporting("shop"), new_app("shop")

    @lacking.function
    async def other() -> str:
        return "other"

    front = await replicas.start(full, QUICK, work=False)
    lost = await front.get(ME, await leave_with_a_dead_worker(front, ME, "export"))
    queued = await front.submit("export")
    partial = await replicas.start(lacking, QUICK)
    await until_released(front, lost)
    await partial.wait(ME, (await partial.submit("other")).task.task_id, 60)
    await asyncio.sleep(0.5)
    assert [(await now(front, each)).task.attempts for each in (lost, queued)] == [1, 0]
    await replicas.start(full, QUICK)
    for each in (lost, queued):
        assert value_of(await front.wait(ME, each.task.task_id, 60)) == "shop"
