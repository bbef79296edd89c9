"""`python -m benchmarks.engines.profile ENGINE`: profile the client during `lifecycles`.

A profile slows everything down, and small functions the most. The CPU time per lifecycle, of client and
server, is measured without one.
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
from ..workload import ROOMY, owners, run_lifecycle
from .cases import DYNOXIDE, EXTENDDB, POSTGRES, REDIS, EngineCase, Served
from .synthetic_tasks import lifecycles

CASES = {"postgres": POSTGRES, "redis": REDIS, "dynoxide": DYNOXIDE, "extenddb": EXTENDDB}
SHOWN = 25
"""Functions in a profile."""
RUNS = 3
"""A warm-up, one that is timed, and one that is profiled."""

Work: TypeAlias = Callable[[], Awaitable[object]]


class Arguments(argparse.Namespace):
    engine: str
    together: int
    lifecycles: int
    baseline: bool


def arguments() -> Arguments:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines.profile", description=__doc__)
    parser.add_argument("engine", choices=CASES)
    parser.add_argument("--together", type=int, default=64, help="lifecycles in flight at once")
    parser.add_argument("--lifecycles", type=int, default=512)
    parser.add_argument(
        "--baseline", action="store_true", help="profile the bare driver instead of the store"
    )
    return parser.parse_args(namespace=Arguments())


async def profile(given: Arguments) -> str:
    case = CASES[given.engine]
    with case.server() as server:
        async with AsyncExitStack() as stack:
            opened = _baseline if given.baseline else _store
            work = await opened(case, server, given, stack)
            await work()
            text = await _timed(work, server, given.lifecycles)
            profiler = cProfile.Profile()
            profiler.enable()
            await work()
            profiler.disable()
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(SHOWN)
    return f"{text}\n{text.getvalue()}"


async def _store(_: EngineCase, server: Served, given: Arguments, stack: AsyncExitStack) -> Work:
    url = server.new_url()
    await migrate_storage(url)
    storage = await stack.enter_async_context(await open_storage(url))
    store = TaskStore(storage, ROOMY, application="benchmarks")
    owner = owners()
    return partial(spread, lambda: run_lifecycle(store, next(owner)), given.lifecycles, given.together)


async def _baseline(case: EngineCase, server: Served, given: Arguments, stack: AsyncExitStack) -> Work:
    baseline = await stack.enter_async_context(case.baseline(server.new_url(), await lifecycles()))
    baseline.prepare(given.lifecycles * RUNS)
    return partial(spread, baseline.run_lifecycle, given.lifecycles, given.together)


async def _timed(work: Work, server: Served, number: int) -> str:
    wall, ours, theirs = perf_counter(), process_time(), _cpu(server.pid)
    await work()
    wall, ours, theirs = perf_counter() - wall, process_time() - ours, _cpu(server.pid) - theirs
    return (
        f"{number / wall:,.0f} lifecycles per second; CPU of a lifecycle: "
        f"{ours / number * 1e6:,.0f} us of the client, {theirs / number * 1e6:,.0f} us of the server"
    )


def _cpu(pid: int) -> float:
    """Return the CPU seconds of a process and its children, from /proc."""
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
