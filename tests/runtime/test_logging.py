"""`Task.log`: entries are kept with the task, several in one write, and never fail the function."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence

import anyio.from_thread
import pytest

from perdure.runtime import Retry, Task
from perdure.storage import Change
from perdure.storage.errors import StorageUnavailable
from perdure.tasks import Snapshot, Status, Success
from perdure.tasks.errors import InvalidValue

from ..conditions import wait_until
from .faulty_storage import ME, FaultyLink, busy, now, open_faulty
from .replicas import UNHURRIED, Replicas, new_app, value_of

pytestmark = pytest.mark.anyio


def messages(snapshot: Snapshot) -> list[object]:
    return [entry.message for entry in snapshot.task.log.entries]


async def test_what_a_function_logs_is_kept_with_its_task(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def work(task: Task) -> None:
        await task.log("info", "opened")
        await task.log("error", {"row": 7}, logger="db")

    runtime = await replicas.start(app)
    made = await runtime.submit("work")
    entries = (await runtime.wait(ME, made.task.task_id, 60)).task.log.entries
    assert [(each.level, each.message, each.logger) for each in entries] == [
        ("info", "opened", None),
        ("error", {"row": 7}, "db"),
    ]
    assert made.task.created_at <= entries[0].at <= entries[1].at


async def test_a_thousand_entries_are_a_few_writes_and_the_newest_are_kept(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def work(task: Task) -> None:
        for line in range(1000):
            await task.log("debug", f"line {line}")

    runtime = await replicas.start(app)
    made = await runtime.submit("work")
    ended = await runtime.wait(ME, made.task.task_id, 60)
    assert ended.version <= 20
    assert messages(ended) == [f"line {line}" for line in range(800, 1000)]


async def test_the_log_is_seen_while_the_function_runs(replicas: Replicas) -> None:
    app, go_on = new_app(), asyncio.Event()

    @app.function()
    async def work(task: Task) -> None:
        for line in range(5):
            await task.log("info", f"line {line}")
        await go_on.wait()

    runtime = await replicas.start(app)
    other = await replicas.start(app, work=False)
    made = await runtime.submit("work")

    async def is_seen() -> bool:
        return len(messages(await now(other, made))) == 5

    await wait_until(is_seen)
    go_on.set()
    await other.wait(ME, made.task.task_id, 60)


async def test_entries_and_reports_are_written_together(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def work(task: Task) -> None:
        for page in range(4):
            await task.log("info", f"page {page}")
            await task.report_progress(page, message=f"page {page}")

    runtime = await replicas.start(app)
    made = await runtime.submit("work")
    ended = await runtime.wait(ME, made.task.task_id, 60)
    assert ended.version <= 4
    assert messages(ended) == [f"page {page}" for page in range(4)]
    assert [report.done for report in ended.task.reports.entries] == [0, 1, 2, 3]


async def test_the_log_of_an_attempt_is_kept_when_it_is_released_and_the_next_one_adds_to_it(
    replicas: Replicas, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "perdure")
    app = new_app()

    @app.function(retries=1, backoff=0)
    async def work(task: Task) -> None:
        await task.log("info", f"attempt {task.attempt}")
        await task.log("info", "trying")
        if task.attempt == 1:
            raise Retry("out of paper")

    runtime = await replicas.start(app)
    made = await runtime.submit("work")
    ended = await runtime.wait(ME, made.task.task_id, 60)
    assert messages(ended) == ["attempt 1", "trying", "attempt 2", "trying"]
    starting = f"task {made.task.task_id}: starting attempt"
    assert [each for each in caplog.messages if starting in each] == [f"{starting} 2 of function work"]


async def test_a_log_that_cannot_be_written_does_not_fail_the_function(replicas: Replicas) -> None:
    app, wire, go_on = new_app(), FaultyLink(), asyncio.Event()
    refused = asyncio.Event()

    def refuse(changes: Sequence[Change]) -> Awaitable[None]:
        refused.set()
        return busy(changes)

    @app.function()
    async def work(task: Task) -> str:
        wire.before = refuse
        await task.log("info", "first")
        await task.log("info", "second")
        await go_on.wait()
        return "done"

    async with open_faulty(replicas, wire, app, UNHURRIED) as runtime:
        made = await runtime.submit("work")
        await wait_until(refused.is_set)
        wire.mend()
        go_on.set()
        ended = await runtime.wait(ME, made.task.task_id, 60)
    assert (value_of(ended), messages(ended)) == ("done", ["first", "second"])


async def test_an_entry_whose_write_succeeded_without_an_answer_is_kept_once(replicas: Replicas) -> None:
    app, wire = new_app(), FaultyLink()

    async def lose_the_answer(_: Sequence[Change]) -> None:
        wire.mend()
        raise StorageUnavailable("the connection broke")

    @app.function()
    async def work(task: Task) -> None:
        wire.after = lose_the_answer
        await task.log("info", "first")
        await task.set_variables({"page": 1})
        await task.log("info", "second")

    async with open_faulty(replicas, wire, app, UNHURRIED) as runtime:
        made = await runtime.submit("work")
        ended = await runtime.wait(ME, made.task.task_id, 60)
    assert messages(ended) == ["first", "second"]


async def test_a_claim_that_was_lost_stops_the_function_and_not_by_the_log(replicas: Replicas) -> None:
    app, logged = new_app(), asyncio.Event()
    go_on = asyncio.Event()

    @app.function()
    async def work(task: Task) -> None:
        try:
            await go_on.wait()
        finally:
            await task.log("info", "too late")
            logged.set()

    runtime = await replicas.start(app)
    made = await runtime.submit("work")

    async def is_claimed() -> bool:
        return (await now(runtime, made)).task.is_claimed

    await wait_until(is_claimed)
    await runtime.cancel_now(ME, made.task.task_id)
    await wait_until(logged.is_set)
    ended = await now(runtime, made)
    assert (ended.task.status, messages(ended)) == (Status.CANCELLED, [])


async def test_an_invalid_level_is_an_error_of_the_function(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def work(task: Task) -> str:
        with pytest.raises(InvalidValue, match="level"):
            await task.log("loud", "hello")  # type: ignore[arg-type]
        return "done"

    runtime = await replicas.start(app)
    made = await runtime.submit("work")
    assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == "done"


async def test_a_thread_logs_through_the_event_loop(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    def work(task: Task) -> None:
        for line in range(3):
            anyio.from_thread.run(task.log, "info", f"line {line}")

    runtime = await replicas.start(app)
    made = await runtime.submit("work")
    ended = await runtime.wait(ME, made.task.task_id, 60)
    assert isinstance(ended.task.outcome, Success)
    assert messages(ended) == ["line 0", "line 1", "line 2"]
