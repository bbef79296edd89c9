"""The audit of an account: compare the stored items with the account's own records at the source.

A feed is sorted by the times that authors give their posts. Polls do not find a post that is back-dated so
far that it appears below the items that polls read again. The author's own records contain it.
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
"""Maximum number of missing items, and of deleted ones, that a report names."""


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an audit."""

    account_id: str
    source_records: int
    """Number of records at the source."""
    missing: int
    """Number of records that polls should have found but that were not stored."""
    history: int
    """Number of records that were not stored because they are older than the look-back of the first poll."""
    repaired: int
    """Number of missing records that the audit has stored. It is 0 in a dry run."""
    history_stored: int
    """Number of older records that the audit has stored. It is 0 unless `history` was requested."""
    hidden: int
    """Number of records that are not stored because the feed does not show them."""
    deleted: int
    """Number of stored items that were deleted at the source."""
    removed: int
    """Number of deleted items that the audit has removed from the storage."""
    invalid_records: int
    examples: tuple[Item, ...] = ()
    """Some of the missing items, in the order of writing."""
    deleted_examples: tuple[str, ...] = ()
    """The URIs of the newest deleted items."""


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
    """Compare the stored items of an account with its own records, and store missing items.

    With `history`, also store items from before the look-back of the first poll. With `remove`, remove stored
    items that were deleted at the source. Items before `since` are not compared.
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
    if remove and uris and not dry_run:  # a source without any record is probably faulty
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
    """A comparison of the records of one account, page by page."""

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
        """Count the missing items among these records, and store them."""
        passed = [each for each in records if _is_behind_polls(self._account, each.item)]
        unknown = await self._store.missing_items(self._account.account_id, [each.item for each in passed])
        written_at = {each.item.uri: each.written_at for each in passed}
        start = self._account.history_start or 0
        recent = [item for item in unknown if written_at[item.uri] >= start]
        older = [item for item in unknown if written_at[item.uri] < start]
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
        since = self._account.profile_read_at or 0
        self.posts += sum(item.kind != "repost" and written_at[item.uri] >= since for item in new)


def _is_behind_polls(account: Account, item: Item) -> bool:
    """Return whether polls have read past the position of an item. Otherwise later polls will find it."""
    if account.watermark is None or item.time > account.watermark:
        return False
    return not any(gap.floor <= item.time for gap in account.gaps)


def _has_own_uri(item: Item) -> bool:
    """Return whether an item can be compared. Some reposts are stored under the URI of the reposted post."""
    return item.kind != "repost" or item.uri != item.post_uri
