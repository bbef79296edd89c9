"""Runtimes that are wrong on purpose: a check that never fails proves nothing."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import asyncio
from collections.abc import Callable

from perdure.runtime import Run, recovery
from perdure.runtime import lease as leases
from perdure.runtime.recovery import Recovery
from perdure.runtime.settlement import Settlement
from perdure.storage.time_types import HOUR
from perdure.tasks.store import Edit


async def _finish_without_lease(self: Settlement, **_: float) -> None:
    """The end of an attempt is written to whatever the task is by now."""
    task, store = self._hold.snapshot.task, self._hold._store
    found = await store.get(task.owner, task.task_id)
    if not found.task.is_terminal:
        await store.edit(found, self._edit)


async def _write_without_lease(self: Run, edit: Edit) -> None:
    task = self.snapshot.task
    await self._store.update(task.owner, task.task_id, lambda found: self._store.edit(found, edit))


async def _recover_what_lives(self: Recovery) -> None:
    """A lease is taken though its end has not come."""
    await asyncio.sleep(0.1)
    now = self._store.clock()
    held = await self._store.storage.due(
        leases.expiry_lane(self._store.application), until=now + HOUR, limit=5, now=now
    )
    for lease in held:
        await recovery.recover(lease, self._store, self._functions, self._attendants)


def finish_without_lease() -> None:
    Settlement.write = _finish_without_lease


def write_without_lease() -> None:
    Run.write = _write_without_lease


def recover_what_lives() -> None:
    Recovery.look = _recover_what_lives


BROKEN: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (finish_without_lease, write_without_lease, recover_what_lives)
}


def install(name: str | None) -> None:
    if name is not None:
        BROKEN[name]()
