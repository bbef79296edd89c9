"""A task of a newer version, over the wire: a retryable error in both generations, and never "not found"."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from mcp.server import MCPServer

from perdure import Tasks
from perdure.runtime import RuntimeConfig
from perdure.storage import Record, Storage, open_storage
from perdure.storage.time_types import system_clock
from perdure.tasks.task_snapshot import TASKS

from ..markers import row
from ..newer import FUTURE, changed, put, stored
from .raw_clients import Answer, Client2025, Client2026, serving
from .v2025_11_25.server import simple_tools

pytestmark = pytest.mark.anyio

RETRYABLE = {
    "code": -32603,
    "message": "the task was written by a newer version of the server; try again later",
    "data": {"retryable": True},
}
CHANGES: list[dict[str, Any]] = [{"format": FUTURE}, {"status": "paused"}]


@pytest.fixture
async def storage(tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Storage]:
    """Another client of the storage of the server."""
    async with await open_storage(f"sqlite:///{tmp_path / 'tasks.db'}") as opened:
        yield opened


@pytest.fixture
async def url(tmp_path: Path, storage: Storage) -> AsyncGenerator[str]:
    """A server that binds tasks to sessions, so that they can be listed."""
    tasks = Tasks(
        f"sqlite:///{tmp_path / 'tasks.db'}", runtime=RuntimeConfig(drain_timeout=0.0), anonymous="session"
    )
    server: MCPServer[object] = MCPServer("tests", **tasks.attach())
    simple_tools(server, tasks)
    async with serving(server.streamable_http_app()) as endpoint:
        yield endpoint


async def make_newer(storage: Storage, task_id: str, change: dict[str, Any]) -> Record:
    records = await storage.page(TASKS, limit=9, now=system_clock())
    [record] = [each for each in records if each.key == task_id]
    return await put(storage, record, changed(record.body, **change), now=system_clock())


def is_retryable(answer: Answer) -> bool:
    return answer.error == RETRYABLE


@row(105)
@pytest.mark.parametrize("change", CHANGES, ids=["format", "status"])
async def test_at_2025_11_25_it_is_a_retryable_error_and_left_out_of_lists(
    url: str, storage: Storage, change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with Client2025(url) as core:
        made = [await core.start("quick") for _ in range(2)]
        for task_id in made:
            await core.until(task_id, "completed")
        record = await make_newer(storage, made[0], change)
        caplog.set_level("INFO", "perdure.mcp")
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            assert is_retryable(await core.send(method, {"taskId": made[0]})), method
        listed = (await core.send("tasks/list")).result["tasks"]
    assert [task["taskId"] for task in listed] == [made[1]]
    assert (
        f"a task was left out of tasks/list: {made[0]} was written by a newer version of perdure"
        in caplog.text
    )
    assert "trying again" not in caplog.text  # time does not make it readable
    assert await stored(storage, record.address, now=system_clock()) == record


@row(105)
@pytest.mark.parametrize("change", CHANGES, ids=["format", "status"])
async def test_at_2026_07_28_it_is_a_retryable_error(
    tmp_path: Path, storage: Storage, change: dict[str, Any]
) -> None:
    tasks = Tasks(f"sqlite:///{tmp_path / 'tasks.db'}", runtime=RuntimeConfig(drain_timeout=0.0))
    server: MCPServer[object] = MCPServer("tests", **tasks.attach())
    simple_tools(server, tasks)
    async with serving(server.streamable_http_app()) as url, Client2026(url) as modern:
        task_id = await modern.start("quick")
        await modern.until(task_id, "completed")
        record = await make_newer(storage, task_id, change)
        for method in ("tasks/get", "tasks/cancel"):
            assert is_retryable(await modern.send(method, {"taskId": task_id})), method
        assert is_retryable(await modern.update(task_id, {"name": {"action": "accept"}}))
    assert await stored(storage, record.address, now=system_clock()) == record
