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
from .account import Account, Gap, StoredAccount
from .errors import (
    AccountUnavailable,
    AuthenticationFailed,
    CursorRejected,
    InvalidActor,
    PollInProgress,
    SourceError,
    SourceServerError,
    SourceUnavailable,
)
from .gaps import PageSummary
from .item import Item, item_record
from .lease import LEASE_DURATION, AccountLease, acquire_lease
from .settings import PollSettings
from .source import FeedPage, FeedSource
from .store import AccountEdit, FeedStore

log = logging.getLogger("perdure.feeds")


class PollSucceeded(msgspec.Struct, frozen=True, kw_only=True):
    """What a poll brought."""

    account: Account
    """As it is now."""
    was_initial: bool
    new_items: int
    new_links: int
    pages: int
    invalid_records: int = 0

    @property
    def is_high_volume(self) -> bool:
        """Whether one page was not enough."""
        return self.pages > 1 and not self.was_initial


class PollSkipped(msgspec.Struct, frozen=True):
    """An account that cannot be polled for now: the source does not show it."""

    account: Account
    error: SourceError


class PollFailed(msgspec.Struct, frozen=True):
    """A poll that came to nothing."""

    account: Account
    error: Exception


class PolledElsewhere(msgspec.Struct, frozen=True):
    """An account that was not polled, because another poller has it."""

    account: Account
    error: PollInProgress


PollOutcome: TypeAlias = PollSucceeded | PollSkipped | PollFailed | PolledElsewhere


async def poll_account(
    store: FeedStore,
    source: FeedSource,
    settings: PollSettings,
    stored: StoredAccount,
    *,
    poller: str,
    lease_duration: Micros = LEASE_DURATION,
    is_scheduled: bool = False,
) -> PollSucceeded | PollSkipped | PollFailed:
    """Poll an account now; `is_scheduled` if it is due, or in a cycle.

    Raise PollInProgress if another poller has it, and AuthenticationFailed if the credentials are wrong:
    that is not a failure of the account.
    """
    async with acquire_lease(store, stored, poller, duration=lease_duration) as lease:
        try:
            return await _Poll(store, source, settings, lease, is_scheduled=is_scheduled).run()
        except AuthenticationFailed:
            raise
        except SourceError as error:
            account = await lease.update(partial(transitions.poll_failed, error=error, now=store.clock()))
            is_gone = isinstance(error, AccountUnavailable | InvalidActor)
            return PollSkipped(account, error) if is_gone else PollFailed(account, error)


class _StoredItems(msgspec.Struct, frozen=True):
    """What became of the items of a page."""

    new: list[Item]
    """Those that nobody knew."""
    pending: list[Item]
    """Those of them that are still to be written, together with the state."""
    uncounted: int = 0
    """How many of those that were found are posts that the last profile has not counted."""


_NO_ITEMS = _StoredItems([], [])
MAX_PENDING_ITEMS = 24
"""Beside the account, in one commit."""


class _Poll:
    """A poll under way."""

    def __init__(
        self,
        store: FeedStore,
        source: FeedSource,
        settings: PollSettings,
        lease: AccountLease,
        *,
        is_scheduled: bool,
    ) -> None:
        self._store = store
        self._source = source
        self._settings = settings
        self._lease = lease
        self._is_scheduled = is_scheduled
        self._account_id = lease.account.account_id
        self._previous_poll_at = lease.account.last_polled_at
        self._resumed_cursors = {gap.cursor for gap in lease.account.gaps}
        self._cursors_by_gap: defaultdict[tuple[Micros, Micros], set[str | None]] = defaultdict(set)
        """The cursors of each gap, so that a walk in a circle is noticed."""
        self._watermark = lease.account.watermark
        self._new_items = self._newer = self._new_links = self._pages = self._invalid_records = 0
        self._made_progress = False

    async def run(self) -> PollSucceeded:
        await self._read_head()
        while self._lease.is_valid:
            await self._read_gap_page(self._next_gap())
        return PollSucceeded(
            account=self._lease.account,
            was_initial=self._watermark is None,
            new_items=self._new_items,
            new_links=self._new_links,
            pages=self._pages,
            invalid_records=self._invalid_records,
        )

    async def _read_head(self) -> None:
        account = self._lease.account
        page = await self._source.page(
            self._account_id, limit=self._settings.posts_per_page, etag=account.etag
        )
        self._pages += 1
        if page is None:
            await self._write(lambda account: account)
            return
        kept = await self._store_items(page, known=account.watermark)
        read = _summarize_page(page, page.cursor, kept)
        await self._write(partial(self._apply_head, read=read, etag=page.etag), page, kept)

    def _apply_head(self, account: Account, *, read: PageSummary, etag: str | None) -> Account:
        """Only a page that reaches a known floor says by its ETag that nothing is new: another may look the
        same, with something new right behind it.
        """
        after = gaps.apply_head_page(account, read, now=self._store.clock(), settings=self._settings)
        return msgspec.structs.replace(after, etag=etag if gaps.reaches_known_items(after, read) else None)

    def _next_gap(self) -> Gap:
        """The newest; but the last page of a poll goes to the oldest, which would else never have its turn
        where the newest are never done.
        """
        gaps = self._lease.account.gaps
        return gaps[-1] if self._pages + 1 >= self._settings.max_pages_per_user else gaps[0]

    async def _read_gap_page(self, gap: Gap) -> None:
        """One page of a gap."""
        try:
            page = await self._source.page(
                self._account_id, limit=self._settings.posts_per_page, cursor=gap.cursor
            )
        except (CursorRejected, SourceServerError) as error:
            is_resumed = gap.cursor is not None and gap.cursor in self._resumed_cursors
            if gap.cursor is None or (isinstance(error, SourceServerError) and not is_resumed):
                raise
            log.warning("%s: the source refuses a cursor: %s", self._lease.account.handle, error)
            self._pages += 1
            await self._write(lambda account: gaps.apply_cursor_rejection(account, gap))
            return
        self._pages += 1
        if page is None:
            raise SourceUnavailable("the source says that a page is unchanged, and was not asked")
        self._made_progress = self._made_progress or bool(page.items)
        kept = await self._store_items(page, known=gaps.late_threshold(gap))
        read = _summarize_page(page, self._next_cursor(gap, page), kept)
        now = self._store.clock()
        await self._write(lambda account: gaps.apply_gap_page(account, gap, read, now=now), page, kept)

    def _next_cursor(self, gap: Gap, page: FeedPage) -> str | None:
        """The cursor to go on with; where it was used before, the same one again, which ends the walk."""
        walked = self._cursors_by_gap[gap.floor, gap.late_floor]
        if gap.cursor is None:
            walked.clear()
        walked.add(gap.cursor)
        return gap.cursor if page.cursor in walked else page.cursor

    async def _store_items(self, page: FeedPage, *, known: Micros | None) -> _StoredItems:
        """Store the items of a page. What is not newer than `known` nearly always is known, so look before.

        What comes late makes the walk go on. It is written together with the state: else a kill between the
        two would make it look as if it had been known all along.
        """
        oldest = self._settings.oldest_kept(self._store.clock())
        items = [item for item in page.items if item.time >= oldest]
        pinned = [item for item in page.pinned if item.time >= oldest]
        if known is None:
            found = await self._store.add_items(self._account_id, (*items, *pinned))
            return _StoredItems(found, [], transitions.posts_after_profile(self._lease.account, found))
        newer = [item for item in items if item.time > known]
        unknown = await self._store.missing_items(
            self._account_id, [item for item in items if item.time <= known]
        )
        late = [item for item in unknown if item.time < known]
        level = [item for item in unknown if item.time == known]
        owed = late[-MAX_PENDING_ITEMS:]
        at_once = (*newer, *pinned, *level, *late[:-MAX_PENDING_ITEMS])
        found = [*await self._store.add_items(self._account_id, at_once), *owed]
        return _StoredItems(found, owed, sum(item.kind != "repost" for item in found))

    async def _write(
        self, edit: AccountEdit, page: FeedPage | None = None, kept: _StoredItems = _NO_ITEMS
    ) -> None:
        """Count what a page brought, make the state follow it, and end the poll when nothing is left."""
        new, bad = len(kept.new), 0 if page is None else page.invalid_records
        self._new_items += new
        self._newer += sum(self._watermark is not None and item.time > self._watermark for item in kept.new)
        self._new_links += sum(len(item.links) for item in kept.new)
        self._invalid_records += bad

        def after(account: Account) -> Account:
            now = self._store.clock()
            account = transitions.page_read(
                edit(account),
                new=new,
                counted=transitions.posts_before_profile(account, kept.new),
                uncounted=kept.uncounted,
                pages=1,
                invalid=bad,
                now=now,
            )
            is_over = not account.gaps or self._pages >= self._settings.max_pages_per_user
            return self._finish(account, now) if is_over else account

        await self._lease.update(
            after, [InsertIfAbsent(record=item_record(item, self._account_id)) for item in kept.pending]
        )

    def _finish(self, account: Account, now: Micros) -> Account:
        """How long ago the last poll was tells how often the account posts; the first poll tells nothing, and
        which of its posts the profile has counted is not known.
        """
        if self._watermark is None:
            account = transitions.profile_count_reset(account)
        since = None if self._previous_poll_at is None else max(now - self._previous_poll_at, 1)
        return transitions.poll_finished(
            account,
            new=self._new_items,
            newer=self._newer,
            elapsed=None if self._watermark is None else since,
            waited=since if self._is_scheduled else None,
            made_progress=self._made_progress,
            now=now,
        )


def _summarize_page(page: FeedPage, cursor: str | None, kept: _StoredItems) -> PageSummary:
    return PageSummary(
        cursor=cursor,
        item_times=tuple(item.time for item in page.items),
        new_times=tuple(item.time for item in kept.new if item not in page.pinned),
    )
