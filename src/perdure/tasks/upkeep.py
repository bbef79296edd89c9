"""Upkeep: what is done for all tasks at once, by whoever runs the store: sweeping and checking."""

from __future__ import annotations

import msgspec

from ..storage import Committed, Micros, Position, Purged, Record, Storage
from .errors import CorruptRecord
from .snapshot import TASKS, Snapshot

BATCH = 500
SET_ASIDE = "corrupt"
"""The tag of records that are no tasks: kept for people to look at, out of every count and queue."""


class Sweep(msgspec.Struct, frozen=True):
    """What one sweep removed."""

    purged: tuple[Purged, ...]
    more: bool
    """Whether another sweep at the same time may find more."""

    @property
    def task_ids(self) -> tuple[str, ...]:
        return tuple(each.key for each in self.purged if each.space == TASKS)


class Upkeep(msgspec.Struct, frozen=True, kw_only=True):
    """What `maintain` did and found."""

    swept: int
    examined: int
    set_aside: tuple[str, ...]
    """Ids under which something stands that is no task. It is kept, under the tag `corrupt`."""
    reclaimed_bytes: int
    findings: tuple[str, ...]
    """What the engine finds wrong with itself."""


async def sweep(storage: Storage, *, now: Micros, limit: int = BATCH) -> Sweep:
    """Remove up to `limit` of what has expired. Never touches anything else."""
    purged = await storage.purge(until=now, limit=limit)
    return Sweep(tuple(purged), more=len(purged) == limit)


async def maintain(storage: Storage, *, now: Micros) -> Upkeep:
    """Purge everything expired, set aside what cannot be read, then let the engine compact and check."""
    swept = 0
    more = True
    while more:
        batch = await sweep(storage, now=now)
        swept += len(batch.purged)
        more = batch.more
    examined, set_aside = await _set_aside_corrupt(storage, now)
    engine = await storage.maintain()
    return Upkeep(
        swept=swept,
        examined=examined,
        set_aside=tuple(set_aside),
        reclaimed_bytes=engine.reclaimed_bytes,
        findings=engine.findings,
    )


async def _set_aside_corrupt(storage: Storage, now: Micros) -> tuple[int, list[str]]:
    examined = 0
    ids: list[str] = []
    after: Position | None = None
    while records := await storage.page(TASKS, after=after, limit=BATCH, now=now):
        examined += len(records)
        after = records[-1].position
        for record in records:
            is_new = record.tag != SET_ASIDE and not _is_readable(record)
            if is_new and await set_aside(storage, record, now=now):
                ids.append(record.key)
    return examined, ids


async def set_aside(storage: Storage, record: Record, *, now: Micros) -> bool:
    """Keep what is no task for people to look at, out of every count and queue."""
    change = record.becoming(body=record.body, tag=SET_ASIDE)
    return isinstance(await storage.commit([change], now=now), Committed)


def _is_readable(record: Record) -> bool:
    try:
        Snapshot.read(record)
    except CorruptRecord:
        return False
    return True
