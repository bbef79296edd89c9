"""What an idle worker costs: the CPU time of its whole process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic, process_time
from typing import cast

import msgspec

from perdure.runtime import App

from .processes import Link, ProcessGroup
from .report import ResultRow, at_most
from .workload import nothing

FUNCTIONS = (1, 20)
"""Numbers of functions. Each has a queue, and each queue is polled."""
ALLOWED = 0.01
"""The allowed share of one core."""
SETTLE = 1.0


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The seconds for which each worker is measured."""

    seconds: float


def measure(folder: Path, workload: Workload) -> list[ResultRow]:
    """Measure all concurrently: CPU time does not depend on other processes."""
    with ProcessGroup(len(FUNCTIONS)) as processes:
        for process, functions in zip(processes, FUNCTIONS, strict=True):
            url = f"sqlite:///{folder / f'idle-{functions}.db'}"
            process.start(_idle, url, functions, workload.seconds)
        return [
            _row(functions, *cast("tuple[float, float]", process.receive()))
            for process, functions in zip(processes, FUNCTIONS, strict=True)
        ]


def _row(functions: int, wall: float, cpu: float) -> ResultRow:
    return ResultRow(
        what=f"SQLite worker, idle, functions: {functions}; processor time / allowed",
        baseline=f"{ALLOWED * wall * 1000:,.0f} ms in {wall:.0f} s",
        subject=f"{cpu * 1000:,.0f} ms",
        ratio=cpu / (ALLOWED * wall),
        target=at_most(1),
    )


def _idle(_: Link, url: str, functions: int, seconds: float) -> tuple[float, float]:
    """Return elapsed and CPU seconds. Runs in a child process."""
    return asyncio.run(_work(url, functions, seconds))


async def _work(url: str, functions: int, seconds: float) -> tuple[float, float]:
    app = App(url, application="benchmarks")
    for number in range(functions):
        app.function(name=f"nothing-{number}")(nothing)
    async with app.open():
        await asyncio.sleep(SETTLE)
        started, used = monotonic(), process_time()
        await asyncio.sleep(seconds)
        return monotonic() - started, process_time() - used
