"""Holding an account: one poller at a time reads it, and whoever lost it writes nothing more.

The hold stands in the account's own record, and ends by itself. Every write expects the record as it was last
read; where somebody else has changed it meanwhile (an operator, a new profile) the change is made again on
what is there now, as long as the hold is still ours.
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
from . import transitions
from .account import Account, Lease, StoredAccount
from .errors import AccountLeaseLost, PollInProgress, UnknownAccount
from .store import AccountEdit, FeedStore

log = logging.getLogger("perdure.feeds")

LEASE_DURATION: Micros = 60 * 1_000_000
"""How long a hold lasts from each write on. A poller that dies keeps an account no longer than this."""


class AccountLease:
    """An account that this poller holds."""

    def __init__(self, store: FeedStore, stored: StoredAccount, poller: str, duration: Micros) -> None:
        self._store = store
        self._stored = stored
        self._poller = poller
        self._duration = duration
        self._writing = anyio.Lock()

    @property
    def account(self) -> Account:
        return self._stored.account

    async def update(self, edit: AccountEdit, also: Sequence[Change] = ()) -> Account:
        """Change the account, and with it other records of its partition; the hold lasts anew, unless the
        edit gives it up. AccountLeaseLost: it is not ours.
        """
        async with self._writing:
            while self.is_valid:
                account = self._renewed(edit(self._stored.account))
                if (written := await self._store.replace(self._stored, account, also)) is not None:
                    self._stored = written
                    return account
                await self._reload()
        raise AccountLeaseLost(f"{self.account.handle} was taken over by another poller")

    def _renewed(self, account: Account) -> Account:
        if account.lease is None:
            return account
        return transitions.leased(account, Lease(self._poller, self._store.clock() + self._duration))

    async def _reload(self) -> None:
        """Read the account again after somebody else wrote it."""
        try:
            self._stored = await self._store.get(self._stored.account.account_id)
        except UnknownAccount as error:
            raise AccountLeaseLost("the account was removed") from error
        except NewerFormat as error:
            raise AccountLeaseLost(str(error)) from error

    @property
    def is_valid(self) -> bool:
        hold = self._stored.account.lease
        return hold is not None and hold.poller == self._poller

    async def renew_until_lost(self) -> None:
        """Extend the hold now and then, until it is lost. Whoever writes next is told."""
        while True:
            await anyio.sleep(self._duration / 3e6)
            try:
                await self.update(lambda account: account)
            except AccountLeaseLost:
                return
            except StorageError as error:
                log.warning("%s: the hold was not extended: %s", self.account.handle, error)


@asynccontextmanager
async def acquire_lease(
    store: FeedStore, stored: StoredAccount, poller: str, *, duration: Micros = LEASE_DURATION
) -> AsyncGenerator[AccountLease]:
    """Hold an account. PollInProgress: somebody else does, or was quicker. What is still held at the end is
    given back as it was.
    """
    held = await _claimed(_claim(store, stored, f"{poller}#{next(_claims)}", duration))
    beats = asyncio.create_task(held.renew_until_lost())
    try:
        yield held
    finally:
        beats.cancel()
        if held.is_valid:
            await _to_the_end(_release(held))


async def _claimed(claim: Coroutine[None, None, AccountLease]) -> AccountLease:
    """Who is stopped while the claim is written may hold the account already, and then gives it back."""
    claiming = asyncio.create_task(claim)
    try:
        return await asyncio.shield(claiming)
    except asyncio.CancelledError:
        await _to_the_end(_undo(claiming))
        raise


async def _undo(claiming: asyncio.Task[AccountLease]) -> None:
    with suppress(PollInProgress, StorageError):
        await _release(await claiming)


async def _to_the_end(work: Coroutine[None, None, None]) -> None:
    """However often somebody stops us meanwhile."""
    task = asyncio.create_task(work)
    stopped: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError as error:
                stopped = error
    if stopped is not None:
        raise stopped
    task.result()


async def _claim(store: FeedStore, stored: StoredAccount, claim: str, duration: Micros) -> AccountLease:
    now = store.clock()
    current = stored.account.lease
    if current is not None and now < current.until:
        raise PollInProgress(stored.account.handle, current.poller, retry_at=current.until)
    claimed = await store.replace(stored, transitions.leased(stored.account, Lease(claim, now + duration)))
    if claimed is not None:
        return AccountLease(store, claimed, claim, duration)
    found = await store.get(stored.account.account_id)
    if _poll_counters(found.account) != _poll_counters(stored.account):
        raise PollInProgress(stored.account.handle, "another poller")
    return await _claim(store, found, claim, duration)  # it was edited, and nobody has polled it


def _poll_counters(account: Account) -> tuple[int, int]:
    """What every poll changes."""
    return account.poll_count, account.consecutive_failures


async def _release(held: AccountLease) -> None:
    try:
        await held.update(transitions.released)
    except (AccountLeaseLost, StorageError) as error:
        log.warning("%s was not given back: %s", held.account.handle, error)


_claims = count(1)
"""So that no two claims of a process have the same name."""
