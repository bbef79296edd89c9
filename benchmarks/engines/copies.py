"""Records by the million: copies of a few that the store has made, each with an id and a place of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, cycle
from typing import TypeAlias

from msgspec.structs import replace

from perdure.storage import Change, Committed, Guard, Insert, Micros, Record, Refused, Replace, Storage
from perdure.storage.clock import system_clock
from perdure.storage.memory import MemoryEngine
from perdure.tasks import TaskStore
from perdure.tasks.record import new_task_id

from ..workload import COMMITS_OF_LIFE, OWNERS, ROOMY, live

Life: TypeAlias = tuple[Record, ...]
"""What each commit of a task's life wrote, in their order."""


async def lives() -> Iterator[Life]:
    """Lives of tasks, of one owner after the other, for ever; to the byte what the store would write."""
    engine = _Noting()
    store = TaskStore(Storage(engine), ROOMY)
    for owner in OWNERS:
        await live(store, owner)
    noted = [
        tuple(engine.written[start : start + COMMITS_OF_LIFE])
        for start in range(0, len(engine.written), COMMITS_OF_LIFE)
    ]
    return map(_again, cycle(noted), count(system_clock()))


def copied(record: Record, order: Micros) -> Record:
    """A record like this one, of another task."""
    return _as(record, new_task_id(), order)


def _again(life: Life, order: Micros) -> Life:
    key = new_task_id()
    return tuple(_as(record, key, order) for record in life)


def _as(record: Record, key: str, order: Micros) -> Record:
    """Ids are of one length, and so are bodies."""
    return replace(record, key=key, order=order, body=record.body.replace(record.key, key))


class _Noting(MemoryEngine):
    """Keeps records in memory, and notes what it was given to write."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[Record] = []

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        for change in changes:
            assert isinstance(change, (Insert, Replace))
            self.written.append(change.record if isinstance(change, Insert) else change.after)
        return await super().commit(changes, guard=guard, now=now)
