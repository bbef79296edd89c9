"""One poll of one account: read the newest page, then what is missing below it. `gaps` has the rules.

No commit is open while a page is fetched, and no state is written before the items that it speaks of. So a
poll may end anywhere, at any moment, and the next one finds what is left to do.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from functools import partial
from typing import TypeAlias

import msgspec

from ..storage import InsertIfAbsent, Micros
from . import gaps, transitions
from .account import Account, Gap, Stored
from .errors import (
    AccountHeld,
    AccountUnavailable,
    CursorRefused,
    InvalidActor,
    NotAuthorized,
    SourceError,
    SourceFailed,
    SourceUnavailable,
)
from .gaps import Reading
from .item import Item, record_of
from .lease import LASTS, Held, hold
from .settings import Polling
from .source import FeedSource, Page
from .store import Edit, FeedStore

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


class PolledElsewhere(msgspec.Struct, frozen=True):
    """An account that was not polled, because another poller has it."""

    account: Account
    error: AccountHeld


Outcome: TypeAlias = Polled | Skipped | Failed | PolledElsewhere


async def poll(
    store: FeedStore,
    source: FeedSource,
    polling: Polling,
    stored: Stored,
    *,
    poller: str,
    lasts: Micros = LASTS,
    is_scheduled: bool = False,
) -> Polled | Skipped | Failed:
    """Poll an account now; `is_scheduled` if it is due, or in a cycle.

    Raise AccountHeld if another poller has it, and NotAuthorized as it comes: wrong credentials are not the
    account's fault.
    """
    async with hold(store, stored, poller, lasts=lasts) as held:
        try:
            return await Poll(store, source, polling, held, is_scheduled=is_scheduled).run()
        except NotAuthorized:
            raise
        except SourceError as error:
            account = await held.write(partial(transitions.failed, error=error, now=store.clock()))
            is_gone = isinstance(error, AccountUnavailable | InvalidActor)
            return Skipped(account, error) if is_gone else Failed(account, error)


class Kept(msgspec.Struct, frozen=True):
    """What became of the items of a page."""

    found: list[Item]
    """Those that nobody knew."""
    owed: list[Item]
    """Those of them that are still to be written, together with the state."""
    uncounted: int = 0
    """How many of those that were found are posts that the last profile has not counted."""


NOTHING = Kept([], [])
MOST_OWED = 24
"""Beside the account, in one commit."""


class Poll:
    """A poll under way."""

    def __init__(
        self, store: FeedStore, source: FeedSource, polling: Polling, held: Held, *, is_scheduled: bool
    ) -> None:
        self._store = store
        self._source = source
        self._polling = polling
        self._held = held
        self._is_scheduled = is_scheduled
        self._id = held.account.account_id
        self._last = held.account.last_polled_at
        self._remembered = {gap.cursor for gap in held.account.gaps}
        self._walked: defaultdict[tuple[Micros, Micros], set[str | None]] = defaultdict(set)
        """The cursors of each gap, so that a walk in a circle is noticed."""
        self._mark = held.account.mark
        self._new = self._fresh = self._links = self._pages = self._set_aside = 0
        self._got_on = False

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
        kept = await self._keep(page, known=account.mark)
        read = _reading(page, page.cursor, kept)
        await self._write(partial(self._after_head, read=read, etag=page.etag), page, kept)

    def _after_head(self, account: Account, *, read: Reading, etag: str | None) -> Account:
        """Only a page that reaches a known floor says by its ETag that nothing is new: another may look the
        same, with something new right behind it.
        """
        after = gaps.after_head(account, read, now=self._store.clock(), polling=self._polling)
        return msgspec.structs.replace(after, etag=etag if gaps.says_all(after, read) else None)

    def _next_gap(self) -> Gap:
        """The newest; but the last page of a poll goes to the oldest, which would else never have its turn
        where the newest are never done.
        """
        gaps = self._held.account.gaps
        return gaps[-1] if self._pages + 1 >= self._polling.max_pages_per_user else gaps[0]

    async def _walk(self, gap: Gap) -> None:
        """One page of a gap."""
        try:
            page = await self._source.page(self._id, limit=self._polling.posts_per_page, cursor=gap.cursor)
        except (CursorRefused, SourceFailed) as error:
            is_resumed = gap.cursor is not None and gap.cursor in self._remembered
            if gap.cursor is None or (isinstance(error, SourceFailed) and not is_resumed):
                raise
            log.warning("%s: the source refuses a cursor: %s", self._held.account.handle, error)
            self._pages += 1
            await self._write(lambda account: gaps.after_refusal(account, gap))
            return
        self._pages += 1
        if page is None:
            raise SourceUnavailable("the source says that a page is unchanged, and was not asked")
        self._got_on = self._got_on or bool(page.items)
        kept = await self._keep(page, known=gaps.late_below(gap))
        read = _reading(page, self._following(gap, page), kept)
        now = self._store.clock()
        await self._write(lambda account: gaps.after_gap(account, gap, read, now=now), page, kept)

    def _following(self, gap: Gap, page: Page) -> str | None:
        """The cursor to go on with; where it was used before, the same one again, which ends the walk."""
        walked = self._walked[gap.floor, gap.depth]
        if gap.cursor is None:
            walked.clear()
        walked.add(gap.cursor)
        return gap.cursor if page.cursor in walked else page.cursor

    async def _keep(self, page: Page, *, known: Micros | None) -> Kept:
        """Store the items of a page. What is not newer than `known` nearly always is known, so look before.

        What comes late makes the walk go on. It is written together with the state: else a kill between the
        two would make it look as if it had been known all along.
        """
        oldest = self._polling.oldest_kept(self._store.clock())
        items = [item for item in page.items if item.time >= oldest]
        pinned = [item for item in page.pinned if item.time >= oldest]
        if known is None:
            found = await self._store.keep(self._id, (*items, *pinned))
            return Kept(found, [], transitions.posts_since(self._held.account, found))
        newer = [item for item in items if item.time > known]
        unknown = await self._store.unknown(self._id, [item for item in items if item.time <= known])
        late = [item for item in unknown if item.time < known]
        level = [item for item in unknown if item.time == known]
        owed = late[-MOST_OWED:]
        at_once = (*newer, *pinned, *level, *late[:-MOST_OWED])
        found = [*await self._store.keep(self._id, at_once), *owed]
        return Kept(found, owed, sum(item.kind != "repost" for item in found))

    async def _write(self, edit: Edit, page: Page | None = None, kept: Kept = NOTHING) -> None:
        """Count what a page brought, make the state follow it, and end the poll when nothing is left."""
        new, bad = len(kept.found), 0 if page is None else page.set_aside
        self._new += new
        self._fresh += sum(self._mark is not None and item.time > self._mark for item in kept.found)
        self._links += sum(len(item.links) for item in kept.found)
        self._set_aside += bad

        def after(account: Account) -> Account:
            now = self._store.clock()
            account = transitions.read(
                edit(account),
                new=new,
                counted=transitions.posts_until(account, kept.found),
                uncounted=kept.uncounted,
                pages=1,
                set_aside=bad,
                now=now,
            )
            is_over = not account.gaps or self._pages >= self._polling.max_pages_per_user
            return self._settled(account, now) if is_over else account

        await self._held.write(
            after, [InsertIfAbsent(record=record_of(item, self._id)) for item in kept.owed]
        )

    def _settled(self, account: Account, now: Micros) -> Account:
        """How long ago the last poll was tells how often the account posts; the first poll tells nothing, and
        which of its posts the profile has counted is not known.
        """
        if self._mark is None:
            account = transitions.uncounted(account)
        since = None if self._last is None else max(now - self._last, 1)
        return transitions.settled(
            account,
            found=self._new,
            fresh=self._fresh,
            elapsed=None if self._mark is None else since,
            waited=since if self._is_scheduled else None,
            got_on=self._got_on,
            now=now,
        )


def _reading(page: Page, cursor: str | None, kept: Kept) -> Reading:
    return Reading(
        cursor=cursor,
        times=tuple(item.time for item in page.items),
        found=tuple(item.time for item in kept.found if item not in page.pinned),
    )
