"""Computes statistics: task counts, workers, the oldest tasks, and throughput."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from statistics import median_low

import msgspec

from ..storage import Micros, Position, Storage, Tag, is_last_page
from ..storage.body_format import FORMAT_FIELD
from ..storage.time_types import Interval, Timestamp
from ..tasks import Snapshot, Status
from ..tasks.listing import read_task
from ..tasks.task_record import TASK_FORMAT
from ..tasks.task_snapshot import TASKS
from .listing import iterate_records
from .views import TAGS, ClaimSummary, TaskSummary

FINISHED_STATUSES = tuple(status for status in Status if status.is_terminal)
MAX_SCANNED = 1000
"""Maximum number of tasks that a query reads for each storage tag (roughly, each status)."""
MAX_READ_CHARS = 16 * 1024 * 1024
"""A query stops when it has read this many characters of task records."""
FIRST_PAGE_SIZE = 20
"""Number of records in the first page of a query. The average size of these records determines how many
records the next page has."""
PAGE_SIZE = 200


class WorkerSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that has claimed at least one task. Workers without claims are not listed."""

    name: str
    claimed: int
    """Number of tasks that the worker has claimed."""
    lease_until: Timestamp
    """The time at which the last of the worker's leases expires, unless that lease is renewed."""
    expired_leases: int
    """Number of leases that the worker did not renew in time. If it is not 0, the worker is slow or lost."""


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """The number of tasks that finished in one interval of a time window, by status."""

    start: Timestamp
    completed: int = 0
    failed: int = 0
    cancelled: int = 0

    def count(self, status: Status) -> int:
        """Return the number of tasks that finished with this status."""
        return int(getattr(self, status.value))

    @property
    def finished(self) -> int:
        return sum(self.count(status) for status in FINISHED_STATUSES)


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics about the tasks that finished in a time window and have not expired."""

    since: Timestamp
    until: Timestamp
    buckets: tuple[Bucket, ...]
    """The number of finished tasks in each interval of the window, oldest first. All intervals have the same
    length."""
    median_duration: Interval | None
    """The median time from creation to finish. `None` if no task finished in the window."""
    is_complete: bool
    """Whether all finished tasks in the storage were read. If not, the counts may be too low."""

    @property
    def finished(self) -> int:
        return sum(bucket.finished for bucket in self.buckets)

    @property
    def per_minute(self) -> float:
        return self.finished * 60_000_000 / max(1, self.until - self.since)


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics about all tasks."""

    counts: dict[Status, int]
    """Number of tasks in each status. A task whose result reports an error counts as failed."""
    claimed: int
    """Number of active tasks that are claimed by workers."""
    unclaimed: int
    """Number of active tasks that no worker has claimed, including tasks that are waiting for answers."""
    oldest_queued: TaskSummary | None
    """The oldest queued task among the 1,000 oldest tasks that are queued or running. Tasks that are waiting
    to be retried count as queued. `None` if there is no such task."""
    oldest_open_question: TaskSummary | None
    """The oldest task that is waiting for the answer to a question. `None` if there is no such task."""
    workers: tuple[WorkerSummary, ...]
    expired: int
    """Number of expired tasks that have not been purged yet."""
    throughput: Throughput


async def count_tasks(storage: Storage, now: Micros) -> dict[Status, int]:
    counts = await storage.counts(TASKS, now=now)
    return {status: sum(counts.get(tag, 0) for tag in TAGS[status]) for status in Status}


async def count_expired(storage: Storage, now: Micros) -> int:
    """Return the number of expired tasks that have not been purged yet."""
    all_tasks, live_tasks = await asyncio.gather(storage.counts(TASKS, now=0), storage.counts(TASKS, now=now))
    return max(0, sum(all_tasks.values()) - sum(live_tasks.values()))


# Workers


def group_by_worker(claims: Sequence[ClaimSummary], now: Micros) -> tuple[WorkerSummary, ...]:
    by_worker: dict[str, list[ClaimSummary]] = {}
    for claim in claims:
        by_worker.setdefault(claim.worker, []).append(claim)
    return tuple(
        WorkerSummary(
            name=name,
            claimed=len(own),
            lease_until=max(claim.lease_until for claim in own),
            expired_leases=sum(claim.lease_until <= now for claim in own),
        )
        for name, own in sorted(by_worker.items())
    )


# Oldest tasks


async def oldest_queued(storage: Storage, now: Micros) -> Snapshot | None:
    """Return the oldest queued task among the 1,000 oldest tasks that are queued, running or waiting to be
    retried.
    """
    # The record of a running task has no lane (timer queue). The record of a task that is waiting to be
    # retried has a lane, and its `wake_at` is in the future.
    records = iterate_records(storage, TASKS, tag=Status.WORKING.value, max_records=MAX_SCANNED, now=now)
    async for record in records:
        is_queued = record.lane is not None and (record.wake_at or 0) <= now
        if is_queued and isinstance(task := read_task(record, Snapshot.head_of), Snapshot):
            return task
    return None


async def oldest_open_question(storage: Storage, now: Micros) -> Snapshot | None:
    records = await storage.page(TASKS, limit=1, tag=Status.INPUT_REQUIRED.value, now=now)
    task = read_task(records[0], Snapshot.head_of) if records else None
    return task if isinstance(task, Snapshot) else None


# Throughput


async def measure_throughput(
    storage: Storage, *, window: Micros, buckets: int, now: Micros, until: Micros | None = None
) -> Throughput:
    """Return the throughput in the `window` that ends at `until` (default: now).

    Finish times have no index, so this reads only the most recently created finished tasks: up to 1,000 for
    each storage tag (roughly, each status). If there are more, the counts may be too low.
    """
    tags = [(status, tag) for status in FINISHED_STATUSES for tag in TAGS[status]]
    results = await asyncio.gather(*(_newest_finished(storage, tag, now) for _, tag in tags))
    until = now if until is None else until
    since = until - window
    recent = [
        (status, task)
        for (status, _), (tasks, _) in zip(tags, results, strict=True)
        for task in tasks
        if since <= task.finished_at <= until
    ]
    durations = [task.finished_at - task.created_at for _, task in recent]
    return Throughput(
        since=since,
        until=until,
        buckets=_buckets(recent, since, window, buckets),
        median_duration=median_low(durations) if durations else None,
        is_complete=all(is_complete for _, is_complete in results),
    )


class _FinishedTask(msgspec.Struct, tag_field=FORMAT_FIELD, tag=TASK_FORMAT):
    """The fields of a finished task that are needed to compute the throughput. Others are not decoded."""

    created_at: Micros
    finished_at: Micros


_task_decoder = msgspec.json.Decoder(_FinishedTask)


async def _newest_finished(storage: Storage, tag: Tag, now: Micros) -> tuple[list[_FinishedTask], bool]:
    """Return the newest finished tasks with this tag, and whether all tasks with this tag were read."""
    found: list[_FinishedTask] = []
    after: Position | None = None
    read = chars = 0
    size = FIRST_PAGE_SIZE
    while read < MAX_SCANNED and chars < MAX_READ_CHARS:
        records = await storage.page(TASKS, after=after, limit=size, tag=tag, descending=True, now=now)
        for record in records:
            try:
                found.append(_task_decoder.decode(record.body))
            except msgspec.MsgspecError:
                continue  # damaged, or written by a newer version of perdure
        if is_last_page(records, size):
            return found, True
        after = records[-1].position
        read += len(records)
        chars += sum(len(record.body) for record in records)
        room = (MAX_READ_CHARS - chars) * read // max(1, chars)  # if the average record size stays the same
        size = max(1, min(PAGE_SIZE, room, MAX_SCANNED - read))
    return found, False


def _buckets(
    tasks: Sequence[tuple[Status, _FinishedTask]], since: Micros, window: Micros, count: int
) -> tuple[Bucket, ...]:
    counts: list[Counter[str]] = [Counter() for _ in range(count)]
    for status, task in tasks:
        counts[min(count - 1, (task.finished_at - since) * count // window)][status.value] += 1
    return tuple(Bucket(start=since + window * index // count, **each) for index, each in enumerate(counts))
