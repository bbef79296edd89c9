"""What `perdure feeds audit` does: one account after the other, each against everything that it wrote."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

import msgspec

from ...feeds import Account, FeedStore, Settings
from ...feeds.auditing import Audit, audit
from ...feeds.errors import NotAuthorized, SourceError
from ...feeds.source import AuditSource
from ..telling import counted, harmless, shortened
from ..times import minute
from .changing import name_in
from .opening import bluesky, opened


class Audited(msgspec.Struct, frozen=True, kw_only=True):
    """An account that was audited, or not."""

    account: str
    handle: str
    audit: Audit | None = None
    reason: str = ""
    """Why not."""


async def audits(settings: Settings, name: str | None, *, dry_run: bool) -> AsyncGenerator[Audited]:
    """Of one account, or of all."""
    async with opened(settings) as store, bluesky(settings) as source:
        if name is not None:
            accounts = [(await store.find(name_in(name))).account]
        else:
            accounts = [stored.account async for stored in store.accounts()]
        for account in accounts:
            yield await _audited(store, source, account, dry_run=dry_run)


async def _audited(store: FeedStore, source: AuditSource, account: Account, *, dry_run: bool) -> Audited:
    """One account's failure does not end an audit of all; wrong credentials do."""
    audited = Audited(account=account.account_id, handle=account.handle)
    try:
        found = await audit(store, source, account.account_id, dry_run=dry_run)
    except NotAuthorized:
        raise
    except SourceError as error:
        return msgspec.structs.replace(audited, reason=str(error))
    return msgspec.structs.replace(audited, audit=found)


def lines_of(audited: Audited, *, dry_run: bool) -> Iterator[str]:
    handle, found = harmless(audited.handle), audited.audit
    if found is None:
        yield f"[ERROR] {handle}: {harmless(audited.reason)}"
        return
    yield f"{handle}: {', '.join(_counts(found, dry_run=dry_run))}"
    for item in found.examples:
        yield f"  missing: {minute(item.time)}  {shortened(item.text, 80) or harmless(item.uri)}"
    if found.missing > len(found.examples):
        yield f"  and {found.missing - len(found.examples)} more"


def _counts(found: Audit, *, dry_run: bool) -> Iterator[str]:
    yield f"{counted(found.written, 'record')} written"
    if found.missing:
        yield f"{found.missing} {'missing' if dry_run else 'of them missing until now'}"
    elif found.written:
        yield "all stored"
    if found.gone:
        yield f"{counted(found.gone, 'stored item')} deleted there"
    if found.set_aside:
        yield f"{found.set_aside} could not be read"
