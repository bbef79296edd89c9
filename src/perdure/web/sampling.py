"""How many tasks of each status there were of late, kept in memory: what no record tells any more.

The storage knows the present, and ended tasks tell when they ended for as long as they are kept. A sampler
adds what was under way at each moment, and what has ended and is forgotten since.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import msgspec

from ..operating import Bucket
from ..operating.figures import ENDED
from ..storage import Micros
from ..storage.errors import StorageClosed
from ..tasks import Status

log = logging.getLogger("perdure.web")

SECOND: Micros = 1_000_000
EVERY = 5
"""Seconds between two samples."""
FINE = 3600 // EVERY
"""Samples that are kept as they were taken: an hour."""
COARSE_EVERY = 60 * SECOND
COARSE = 24 * 60
"""Samples that are kept of each minute before: a day."""

Counts = Mapping[Status, int]


class Sample(msgspec.Struct, frozen=True):
    at: Micros
    counts: Counts


class Sampler:
    """Use it within `running`."""

    def __init__(self, counts: Callable[[], Awaitable[Counts]], clock: Callable[[], Micros]) -> None:
        self._counts = counts
        self._clock = clock
        self._fine: deque[Sample] = deque(maxlen=FINE)
        self._coarse: deque[Sample] = deque(maxlen=COARSE)

    @property
    def samples(self) -> list[Sample]:
        """By time: each minute of a day, then each five seconds of the last hour."""
        first = self._fine[0].at if self._fine else 0
        return [*(each for each in self._coarse if each.at < first), *self._fine]

    async def take(self) -> None:
        """Look once. Time that seems to have gone back is passed over."""
        sample = Sample(self._clock(), await self._counts())
        if self._fine and sample.at <= self._fine[-1].at:
            return
        self._fine.append(sample)
        if not self._coarse or sample.at >= self._coarse[-1].at + COARSE_EVERY:
            self._coarse.append(sample)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        taking = asyncio.create_task(self._take_forever())
        try:
            yield
        finally:
            taking.cancel()
            with suppress(asyncio.CancelledError):
                await taking

    async def _take_forever(self) -> None:
        while True:
            try:
                await self.take()
            except StorageClosed:
                return
            except Exception:
                log.exception("the dashboard could not take a sample")
            await asyncio.sleep(EVERY)


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of time: what ended in it, and what was under way at its end, where that is known."""

    at: Micros
    completed: int
    failed: int
    cancelled: int
    working: int | None
    input_required: int | None


def moments_of(told: Iterable[Bucket], samples: Iterable[Sample], width: Micros) -> list[Moment]:
    """What ended tasks tell, and what was sampled, side by side.

    Both may know of too few that ended: tasks are forgotten, and between two samples as many may have been
    forgotten as ended. Neither knows of too many, so the larger is right, or nearer to it.
    """
    by_place: dict[Micros, list[Sample]] = {}
    rises: dict[Micros, dict[Status, int]] = {}
    kept = list(samples)
    for sample in kept:
        by_place.setdefault(sample.at // width, []).append(sample)
    for before, after in pairwise(kept):
        risen = rises.setdefault(after.at // width, dict.fromkeys(ENDED, 0))
        for status in ENDED:
            risen[status] += max(0, after.counts.get(status, 0) - before.counts.get(status, 0))
    return [
        _moment(bucket, by_place.get(bucket.at // width), rises.get(bucket.at // width)) for bucket in told
    ]


def _moment(bucket: Bucket, sampled: list[Sample] | None, risen: Mapping[Status, int] | None) -> Moment:
    risen = risen or {}
    last = sampled[-1].counts if sampled else None
    return Moment(
        at=bucket.at,
        completed=max(bucket.completed, risen.get(Status.COMPLETED, 0)),
        failed=max(bucket.failed, risen.get(Status.FAILED, 0)),
        cancelled=max(bucket.cancelled, risen.get(Status.CANCELLED, 0)),
        working=None if last is None else last.get(Status.WORKING, 0),
        input_required=None if last is None else last.get(Status.INPUT_REQUIRED, 0),
    )
