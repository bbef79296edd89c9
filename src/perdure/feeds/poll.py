"""Polls one account once: reads the newest page, then the gaps (see `watermark_and_gaps`).

No transaction is open while a page is fetched, and the state of the account never marks an item as read
before the item is stored. So a poll can be interrupted at any moment, and the next poll continues from there.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from functools import partial
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from ..storage import InsertIfAbsent, Micros
from . import transitions, watermark_and_gaps
from .account import Account, Gap
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
from .item import Item, item_record
from .lease import AccountLease
from .settings import PollSettings
from .source import FeedPage, FeedSource
from .store import AccountEdit, FeedStore
from .watermark_and_gaps import PageSummary

log = logging.getLogger("perdure.feeds")


class PollSucceeded(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a successful poll."""

    account: Account
    """The account after the poll."""
    was_initial: bool
    new_items: int
    new_links: int
    pages: int
    resumed_pages: int = 0
    """Number of pages that were read for gaps left by earlier polls or added by backfills."""
    invalid_records: int = 0

    @property
    def is_high_volume(self) -> bool:
        """Whether the poll read several pages, not counting `resumed_pages`. False for a first poll."""
        return self.pages - self.resumed_pages > 1 and not self.was_initial


class PollSkipped(msgspec.Struct, frozen=True):
    """The outcome of a poll whose account has an invalid id or is not shown by the source."""

    account: Account
    error: SourceError


class PollFailed(msgspec.Struct, frozen=True):
    """The outcome of a poll that failed with an error."""

    account: Account
    error: Exception


class PolledElsewhere(msgspec.Struct, frozen=True):
    """The outcome for an account that was not polled, because another poller is polling it."""

    account: Account
    error: PollInProgress


PollOutcome: TypeAlias = PollSucceeded | PollSkipped | PollFailed | PolledElsewhere


class _StoredItems(msgspec.Struct, frozen=True):
    """The new items of a page. All except the `pending` items are already stored."""

    new: list[Item]
    pending: list[Item]
    """New items that will be stored in the same commit as the state of the account."""
    uncounted: int = 0
    """Number of new posts (not reposts) that may be missing from the latest profile's post count."""


_NO_ITEMS = _StoredItems([], [])
MAX_PENDING_ITEMS = 24
"""Maximum number of items that are stored in the same commit as the state of the account."""


class Poll:
    """Runs one poll of an account that the poller has leased."""

    def __init__(
        self,
        store: FeedStore,
        source: FeedSource,
        settings: PollSettings,
        lease: AccountLease,
        *,
        is_scheduled: bool,
    ) -> None:
        """Prepare the poll. `is_scheduled` is False for a poll that a user requested."""
        self._store = store
        self._source = source
        self._settings = settings
        self._lease = lease
        self._is_scheduled = is_scheduled
        self._account_id = lease.account.account_id
        self._previous_poll_at = lease.account.last_polled_at
        self._resumed_cursors = {gap.cursor for gap in lease.account.gaps}
        self._resumed_gaps = {(gap.floor, gap.late_floor) for gap in lease.account.gaps}
        self._cursors_by_gap: defaultdict[tuple[Micros, Micros], set[str | None]] = defaultdict(set)
        """The cursors that this poll has used for each gap, to detect repeated cursors."""
        self._watermark = lease.account.watermark
        self._new_items = self._newer = self._new_links = self._pages = self._invalid_records = 0
        self._resumed_pages = 0
        self._made_progress = False

    async def run(self) -> PollSucceeded | PollSkipped | PollFailed:
        """Read pages, and store their items and the new state of the account.

        Source errors are returned as part of the outcome, except AuthenticationFailed. It is raised, because
        it affects all accounts.
        """
        try:
            return await self._read_pages()
        except AuthenticationFailed:
            raise
        except SourceError as error:
            edit = partial(transitions.poll_failed, error=error, now=self._store.clock())
            account = await self._lease.update(edit)
            is_unavailable = isinstance(error, AccountUnavailable | InvalidActor)
            return PollSkipped(account, error) if is_unavailable else PollFailed(account, error)

    async def _read_pages(self) -> PollSucceeded:
        await self._read_head()
        while self._lease.is_valid:
            await self._read_gap_page(self._next_gap())
        return PollSucceeded(
            account=self._lease.account,
            was_initial=self._watermark is None,
            new_items=self._new_items,
            new_links=self._new_links,
            pages=self._pages,
            resumed_pages=self._resumed_pages,
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
        stored_items = await self._store_items(page, known=account.watermark)
        read = _summarize_page(page, page.cursor, stored_items)
        await self._write(partial(self._apply_head, read=read, etag=page.etag), page, stored_items)

    def _apply_head(self, account: Account, *, read: PageSummary, etag: str | None) -> Account:
        """Apply the newest page to the account.

        Store the ETag only if the next poll may skip this page when it is unchanged. Otherwise, the next
        poll must read the page again in any case, because late items may appear on the pages after it.
        """
        after = watermark_and_gaps.apply_head_page(
            account, read, now=self._store.clock(), settings=self._settings
        )
        return replace(after, etag=etag if watermark_and_gaps.reaches_known_items(after, read) else None)

    def _next_gap(self) -> Gap:
        """Return the gap to read next: the newest gap or, for the last page of the poll, the oldest gap.

        If every page were read for the newest gap, the oldest gap might never be read while new gaps appear.
        """
        gaps = self._lease.account.gaps
        return gaps[-1] if self._pages + 1 >= self._settings.max_pages_per_user else gaps[0]

    async def _read_gap_page(self, gap: Gap) -> None:
        self._resumed_pages += (gap.floor, gap.late_floor) in self._resumed_gaps
        try:
            page = await self._source.page(
                self._account_id, limit=self._settings.posts_per_page, cursor=gap.cursor
            )
        except (CursorRejected, SourceServerError) as error:
            is_resumed = gap.cursor is not None and gap.cursor in self._resumed_cursors
            if gap.cursor is None or (isinstance(error, SourceServerError) and not is_resumed):
                raise
            log.warning("%s: the source rejected a cursor: %s", self._lease.account.handle, error)
            self._pages += 1
            await self._write(lambda account: watermark_and_gaps.apply_cursor_rejection(account, gap))
            return
        self._pages += 1
        if page is None:
            raise SourceUnavailable("the source returned 304 Not Modified, although the request had no ETag")
        self._made_progress = self._made_progress or bool(page.items)
        stored_items = await self._store_items(page, known=watermark_and_gaps.late_threshold(gap))
        read = _summarize_page(page, self._next_cursor(gap, page), stored_items)
        now = self._store.clock()
        await self._write(
            lambda account: watermark_and_gaps.apply_gap_page(account, gap, read, now=now), page, stored_items
        )

    def _next_cursor(self, gap: Gap, page: FeedPage) -> str | None:
        """Return the cursor at which reading the gap continues. Usually, it is the cursor in the page.

        If this poll has already used that cursor, return the gap's current cursor. `apply_gap_page` then
        closes the gap, because reading cannot advance.
        """
        used = self._cursors_by_gap[gap.floor, gap.late_floor]
        if gap.cursor is None:
            used.clear()
        used.add(gap.cursor)
        return gap.cursor if page.cursor in used else page.cursor

    async def _store_items(self, page: FeedPage, *, known: Micros | None) -> _StoredItems:
        """Store the items of a page, except up to `MAX_PENDING_ITEMS` late items, which are only returned.

        Items up to the time `known` are usually stored already, so they are looked up first. New items before
        that time are late, and make the poll read further pages. If all late items were stored before the
        state of the account, and the process was killed in between, the next poll would not see them as new
        and would stop too early. If `known` is None, no item is late.
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
        pending = late[-MAX_PENDING_ITEMS:]
        others = (*newer, *pinned, *level, *late[:-MAX_PENDING_ITEMS])
        found = [*await self._store.add_items(self._account_id, others), *pending]
        return _StoredItems(found, pending, sum(item.kind != "repost" for item in found))

    async def _write(
        self, edit: AccountEdit, page: FeedPage | None = None, stored_items: _StoredItems = _NO_ITEMS
    ) -> None:
        """Apply `edit`, count the page's items, and write the account. After the last page, end the poll."""
        new, invalid = len(stored_items.new), 0 if page is None else page.invalid_records
        self._new_items += new
        if self._watermark is not None:
            self._newer += sum(item.time > self._watermark for item in stored_items.new)
        self._new_links += sum(len(item.links) for item in stored_items.new)
        self._invalid_records += invalid

        def after(account: Account) -> Account:
            now = self._store.clock()
            account = transitions.page_read(
                edit(account),
                new=new,
                counted=transitions.posts_before_profile(account, stored_items.new),
                uncounted=stored_items.uncounted,
                invalid=invalid,
                now=now,
            )
            is_over = not account.gaps or self._pages >= self._settings.max_pages_per_user
            return self._finish(account, now) if is_over else account

        await self._lease.update(
            after,
            [InsertIfAbsent(record=item_record(item, self._account_id)) for item in stored_items.pending],
        )

    def _finish(self, account: Account, now: Micros) -> Account:
        """Return the state of the account after the poll, with an adapted interval.

        If the account had no watermark before the poll, keep the interval, because it is not known yet how
        often the account posts. In this case, also discard the profile's post count, because it is not known
        which posts are included in that count.
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


def _summarize_page(page: FeedPage, cursor: str | None, stored_items: _StoredItems) -> PageSummary:
    return PageSummary(
        cursor=cursor,
        item_times=tuple(item.time for item in page.items),
        new_times=tuple(item.time for item in stored_items.new if item not in page.pinned),
    )
