"""Whole lifecycles of tasks on a server, compared with the same writes and the read by the bare driver.

Store and baseline take turns on one server; see the `baseline_*` modules. Both wait until the server has
flushed their writes: PostgreSQL by default, Valkey because it flushes its log with each write here, and the
stand-ins of DynamoDB as they are implemented.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from statistics import median

import msgspec

from perdure.storage import migrate_storage, open_storage
from perdure.tasks import TaskStore

from ..report import ResultRow, per_second
from ..timing import Contender, Seconds, race, ratio, spread
from ..workload import ROOMY, owners, run_lifecycle
from .baseline import Baseline
from .cases import EngineCase, Served
from .synthetic_tasks import lifecycles

JUDGED = 64
"""The concurrency for which the target is set."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The lifecycles per round, by concurrency, and the number of rounds."""

    lifecycles: Mapping[int, int]
    rounds: int


async def measure(case: EngineCase, server: Served, workload: Workload) -> list[ResultRow]:
    url = server.new_url()
    await migrate_storage(url)
    async with AsyncExitStack() as stack:
        store = TaskStore(
            await stack.enter_async_context(await open_storage(url)), ROOMY, application="benchmarks"
        )
        baseline = await stack.enter_async_context(case.baseline(server.new_url(), await lifecycles()))
        return [
            await _compare(case, store, baseline, number, together, workload.rounds)
            for together, number in workload.lifecycles.items()
        ]


async def _compare(
    case: EngineCase, store: TaskStore, baseline: Baseline, number: int, together: int, rounds: int
) -> ResultRow:
    seconds = await race(
        _contenders(store, baseline, number, together), rounds, before=lambda: baseline.prepare(number)
    )
    return _row(case, number, together, *seconds)


def _contenders(store: TaskStore, baseline: Baseline, number: int, together: int) -> list[Contender]:
    owner = owners()
    return [
        lambda: spread(lambda: run_lifecycle(store, next(owner)), number, together),
        lambda: spread(baseline.run_lifecycle, number, together),
    ]


def _row(case: EngineCase, number: int, together: int, store: Seconds, baseline: Seconds) -> ResultRow:
    """Compare throughputs: the ratio is the inverse of that of the seconds."""
    how = "alone" if together == 1 else f"{together} in flight"
    return ResultRow(
        what=f"{case.name} life, {how}: store / bare driver",
        baseline=per_second(number, median(baseline)),
        subject=per_second(number, median(store)),
        ratio=ratio(baseline, store),
        target=case.target if together == JUDGED else None,
    )
