"""Upkeep: what is done for all tasks at once, by whoever runs the store: sweeping and checking."""

from __future__ import annotations

import msgspec

from ..storage import Micros, Purged, Storage
from ..storage.quarantine import inspect
from .snapshot import TASKS, Snapshot

BATCH = 500


class PurgeResult(msgspec.Struct, frozen=True):
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
    quarantined: tuple[str, ...]
    """Ids of records that are damaged. They are kept, under the tag `corrupt`."""
    newer: int
    """Records that a newer version of perdure wrote. They are left as they are."""
    reclaimed_bytes: int
    findings: tuple[str, ...]
    """What the engine finds wrong with itself."""


async def sweep(storage: Storage, *, now: Micros, limit: int = BATCH) -> PurgeResult:
    """Remove up to `limit` of what has expired. Never touches anything else."""
    purged = await storage.purge(until=now, limit=limit)
    return PurgeResult(tuple(purged), more=len(purged) == limit)


async def maintain(storage: Storage, *, now: Micros) -> Upkeep:
    """Purge everything expired, quarantine what is damaged, then let the engine compact and check."""
    swept = 0
    more = True
    while more:
        batch = await sweep(storage, now=now)
        swept += len(batch.purged)
        more = batch.more
    found = await inspect(storage, TASKS, Snapshot.from_record, repair=True, now=now)
    engine = await storage.maintain()
    return Upkeep(
        swept=swept,
        examined=found.examined,
        quarantined=tuple(each.key for each in found.damaged if each.is_quarantined),
        newer=found.newer,
        reclaimed_bytes=engine.reclaimed_bytes,
        findings=engine.findings,
    )
