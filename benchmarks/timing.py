"""Runs contenders in turn, so that other load on the machine affects all of them alike.

A ratio is the median of the ratios of the rounds: a round in which the machine was busy counts once.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from time import perf_counter, process_time
from typing import TypeAlias

Contender: TypeAlias = Callable[[], Awaitable[object]]
"""A timed run. Every contender of a race does the same amount of work in it."""

Seconds: TypeAlias = list[float]
"""The seconds of each round."""


Clock: TypeAlias = Callable[[], float]

WALL: Clock = perf_counter
CPU: Clock = process_time
"""A clock for work that never waits: CPU time does not depend on other processes."""


async def race(
    contenders: Sequence[Contender],
    rounds: int,
    clock: Clock = WALL,
    before: Callable[[], None] = lambda: None,
) -> list[Seconds]:
    """Return the seconds of each contender, round by round. Every second round runs in reverse order.

    `before` is called before each run and not timed.
    """
    seconds: list[Seconds] = [[] for _ in contenders]
    for each in contenders:
        before()
        await each()  # caches, statements and files warm up outside the race
    for number in range(rounds):
        order = list(enumerate(contenders))
        for index, contender in reversed(order) if number % 2 else order:
            before()
            seconds[index].append(await _timed(contender, clock))
    return seconds


def ratio(subject: Seconds, baseline: Seconds) -> float:
    """Return the subject's seconds as a multiple of the baseline's."""
    return median(ours / theirs for ours, theirs in zip(subject, baseline, strict=True))


async def spread(work: Callable[[], Awaitable[object]], count: int, concurrency: int) -> None:
    """Do some work `count` times with a fixed concurrency."""

    async def share() -> None:
        for _ in range(count // concurrency):
            await work()

    await asyncio.gather(*(share() for _ in range(concurrency)))


async def _timed(contender: Contender, clock: Clock) -> float:
    gc.collect()  # no contender pays for another's garbage
    started = clock()
    await contender()
    return clock() - started
