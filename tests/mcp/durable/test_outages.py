"""A storage that fails in the middle of a run costs an attempt, and never ends the task."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from mcp.server import MCPServer

from perdure import Tasks
from perdure.runtime import RuntimeConfig, Task
from perdure.storage import Committed, Delete, Insert, Record, Space, Storage, open_storage
from perdure.storage.errors import StorageError, StorageFull
from perdure.storage.time_units import system_clock

from ..raw_clients import Client2026, serving

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
