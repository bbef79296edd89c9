"""Recovery: what becomes of tasks whose worker is gone. Live work is never touched.

A lease is taken only when its end has come by the clock *and* it has not been extended for as long as this
process has looked at it, by its own stopwatch. So a replica whose clock is wrong by an hour does not take the
work of the others: it sees them extend their leases.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from random import shuffle, uniform

from ..storage import Address, Delete, Micros, Record, Storage
from ..storage.errors import NewerFormat
from ..storage.time_units import to_seconds
from ..tasks import Snapshot, TaskStore
from ..tasks.edits import AttemptEnd
from ..tasks.errors import TaskError
from . import lease as leases
from . import telemetry
from .claiming import REFUSED, read_or_quarantine
from .config import RuntimeConfig
from .endings import Unfinished, run_again_or_end
from .function import Function
from .lane import Lane

log = logging.getLogger("perdure.runtime")

BATCH = 200
LOST = Unfinished(reason="the worker was lost while it ran the task", end=AttemptEnd.INTERRUPTED)


class Patience:
    """Which leases have stood still for so many seconds while we looked."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: dict[Address, tuple[int, float]] = {}

    @property
    def is_tried(self) -> bool:
        """Whether there are leases that we wait for."""
        return bool(self._seen)

    def worn_out(self, expired: Sequence[Record], at: float) -> list[Record]:
        """Those of these leases that were the same when they were first seen, long enough ago."""
        seen: dict[Address, tuple[int, float]] = {}
        for lease in expired:
            version, since = self._seen.get(lease.address, (lease.version, at))
            seen[lease.address] = (lease.version, since if version == lease.version else at)
        self._seen = seen  # what is no longer overdue is forgotten
        return [lease for lease in expired if at - seen[lease.address][1] >= self._seconds]


class Recovery:
    """What every worker does for the others."""

    def __init__(
        self,
        store: TaskStore,
        functions: Mapping[str, Function],
        config: RuntimeConfig,
        is_ours: Callable[[Record], bool],
    ) -> None:
        self._store = store
        self._functions = functions
        self._is_ours = is_ours
        self._heartbeat = to_seconds(config.heartbeat_interval)
        self._patience = Patience(1.5 * to_seconds(config.heartbeat_interval))
        self._expired = Lane(store.storage, leases.EXPIRING, BATCH)

    async def look(self) -> None:
        """After a while, see which leases ran out, and recover those of which nobody was heard."""
        longest = 0.5 if self._patience.is_tried else 1.0
        await asyncio.sleep(self._heartbeat * longest * uniform(0.5, 1))
        now = self._store.clock()
        lost = self._patience.worn_out(await self._expired.due(now), asyncio.get_running_loop().time())
        shuffle(lost)  # others do the same
        for lease in lost:
            if self._is_ours(lease):  # it runs here, and is late with its heartbeat
                continue
            try:
                await recover(lease, self._store, self._functions)
            except NewerFormat as error:
                log.warning("task %s is left to newer workers: %s", lease.key, error)
                self._expired.leave(lease)
            except TaskError:
                log.exception("task %s cannot be recovered", lease.key)


async def recover(lease: Record, store: TaskStore, functions: Mapping[str, Function]) -> Snapshot | None:
    """Fail the task of a lease that ran out, or put it back into its queue, as its function wants.

    None where there was nothing to do, or somebody else did it. Raises NewerFormat if a newer version wrote
    the task or the lease; both are left as they are.
    """
    leases.read(lease)
    found = await store.storage.get(leases.task_of(lease), now=store.clock())
    snapshot = None if found is None else await read_or_quarantine(found, store)
    if snapshot is None or snapshot.task.is_terminal or not snapshot.task.is_claimed:
        await _remove(lease, store.storage, store.clock())
        return None
    function = functions.get(snapshot.task.function or "")
    with telemetry.recovering(snapshot.task):
        try:
            after = await store.edit(
                snapshot,
                run_again_or_end(function, LOST),
                lease=lambda following: leases.give_up(lease, following),
            )
        except REFUSED:
            return None
    log.warning(
        "task %s of %s: worker %s was lost in attempt %d; the task is now %s",
        after.task.task_id,
        after.task.owner.digest,
        leases.holder_of(lease),
        snapshot.task.attempts,
        after.task.status if after.task.is_terminal else "waiting to be run again",
    )
    telemetry.recovered(after.task)
    return after


async def _remove(lease: Record, storage: Storage, now: Micros) -> None:
    """A lease without a task that is worked on: it was deleted, or ended over the worker's head."""
    await storage.commit([Delete(before=lease)], now=now)
