"""`make bench`: measure everything, print one table, and write it into RESULTS.md.

`--quick` runs small sizes to check that everything works; its numbers are too rough to keep. `--only`
measures and prints one part (`store`, `runtime`, `wire`, `engines`, `feeds` or `dashboard`). Neither changes
RESULTS.md.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from . import (
    claims,
    dashboard,
    footprint,
    idle_worker,
    listing,
    runtime_overhead,
    sqlite_store,
    store_overhead,
    wait_latency,
)
from .engines import comparison as engines
from .engines import lifecycles, pages, timers
from .feeds import cycles, links, scale
from .report import Results, machine, measured, render, report
from .wire import comparison

RESULTS = Path(__file__).with_name("RESULTS.md")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The workload of each part."""

    lifecycles: sqlite_store.Workload
    calls: store_overhead.Workload
    pages: listing.Workload
    kept: footprint.Workload
    runs: runtime_overhead.Workload
    queue: claims.Workload
    waits: wait_latency.Workload
    rest: idle_worker.Workload
    wire: comparison.Workload
    engines: engines.Workload
    cycles: cycles.Workload
    crowd: scale.Workload
    links: links.Workload
    dashboard: dashboard.Workload


FULL = Plan(
    lifecycles=sqlite_store.Workload(alone=32, together=512, rounds=25),
    calls=store_overhead.Workload(calls=2000, rounds=25),
    pages=listing.Workload(stored=(1000, 100_000, 1_000_000), in_memory=(1000, 100_000), calls=20, rounds=15),
    kept=footprint.Workload(tasks=50_000),
    runs=runtime_overhead.Workload(alone=32, alone_in_memory=512, together=512, rounds=25),
    queue=claims.Workload(tasks=960, rounds=7),
    waits=wait_latency.Workload(tries=300),
    rest=idle_worker.Workload(seconds=20),
    wire=comparison.Workload(tasks={1: 100, 16: 320, 64: 640}, rounds=9, jobs=10),
    engines=engines.Workload(
        lifecycles=lifecycles.Workload(lifecycles={1: 32, 64: 512, 512: 1024}, rounds=11),
        fewer_lifecycles=lifecycles.Workload(lifecycles={1: 16, 64: 128, 512: 512}, rounds=5),
        filled=(1000, 100_000, 1_000_000),
        pages=pages.Workload(calls=5, rounds=61),
        timers=timers.Workload(calls=5, rounds=61, claims=25),
    ),
    cycles=cycles.Workload(accounts=342, first=5, idle=9),
    crowd=scale.Workload(accounts=100_000, hours=6),
    links=links.Workload(days=31, posts=15_000, rounds=15),
    dashboard=dashboard.Workload(stored=100_000, first=9, tasks=6144, rounds=9),
)
QUICK = Plan(
    lifecycles=sqlite_store.Workload(alone=16, together=256, rounds=5),
    calls=store_overhead.Workload(calls=1000, rounds=11),
    pages=listing.Workload(stored=(1000, 20_000), in_memory=(1000, 20_000), calls=10, rounds=5),
    kept=footprint.Workload(tasks=5000),
    runs=runtime_overhead.Workload(alone=16, alone_in_memory=128, together=256, rounds=5),
    queue=claims.Workload(tasks=256, rounds=1),
    waits=wait_latency.Workload(tries=50),
    rest=idle_worker.Workload(seconds=10),
    wire=comparison.Workload(tasks={1: 30, 16: 96, 64: 192}, rounds=3, jobs=3),
    engines=engines.Workload(
        lifecycles=lifecycles.Workload(lifecycles={1: 16, 64: 256, 512: 512}, rounds=3),
        fewer_lifecycles=lifecycles.Workload(lifecycles={1: 8, 64: 64}, rounds=2),
        filled=(1000, 20_000),
        pages=pages.Workload(calls=3, rounds=15),
        timers=timers.Workload(calls=3, rounds=15, claims=11),
    ),
    cycles=cycles.Workload(accounts=342, first=2, idle=3),
    crowd=scale.Workload(accounts=2000, hours=8),
    links=links.Workload(days=31, posts=300, rounds=3),
    dashboard=dashboard.Workload(stored=20_000, first=3, tasks=512, rounds=3),
)


class Arguments(argparse.Namespace):
    quick: bool
    only: str | None
    folder: Path | None
    redis: str | None


def arguments() -> Arguments:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, and RESULTS.md stays as it is")
    parser.add_argument("--only", choices=PARTS, help="a part, and RESULTS.md stays as it is")
    parser.add_argument("--folder", type=Path, help="where the files go: on the disk that is to be measured")
    parser.add_argument("--redis", metavar="URL", help="measure fastmcp-tasks on this Redis too")
    return parser.parse_args(namespace=Arguments())


async def measure_store(plan: Plan, folder: Path) -> Results:
    print_progress("lifecycles of tasks on SQLite ...")
    rows = await sqlite_store.measure(folder, plan.lifecycles)
    print_progress("the store's own code ...")
    rows += await store_overhead.measure(plan.calls)
    print_progress("long listings ...")
    rows += await listing.measure(folder, plan.pages)
    print_progress("memory ...")
    return Results(rows=[*rows, await footprint.measure(plan.kept)])


async def measure_runtime(plan: Plan, folder: Path) -> Results:
    print_progress("runs ...")
    rows = await runtime_overhead.measure(folder, plan.runs)
    print_progress("claims ...")
    rows += await claims.measure(folder, plan.queue)
    print_progress("reactions ...")
    rows += await wait_latency.measure(folder, plan.waits)
    print_progress("idle workers ...")
    return Results(rows=[*rows, *idle_worker.measure(folder, plan.rest)])


async def measure_wire(plan: Plan, folder: Path) -> Results:
    print_progress("the wire ...")
    return await comparison.measure(folder, plan.wire)


async def measure_engines(plan: Plan, _: Path) -> Results:
    return await engines.measure(plan.engines, print_progress)


async def measure_feeds(plan: Plan, folder: Path) -> Results:
    print_progress("cycles of feeds ...")
    rows = await cycles.measure(folder, plan.cycles)
    print_progress("a crowd of accounts ...")
    more, tables = await asyncio.to_thread(scale.measure, plan.crowd)
    print_progress("links of a month ...")
    more += await links.measure(folder, plan.links)
    return Results(rows=[*rows, *more], tables=tables)


async def measure_dashboard(plan: Plan, folder: Path) -> Results:
    print_progress("the dashboard ...")
    return Results(rows=await dashboard.measure(folder, plan.dashboard))


PARTS: dict[str, Callable[[Plan, Path], Awaitable[Results]]] = {
    "store": measure_store,
    "runtime": measure_runtime,
    "wire": measure_wire,
    "engines": measure_engines,
    "feeds": measure_feeds,
    "dashboard": measure_dashboard,
}


async def measure(plan: Plan, folder: Path, only: str | None) -> Results:
    results = Results()
    for name, part in PARTS.items():
        if only in (None, name):
            (folder / name).mkdir()
            results += await part(plan, folder / name)
    return results


def print_progress(text: str) -> None:
    """Write to standard error, so that standard output has only the table."""
    sys.stderr.write(f"{text}\n")


def main() -> None:
    given = arguments()
    plan = QUICK if given.quick else FULL
    plan = replace(plan, wire=replace(plan.wire, redis=given.redis))
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        measured_on = machine(folder)
        results = asyncio.run(measure(plan, folder, given.only))
    sys.stdout.write(f"{measured(measured_on)}\n\n{render(results)}\n")
    if not given.quick and given.only is None:
        RESULTS.write_text(report(results, measured_on), encoding="utf-8")


if __name__ == "__main__":
    main()
