"""How many tasks of each status there were of late, kept in memory: what no record tells any more.

The storage knows the present, and ended tasks tell when they ended for as long as they are kept. A sampler
adds what was under way at each moment, and what has ended and is forgotten since.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import msgspec

from ..operating import Bucket
from ..operating.stats import ENDED
from ..storage import Micros
from ..storage.clock import SECOND
from ..storage.errors import StorageClosed, StorageError
from ..tasks import Status

log = logging.getLogger("perdure.web")

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
            except StorageError as error:
                log.warning("the dashboard could not take a sample: %s", error)
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

    Either may know of too few that ended: tasks are forgotten, and between two samples as many may have been
    forgotten as ended. So the larger counts. A sample sees an end up to five seconds late: what a part of the
    time already has by its tasks is not counted again in the next one.
    """
    kept = list(samples)
    last = {sample.at // width: sample.counts for sample in kept}
    rises = _rises(kept, width)
    moments: list[Moment] = []
    early: dict[Status, int] = {}
    for bucket in told:
        place = bucket.at // width
        by_tasks = {status: bucket.of(status) for status in ENDED}
        risen = {status: max(0, rises[place][status] - early.get(status, 0)) for status in ENDED}
        early = {each: max(0, by_tasks[each] - risen[each]) for each in ENDED} if place in last else {}
        ended = {status.value: max(by_tasks[status], risen[status]) for status in ENDED}
        moments.append(_moment(bucket.at, ended, last.get(place)))
    return moments


def _rises(samples: list[Sample], width: Micros) -> defaultdict[Micros, Counter[Status]]:
    """By how much the counts of ended tasks rose in each part of the time, seen by its samples."""
    rises: defaultdict[Micros, Counter[Status]] = defaultdict(Counter)
    for before, after in pairwise(samples):
        for status in ENDED:
            rises[after.at // width][status] += max(
                0, after.counts.get(status, 0) - before.counts.get(status, 0)
            )
    return rises


def _moment(at: Micros, ended: Mapping[str, int], last: Counts | None) -> Moment:
    return Moment(
        at=at,
        **ended,
        working=None if last is None else last.get(Status.WORKING, 0),
        input_required=None if last is None else last.get(Status.INPUT_REQUIRED, 0),
    )
