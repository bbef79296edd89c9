"""Audits an account: compares the stored items with the account's own records at the source.

A feed is sorted by the times that authors give their posts. If a post is backdated too far, it appears
further down the feed than polls read, so polls do not find it. The author's own records include it.
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
"""Maximum number of missing items, and of deleted items, that a report lists as examples."""


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an audit of one account."""

    account_id: str
    source_records: int
    """Number of the account's records at the source."""
    missing: int
    """Number of records that were not stored although polls should have found them."""
    history: int
    """Number of records that were not stored because they were written before `Account.history_start`."""
    repaired: int
    """Number of `missing` records that the audit stored. Always 0 in a dry run."""
    history_stored: int
    """Number of `history` records that the audit stored. 0 in a dry run or if `history` was not requested."""
    hidden: int
    """Number of records that the audit did not store because the feed does not show them."""
    deleted: int
    """Number of stored items that no longer exist at the source."""
    removed: int
    """Number of items that the audit removed from the storage because the source has deleted them."""
    invalid_records: int
    examples: tuple[Item, ...] = ()
    """The first missing items that the audit found, up to `MAX_EXAMPLES`."""
    deleted_examples: tuple[str, ...] = ()
    """The URIs of the newest deleted items, up to `MAX_EXAMPLES`."""


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
    """Compare the stored items of an account with its records at the source, and store missing items.

    With `history`, also store items that were written before `Account.history_start`. With `remove`, delete
    stored items that no longer exist at the source. Ignore items that are older than `since`. With `dry_run`,
    store and delete nothing.
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
    if remove and uris and not dry_run:  # a source that lists no records at all is probably faulty
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
    """Compares the records of one account with its stored items.

    It counts the differences and stores missing items.
    """

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
        """Count the records that are not stored. Unless this is a dry run, store those that the feed shows.

        Records that were written before `Account.history_start` are stored only with `history`. Records in
        parts of the feed that polls have not read yet are ignored.
        """
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
    """Return whether polls have already read the part of the feed in which the item should appear."""
    if account.watermark is None or item.time > account.watermark:
        return False
    return not any(gap.floor <= item.time for gap in account.gaps)


def _has_own_uri(item: Item) -> bool:
    """Return whether an item has a URI of its own. Some reposts have the URI of the reposted post instead."""
    return item.kind != "repost" or item.uri != item.post_uri
