"""How soon whoever waits for a task learns that it has ended: in the same process, and in another.

In the same process the floor is the finish itself, and the subject ends when the waiter has the task. Between
processes it counts from the moment when the finish has returned, and is compared with what is allowed.
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

from .processes import Crew, Link, Mate
from .report import Line, at_most, micros
from .runtime_overhead import CALL, DONE
from .timing import Seconds, ratio
from .workload import ROOMY

ALLOWED = 0.05
"""Seconds between two processes, by the median."""
OWNER = Owner.local()


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How often each is tried."""

    tries: int


async def measure(folder: Path, effort: Effort) -> list[Line]:
    url = f"sqlite:///{folder / 'reaction.db'}?synchronous=full"
    return [
        await _within("memory", "memory:", effort),
        await _within("SQLite", url, effort),
        await _between(url, effort),
    ]


def _pause() -> float:
    """Seconds that fall anywhere between two looks of whoever looks now and then."""
    return uniform(0.01, 0.06)


# In the same process


async def _within(engine: str, url: str, effort: Effort) -> Line:
    async with App(url, store=ROOMY).open(work=False) as runtime:
        tries = [await _try_within(runtime) for _ in range(effort.tries)]
    floor, subject = [each for each, _ in tries], [each for _, each in tries]
    return Line(
        what=f"{engine}, from a finish to who waits beside it / the finish",
        floor=micros(median(floor)),
        subject=_distribution(subject),
        ratio=ratio(subject, floor),
    )


async def _try_within(runtime: Runtime) -> tuple[float, float]:
    """Seconds until the finish has returned, and until the waiter has."""
    created = await runtime.store.create(OWNER, CALL)
    waiting = asyncio.create_task(_wait(runtime, created.task.task_id))
    await asyncio.sleep(_pause())
    began = monotonic()
    await task_edits.finish(runtime.store, created, DONE)
    finished = monotonic()
    return finished - began, await waiting - began


async def _wait(runtime: Runtime, task_id: str) -> float:
    """When it has ended."""
    await runtime.wait(OWNER, task_id)
    return monotonic()


# Between processes


async def _between(url: str, effort: Effort) -> Line:
    with Crew(1) as (mate,):
        async with App(url, store=ROOMY).open(work=False) as runtime:
            mate.begin(_wait_for_each, url, effort.tries)
            seconds = [await _try_between(runtime, mate) for _ in range(effort.tries)]
            mate.hear()  # it has closed its storage
    return Line(
        what="SQLite, from a finish to who waits in another process: median / allowed",
        floor=f"{ALLOWED * 1000:g} ms",
        subject=_distribution(seconds),
        ratio=median(seconds) / ALLOWED,
        target=at_most(1),
    )


async def _try_between(runtime: Runtime, mate: Mate) -> float:
    """Seconds from the return of the finish to that of the wait. Both processes read the same clock."""
    created = await runtime.store.create(OWNER, CALL)
    mate.tell(created.task.task_id)
    await asyncio.to_thread(mate.hear)  # it is about to wait
    await asyncio.sleep(_pause())
    await task_edits.finish(runtime.store, created, DONE)
    finished = monotonic()
    return cast("float", await asyncio.to_thread(mate.hear)) - finished


def _wait_for_each(link: Link, url: str, number: int) -> None:
    """In the other process."""
    asyncio.run(_wait_for_some(link, url, number))


async def _wait_for_some(link: Link, url: str, number: int) -> None:
    async with App(url, store=ROOMY).open(work=False) as runtime:
        for _ in range(number):
            task_id = cast("str", await asyncio.to_thread(link.recv))
            link.send("waiting")
            link.send(await _wait(runtime, task_id))


def _distribution(seconds: Seconds) -> str:
    middle, most, worst = (
        each * 1000 for each in (median(seconds), quantiles(seconds, n=10)[-1], max(seconds))
    )
    return f"{middle:.1f} ms (9 of 10: {most:.1f}, worst: {worst:.1f})"
