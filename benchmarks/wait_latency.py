"""How soon a waiter is notified that a task has ended: in the same process, and in another.

In the same process the baseline is the finish itself, and the subject ends when the waiter has the task.
Between processes, the time from the return of the finish is compared with a fixed limit.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import uniform
from statistics import median, quantiles
from time import monotonic
from typing import cast

import msgspec

from perdure.runtime import App, Runtime
from perdure.tasks import Owner
from tests import task_edits

from .processes import ChildProcess, Link, ProcessGroup
from .report import ResultRow, at_most, micros
from .runtime_overhead import CALL, DONE
from .timing import Seconds, ratio
from .workload import ROOMY

ALLOWED = 0.05
"""The limit for the median between two processes, in seconds."""
OWNER = Owner.local()


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The number of tries of each kind."""

    tries: int


async def measure(folder: Path, workload: Workload) -> list[ResultRow]:
    url = f"sqlite:///{folder / 'reaction.db'}?synchronous=full"
    return [
        await _within("memory", "memory:", workload),
        await _within("SQLite", url, workload),
        await _between(url, workload),
    ]


def _pause() -> float:
    """Return a random delay within one poll interval, so that tries do not synchronize with polls."""
    return uniform(0.01, 0.06)


# In the same process


async def _within(engine: str, url: str, workload: Workload) -> ResultRow:
    async with App(url, store=ROOMY, application="benchmarks").open(work=False) as runtime:
        tries = [await _try_within(runtime) for _ in range(workload.tries)]
    baseline, subject = [each for each, _ in tries], [each for _, each in tries]
    return ResultRow(
        what=f"{engine}, from a finish to a caller that waits in the same process / the finish",
        baseline=micros(median(baseline)),
        subject=_distribution(subject),
        ratio=ratio(subject, baseline),
    )


async def _try_within(runtime: Runtime) -> tuple[float, float]:
    """Return the seconds until the finish has returned, and until the waiter has."""
    created = await runtime.store.create(OWNER, CALL)
    waiting = asyncio.create_task(_wait(runtime, created.task.task_id))
    await asyncio.sleep(_pause())
    started = monotonic()
    await task_edits.finish(runtime.store, created, DONE)
    finished = monotonic()
    return finished - started, await waiting - started


async def _wait(runtime: Runtime, task_id: str) -> float:
    """Wait for the task; return when the wait ended."""
    await runtime.wait(OWNER, task_id)
    return monotonic()


# Between processes


async def _between(url: str, workload: Workload) -> ResultRow:
    with ProcessGroup(1) as (process,):
        async with App(url, store=ROOMY, application="benchmarks").open(work=False) as runtime:
            process.start(_wait_for_each, url, workload.tries)
            seconds = [await _try_between(runtime, process) for _ in range(workload.tries)]
            process.receive()  # it has closed its storage
    return ResultRow(
        what="SQLite, from a finish to a caller that waits in another process: median / allowed",
        baseline=f"{ALLOWED * 1000:g} ms",
        subject=_distribution(seconds),
        ratio=median(seconds) / ALLOWED,
        target=at_most(1),
    )


async def _try_between(runtime: Runtime, process: ChildProcess) -> float:
    """Return the seconds between the returns of finish and wait. Both processes read the same clock."""
    created = await runtime.store.create(OWNER, CALL)
    process.send(created.task.task_id)
    await asyncio.to_thread(process.receive)  # it is about to wait
    await asyncio.sleep(_pause())
    await task_edits.finish(runtime.store, created, DONE)
    finished = monotonic()
    return cast("float", await asyncio.to_thread(process.receive)) - finished


def _wait_for_each(link: Link, url: str, number: int) -> None:
    """Wait for tasks, in the other process."""
    asyncio.run(_wait_for_some(link, url, number))


async def _wait_for_some(link: Link, url: str, number: int) -> None:
    async with App(url, store=ROOMY, application="benchmarks").open(work=False) as runtime:
        for _ in range(number):
            task_id = cast("str", await asyncio.to_thread(link.recv))
            link.send("waiting")
            link.send(await _wait(runtime, task_id))


def _distribution(seconds: Seconds) -> str:
    middle, most, worst = (
        each * 1000 for each in (median(seconds), quantiles(seconds, n=10)[-1], max(seconds))
    )
    return f"{middle:.1f} ms (9 of 10: {most:.1f}, worst: {worst:.1f})"
