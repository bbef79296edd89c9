"""Computes the data for the charts, and records the history of task counts that the charts need.

The storage contains only the current counts, and the finish times of tasks that have not expired. The
history, which is kept in memory, also shows how many tasks were active earlier, and includes expired tasks.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import pairwise

import anyio
import msgspec

from ..operating import Bucket
from ..operating.stats import FINISHED_STATUSES
from ..storage import Micros
from ..storage.errors import StorageClosed, StorageError
from ..storage.time_types import SECOND
from ..tasks import Status

log = logging.getLogger("perdure.web")

SAMPLE_SECONDS = 5
MAX_FINE_SAMPLES = 3600 // SAMPLE_SECONDS
"""Maximum number of recent samples: one every `SAMPLE_SECONDS` for one hour."""
COARSE_INTERVAL = 60 * SECOND
MAX_COARSE_SAMPLES = 24 * 60
"""Maximum number of older samples: one every minute for one day."""

Counts = Mapping[Status, int]


class CountSample(msgspec.Struct, frozen=True):
    """The task counts at one point in time."""

    at: Micros
    counts: Counts


class CountHistory:
    """The task counts since this process started, for up to one day. `sample_forever` collects them."""

    def __init__(self, counts: Callable[[], Awaitable[Counts]], clock: Callable[[], Micros]) -> None:
        self._counts = counts
        self._clock = clock
        self._fine: deque[CountSample] = deque(maxlen=MAX_FINE_SAMPLES)
        self._coarse: deque[CountSample] = deque(maxlen=MAX_COARSE_SAMPLES)

    @property
    def samples(self) -> list[CountSample]:
        """The samples, oldest first: one per minute of the last day, but all samples of the last hour."""
        first = self._fine[0].at if self._fine else 0
        return [*(each for each in self._coarse if each.at < first), *self._fine]

    async def sample(self) -> None:
        """Take a sample. Discard it if the clock was set back after the previous sample."""
        sample = CountSample(self._clock(), await self._counts())
        if self._fine and sample.at <= self._fine[-1].at:
            return
        self._fine.append(sample)
        if not self._coarse or sample.at >= self._coarse[-1].at + COARSE_INTERVAL:
            self._coarse.append(sample)

    async def sample_forever(self) -> None:
        while True:
            try:
                await self.sample()
            except StorageClosed:
                return
            except StorageError as error:
                log.warning("cannot read the task counts for the charts; retrying: %s", error)
            except Exception:
                log.exception("cannot read the task counts for the charts; retrying")
            await anyio.sleep(SAMPLE_SECONDS)


class ChartPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One interval of a chart: how many tasks finished in it, and how many were active at its end."""

    start: Micros
    completed: int
    failed: int
    cancelled: int
    working: int | None
    """Number of tasks with the status `working`. `None` if no sample was taken in this interval."""
    input_required: int | None
    """Number of tasks that were waiting for input. `None` if no sample was taken in this interval."""


def chart_points(
    buckets: Iterable[Bucket], samples: Iterable[CountSample], width: Micros
) -> list[ChartPoint]:
    """Combine the finish times of stored tasks with the samples.

    Both sources can miss finished tasks: stored tasks expire, and if tasks expire between two samples, the
    samples show fewer newly finished tasks. For each interval, the larger number is therefore used. A sample
    can be up to five seconds late, so a task that finishes at the end of an interval may only be seen by a
    sample in the next interval. Such a task is not counted again there.
    """
    history = list(samples)
    last = {sample.at // width: sample.counts for sample in history}
    increases = _increases(history, width)
    points: list[ChartPoint] = []
    early: Counter[Status] = Counter()
    for bucket in buckets:
        index = bucket.start // width
        active = last.get(index)
        stored = Counter({status: bucket.count(status) for status in FINISHED_STATUSES})
        sampled = increases[index] - early
        early = Counter() if active is None else stored - sampled
        finished = stored | sampled  # the larger number for each status
        points.append(
            ChartPoint(
                start=bucket.start,
                completed=finished[Status.COMPLETED],
                failed=finished[Status.FAILED],
                cancelled=finished[Status.CANCELLED],
                working=None if active is None else active.get(Status.WORKING, 0),
                input_required=None if active is None else active.get(Status.INPUT_REQUIRED, 0),
            )
        )
    return points


def _increases(samples: list[CountSample], width: Micros) -> defaultdict[Micros, Counter[Status]]:
    """Return how much the counts of finished tasks increased in each interval, based on the samples."""
    increases: defaultdict[Micros, Counter[Status]] = defaultdict(Counter)
    for before, after in pairwise(samples):
        for status in FINISHED_STATUSES:
            increases[after.at // width][status] += max(
                0, after.counts.get(status, 0) - before.counts.get(status, 0)
            )
    return increases
