"""Figures: how many tasks there are, who works, what waits the longest, and how much ends in a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from ..runtime.lease import HELD
from ..storage import Micros, Position, Record, Storage, Tag, is_last_page
from ..storage.body import FORMAT_FIELD
from ..tasks import Snapshot, Status
from ..tasks.record import TASK_FORMAT
from ..tasks.snapshot import LEASES, TASKS
from .listing import Budget, read
from .views import TAGS, Held, Row, held_of

ENDED = tuple(status for status in Status if status.is_terminal)
MOST_LEASES = 1000
MOST_EXAMINED = 1000
"""Tasks of each tag that are read for the throughput."""
PAGE = 200


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds tasks. One that holds none is not known to the storage."""

    name: str
    held: int
    """Tasks that it has."""
    until: Micros
    """When the last of its leases ends, if it is not heard of any more."""
    overdue: int
    """Leases that have run out: the worker is late, or gone."""


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of time, and what ended in it."""

    at: Micros
    completed: int = 0
    failed: int = 0
    cancelled: int = 0

    def of(self, status: Status) -> int:
        """How many ended so."""
        return int(getattr(self, status.value))

    @property
    def ended(self) -> int:
        return sum(self.of(status) for status in ENDED)


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """What ended within a window, as far as its tasks are still there."""

    since: Micros
    until: Micros
    buckets: tuple[Bucket, ...]
    """The window in equal parts, the oldest first."""
    median: Micros | None
    """How long half of these tasks took at most, from creation to end."""
    is_whole: bool
    """False where there were more ended tasks than were looked at: then some may be missing."""

    @property
    def ended(self) -> int:
        return sum(bucket.ended for bucket in self.buckets)

    @property
    def per_minute(self) -> float:
        return self.ended * 60_000_000 / max(1, self.until - self.since)


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """How everything is."""

    counts: dict[Status, int]
    """Of every status, none left out. A result that reports an error counts as failed."""
    held: int
    """Active tasks that a worker has."""
    waiting: int
    """Active tasks that no worker has, those included that wait for an answer."""
    oldest_waiting: Row | None
    """The oldest task that waits for a worker, among the 1 000 oldest that work."""
    oldest_asking: Row | None
    """The oldest task that waits for an answer."""
    workers: tuple[Worker, ...]
    expired: int
    """Tasks that are over and not yet purged."""
    throughput: Throughput


async def counts_of(storage: Storage, now: Micros) -> dict[Status, int]:
    counts = await storage.counts(TASKS, now=now)
    return {status: sum(counts.get(tag, 0) for tag in TAGS[status]) for status in Status}


async def expired_in(storage: Storage, now: Micros) -> int:
    """Tasks that nobody sees any more and that are still there: counted as of long ago, and as of now."""
    ever, live = await asyncio.gather(storage.counts(TASKS, now=0), storage.counts(TASKS, now=now))
    return max(0, sum(ever.values()) - sum(live.values()))


# Who works


async def held_in(storage: Storage, now: Micros) -> int:
    """How many tasks somebody holds."""
    return (await storage.counts(LEASES, now=now)).get(HELD, 0)


async def leases_in(storage: Storage, now: Micros, handle_of: Callable[[str], str]) -> list[Held]:
    """The leases that are held, of the newest tasks first, 1 000 at most."""
    records = await storage.page(LEASES, limit=MOST_LEASES, tag=HELD, descending=True, now=now)
    held = (held_of(record, handle_of(record.partition)) for record in records)
    return [each for each in held if each is not None]


def workers_of(leases: Sequence[Held], now: Micros) -> tuple[Worker, ...]:
    by_name: dict[str, list[Held]] = {}
    for lease in leases:
        by_name.setdefault(lease.worker, []).append(lease)
    return tuple(
        Worker(
            name=name,
            held=len(held),
            until=max(lease.until for lease in held),
            overdue=sum(lease.until <= now for lease in held),
        )
        for name, held in sorted(by_name.items())
    )


# What waits


async def oldest_waiting(storage: Storage, now: Micros) -> Snapshot | None:
    """The oldest that stands in a queue. The record itself says so, and need not be read."""
    after: Position | None = None
    for _ in range(0, MOST_EXAMINED, PAGE):
        records = await _oldest(storage, Status.WORKING, PAGE, now, after)
        queued = (read(each) for each in records if each.lane is not None)
        if (found := next((each for each in queued if each is not None), None)) is not None:
            return found
        if is_last_page(records, PAGE):
            return None
        after = records[-1].position
    return None


async def oldest_asking(storage: Storage, now: Micros) -> Snapshot | None:
    records = await _oldest(storage, Status.INPUT_REQUIRED, 1, now)
    return read(records[0]) if records else None


async def _oldest(
    storage: Storage, status: Status, limit: int, now: Micros, after: Position | None = None
) -> list[Record]:
    return await storage.page(TASKS, after=after, limit=limit, tag=status.value, now=now)


# What ends


async def throughput_of(
    storage: Storage, *, window: Micros, parts: int, now: Micros, until: Micros | None = None
) -> Throughput:
    """What ended within the window before `until` (now), among the newest 1 000 tasks of each tag.

    Nothing is indexed by its end, so this looks at the tasks themselves.
    """
    tags = [(status, tag) for status in ENDED for tag in TAGS[status]]
    looked = await asyncio.gather(*(_ended(storage, status, tag, now) for status, tag in tags))
    until = now if until is None else until
    since = until - window
    late = [task for tasks, _ in looked for task in tasks if since <= task.finished_at <= until]
    return Throughput(
        since=since,
        until=until,
        buckets=_buckets(late, since, window, parts),
        median=_median([task.finished_at - task.created_at for task in late]),
        is_whole=all(whole for _, whole in looked),
    )


class _Times(msgspec.Struct, tag_field=FORMAT_FIELD, tag=TASK_FORMAT):
    """Of a task that has ended no more than this is read."""

    created_at: Micros
    finished_at: Micros


class _Ended(_Times):
    status: Status
    """As operators see it."""


_times_in = msgspec.json.Decoder(_Times)


async def _ended(storage: Storage, status: Status, tag: Tag, now: Micros) -> tuple[list[_Ended], bool]:
    """The newest tasks that ended so, and whether these are all."""
    found: list[_Ended] = []
    after: Position | None = None
    budget = Budget(MOST_EXAMINED, PAGE)
    while not budget.is_spent:
        size = budget.size
        records = await storage.page(TASKS, after=after, limit=size, tag=tag, descending=True, now=now)
        budget.take(records)
        found += [task for each in records if (task := _read_end(each, status)) is not None]
        if is_last_page(records, size):
            return found, True
        after = records[-1].position
    return found, False


def _read_end(record: Record, status: Status) -> _Ended | None:
    try:
        times = _times_in.decode(record.body)
    except msgspec.MsgspecError:
        return None  # damaged, or written by a newer version
    return _Ended(times.created_at, times.finished_at, status)


def _buckets(tasks: Sequence[_Ended], since: Micros, window: Micros, parts: int) -> tuple[Bucket, ...]:
    counts: list[dict[str, int]] = [{} for _ in range(parts)]
    for task in tasks:
        place = min(parts - 1, (task.finished_at - since) * parts // window)
        counts[place][task.status.value] = counts[place].get(task.status.value, 0) + 1
    return tuple(_bucket(since + window * place // parts, each) for place, each in enumerate(counts))


def _bucket(at: Micros, counts: Mapping[str, int]) -> Bucket:
    return Bucket(at=at, **counts)


def _median(spans: Sequence[Micros]) -> Micros | None:
    return sorted(spans)[(len(spans) - 1) // 2] if spans else None
