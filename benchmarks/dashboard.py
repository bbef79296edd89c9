"""What the dashboard costs: a first page over many tasks, and the throughput lost while pages are open.

The server is that of `perdure serve`: dashboard and runtime in one process, on one file. Each open page is
read by a separate process.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

import httpx2
import msgspec

from perdure.storage import Storage, open_storage
from perdure.web import Dashboard
from tests.web.tool_dashboard import served

from .engines.synthetic_tasks import fill
from .report import ResultRow, at_least, at_most, per_second
from .runtime_overhead import MANY, opened
from .timing import Seconds, ratio, spread
from .workload import owners

ALLOWED = 0.3
"""Seconds for a first page."""
PATHS = ("/", "/tasks")
LOOKING = """
import sys, urllib.request
with urllib.request.urlopen(sys.argv[1]) as stream:
    print("open", flush=True)
    while stream.readline():
        pass
"""
"""Reads a stream of events to its end."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks stored for first pages and how often each page is loaded; tasks per round, and rounds."""

    stored: int
    first: int
    tasks: int
    rounds: int


async def measure(folder: Path, workload: Workload) -> list[ResultRow]:
    url = f"sqlite:///{folder / 'pages.db'}"
    await fill(url, workload.stored)
    async with await open_storage(url) as storage:
        rows = [await _first(storage, path, workload) for path in PATHS]
    return [*rows, await _open(f"sqlite:///{folder / 'open.db'}", workload)]


async def _first(storage: Storage, path: str, workload: Workload) -> ResultRow:
    """Open a dashboard without any cached page."""
    seconds = [await _seen(Dashboard(storage), path) for _ in range(workload.first)]
    return ResultRow(
        what=f"dashboard, first page {path} of {workload.stored:,} tasks; time / allowed",
        baseline=f"{ALLOWED * 1000:.0f} ms",
        subject=f"{median(seconds) * 1000:,.0f} ms",
        ratio=median(seconds) / ALLOWED,
        target=at_most(1),
    )


async def _seen(dashboard: Dashboard, path: str) -> float:
    transport = httpx2.ASGITransport(app=dashboard.app)
    async with (
        dashboard.running(),
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
    ):
        started = perf_counter()
        answer = await client.get(path, headers={"accept": "text/html"})
        seconds = perf_counter() - started
    assert answer.status_code == 200, answer
    return seconds


async def _open(url: str, workload: Workload) -> ResultRow:
    """Compare running tasks while the list and the overview are open with running them while no page is."""
    owner = owners()
    closed, watched = Seconds(), Seconds()
    async with await open_storage(url) as storage, opened(url) as subject:
        dashboard = Dashboard(storage)

        async def one() -> float:
            started = perf_counter()
            await spread(lambda: subject.waited(next(owner)), workload.tasks, MANY)
            return perf_counter() - started

        async with served(dashboard.app) as address:
            await one()
            for _ in range(workload.rounds):
                closed.append(await one())
                async with _onlooker(f"{address}/events/tasks"), _onlooker(f"{address}/events/overview"):
                    watched.append(await one())
    return ResultRow(
        what=f"dashboard, list and overview open, {MANY} tasks in flight: tasks / tasks without it",
        baseline=per_second(workload.tasks, median(closed)),
        subject=per_second(workload.tasks, median(watched)),
        ratio=ratio(closed, watched),
        target=at_least(0.95),
    )


@asynccontextmanager
async def _onlooker(url: str) -> AsyncGenerator[None]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", LOOKING, url), stdin=DEVNULL, stdout=PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"open\n"
    try:
        yield
    finally:
        process.kill()
        await process.wait()
