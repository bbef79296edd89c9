"""Whole lives of tasks on a server, against the same writes and the read by the bare driver.

Store and floor work on one server, in turn; what the floor does is told in the module of each driver. Both
wait until the server has flushed what they wrote, as it is set up by default (PostgreSQL), told to
(Valkey, which flushes its log with each write), or pleases (the stand-ins of DynamoDB).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from statistics import median

import msgspec

from perdure.storage import migrate_storage, open_storage
from perdure.tasks import TaskStore

from ..report import Line, per_second
from ..timing import Contender, Seconds, race, ratio, spread
from ..workload import ROOMY, live, owners
from .cases import Served, Side
from .copies import lives
from .floor import Floor

JUDGED = 64
"""Of the lives in flight at once, those on which the target is set."""


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much is run: the lives of one round by how many are in flight at once, and rounds."""

    lives: Mapping[int, int]
    rounds: int


async def measure(side: Side, server: Served, effort: Effort) -> list[Line]:
    url = server.new_url()
    await migrate_storage(url)
    async with AsyncExitStack() as stack:
        store = TaskStore(await stack.enter_async_context(await open_storage(url)), ROOMY)
        floor = await stack.enter_async_context(side.floor(server.new_url(), await lives()))
        return [
            await _compare(side, store, floor, number, together, effort.rounds)
            for together, number in effort.lives.items()
        ]


async def _compare(
    side: Side, store: TaskStore, floor: Floor, number: int, together: int, rounds: int
) -> Line:
    seconds = await race(
        _contenders(store, floor, number, together), rounds, before=lambda: floor.prepare(number)
    )
    return _line(side, number, together, *seconds)


def _contenders(store: TaskStore, floor: Floor, number: int, together: int) -> list[Contender]:
    owner = owners()
    return [
        lambda: spread(lambda: live(store, next(owner)), number, together),
        lambda: spread(floor.live, number, together),
    ]


def _line(side: Side, number: int, together: int, store: Seconds, floor: Seconds) -> Line:
    """A life's throughput is the inverse of its seconds, so the ratio turns round."""
    how = "alone" if together == 1 else f"{together} in flight"
    return Line(
        what=f"{side.name} life, {how}: store / bare driver",
        floor=per_second(number, median(floor)),
        subject=per_second(number, median(store)),
        ratio=ratio(floor, store),
        target=side.target if together == JUDGED else None,
    )
