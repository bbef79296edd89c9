"""Worker processes, as users start them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from perdure.runtime import RuntimeConfig

from ..fork_server import PIPE, ForkedProcess, spawn
from .replicas import UNHURRIED

ROOT = Path(__file__).parents[2]


class WorkerProcess:
    """`perdure worker`, running."""

    def __init__(self, process: ForkedProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def line(self) -> str:
        """The next line that it says."""
        assert self._process.stderr is not None
        return (await asyncio.wait_for(self._process.stderr.readline(), 30)).decode()

    async def ended(self) -> int:
        return await asyncio.wait_for(self._process.wait(), 30)


@asynccontextmanager
async def worker(
    url: str, app: str = "tests.runtime.worker_app:app", *, config: RuntimeConfig = UNHURRIED
) -> AsyncGenerator[WorkerProcess]:
    """A worker process for a block; killed at its end if it still runs."""
    settings = msgspec.json.encode(config).decode()
    environment = {**os.environ, "PERDURE_URL": url, "PERDURE_RUNTIME": settings, "COLUMNS": "200"}
    process = await spawn("-m", "perdure.cli", "worker", app, cwd=ROOT, env=environment, stderr=PIPE)
    started = WorkerProcess(process)
    try:
        said = await started.line()
        assert said.startswith("Worker "), said
        yield started
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
