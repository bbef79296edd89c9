"""The audit: everything that an account wrote, read in the order of writing, against what is stored.

A feed shows a post where its author dated it. One that is dated back far enough stands below everything that
a poll reads again, and only its author's own records tell that it is there.
"""

from __future__ import annotations

import msgspec

from .account import Account
from .item import Item
from .source import AuditSource
from .store import FeedStore

EXAMPLES = 10


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit found."""

    account_id: str
    written: int
    """Records that the source has."""
    missing: int
    """Of these, how many were not stored, though polls had been past them."""
    stored: int
    """Of these, how many are stored now. None of them in a dry run."""
    gone: int
    """Stored items that the source no longer has: somebody deleted them."""
    set_aside: int
    """Records that could not be read."""
    examples: tuple[Item, ...] = ()
    """Of what was missing, the first ones that were written."""
    gone_examples: tuple[str, ...] = ()
    """Of what is gone, the newest."""


async def audit(store: FeedStore, source: AuditSource, account_id: str, *, dry_run: bool = False) -> Audit:
    """Compare what is stored of an account with what it wrote, and store what is missing.

    What was published while the audit ran may be stored by a poll first, and is then not missing. What was
    stored before the audit began, and was not read by it, is gone.
    """
    account = (await store.get(account_id)).account
    before = [item.uri async for _, item in store.newest(account_id) if _can_be_told(item)]
    written: set[str] = set()
    missing = stored = set_aside = 0
    examples: list[Item] = []
    async for page in source.written(account_id):
        unknown = await store.unknown(account_id, [item for item in page.items if _was_read(account, item)])
        written.update(item.uri for item in page.items)
        missing += len(unknown)
        set_aside += page.set_aside
        examples += unknown[: EXAMPLES - len(examples)]
        if not dry_run:
            stored += len(await store.keep(account_id, unknown))
    gone = [uri for uri in before if uri not in written]
    return Audit(
        account_id=account_id,
        written=len(written),
        missing=missing,
        stored=stored,
        gone=len(gone),
        set_aside=set_aside,
        examples=tuple(examples),
        gone_examples=tuple(gone[:EXAMPLES]),
    )


def _was_read(account: Account, item: Item) -> bool:
    """Whether polls have been past it. What they will still read they show better: with what it quotes."""
    if account.mark is None or item.time > account.mark:
        return False
    return not any(gap.floor <= item.time for gap in account.gaps)


def _can_be_told(item: Item) -> bool:
    """A repost whose own address nobody told is known by the post's: that is another record."""
    return item.kind != "repost" or item.uri != item.post
