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
from .account import Account, Hold, Stored
from .errors import AccountHeld, HoldLost, UnknownAccount
from .store import Edit, FeedStore

log = logging.getLogger("perdure.feeds")

LASTS: Micros = 60 * 1_000_000
"""How long a hold lasts from each write on. A poller that dies keeps an account no longer than this."""


class Held:
    """An account that this poller holds."""

    def __init__(self, store: FeedStore, stored: Stored, poller: str, lasts: Micros) -> None:
        self._store = store
        self._stored = stored
        self._poller = poller
        self._lasts = lasts
        self._writing = anyio.Lock()

    @property
    def account(self) -> Account:
        return self._stored.account

    async def write(self, edit: Edit, also: Sequence[Change] = ()) -> Account:
        """Change the account, and with it other records of its partition; the hold lasts anew, unless the
        edit gives it up. HoldLost: it is not ours.
        """
        async with self._writing:
            while self.is_ours:
                account = self._extended(edit(self._stored.account))
                if (written := await self._store.write(self._stored, account, also)) is not None:
                    self._stored = written
                    return account
                await self._look()
        raise HoldLost(f"{self.account.handle} was taken over by another poller")

    def _extended(self, account: Account) -> Account:
        if account.hold is None:
            return account
        return transitions.claimed(account, Hold(self._poller, self._store.clock() + self._lasts))

    async def _look(self) -> None:
        """Read the account again after somebody else wrote it."""
        try:
            self._stored = await self._store.get(self._stored.account.account_id)
        except UnknownAccount as error:
            raise HoldLost("the account was removed") from error
        except NewerFormat as error:
            raise HoldLost(str(error)) from error

    @property
    def is_ours(self) -> bool:
        hold = self._stored.account.hold
        return hold is not None and hold.poller == self._poller

    async def beat(self) -> None:
        """Extend the hold now and then, until it is lost. Whoever writes next is told."""
        while True:
            await anyio.sleep(self._lasts / 3e6)
            try:
                await self.write(lambda account: account)
            except HoldLost:
                return
            except StorageError as error:
                log.warning("%s: the hold was not extended: %s", self.account.handle, error)


@asynccontextmanager
async def hold(
    store: FeedStore, stored: Stored, poller: str, *, lasts: Micros = LASTS
) -> AsyncGenerator[Held]:
    """Hold an account. AccountHeld: somebody else does, or was quicker. What is still held at the end is
    given back as it was.
    """
    held = await _claimed(_claim(store, stored, f"{poller}#{next(_claims)}", lasts))
    beats = asyncio.create_task(held.beat())
    try:
        yield held
    finally:
        beats.cancel()
        if held.is_ours:
            await _to_the_end(_give_back(held))


async def _claimed(claim: Coroutine[None, None, Held]) -> Held:
    """Who is stopped while the claim is written may hold the account already, and then gives it back."""
    claiming = asyncio.create_task(claim)
    try:
        return await asyncio.shield(claiming)
    except asyncio.CancelledError:
        await _to_the_end(_undo(claiming))
        raise


async def _undo(claiming: asyncio.Task[Held]) -> None:
    with suppress(AccountHeld, StorageError):
        await _give_back(await claiming)


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


async def _claim(store: FeedStore, stored: Stored, claim: str, lasts: Micros) -> Held:
    now = store.clock()
    current = stored.account.hold
    if current is not None and now < current.until:
        raise AccountHeld(stored.account.handle, current.poller, until=current.until)
    claimed = await store.write(stored, transitions.claimed(stored.account, Hold(claim, now + lasts)))
    if claimed is not None:
        return Held(store, claimed, claim, lasts)
    found = await store.get(stored.account.account_id)
    if _figures(found.account) != _figures(stored.account):
        raise AccountHeld(stored.account.handle, "another poller")
    return await _claim(store, found, claim, lasts)  # it was edited, and nobody has polled it


def _figures(account: Account) -> tuple[int, int]:
    """What every poll changes."""
    return account.polls, account.failures


async def _give_back(held: Held) -> None:
    try:
        await held.write(transitions.released)
    except (HoldLost, StorageError) as error:
        log.warning("%s was not given back: %s", held.account.handle, error)


_claims = count(1)
"""So that no two claims of a process have the same name."""
