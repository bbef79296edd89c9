"""The queries of a worker on a lane with very many queued tasks, compared with a lane with few.

It queries while nothing is due, and while everything is, and it claims: it reads as many tasks as a worker
claims together, and claims each of them, with a lease, in concurrent commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import count
from statistics import median

import msgspec

from perdure.runtime.intake import MAX_CLAIMS_AT_ONCE
from perdure.runtime.lease import Holder
from perdure.storage import Micros, Record, Storage
from perdure.storage.time_types import system_clock
from perdure.tasks import Snapshot, TaskStore, edits

from ..report import ResultRow, at_most, micros
from ..timing import Contender, Seconds, race, ratio
from ..workload import ROOMY
from .synthetic_tasks import LANE

LEASE: Micros = 3_600_000_000


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The calls per round, and the number of rounds; and the rounds that claim 16 tasks each. The claims must
    be far fewer than the tasks in the small lane.
    """

    calls: int
    rounds: int
    claims: int


async def measure(name: str, filled: Mapping[int, Storage], workload: Workload) -> list[ResultRow]:
    """Measure storages, given by the number of tasks in them."""
    few, many = min(filled), max(filled)
    lanes = [_Lane(filled[few]), _Lane(filled[many])]
    assert workload.claims * MAX_CLAIMS_AT_ONCE < few // 2, workload
    early = [await lane.first() - 1 for lane in lanes]
    asking = [lane.asking(until, 0, workload.calls) for lane, until in zip(lanes, early, strict=True)]
    idle = await race(asking, workload.rounds)
    busy = await race(
        [lane.asking(system_clock(), MAX_CLAIMS_AT_ONCE, workload.calls) for lane in lanes], workload.rounds
    )
    claims = await race([lane.claim for lane in lanes], workload.claims)
    what = f"{name}, a lane of {many:,} / of {few:,}"
    return [
        _row(f"{what}: nothing is due", workload.calls, idle),
        _row(f"{what}: {MAX_CLAIMS_AT_ONCE} of all that are due", workload.calls, busy),
        _row(f"{what}: {MAX_CLAIMS_AT_ONCE} are claimed", 1, claims),
    ]


def _row(what: str, calls: int, seconds: Sequence[Seconds]) -> ResultRow:
    few, many = seconds
    return ResultRow(
        what=what,
        baseline=micros(median(few) / calls),
        subject=micros(median(many) / calls),
        ratio=ratio(many, few),
        target=at_most(1.3),
    )


class _Lane:
    """The lane of a filled storage, as a worker queries it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._store = TaskStore(storage, ROOMY, application="benchmarks")
        self._names = count()

    async def first(self) -> Micros:
        """Return when its first task was due."""
        [record] = await self._due(system_clock(), 1)
        return record.wake_at or 0

    def asking(self, until: Micros, expected: int, calls: int) -> Contender:
        async def run() -> None:
            for _ in range(calls):
                assert len(await self._due(until, MAX_CLAIMS_AT_ONCE)) == expected

        return run

    async def claim(self) -> None:
        found = await self._due(system_clock(), MAX_CLAIMS_AT_ONCE)
        claimed = await asyncio.gather(*map(self._take, found))
        assert len(claimed) == MAX_CLAIMS_AT_ONCE

    async def _due(self, until: Micros, limit: int) -> list[Record]:
        return await self._storage.due(LANE, until=until, limit=limit, now=system_clock())

    async def _take(self, record: Record) -> Snapshot:
        holder = Holder(f"worker#{next(self._names)}", "benchmarks", LEASE, system_clock)
        return await self._store.edit(
            Snapshot.from_record(record),
            lambda task, now, _: edits.claim(task, now=now),
            lease=lambda following: holder.take(following, None),
        )
