"""The first page of a long listing against its last: of one owner, who has half of the tasks, and of all."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from perdure.storage import Position, Record, Storage
from perdure.storage.clock import system_clock
from perdure.tasks.owner import partition_of
from perdure.tasks.snapshot import TASKS

from ..report import Line, Target, micros
from ..timing import Contender, race, ratio
from ..workload import ANA

PAGE = 50
SCOPES = {"of one owner": partition_of(ANA, ""), "of all": None}


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much is run: calls of one round, and rounds."""

    calls: int
    rounds: int


async def measure(
    name: str, storage: Storage, number: int, effort: Effort, target: Target | None
) -> list[Line]:
    """A line for each scope, on a storage that is filled."""
    return [
        await _compare(f"{name}, {number:,} tasks, page {which}", storage, partition, effort, target)
        for which, partition in SCOPES.items()
    ]


async def _compare(
    what: str, storage: Storage, partition: str | None, effort: Effort, target: Target | None
) -> Line:
    *newest, before = await _page(storage, partition, None, limit=PAGE + 1, descending=True)
    oldest = await _page(storage, partition, None)
    firsts, lasts = await race(
        [
            _contender(storage, partition, None, oldest, effort.calls),
            _contender(storage, partition, before.position, newest[::-1], effort.calls),
        ],
        effort.rounds,
    )
    return Line(
        what=f"{what}: last / first",
        floor=micros(median(firsts) / effort.calls),
        subject=micros(median(lasts) / effort.calls),
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
