"""`make bench`: measure everything, print one table, and write it into RESULTS.md.

`--quick` runs small sizes to see that all of it works; its numbers are too rough to be kept. `--only`
measures a part of it (`store`, `runtime`, `wire`, `engines`, `feeds` or `dashboard`), prints that, and leaves
RESULTS.md as it is.
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
from .report import Findings, machine, measured, render, report
from .wire import comparison

RESULTS = Path(__file__).with_name("RESULTS.md")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much of each is run."""

    lifecycles: sqlite_store.Effort
    calls: store_overhead.Effort
    pages: listing.Effort
    kept: footprint.Effort
    runs: runtime_overhead.Effort
    queue: claims.Effort
    waits: wait_latency.Effort
    rest: idle_worker.Effort
    wire: comparison.Effort
    engines: engines.Effort
    cycles: cycles.Effort
    crowd: scale.Effort
    links: links.Effort
    dashboard: dashboard.Effort


FULL = Plan(
    lifecycles=sqlite_store.Effort(alone=32, together=512, rounds=25),
    calls=store_overhead.Effort(calls=2000, rounds=25),
    pages=listing.Effort(stored=(1000, 100_000, 1_000_000), in_memory=(1000, 100_000), calls=20, rounds=15),
    kept=footprint.Effort(tasks=50_000),
    runs=runtime_overhead.Effort(alone=32, alone_in_memory=512, together=512, rounds=25),
    queue=claims.Effort(tasks=960, rounds=7),
    waits=wait_latency.Effort(tries=300),
    rest=idle_worker.Effort(seconds=20),
    wire=comparison.Effort(tasks={1: 100, 16: 320, 64: 640}, rounds=9, jobs=10),
    engines=engines.Effort(
        lifecycles=lifecycles.Effort(lives={1: 32, 64: 512, 512: 1024}, rounds=11),
        fewer_lifecycles=lifecycles.Effort(lives={1: 16, 64: 128, 512: 512}, rounds=5),
        filled=(1000, 100_000, 1_000_000),
        pages=pages.Effort(calls=5, rounds=61),
        timers=timers.Effort(calls=5, rounds=61, claims=25),
    ),
    cycles=cycles.Effort(accounts=342, first=5, idle=9),
    crowd=scale.Effort(accounts=100_000, hours=6),
    links=links.Effort(days=31, posts=15_000, rounds=15),
    dashboard=dashboard.Effort(stored=100_000, first=9, tasks=6144, rounds=9),
)
QUICK = Plan(
    lifecycles=sqlite_store.Effort(alone=16, together=256, rounds=5),
    calls=store_overhead.Effort(calls=1000, rounds=11),
    pages=listing.Effort(stored=(1000, 20_000), in_memory=(1000, 20_000), calls=10, rounds=5),
    kept=footprint.Effort(tasks=5000),
    runs=runtime_overhead.Effort(alone=16, alone_in_memory=128, together=256, rounds=5),
    queue=claims.Effort(tasks=256, rounds=1),
    waits=wait_latency.Effort(tries=50),
    rest=idle_worker.Effort(seconds=10),
    wire=comparison.Effort(tasks={1: 30, 16: 96, 64: 192}, rounds=3, jobs=3),
    engines=engines.Effort(
        lifecycles=lifecycles.Effort(lives={1: 16, 64: 256, 512: 512}, rounds=3),
        fewer_lifecycles=lifecycles.Effort(lives={1: 8, 64: 64}, rounds=2),
        filled=(1000, 20_000),
        pages=pages.Effort(calls=3, rounds=15),
        timers=timers.Effort(calls=3, rounds=15, claims=11),
    ),
    cycles=cycles.Effort(accounts=342, first=2, idle=3),
    crowd=scale.Effort(accounts=2000, hours=8),
    links=links.Effort(days=31, posts=300, rounds=3),
    dashboard=dashboard.Effort(stored=20_000, first=3, tasks=512, rounds=3),
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


async def measure_store(plan: Plan, folder: Path) -> Findings:
    say("lives of tasks on SQLite ...")
    lines = await sqlite_store.measure(folder, plan.lifecycles)
    say("the store's own code ...")
    lines += await store_overhead.measure(plan.calls)
    say("long listings ...")
    lines += await listing.measure(folder, plan.pages)
    say("memory ...")
    return Findings(lines=[*lines, await footprint.measure(plan.kept)])


async def measure_runtime(plan: Plan, folder: Path) -> Findings:
    say("runs ...")
    lines = await runtime_overhead.measure(folder, plan.runs)
    say("claims ...")
    lines += await claims.measure(folder, plan.queue)
    say("reactions ...")
    lines += await wait_latency.measure(folder, plan.waits)
    say("idle workers ...")
    return Findings(lines=[*lines, *idle_worker.measure(folder, plan.rest)])


async def measure_wire(plan: Plan, folder: Path) -> Findings:
    say("the wire ...")
    return await comparison.measure(folder, plan.wire)


async def measure_engines(plan: Plan, _: Path) -> Findings:
    return await engines.measure(plan.engines, say)


async def measure_feeds(plan: Plan, folder: Path) -> Findings:
    say("cycles of feeds ...")
    lines = await cycles.measure(folder, plan.cycles)
    say("a crowd of accounts ...")
    more, sheets = await asyncio.to_thread(scale.measure, plan.crowd)
    say("links of a month ...")
    more += await links.measure(folder, plan.links)
    return Findings(lines=[*lines, *more], sheets=sheets)


async def measure_dashboard(plan: Plan, folder: Path) -> Findings:
    say("the dashboard ...")
    return Findings(lines=await dashboard.measure(folder, plan.dashboard))


PARTS: dict[str, Callable[[Plan, Path], Awaitable[Findings]]] = {
    "store": measure_store,
    "runtime": measure_runtime,
    "wire": measure_wire,
    "engines": measure_engines,
    "feeds": measure_feeds,
    "dashboard": measure_dashboard,
}


async def measure(plan: Plan, folder: Path, only: str | None) -> Findings:
    findings = Findings()
    for name, part in PARTS.items():
        if only in (None, name):
            (folder / name).mkdir()
            findings += await part(plan, folder / name)
    return findings


def say(text: str) -> None:
    """On the other stream, so that the table can be taken alone."""
    sys.stderr.write(f"{text}\n")


def main() -> None:
    given = arguments()
    plan = QUICK if given.quick else FULL
    plan = replace(plan, wire=replace(plan.wire, redis=given.redis))
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        measured_on = machine(folder)
        findings = asyncio.run(measure(plan, folder, given.only))
    sys.stdout.write(f"{measured(measured_on)}\n\n{render(findings)}\n")
    if not given.quick and given.only is None:
        RESULTS.write_text(report(findings, measured_on), encoding="utf-8")


main()
