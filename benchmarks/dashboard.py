"""What the dashboard costs: its first page over many tasks, and what open pages take from running ones.

The server is that of `perdure serve`: dashboard and runtime in one process, on one file. Whoever looks on is
a process of its own.
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
from .report import Line, at_least, at_most, per_second
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


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks in the file of the first pages, first pages of each kind; tasks of a round, and rounds."""

    stored: int
    first: int
    tasks: int
    rounds: int


async def measure(folder: Path, effort: Effort) -> list[Line]:
    url = f"sqlite:///{folder / 'pages.db'}"
    await fill(url, effort.stored)
    async with await open_storage(url) as storage:
        lines = [await _first(storage, path, effort) for path in PATHS]
    return [*lines, await _open(f"sqlite:///{folder / 'open.db'}", effort)]


async def _first(storage: Storage, path: str, effort: Effort) -> Line:
    """A dashboard that nobody has looked at yet."""
    seconds = [await _seen(Dashboard(storage), path) for _ in range(effort.first)]
    return Line(
        what=f"dashboard, first page {path} of {effort.stored:,} tasks; time / allowed",
        floor=f"{ALLOWED * 1000:.0f} ms",
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
        began = perf_counter()
        answer = await client.get(path, headers={"accept": "text/html"})
        seconds = perf_counter() - began
    assert answer.status_code == 200, answer
    return seconds


async def _open(url: str, effort: Effort) -> Line:
    """Tasks that run while the list and the overview are open, against those that nobody watches."""
    owner = owners()
    closed, watched = Seconds(), Seconds()
    async with await open_storage(url) as storage, opened(url) as subject:
        dashboard = Dashboard(storage)

        async def one() -> float:
            began = perf_counter()
            await spread(lambda: subject.waited(next(owner)), effort.tasks, MANY)
            return perf_counter() - began

        async with served(dashboard.app) as address:
            await one()
            for _ in range(effort.rounds):
                closed.append(await one())
                async with _onlooker(f"{address}/events/tasks"), _onlooker(f"{address}/events/overview"):
                    watched.append(await one())
    return Line(
        what=f"dashboard, list and overview open, {MANY} tasks in flight: tasks / tasks without it",
        floor=per_second(effort.tasks, median(closed)),
        subject=per_second(effort.tasks, median(watched)),
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
