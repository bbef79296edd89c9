"""A storage that fails in the middle of a run costs an attempt, and never ends the task.

A call that fails because it is unknown whether its task was stored leaves no task that runs for no client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from mcp.server import MCPServer
from msgspec.structs import replace

from perdure import Tasks
from perdure.runtime import RuntimeConfig, Task, attendance
from perdure.storage import Change, Committed, Delete, Insert, Record, Space, Storage, open_storage
from perdure.storage.errors import OutcomeUnknown, StorageError, StorageFull, StorageUnavailable
from perdure.storage.time_types import system_clock
from perdure.tasks import Owner, Status, TaskStore

from ...conditions import wait_until
from ...runtime.faulty_storage import FaultyLink, creates_a_task, nothing
from ..raw_clients import Client2025, Client2026, Json, serving
from ..tool_helpers import FAST_CONFIG

pytestmark = pytest.mark.anyio

FILLER = Space("filler")
MAX_BYTES = 400_000


async def fill(storage: Storage) -> list[Record]:
    """Write records until there is no room for another."""
    stored: list[Record] = []
    while True:
        record = Record(
            space=FILLER, partition="p", key=f"{len(stored)}", order=0, body=f'"{"x" * 1000}"', tag="t"
        )
        try:
            result = await storage.commit([Insert(record=record)], now=system_clock())
        except StorageFull:
            return stored
        assert isinstance(result, Committed)
        stored.append(record)


async def test_a_disk_that_is_full_for_a_while_does_not_end_a_running_task(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tasks.db'}?max_bytes={MAX_BYTES}"
    tasks = Tasks(
        url,
        runtime=RuntimeConfig(heartbeat_interval=0.3, clock_skew=0.2, drain_timeout=0.0, cancel_grace=0.5),
    )
    server: MCPServer[object] = MCPServer("tests", **tasks.attach())
    started, is_full, failed = asyncio.Event(), asyncio.Event(), list[StorageError]()

    @server.tool()
    @tasks.durable(backoff=0.01)
    async def work(task: Task) -> str:
        started.set()
        await is_full.wait()
        try:
            await task.save_checkpoint({"pages": "x" * 50_000})
        except StorageError as error:
            failed.append(error)
            raise
        return f"attempt {task.attempt}"

    async with serving(server.streamable_http_app()) as endpoint, Client2026(endpoint) as client:
        task_id = await client.start("work")
        await started.wait()
        async with await open_storage(url) as disk:
            stored = await fill(disk)
            is_full.set()
            async with asyncio.timeout(20):
                while not failed:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            for record in stored:
                await disk.commit([Delete(before=record)], now=system_clock())
        done = await client.until(task_id, "completed")

    assert isinstance(failed[0], StorageFull)
    assert done["result"]["isError"] is False
    assert done["result"]["structuredContent"]["result"] != "attempt 1"


ADA = Owner.user("https://issuer.test", "ada")


async def over(link: FaultyLink, runtime: RuntimeConfig = FAST_CONFIG) -> tuple[Tasks, MCPServer[object]]:
    """Return a server whose tasks are stored over this link."""
    storage = await link.around(await open_storage("memory:"))
    tasks = Tasks(storage, identify=lambda _: ADA, runtime=runtime)
    return tasks, MCPServer("tests", **tasks.attach())


def write_unanswered(link: FaultyLink, *, late: bool) -> None:
    """Let the next create of a task raise OutcomeUnknown though it is written, perhaps only a while later."""

    async def lose(changes: Sequence[Change]) -> None:
        if not creates_a_task(changes):
            return
        link.before = link.after = nothing
        if late:
            asyncio.get_running_loop().call_later(0.2, asyncio.ensure_future, write(changes))
        raise OutcomeUnknown("the connection was lost")

    async def write(changes: Sequence[Change]) -> None:
        await link.storage.commit(changes, now=system_clock())

    if late:
        link.before = lose
    else:
        link.after = lose


@pytest.mark.parametrize("late", [False, True], ids=["written", "written_later"])
@pytest.mark.parametrize("concurrency", [0, 4], ids=["queued", "started"])
@pytest.mark.parametrize("kind", ["2026", "2025", "without_tasks"])
async def test_a_task_whose_create_was_not_answered_is_cancelled(
    kind: str, concurrency: int, *, late: bool
) -> None:
    link = FaultyLink()
    tasks, server = await over(link, replace(FAST_CONFIG, concurrency=concurrency or 1))
    tasks.work = bool(concurrency)

    @server.tool()
    @tasks.durable
    async def work() -> None:
        await asyncio.Event().wait()

    params: Json = {"name": "work"} if kind == "without_tasks" else {"name": "work", "task": {}}
    make = Client2026 if kind == "2026" else Client2025
    async with serving(server.streamable_http_app()) as url, make(url) as client:
        write_unanswered(link, late=late)
        answer = await client.send("tools/call", params)
        assert answer.error["message"] == "Internal error"

        async def is_cancelled() -> bool:
            page = await tasks.runtime.store.list(ADA)
            return [each.task.status for each in page.tasks] == [Status.CANCELLED]

        await wait_until(is_cancelled)


async def test_a_task_whose_create_was_not_answered_is_cancelled_after_an_outage_of_any_length(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(attendance, "DOUBT_DELAYS", (0.01, 0.01))
    monkeypatch.setattr(attendance, "CANCEL_SECONDS", 0.1)
    link = FaultyLink()
    tasks, server = await over(link)

    @server.tool()
    @tasks.durable
    async def work() -> None:
        await asyncio.Event().wait()

    async def fail(_: Sequence[Change]) -> None:
        raise StorageUnavailable("the server is down")

    async def lose(changes: Sequence[Change]) -> None:
        if creates_a_task(changes):
            link.before = fail
            raise OutcomeUnknown("the connection was lost")

    async with serving(server.streamable_http_app()) as url, Client2026(url) as client:
        assert not (await tasks.runtime.store.list(ADA)).tasks  # the first list writes the key of cursors
        link.after = lose
        assert (await client.send("tools/call", {"name": "work"})).error["message"] == "Internal error"
        [made] = (await tasks.runtime.store.list(ADA)).tasks
        attempts = f"could not cancel task {made.task.task_id}, for which no client waits"
        await wait_until(lambda: caplog.text.count(attempts) > 2 * len(attendance.DOUBT_DELAYS))
        link.mend()
        assert (await tasks.runtime.wait(ADA, made.task.task_id, timeout=20)).task.status is Status.CANCELLED


async def test_a_server_that_stops_cancels_a_task_that_was_created_without_an_answer_and_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attendance, "DOUBT_DELAYS", (3600.0,))
    link = FaultyLink()
    tasks, server = await over(link)
    tasks.work = False
    unanswered: list[Change] = []

    @server.tool()
    @tasks.durable
    async def work() -> None:
        pass

    async def lose(changes: Sequence[Change]) -> None:
        if creates_a_task(changes):
            unanswered.extend(changes)
            raise OutcomeUnknown("the connection was lost")

    link.before = lose
    async with serving(server.streamable_http_app()) as url, Client2026(url) as client:
        reads = link.calls["get"]
        assert (await client.send("tools/call", {"name": "work"})).error["message"] == "Internal error"
        await wait_until(lambda: link.calls["get"] > reads)  # there is no such task yet
        await link.storage.commit(unanswered, now=system_clock())

    [made] = (await TaskStore(link.storage, application="tests").list(ADA)).tasks
    assert made.task.status is Status.CANCELLED


async def test_a_task_with_an_idempotency_key_is_kept_if_its_create_was_not_answered() -> None:
    link = FaultyLink()
    tasks, server = await over(link)

    @server.tool()
    @tasks.durable
    async def work() -> str:
        return "done"

    params: Json = {"name": "work", "_meta": {"perdure/idempotencyKey": "one"}}
    async with serving(server.streamable_http_app()) as url, Client2026(url) as client:
        write_unanswered(link, late=False)
        assert (await client.send("tools/call", params)).error["message"] == "Internal error"
        task_id = (await client.send("tools/call", params)).result["taskId"]
        await client.until(task_id, "completed")
        assert len((await tasks.runtime.store.list(ADA)).tasks) == 1
