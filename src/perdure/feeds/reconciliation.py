"""The audit: compare everything that an account wrote, in the order of writing, with what is stored.

A feed shows a post at the time that its author gave it. A post that is back-dated far enough is below
everything that polls read again, and only the author's own records show that it exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from . import transitions
from .account import Account
from .item import Item
from .source import AuditSource, SourceRecord
from .store import FeedStore

MAX_EXAMPLES = 10


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an audit."""

    account_id: str
    source_records: int
    """How many records the source has."""
    missing: int
    """How many of them polls should have found but did not store."""
    history: int
    """How many more are not stored because they were written before the look-back of the first poll."""
    repaired: int
    """How many of the missing ones are stored now. 0 in a dry run."""
    history_stored: int
    """How many of the older ones are stored now. 0 unless they were requested."""
    hidden: int
    """How many of them the feed does not show, so that no poll could have found them."""
    deleted: int
    """How many stored items were deleted at the source."""
    removed: int
    """How many of those were removed from the storage."""
    invalid_records: int
    """How many records are invalid."""
    examples: tuple[Item, ...] = ()
    """The first missing items, in the order of writing."""
    deleted_examples: tuple[str, ...] = ()
    """The newest URIs that were deleted at the source."""


async def audit_account(
    store: FeedStore,
    source: AuditSource,
    account_id: str,
    *,
    history: bool = False,
    remove: bool = False,
    since: int = 0,
    dry_run: bool = False,
) -> AuditReport:
    """Compare the stored items of an account with its own records, and store what is missing.

    `history` stores what was written before the look-back of the first poll too, and `remove` removes stored
    items that were deleted at the source. Items before `since` are not compared. An item that is published
    during the audit may be stored by a poll first, and is then not missing.
    """
    run = _Comparison(store, source, (await store.get(account_id)).account, history=history, dry_run=dry_run)
    before = [item async for _, item in store.newest_items(account_id, since=since) if _has_own_uri(item)]
    uris: set[str] = set()
    invalid_records = 0
    async for page in source.records(account_id):
        uris.update(page.uris)
        invalid_records += page.invalid_records
        await run.compare([each for each in page.records if each.item.time >= since])
    deleted = [item for item in before if item.uri not in uris]
    removed = 0
    if remove and uris and not dry_run:  # a source without any record is more likely broken
        removed = await store.remove_items(account_id, deleted)
    if not dry_run:
        await store.update(account_id, partial(transitions.audited, posts=run.posts))
    return AuditReport(
        account_id=account_id,
        source_records=len(uris),
        missing=run.missing,
        history=run.older,
        repaired=run.stored,
        history_stored=run.older_stored,
        hidden=run.hidden,
        deleted=len(deleted),
        removed=removed,
        invalid_records=invalid_records,
        examples=tuple(run.examples),
        deleted_examples=tuple(item.uri for item in deleted[:MAX_EXAMPLES]),
    )


class _Comparison:
    """The comparison of the records of one account, page by page."""

    def __init__(
        self, store: FeedStore, source: AuditSource, account: Account, *, history: bool, dry_run: bool
    ) -> None:
        self._store = store
        self._source = source
        self._account = account
        self._takes_history = history
        self._is_dry_run = dry_run
        self.missing = self.older = self.stored = self.older_stored = self.hidden = self.posts = 0
        self.examples: list[Item] = []

    async def compare(self, records: Sequence[SourceRecord]) -> None:
        """Count and store the missing ones of these records."""
        passed = [each for each in records if _is_behind_polls(self._account, each.item)]
        unknown = await self._store.missing_items(self._account.account_id, [each.item for each in passed])
        uris = {item.uri for item in unknown}
        recent = [each.item for each in passed if each.item.uri in uris and not self._is_history(each)]
        older = [each.item for each in passed if each.item.uri in uris and self._is_history(each)]
        shown = await self._source.shown_items(recent) if recent else []
        self.missing += len(shown)
        self.hidden += len(recent) - len(shown)
        self.older += len(older)
        self.examples += shown[: MAX_EXAMPLES - len(self.examples)]
        if self._is_dry_run:
            return
        new = await self._store.add_items(self._account.account_id, shown)
        self.stored += len(new)
        if older and self._takes_history:
            past = await self._source.shown_items(older)
            self.hidden += len(older) - len(past)
            self.older_stored += len(await self._store.add_items(self._account.account_id, past))
        written_at = {each.item.uri: each.written_at for each in passed}
        since = self._account.profile_read_at or 0
        self.posts += sum(item.kind != "repost" and written_at[item.uri] >= since for item in new)

    def _is_history(self, record: SourceRecord) -> bool:
        """Whether it was written before the look-back of the first poll."""
        return self._account.history_start is not None and record.written_at < self._account.history_start


def _is_behind_polls(account: Account, item: Item) -> bool:
    """Whether polls have read past its position in the feed. Later polls will read what is above."""
    if account.watermark is None or item.time > account.watermark:
        return False
    return not any(gap.floor <= item.time for gap in account.gaps)


def _has_own_uri(item: Item) -> bool:
    """Whether it can be compared. A repost without a URI of its own is stored under the URI of the post."""
    return item.kind != "repost" or item.uri != item.post_uri
