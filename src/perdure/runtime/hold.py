"""A task while one claim holds it: what it is by now, and writing it under the fence of the lease.

Every write commits the task together with the very lease that was written last, so after another has taken
the task, none is accepted. A write whose answer was lost is not mistaken for that: a lease says whose it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import uniform

import msgspec

from ..storage import Change, Committed, Record
from ..storage.errors import NotReadableHere, StorageError
from ..tasks import Snapshot, TaskStore
from ..tasks.errors import ClaimLost, ConcurrentModification
from ..tasks.store import Edit
from . import lease as leases
from .lease import Holder

WRITE_ATTEMPTS = 10


class Claim(msgspec.Struct, frozen=True):
    """A task that was claimed, and the lease that says so."""

    snapshot: Snapshot
    lease: Record
    holder: Holder


DOUBTS = (0.0, 0.5, 2.0)
"""Seconds between the looks for a claim of which it is not known whether it was written."""


async def find_out(claim: Claim, store: TaskStore) -> Claim | None:
    """A claim whose answer was lost, as it was written; None where it was not, as far as can be seen."""
    for pause in DOUBTS:
        await asyncio.sleep(pause)
        with suppress(StorageError):
            task, lease = await store.storage.get_many(
                (claim.snapshot.record.address, claim.lease.address), now=store.clock()
            )
            if task is not None and lease is not None and claim.holder.holds(lease):
                return Claim(Snapshot.from_record(task, store.keys), lease, claim.holder)
    return None


class Hold:
    """Belongs to one event loop. `on_change` is called when the task is seen to have changed."""

    def __init__(self, claim: Claim, store: TaskStore, on_change: Callable[[], None]) -> None:
        self.snapshot = claim.snapshot
        self._lease = claim.lease
        self._next_lease = claim.lease
        self._holder = claim.holder
        self._store = store
        self._on_change = on_change
        self._lock = asyncio.Lock()
        self._extended_at = asyncio.get_running_loop().time()

    @property
    def age(self) -> float:
        """Seconds since the lease was extended, by a clock that nobody sets."""
        return asyncio.get_running_loop().time() - self._extended_at

    @property
    def is_overdue(self) -> bool:
        """Whether the lease has run out, by the clock, so that another may have taken it."""
        return self._lease.wake_at is None or self._lease.wake_at <= self._store.clock()

    async def write(self, edit: Edit) -> None:
        """Write an edit of the task; the lease is extended, or given up with the task, in the same commit."""
        async with self._lock:
            for attempt in range(1, WRITE_ATTEMPTS + 1):
                if not self.snapshot.task.is_claimed:  # it was ended, or given back
                    raise ClaimLost
                try:
                    following = await self._store.edit(self.snapshot, edit, lease=self._lease_after)
                except ConcurrentModification:
                    if attempt == WRITE_ATTEMPTS:
                        raise
                    await self.look()
                    await asyncio.sleep(uniform(0, 0.001 * 2**attempt))
                except ClaimLost:
                    if attempt == WRITE_ATTEMPTS or not await self._is_ours():
                        raise
                else:
                    self._written(following)
                    return

    async def extend(self) -> None:
        """The heartbeat: a few hundred bytes, whatever the task holds, in conflict with no writer of it."""
        async with self._lock:
            while True:
                change = self._holder.extend(self._lease)
                result = await self._store.storage.commit([change], now=self._store.clock())
                if isinstance(result, Committed):
                    return self._extended(change.after)
                if not await self._is_ours():
                    raise ClaimLost

    async def look(self) -> None:
        """See what others have written. ClaimLost where the task is gone, or was ended by another, or was
        written by a newer version of perdure or with a new key, so that other workers recover it.
        """
        found = await self._store.storage.get(self.snapshot.record.address, now=self._store.clock())
        if found is None:
            raise ClaimLost
        if found.version <= self.snapshot.version:
            return
        try:
            self._adopt(Snapshot.from_record(found, self._store.keys))
        except NotReadableHere as error:
            raise ClaimLost from error
        if self.snapshot.task.is_terminal:
            raise ClaimLost

    def _lease_after(self, following: Snapshot) -> Change:
        if not following.task.is_claimed:
            return leases.give_up(self._lease, following)
        change = self._holder.extend(self._lease)
        self._next_lease = change.after
        return change

    def _written(self, following: Snapshot) -> None:
        if following is self.snapshot:  # there was nothing to write
            return
        if following.task.is_claimed:
            self._extended(self._next_lease)
        self._adopt(following)

    def _extended(self, lease: Record) -> None:
        self._lease = lease
        self._extended_at = asyncio.get_running_loop().time()

    def _adopt(self, found: Snapshot) -> None:
        if found.version >= self.snapshot.version:
            self.snapshot = found
            self._on_change()

    async def _is_ours(self) -> bool:
        """Whether the lease is ours, though it is not what we wrote last as far as we know."""
        found = await self._store.storage.get(self._lease.address, now=self._store.clock())
        if found is None or not self._holder.holds(found):
            return False
        self._lease = found
        return True
