"""Measures each engine on its own server, whose files are in the folder for temporary files."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from time import perf_counter

import msgspec

from perdure.storage import Storage, open_storage
from perdure.storage.kit.servers import CREDENTIALS

from ..report import InfoTable, ResultRow, Results, at_most
from . import lifecycles, pages, timers
from .cases import DYNOXIDE, EXTENDDB, POSTGRES, REDIS, EngineCase, Served
from .synthetic_tasks import fill

LARGE = (POSTGRES, REDIS)
"""Engines that are measured with long listings and lanes."""
STAND_INS = (DYNOXIDE, EXTENDDB)


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The lifecycles, fewer on the stand-ins of DynamoDB, and the numbers of tasks in the filled storages."""

    lifecycles: lifecycles.Workload
    fewer_lifecycles: lifecycles.Workload
    filled: tuple[int, ...]
    pages: pages.Workload
    timers: timers.Workload


async def measure(workload: Workload, print_progress: Callable[[str], None]) -> Results:
    results = Results()
    loads: list[tuple[str, ...]] = []
    for case in LARGE:
        with case.server() as server:
            print_progress(f"{case.name}: lifecycles ...")
            results += Results(rows=await lifecycles.measure(case, server, workload.lifecycles))
            print_progress(f"{case.name}: long listings and lanes ...")
            results += Results(rows=await _measure_filled(case, server, workload, loads))
    os.environ.update(CREDENTIALS)
    for case in STAND_INS:
        with case.server() as server:
            print_progress(f"{case.name}: lifecycles ...")
            results += Results(rows=await lifecycles.measure(case, server, workload.fewer_lifecycles))
    return results + Results(tables=[_table(loads)])


async def _measure_filled(
    case: EngineCase, server: Served, workload: Workload, loads: list[tuple[str, ...]]
) -> list[ResultRow]:
    """Measure filled storages. Only the longest listing has a target."""
    rows: list[ResultRow] = []
    longest = max(workload.filled)
    async with AsyncExitStack() as stack:
        storages: dict[int, Storage] = {}
        for number in workload.filled:
            url = server.new_url()
            started = perf_counter()
            await fill(url, number)
            loads.append(_load(case, number, perf_counter() - started))
            storage = await stack.enter_async_context(await open_storage(url))
            target = at_most(1.2) if number == longest else None
            rows += await pages.measure(case.name, storage, number, workload.pages, target)
            storages[number] = storage
        return [*rows, *await timers.measure(case.name, storages, workload.timers)]


def _load(case: EngineCase, number: int, seconds: float) -> tuple[str, ...]:
    return case.name, f"{number:,}", f"{seconds:,.1f} s", f"{number / seconds:,.0f}"


def _table(loads: list[tuple[str, ...]]) -> InfoTable:
    return InfoTable(
        text="How the storages were filled: in commits of 25 tasks each, of 256 callers at once.",
        headings=("engine", "tasks", "took", "per second"),
        rows=tuple(loads),
    )
