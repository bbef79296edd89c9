"""The audit: everything that an account wrote, read in the order of writing, against what is stored.

A feed shows a post at the time that its author gave it. One that is dated back far enough is below everything
that a poll reads again, and only its author's own records show that it exists.
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
    """What an audit found."""

    account_id: str
    source_records: int
    """How many records the source has."""
    missing: int
    """How many of them should have been found by polls, and were not stored."""
    history: int
    """How many more are not stored because they were written before the first poll's look-back."""
    repaired: int
    """How many of the missing ones are stored now. None in a dry run."""
    history_stored: int
    """How many of the older ones are stored now. None unless they were asked for."""
    hidden: int
    """How many of them the feed does not show, so that no poll could have found them."""
    deleted: int
    """How many stored items the source no longer has: they were deleted there."""
    removed: int
    """How many of those were removed here."""
    invalid_records: int
    """How many records are invalid."""
    examples: tuple[Item, ...] = ()
    """The first of the missing ones, in the order of writing."""
    deleted_examples: tuple[str, ...] = ()
    """The newest of those that are gone."""


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
    """Compare what is stored of an account with what it wrote, and store what is missing.

    `history` stores what was written before the first poll's look-back too, and `remove` removes stored items
    that were deleted at the source. Items before `since` are not compared. What is published while the audit
    runs may be stored by a poll first, and is then not missing.
    """
    run = _Comparison(store, source, (await store.get(account_id)).account, history=history, dry_run=dry_run)
    before = [item async for _, item in store.newest_items(account_id, since=since) if _has_own_uri(item)]
    uris: set[str] = set()
    set_aside = 0
    async for page in source.records(account_id):
        uris.update(page.uris)
        set_aside += page.invalid_records
        await run.compare([each for each in page.records if each.item.time >= since])
    gone = [item for item in before if item.uri not in uris]
    removed = 0
    if remove and uris and not dry_run:  # if the source has no record at all, it is more likely wrong
        removed = await store.remove_items(account_id, gone)
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
        deleted=len(gone),
        removed=removed,
        invalid_records=set_aside,
        examples=tuple(run.examples),
        deleted_examples=tuple(item.uri for item in gone[:MAX_EXAMPLES]),
    )


class _Comparison:
    """The comparison of one account, page by page."""

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
        """Count and store what is missing of these records."""
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
        """Whether it was written before polls began to look, so that none of them should have found it."""
        return self._account.history_start is not None and record.written_at < self._account.history_start


def _is_behind_polls(account: Account, item: Item) -> bool:
    """Whether polls have passed its place in the feed. What is above they will still read."""
    if account.watermark is None or item.time > account.watermark:
        return False
    return not any(gap.floor <= item.time for gap in account.gaps)


def _has_own_uri(item: Item) -> bool:
    """Whether it can be compared: a repost without a URI of its own is stored under that of the post."""
    return item.kind != "repost" or item.uri != item.post_uri
