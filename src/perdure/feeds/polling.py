"""One poll of one account: read the newest page, then what is missing below it. `walking` has the rules.

No commit is open while a page is fetched, and no state is written before the items that it speaks of. So a
poll may end anywhere, at any moment, and the next one finds what is left to do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import msgspec

from ..storage import Micros
from . import settling, walking
from .account import Account, Gap, Stored
from .errors import (
    AccountUnavailable,
    CursorRefused,
    InvalidActor,
    NotAuthorized,
    SourceError,
    SourceFailed,
    SourceUnavailable,
)
from .holding import LASTS, Held, hold
from .item import Item
from .settings import Polling
from .source import FeedSource, Page
from .store import FeedStore
from .walking import Reading

log = logging.getLogger("perdure.feeds")


class Polled(msgspec.Struct, frozen=True, kw_only=True):
    """What a poll brought."""

    account: Account
    """As it is now."""
    was_initial: bool
    new: int
    links: int
    pages: int
    set_aside: int = 0

    @property
    def is_high_volume(self) -> bool:
        """Whether one page was not enough."""
        return self.pages > 1 and not self.was_initial


class Skipped(msgspec.Struct, frozen=True):
    """An account that cannot be polled for now: the source does not show it."""

    account: Account
    error: SourceError


class Failed(msgspec.Struct, frozen=True):
    """A poll that came to nothing."""

    account: Account
    error: Exception


Outcome: TypeAlias = Polled | Skipped | Failed


async def poll(
    store: FeedStore,
    source: FeedSource,
    polling: Polling,
    stored: Stored,
    *,
    poller: str,
    lasts: Micros = LASTS,
) -> Outcome:
    """Poll an account now, if nobody else does. NotAuthorized is nobody's fault but ours, and leaves it."""
    async with hold(store, stored, poller, lasts=lasts) as held:
        try:
            return await Poll(store, source, polling, held).run()
        except NotAuthorized:
            raise
        except SourceError as error:
            account = await held.write(partial(_failed, error=error, now=store.clock()))
            is_gone = isinstance(error, AccountUnavailable | InvalidActor)
            return Skipped(account, error) if is_gone else Failed(account, error)


def _failed(account: Account, *, error: SourceError, now: Micros) -> Account:
    return settling.failed(account, error, now=now)


class Poll:
    """A poll under way."""

    def __init__(self, store: FeedStore, source: FeedSource, polling: Polling, held: Held) -> None:
        self._store = store
        self._source = source
        self._polling = polling
        self._held = held
        self._id = held.account.account_id
        self._last = held.account.last_polled_at
        self._remembered = {gap.cursor for gap in held.account.gaps}
        self._mark = held.account.mark
        self._new = self._fresh = self._links = self._pages = self._set_aside = 0

    async def run(self) -> Polled:
        await self._read_head()
        while self._held.is_ours:
            await self._walk(self._next_gap())
        return Polled(
            account=self._held.account,
            was_initial=self._mark is None,
            new=self._new,
            links=self._links,
            pages=self._pages,
            set_aside=self._set_aside,
        )

    async def _read_head(self) -> None:
        account = self._held.account
        page = await self._source.page(self._id, limit=self._polling.posts_per_page, etag=account.etag)
        self._pages += 1
        if page is None:
            await self._write(lambda account: account)
            return
        found = await self._store_head(page, account.mark)
        read = _reading(page, found)
        await self._write(partial(self._after_head, read=read, etag=page.etag), page, found)

    async def _store_head(self, page: Page, mark: Micros | None) -> list[Item]:
        """What is newer than the mark is hardly known; what is older nearly always is, so look before."""
        everything = (*page.items, *page.pinned)
        fresh = [item for item in everything if mark is None or item.time > mark]
        older = [item for item in everything if mark is not None and item.time <= mark]
        late = await self._store.unknown(self._id, older) if older else []
        return await self._store.keep(self._id, [*fresh, *late])

    def _after_head(self, account: Account, *, read: Reading, etag: str | None) -> Account:
        """A page that does not reach below the mark may look the same, with something new right behind it."""
        after = walking.after_head(account, read, now=self._store.clock(), polling=self._polling)
        says_all = None not in (read.oldest, after.mark) and (read.oldest or 0) < (after.mark or 0)
        return msgspec.structs.replace(after, etag=etag if says_all else None)

    def _next_gap(self) -> Gap:
        """The newest; but the last page of a poll goes to the oldest, which would else never have its turn
        where the newest are never done.
        """
        gaps = self._held.account.gaps
        return gaps[-1] if self._pages + 1 >= self._polling.max_pages_per_user else gaps[0]

    async def _walk(self, gap: Gap) -> None:
        """One page of a gap."""
        is_resumed = gap.cursor is not None and gap.cursor in self._remembered
        try:
            page = await self._source.page(self._id, limit=self._polling.posts_per_page, cursor=gap.cursor)
        except (CursorRefused, SourceFailed) as error:
            if gap.cursor is None or (isinstance(error, SourceFailed) and not is_resumed):
                raise
            log.warning("%s: the source refuses a cursor: %s", self._held.account.handle, error)
            self._pages += 1
            await self._write(lambda account: walking.after_refusal(account, gap))
            return
        self._pages += 1
        if page is None:
            raise SourceUnavailable("the source says that a page is unchanged, and was not asked")
        found = await self._store.keep(self._id, (*page.items, *page.pinned))
        read = _reading(page, found, is_resumed=is_resumed)
        await self._write(lambda account: walking.after_gap(account, gap, read), page, found)

    async def _write(
        self, edit: Callable[[Account], Account], page: Page | None = None, found: list[Item] | None = None
    ) -> None:
        """Count what a page brought, make the state follow it, and end the poll when nothing is left."""
        new, bad = len(found or ()), 0 if page is None else page.set_aside
        self._new += new
        self._fresh += sum(self._mark is not None and item.time > self._mark for item in found or ())
        self._links += sum(len(item.links) for item in found or ())
        self._set_aside += bad

        def after(account: Account) -> Account:
            now = self._store.clock()
            account = settling.read(edit(account), new=new, pages=1, set_aside=bad, now=now)
            is_over = not account.gaps or self._pages >= self._polling.max_pages_per_user
            return self._settled(account, now) if is_over else account

        await self._held.write(after)

    def _settled(self, account: Account, now: Micros) -> Account:
        """How long ago the last poll was tells how often the account posts; the first poll tells nothing."""
        elapsed = None if self._mark is None or self._last is None else max(now - self._last, 1)
        return settling.settled(account, found=self._new, fresh=self._fresh, elapsed=elapsed, now=now)


def _reading(page: Page, found: list[Item], *, is_resumed: bool = False) -> Reading:
    return Reading(
        cursor=page.cursor,
        newest=page.newest,
        oldest=page.oldest,
        found=tuple(item.time for item in found if item not in page.pinned),
        is_resumed=is_resumed,
    )
