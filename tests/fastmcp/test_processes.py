"""A server of FastMCP in a process of its own makes tasks, and runs them again by name when it was killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import fastmcp
import pytest
from fastmcp.client.transports import StdioTransport
from fastmcp_tasks import (
    call_tool_task,  # pyright: ignore[reportUnknownVariableType]
)

from perdure.storage.kit.servers.process import free_port

from ..conditions import wait_for_status, wait_until
from ..fork_server import ForkedProcess, spawn
from ..markers import row
from ..mcp.raw_clients import Client2026, Json, is_open
from ..mcp.tool_helpers import text_of

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
PROGRAM = '''
import asyncio, sys
from fastmcp import FastMCP
from perdure import current_task
from perdure.fastmcp import TaskOptions, TasksExtension
from tests.runtime.replicas import QUICK, UNHURRIED

server = FastMCP("program")
server.add_extension(TasksExtension(sys.argv[1], runtime=QUICK if "doomed" in sys.argv else UNHURRIED))

@server.tool(name="steady", task=TaskOptions(retries=3, backoff=0.01))
async def careful() -> str:
    """Ends only when it was begun again, from where it was."""
    task = current_task()
    reached = task.variables.get_int("reached", 0)
    if not reached:
        await task.set_variables({"reached": 3})
        await asyncio.sleep(600)
    return f"from {reached}, attempt {task.attempt}"

@server.tool(task=TaskOptions(restart=False))
async def once() -> str:
    await current_task().set_variables({"reached": 1})
    await asyncio.sleep(600)
    return "never"

if sys.argv[2] == "stdio":
    server.run("stdio", show_banner=False)
else:
    server.run("http", port=int(sys.argv[2]), show_banner=False, log_level="ERROR")
'''


class Program:
    """A server of FastMCP in a process of its own."""

    def __init__(self, process: ForkedProcess, port: int) -> None:
        self._process = process
        self.url = f"http://127.0.0.1:{port}/mcp"

    async def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    async def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        self._process.terminate()
        return await self._process.wait()


@asynccontextmanager
async def program(storage: str, *options: str) -> AsyncGenerator[Program]:
    port = free_port()
    process = await spawn("-c", PROGRAM, storage, str(port), *options, cwd=ROOT)
    try:
        await wait_until(lambda: is_open(port), seconds=60)
        yield Program(process, port)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def reached(client: Client2026, task_id: str) -> None:
    async def look() -> Json:
        task = await client.get(task_id)
        there = "reached" in task.get("_meta", {}).get("perdure/variables", {})
        return {**task, "status": "there"} if there else task

    await wait_for_status(look, "there", seconds=30)


@row(62)
async def test_a_killed_server_runs_its_tools_again_by_name(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with program(storage, "doomed") as first, Client2026(first.url) as client:
        again, never = await client.start("steady"), await client.start("once")
        await reached(client, again)
        await reached(client, never)
        await first.kill()
    async with program(storage) as second, Client2026(second.url) as client:
        done = await wait_for_status(lambda: client.get(again), "completed", "failed", seconds=30)
        lost = await wait_for_status(lambda: client.get(never), "completed", "failed", seconds=30)

    assert text_of(done["result"]) == "from 3, attempt 2"
    assert "lost" in lost["error"]["message"]


async def test_a_server_that_is_stopped_hands_back_its_tasks(tmp_path: Path) -> None:
    """FastMCP's own `run` leaves its lifespan, in which tasks run, after uvicorn has raised SIGTERM again."""
    storage = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with program(storage) as first, Client2026(first.url) as client:
        again, never = await client.start("steady"), await client.start("once")
        await reached(client, again)
        await reached(client, never)
        assert await first.stop() == -signal.SIGTERM
    assert os.listdir(tmp_path) == ["tasks.db"]  # noqa: PTH208 (asks a local disk)
    async with program(storage) as second, Client2026(second.url) as client:
        done = await wait_for_status(lambda: client.get(again), "completed", "failed", seconds=30)
        stopped = await client.get(never)
    assert text_of(done["result"]) == "from 3, attempt 2"
    assert stopped["error"]["message"].startswith("the worker was shut down")


async def test_a_server_over_stdin_and_stdout_makes_tasks(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'tasks.db'}"
    transport = StdioTransport(sys.executable, ["-c", PROGRAM, storage, "stdio"], cwd=str(ROOT))
    async with fastmcp.Client(transport) as client:
        task = await call_tool_task(client, "once")
        assert (await task.status()).status == "working"
        await task.cancel()
        assert (await task.wait(timeout=20)).status == "cancelled"
