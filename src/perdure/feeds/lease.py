"""Leases on accounts. A poller leases an account before polling it, so that no other poller polls it too.

The lease is stored in the record of the account, and expires unless it is renewed. A write succeeds only if
the record has not changed since it was read. If an operator, for example, has changed the record, the poller
reads the record again, and repeats its own change if the lease is still valid.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count

import anyio

from ..storage import Change, Micros
from ..storage.errors import NewerFormat, StorageError
from ..storage.time_types import MINUTE
from . import transitions
from .account import Account, Lease, StoredAccount
from .errors import AccountLeaseLost, PollInProgress, UnknownAccount
from .store import AccountEdit, FeedStore

log = logging.getLogger("perdure.feeds")

LEASE_DURATION: Micros = MINUTE
"""By default, a lease expires this long after its latest renewal. Other pollers can then poll the account."""


class AccountLease:
    """A poller's lease on an account. A poll changes the account only through this object."""

    def __init__(self, store: FeedStore, stored: StoredAccount, poller: str, duration: Micros) -> None:
        self._store = store
        self._stored = stored
        self._poller = poller
        self._duration = duration
        self._writing = anyio.Lock()

    @property
    def account(self) -> Account:
        return self._stored.account

    async def update(self, edit: AccountEdit, extra_changes: Sequence[Change] = ()) -> Account:
        """Apply `edit` to the account, and store the result together with `extra_changes`.

        Renew the lease unless the edit removes it. Raise AccountLeaseLost if this lease is no longer valid.
        """
        async with self._writing:
            while self.is_valid:
                account = edit(self._stored.account)
                if account.lease is not None:
                    lease = Lease(self._poller, self._store.clock() + self._duration)
                    account = transitions.leased(account, lease)
                if (written := await self._store.replace(self._stored, account, extra_changes)) is not None:
                    self._stored = written
                    return account
                await self._reload()
        raise AccountLeaseLost(f"the lease on {self.account.handle} was lost to another poller")

    async def _reload(self) -> None:
        """Read the account again after a concurrent change."""
        try:
            self._stored = await self._store.get(self._stored.account.account_id)
        except UnknownAccount as error:
            raise AccountLeaseLost("the account was removed while it was being polled") from error
        except NewerFormat as error:
            raise AccountLeaseLost(str(error)) from error

    @property
    def is_valid(self) -> bool:
        lease = self._stored.account.lease
        return lease is not None and lease.poller == self._poller

    async def renew_until_lost(self) -> None:
        """Renew the lease each time a third of its duration has passed, until the lease is lost."""
        while True:
            await anyio.sleep(self._duration / 3e6)
            try:
                await self.update(lambda account: account)
            except AccountLeaseLost:
                return
            except StorageError as error:
                log.warning("could not renew the lease on %s: %s", self.account.handle, error)


@asynccontextmanager
async def acquire_lease(
    store: FeedStore, stored: StoredAccount, poller: str, *, duration: Micros = LEASE_DURATION
) -> AsyncGenerator[AccountLease]:
    """Lease an account until the end of an `async with` block.

    Raise PollInProgress if another poller has leased the account, or has polled it since `stored` was read.
    """
    lease = await _acquire_shielded(_acquire(store, stored, f"{poller}#{next(_numbers)}", duration))
    renewals = asyncio.create_task(lease.renew_until_lost())
    try:
        yield lease
    finally:
        renewals.cancel()
        if lease.is_valid:
            await _finish_shielded(_release(lease))


async def _acquire_shielded(acquiring: Coroutine[None, None, AccountLease]) -> AccountLease:
    """Acquire a lease. If the caller is cancelled, finish acquiring the lease, and then release it."""
    task = asyncio.create_task(acquiring)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await _finish_shielded(_release_late(task))
        raise


async def _release_late(acquiring: asyncio.Task[AccountLease]) -> None:
    with suppress(PollInProgress, StorageError):
        await _release(await acquiring)


async def _finish_shielded(work: Coroutine[None, None, None]) -> None:
    """Finish `work` even if the caller is cancelled, and then re-raise the cancellation.

    A shielded anyio scope alone is not enough, because `asyncio.Task.cancel` ignores such scopes.
    """
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()


async def _acquire(store: FeedStore, stored: StoredAccount, poller: str, duration: Micros) -> AccountLease:
    now = store.clock()
    current = stored.account.lease
    if current is not None and now < current.until:
        raise PollInProgress(stored.account.handle, current.poller, retry_at=current.until)
    leased = await store.replace(stored, transitions.leased(stored.account, Lease(poller, now + duration)))
    if leased is not None:
        return AccountLease(store, leased, poller, duration)
    found = await store.get(stored.account.account_id)
    if _poll_history(found.account) != _poll_history(stored.account):
        raise PollInProgress(stored.account.handle, "another poller")
    return await _acquire(store, found, poller, duration)  # the account was edited but not polled


def _poll_history(account: Account) -> tuple[int, int, Micros | None]:
    """Return fields that change when a poll of the account succeeds or fails."""
    return account.poll_count, account.consecutive_failures, account.failing_since


async def _release(lease: AccountLease) -> None:
    try:
        await lease.update(transitions.released)
    except (AccountLeaseLost, StorageError) as error:
        log.warning("could not release the lease on %s: %s", lease.account.handle, error)


_numbers = count(1)
"""Provides a different number for each lease of this process."""
