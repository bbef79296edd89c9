"""`Hold` keeps the newest known state of a claimed task, and writes changes of the task.

Every write also replaces the lease of the claim, in the same commit. It is refused if the stored lease is not
the one that this claim wrote last. So no write is accepted after another worker has claimed the task. If the
response to a write was lost, the stored lease still contains the name of the claim.
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
    """A claimed task, and the lease of the claim."""

    snapshot: Snapshot
    lease: Record
    holder: Holder


FIND_OUT_DELAYS = (0.0, 0.5, 2.0)
"""Seconds before each read that checks whether a claim was stored."""


async def find_out(claim: Claim, store: TaskStore) -> Claim | None:
    """Return a claim as it is stored, or None if it is not found. Its write may have failed."""
    for delay in FIND_OUT_DELAYS:
        await asyncio.sleep(delay)
        with suppress(StorageError):
            task, lease = await store.storage.get_many(
                (claim.snapshot.record.address, claim.lease.address), now=store.clock()
            )
            if task is not None and lease is not None and claim.holder.holds(lease):
                return Claim(Snapshot.from_record(task, store.keys), lease, claim.holder)
    return None


class Hold:
    """A claimed task, used in one event loop. `on_change` is called when its newest known state changes."""

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
        """Seconds since the lease was renewed, by a monotonic clock."""
        return asyncio.get_running_loop().time() - self._extended_at

    @property
    def is_overdue(self) -> bool:
        """Whether the lease has expired by the clock, so that another worker may have claimed the task."""
        return self._lease.wake_at is None or self._lease.wake_at <= self._store.clock()

    async def write(self, edit: Edit) -> None:
        """Write an edit of the task. The same commit renews the lease, or gives it up with the task."""
        async with self._lock:
            for attempt in range(1, WRITE_ATTEMPTS + 1):
                if not self.snapshot.task.is_claimed:  # it was ended or released
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
        """Renew the lease, which is a small record of its own: the task itself is not written."""
        async with self._lock:
            while True:
                change = self._holder.extend(self._lease)
                result = await self._store.storage.commit([change], now=self._store.clock())
                if isinstance(result, Committed):
                    return self._extended(change.after)
                if not await self._is_ours():
                    raise ClaimLost

    async def look(self) -> None:
        """Read the task, which other processes may have changed.

        Raise ClaimLost if the task was deleted or has ended. Also raise ClaimLost if a newer version of
        perdure wrote the task or a key is missing. In that case, other workers recover the task.
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
        """Return whether the stored lease still belongs to this claim. If so, use it from now on."""
        found = await self._store.storage.get(self._lease.address, now=self._store.clock())
        if found is None or not self._holder.holds(found):
            return False
        self._lease = found
        return True
