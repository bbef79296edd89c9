"""What a worker costs while there is nothing to do: the processor time of its whole process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic, process_time
from typing import cast

import msgspec

from perdure.runtime import App

from .processes import Crew, Link
from .report import Line, at_most
from .runtime_overhead import nothing

FUNCTIONS = (1, 20)
"""Each function has a queue, and each queue is looked at."""
ALLOWED = 0.01
"""Of one core."""
SETTLE = 1.0


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """For how many seconds each worker is watched."""

    seconds: float


def measure(folder: Path, effort: Effort) -> list[Line]:
    """All at once: processor time does not suffer from neighbours."""
    with Crew(len(FUNCTIONS)) as mates:
        for mate, functions in zip(mates, FUNCTIONS, strict=True):
            url = f"sqlite:///{folder / f'idle-{functions}.db'}"
            mate.begin(_idle, url, functions, effort.seconds)
        return [
            _line(functions, *cast("tuple[float, float]", mate.hear()))
            for mate, functions in zip(mates, FUNCTIONS, strict=True)
        ]


def _line(functions: int, wall: float, cpu: float) -> Line:
    return Line(
        what=f"SQLite worker, idle, functions: {functions}; processor time / allowed",
        floor=f"{ALLOWED * wall * 1000:,.0f} ms in {wall:.0f} s",
        subject=f"{cpu * 1000:,.0f} ms",
        ratio=cpu / (ALLOWED * wall),
        target=at_most(1),
    )


def _idle(_: Link, url: str, functions: int, seconds: float) -> tuple[float, float]:
    """In a process of the crew: the seconds that passed, and those of the processor."""
    return asyncio.run(_work(url, functions, seconds))


async def _work(url: str, functions: int, seconds: float) -> tuple[float, float]:
    app = App(url)
    for number in range(functions):
        app.function(name=f"nothing-{number}")(nothing)
    async with app.open():
        await asyncio.sleep(SETTLE)
        began, used = monotonic(), process_time()
        await asyncio.sleep(seconds)
        return monotonic() - began, process_time() - used
