"""`python -m benchmarks.engines.profile ENGINE`: where the client's time goes while tasks live as in `lives`.

A profile makes everything slower, small functions most of all. What each life takes of the processor is told
without one, for the client and for the server.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import io
import os
import pstats
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import TypeAlias

from perdure.storage import migrate_storage, open_storage
from perdure.storage.kit.servers import CREDENTIALS
from perdure.tasks import TaskStore

from ..timing import spread
from ..workload import ROOMY, live, owners
from .cases import DYNOXIDE, EXTENDDB, POSTGRES, REDIS, Served, Side
from .copies import lives

SIDES = {"postgres": POSTGRES, "redis": REDIS, "dynoxide": DYNOXIDE, "extenddb": EXTENDDB}
SHOWN = 25
"""Functions in a profile."""
RUNS = 3
"""A warm-up, one that is timed, and one that is profiled."""

Work: TypeAlias = Callable[[], Awaitable[object]]


class Arguments(argparse.Namespace):
    engine: str
    together: int
    lives: int
    floor: bool


def arguments() -> Arguments:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines.profile", description=__doc__)
    parser.add_argument("engine", choices=SIDES)
    parser.add_argument("--together", type=int, default=64, help="lives in flight at once")
    parser.add_argument("--lives", type=int, default=512)
    parser.add_argument("--floor", action="store_true", help="profile the bare driver instead of the store")
    return parser.parse_args(namespace=Arguments())


async def profile(given: Arguments) -> str:
    side = SIDES[given.engine]
    with side.server() as server:
        async with AsyncExitStack() as stack:
            opened = _floor if given.floor else _store
            work = await opened(side, server, given, stack)
            await work()
            told = await _timed(work, server, given.lives)
            profiler = cProfile.Profile()
            profiler.enable()
            await work()
            profiler.disable()
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(SHOWN)
    return f"{told}\n{text.getvalue()}"


async def _store(_: Side, server: Served, given: Arguments, stack: AsyncExitStack) -> Work:
    url = server.new_url()
    await migrate_storage(url)
    store = TaskStore(await stack.enter_async_context(await open_storage(url)), ROOMY)
    owner = owners()
    return partial(spread, lambda: live(store, next(owner)), given.lives, given.together)


async def _floor(side: Side, server: Served, given: Arguments, stack: AsyncExitStack) -> Work:
    floor = await stack.enter_async_context(side.floor(server.new_url(), await lives()))
    floor.prepare(given.lives * RUNS)
    return partial(spread, floor.live, given.lives, given.together)


async def _timed(work: Work, server: Served, number: int) -> str:
    wall, ours, theirs = perf_counter(), process_time(), _cpu(server.pid)
    await work()
    wall, ours, theirs = perf_counter() - wall, process_time() - ours, _cpu(server.pid) - theirs
    return (
        f"{number / wall:,.0f} lives per second; CPU of a life: "
        f"{ours / number * 1e6:,.0f} us of the client, {theirs / number * 1e6:,.0f} us of the server"
    )


def _cpu(pid: int) -> float:
    """Seconds of the processor that a process and its children have used, as Linux tells."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if pid in (int(path.parent.name), int(fields[1])):
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def main() -> None:
    os.environ.update(CREDENTIALS)
    sys.stdout.write(asyncio.run(profile(arguments())))


if __name__ == "__main__":
    main()
