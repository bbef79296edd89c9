"""Server processes on one storage, clients of them, and what the tests say about tasks."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from perdure.storage import Record, Space, open_storage
from perdure.storage.time_types import system_clock

from ..conditions import wait_for_status
from ..fork_server import PIPE, ForkedProcess, spawn
from .raw_clients import Answering, Client2025, Client2026, Json

ROOT = Path(__file__).parents[2]
VARIABLES = "perdure/variables"


class Replica:
    """A server process, and clients of it."""

    def __init__(self, process: ForkedProcess, port: int, clients: AsyncExitStack) -> None:
        self._process = process
        self._clients = clients
        self.port = port
        self.url = f"http://127.0.0.1:{port}/mcp"

    @property
    def pid(self) -> int:
        return self._process.pid

    async def modern(self) -> Client2026:
        return await self._clients.enter_async_context(Client2026(self.url))

    async def core(self, answering: Answering | None = None) -> Client2025:
        return await self._clients.enter_async_context(Client2025(self.url, answering=answering))

    async def end(self, number: signal.Signals) -> int:
        """Send it a signal; how it ended."""
        self._process.send_signal(number)
        return await asyncio.wait_for(self._process.wait(), 30)


class Replicas:
    """Starts server processes on one storage, and ends what a test leaves running."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self._url = url
        self._stack = stack

    async def start(self, *options: str) -> Replica:
        return await self._stack.enter_async_context(_running(self._url, *options))

    async def records(self, space: Space) -> list[Record]:
        """What is stored in a space."""
        async with await open_storage(self._url) as storage:
            return await storage.page(space, limit=100, now=system_clock())

    async def start_doomed(self) -> Replica:
        """One that is to be killed in the middle of its work."""
        return await self.start("--doomed")


@asynccontextmanager
async def _running(url: str, *options: str) -> AsyncGenerator[Replica]:
    process = await spawn("-m", "tests.mcp.server_process", url, *options, cwd=ROOT, stdout=PIPE)
    try:
        assert process.stdout is not None
        said = await asyncio.wait_for(process.stdout.readline(), 60)
        async with AsyncExitStack() as clients:
            yield Replica(process, int(said), clients)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


# What the tests say


def naming(*names: str) -> Answering:
    """Answers what is asked with one name after the other."""
    left = iter(names)

    async def answer(request: Json) -> Json:
        return named(next(left))

    return answer


def named(name: str) -> Json:
    return {"action": "accept", "content": {"name": name}}


async def in_work(client: Client2026 | Client2025, task_id: str, *before: str) -> Json:
    """The task, once its tool has said that it is at work. Before, it may have one of these statuses."""
    async with asyncio.timeout(30):
        while True:
            task = await client.get(task_id)
            if "pid" in task.get("_meta", {}).get(VARIABLES, {}):
                return task
            assert task["status"] in ("working", *before), task
            await asyncio.sleep(0.02)


async def asking(client: Client2026, task_id: str, key: str) -> Json:
    """The task, once this is what it asks."""

    async def look() -> Json:
        task = await client.get(task_id)
        is_asked = key in task.get("inputRequests", {})
        return {**task, "status": "asking"} if is_asked else task

    return await wait_for_status(look, "asking", seconds=30)


async def ended(client: Client2026 | Client2025, task_id: str) -> Json:
    return await wait_for_status(lambda: client.get(task_id), "completed", "failed", "cancelled", seconds=30)
