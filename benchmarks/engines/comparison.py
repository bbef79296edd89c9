"""Each engine on a server that is started for it, and that keeps its files where temporary files are."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from time import perf_counter

import msgspec

from perdure.storage import Storage, open_storage
from perdure.storage.kit.servers import CREDENTIALS

from ..report import Findings, Line, Sheet, at_most
from . import lifecycles, pages, timers
from .cases import DYNOXIDE, EXTENDDB, POSTGRES, REDIS, Served, Side
from .synthetic_tasks import fill

LARGE = (POSTGRES, REDIS)
"""Where listings and lanes are made long."""
STAND_INS = (DYNOXIDE, EXTENDDB)


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much is run: lives, fewer of them on the stand-ins, and tasks in the storages that are filled."""

    lifecycles: lifecycles.Effort
    fewer_lifecycles: lifecycles.Effort
    filled: tuple[int, ...]
    pages: pages.Effort
    timers: timers.Effort


async def measure(effort: Effort, say: Callable[[str], None]) -> Findings:
    findings = Findings()
    loads: list[tuple[str, ...]] = []
    for side in LARGE:
        with side.server() as server:
            say(f"{side.name}: lives ...")
            findings += Findings(lines=await lifecycles.measure(side, server, effort.lifecycles))
            say(f"{side.name}: long listings and lanes ...")
            findings += Findings(lines=await _measure_filled(side, server, effort, loads))
    os.environ.update(CREDENTIALS)
    for side in STAND_INS:
        with side.server() as server:
            say(f"{side.name}: lives ...")
            findings += Findings(lines=await lifecycles.measure(side, server, effort.fewer_lifecycles))
    return findings + Findings(sheets=[_sheet(loads)])


async def _measure_filled(
    side: Side, server: Served, effort: Effort, loads: list[tuple[str, ...]]
) -> list[Line]:
    """The target of pages is set on the longest listing."""
    lines: list[Line] = []
    longest = max(effort.filled)
    async with AsyncExitStack() as stack:
        storages: dict[int, Storage] = {}
        for number in effort.filled:
            url = server.new_url()
            began = perf_counter()
            await fill(url, number)
            loads.append(_load(side, number, perf_counter() - began))
            storage = await stack.enter_async_context(await open_storage(url))
            target = at_most(1.2) if number == longest else None
            lines += await pages.measure(side.name, storage, number, effort.pages, target)
            storages[number] = storage
        return [*lines, *await timers.measure(side.name, storages, effort.timers)]


def _load(side: Side, number: int, seconds: float) -> tuple[str, ...]:
    return side.name, f"{number:,}", f"{seconds:,.1f} s", f"{number / seconds:,.0f}"


def _sheet(loads: list[tuple[str, ...]]) -> Sheet:
    return Sheet(
        text="How the storages were filled: in commits of 25 tasks each, of 256 callers at once.",
        headings=("engine", "tasks", "took", "per second"),
        rows=tuple(loads),
    )
