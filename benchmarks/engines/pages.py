"""The first page of a long listing compared with its last: one owner (half of the tasks), and all owners."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from perdure.storage import Position, Record, Storage
from perdure.storage.time_types import system_clock
from perdure.tasks.owner import partition_of
from perdure.tasks.task_snapshot import TASKS

from ..report import ResultRow, Target, micros
from ..timing import Contender, race, ratio
from ..workload import ANA

PAGE = 50
SCOPES = {"of one owner": partition_of("benchmarks", ANA, ""), "of all": None}


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The calls per round, and the number of rounds."""

    calls: int
    rounds: int


async def measure(
    name: str, storage: Storage, number: int, workload: Workload, target: Target | None
) -> list[ResultRow]:
    """Return a row for each scope, on a filled storage."""
    return [
        await _compare(f"{name}, {number:,} tasks, page {which}", storage, partition, workload, target)
        for which, partition in SCOPES.items()
    ]


async def _compare(
    what: str, storage: Storage, partition: str | None, workload: Workload, target: Target | None
) -> ResultRow:
    *newest, before = await _page(storage, partition, None, limit=PAGE + 1, descending=True)
    oldest = await _page(storage, partition, None)
    firsts, lasts = await race(
        [
            _contender(storage, partition, None, oldest, workload.calls),
            _contender(storage, partition, before.position, newest[::-1], workload.calls),
        ],
        workload.rounds,
    )
    return ResultRow(
        what=f"{what}: last / first",
        baseline=micros(median(firsts) / workload.calls),
        subject=micros(median(lasts) / workload.calls),
        ratio=ratio(lasts, firsts),
        target=target,
    )


def _contender(
    storage: Storage, partition: str | None, after: Position | None, expected: Sequence[Record], calls: int
) -> Contender:
    assert len(expected) == PAGE
    ends = expected[0].key, expected[-1].key

    async def run() -> None:
        for _ in range(calls):
            found = await _page(storage, partition, after)
            assert (found[0].key, found[-1].key) == ends

    return run


async def _page(
    storage: Storage,
    partition: str | None,
    after: Position | None,
    limit: int = PAGE,
    *,
    descending: bool = False,
) -> list[Record]:
    now = system_clock()
    return await storage.page(TASKS, partition, after=after, limit=limit, descending=descending, now=now)
