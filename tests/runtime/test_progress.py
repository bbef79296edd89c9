"""Progress: said as often as a function likes, written a few times a second, and the last word always."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

import anyio.from_thread
import pytest

from perdure.runtime import Retry, Task, TaskFailed
from perdure.storage import Change
from perdure.tasks import Progress, Status
from perdure.tasks.errors import InvalidValue, LimitExceeded

from .. import task_edits
from ..conditions import wait_until
from ..markers import row
from .faulty_storage import ME, FaultyLink, busy, now, open_faulty
from .replicas import UNHURRIED, Replicas, new_app, value_of

pytestmark = pytest.mark.anyio


async def test_a_thousand_reports_are_a_few_writes_and_the_last_is_there(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def work(task: Task) -> str:
        for page in range(1000):
            await task.report_progress(page + 1, 1000, f"page {page}")
        return "done"

    runtime = await replicas.start(app)
    made = await runtime.submit("work")
    ended = await runtime.wait(ME, made.task.task_id, 60)
    assert ended.version <= 20
    assert ended.task.reports.entries[-1].message == "page 999"
    assert ended.task.status_message is None  # a task that has ended does nothing any more
    assert ended.task.progress == Progress(done=1000, total=1000)


async def test_progress_is_seen_while_the_function_runs(replicas: Replicas) -> None:
    app, go_on = new_app(), asyncio.Event()

    @app.function()
    async def work(task: Task) -> None:
        for page in range(50):
            await task.report_progress(page, message=f"page {page}")
        await go_on.wait()

    runtime = await replicas.start(app)
    other = await replicas.start(app, work=False)
    made = await runtime.submit("work")

    async def is_seen() -> bool:
        task = (await now(other, made)).task
        return (task.status_message, task.progress) == ("page 49", Progress(done=49))

    await wait_until(is_seen)
    assert (await now(other, made)).version <= 4  # made, the first, the last
    go_on.set()
    await other.wait(ME, made.task.task_id, 60)


async def test_what_a_report_leaves_out_stays_as_it_was(replicas: Replicas) -> None:
    app, go_on = new_app(), asyncio.Event()

    @app.function()
    async def work(task: Task) -> None:
        await task.report_progress(1, 3, "collecting")
        await task.report_progress(2)
        await task.report_progress(message="writing")
        await go_on.wait()

    runtime = await replicas.start(app)
    made = await runtime.submit("work")

    async def is_seen() -> bool:
        task = (await now(runtime, made)).task
        return (task.status_message, task.progress) == ("writing", Progress(done=2))

    await wait_until(is_seen)
    go_on.set()
    assert (await runtime.wait(ME, made.task.task_id, 60)).task.progress == Progress(done=2)


@row(52)
async def test_a_message_that_is_too_long_is_refused_to_the_function_that_says_it(replicas: Replicas) -> None:
    app, go_on = new_app(), asyncio.Event()

    @app.function()
    async def work(task: Task) -> str:
        await task.report_progress(message="fine")
        with pytest.raises(LimitExceeded, match="status_message: 5000 characters"):
            await task.report_progress(message="x" * 5000)
        with pytest.raises(InvalidValue, match="status_message"):
            await task.report_progress(message="\ud800")
        with pytest.raises(InvalidValue, match="progress"):
            await task.report_progress(float("nan"))
        await go_on.wait()
        return "done"

    runtime = await replicas.start(app)
    made = await runtime.submit("work")

    async def is_fine() -> bool:
        return (await now(runtime, made)).task.status_message == "fine"

    await wait_until(is_fine)
    go_on.set()
    assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == "done"


async def test_a_failure_says_why_in_the_place_of_the_last_report(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def work(task: Task) -> None:
        await task.report_progress(9, 10, "nearly there")
        raise TaskFailed(-32001, "the printer is on fire")

    runtime = await replicas.start(app)
    made = await runtime.submit("work")
    task = (await runtime.wait(ME, made.task.task_id, 60)).task
    assert (task.status, task.status_message) == (Status.FAILED, "the printer is on fire")
    assert task.progress == Progress(done=9, total=10)


async def test_the_last_report_of_an_attempt_is_kept_for_the_next(replicas: Replicas) -> None:
    app = new_app()

    @app.function(retries=1, backoff=600)
    async def work(task: Task) -> None:
        for page in range(10):
            await task.report_progress(page, message=f"page {page}")
        raise Retry("out of paper")

    runtime = await replicas.start(app)
    made = await runtime.submit("work")

    async def is_released() -> bool:
        return not (await now(runtime, made)).task.is_claimed

    await wait_until(is_released)
    task = (await now(runtime, made)).task
    assert (task.status_message, task.progress, task.last_failure) == (
        "page 9",
        Progress(done=9),
        "out of paper",
    )


async def test_a_thread_reports_through_the_event_loop(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    def work(task: Task) -> str:
        for page in range(100):
            anyio.from_thread.run(task.report_progress, page, None, f"page {page}")
        return "done"

    runtime = await replicas.start(app)
    made = await runtime.submit("work")
    ended = await runtime.wait(ME, made.task.task_id, 60)
    assert (value_of(ended), ended.task.reports.entries[-1].message) == ("done", "page 99")
    assert ended.task.progress == Progress(done=99)


async def test_a_report_that_could_not_be_written_is_written_later(replicas: Replicas) -> None:
    app, wire, go_on = new_app(), FaultyLink(), asyncio.Event()
    refused = asyncio.Event()

    def refuse(changes: Sequence[Change]) -> Awaitable[None]:
        refused.set()
        return busy(changes)

    @app.function()
    async def work(task: Task) -> None:
        await task.report_progress(message="first")
        wire.before = refuse
        await task.report_progress(2, message="second")
        await go_on.wait()

    async with open_faulty(replicas, wire, app, UNHURRIED) as runtime:
        made = await runtime.submit("work")
        await wait_until(refused.is_set)
        wire.mend()
        go_on.set()
        task = (await runtime.wait(ME, made.task.task_id, 60)).task
    assert (task.status, task.reports.entries[-1].message, task.progress) == (
        Status.COMPLETED,
        "second",
        Progress(done=2),
    )


async def test_reports_do_not_undo_what_others_write(replicas: Replicas) -> None:
    app, go_on = new_app(), asyncio.Event()

    @app.function()
    async def work(task: Task) -> None:
        while not go_on.is_set():
            await task.report_progress(message="still at it")
            await asyncio.sleep(0.001)

    runtime = await replicas.start(app)
    other = await replicas.start(app, work=False)
    made = await runtime.submit("work")
    for name in "abcdefghij":
        await other.store.update(
            ME,
            made.task.task_id,
            lambda read, name=name: task_edits.set_variables(other.store, read, {name: 1}),
        )
    go_on.set()
    ended = await other.wait(ME, made.task.task_id, 60)
    assert ended.task.variables == dict.fromkeys("abcdefghij", 1)
