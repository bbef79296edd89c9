"""What a worker asks of a lane in which very many tasks wait, against one in which few do.

It asks while nothing is due and while everything is, and it claims: it asks for as many as a worker claims at
once, and takes each of them, with a lease, in commits that are in flight together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import count
from statistics import median

import msgspec

from perdure.runtime.intake import AT_ONCE
from perdure.runtime.lease import Holder
from perdure.storage import Micros, Record, Storage
from perdure.storage.clock import system_clock
from perdure.tasks import Snapshot, TaskStore, edits

from ..report import Line, at_most, micros
from ..timing import Contender, Seconds, race, ratio
from ..workload import ROOMY
from .synthetic_tasks import LANE

LEASE: Micros = 3_600_000_000


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much is run: calls of one round, and rounds; and rounds in which 16 tasks each are claimed, which
    are to be far fewer than there are in the small lane.
    """

    calls: int
    rounds: int
    claims: int


async def measure(name: str, filled: Mapping[int, Storage], effort: Effort) -> list[Line]:
    """The storages by how many tasks they are filled with."""
    few, many = min(filled), max(filled)
    lanes = [_Lane(filled[few]), _Lane(filled[many])]
    assert effort.claims * AT_ONCE < few // 2, effort
    early = [await lane.first() - 1 for lane in lanes]
    asking = [lane.asking(until, 0, effort.calls) for lane, until in zip(lanes, early, strict=True)]
    idle = await race(asking, effort.rounds)
    busy = await race([lane.asking(system_clock(), AT_ONCE, effort.calls) for lane in lanes], effort.rounds)
    claims = await race([lane.claim for lane in lanes], effort.claims)
    what = f"{name}, a lane of {many:,} / of {few:,}"
    return [
        _line(f"{what}: nothing is due", effort.calls, idle),
        _line(f"{what}: {AT_ONCE} of all that are due", effort.calls, busy),
        _line(f"{what}: {AT_ONCE} are claimed", 1, claims),
    ]


def _line(what: str, calls: int, seconds: Sequence[Seconds]) -> Line:
    few, many = seconds
    return Line(
        what=what,
        floor=micros(median(few) / calls),
        subject=micros(median(many) / calls),
        ratio=ratio(many, few),
        target=at_most(1.3),
    )


class _Lane:
    """The lane of a storage that was filled, and a worker who looks at it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._store = TaskStore(storage, ROOMY)
        self._names = count()

    async def first(self) -> Micros:
        """When the first of its tasks was due."""
        [record] = await self._due(system_clock(), 1)
        return record.wake_at or 0

    def asking(self, until: Micros, expected: int, calls: int) -> Contender:
        async def run() -> None:
            for _ in range(calls):
                assert len(await self._due(until, AT_ONCE)) == expected

        return run

    async def claim(self) -> None:
        found = await self._due(system_clock(), AT_ONCE)
        claimed = await asyncio.gather(*map(self._take, found))
        assert len(claimed) == AT_ONCE

    async def _due(self, until: Micros, limit: int) -> list[Record]:
        return await self._storage.due(LANE, until=until, limit=limit, now=system_clock())

    async def _take(self, record: Record) -> Snapshot:
        holder = Holder(f"worker#{next(self._names)}", LEASE, system_clock)
        return await self._store.edit(
            Snapshot.from_record(record),
            lambda task, now, _: edits.claim(task, now=now),
            lease=lambda following: holder.take(following, None),
        )
