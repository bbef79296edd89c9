"""What `perdure feeds audit` does: one account after the other, each against everything that it wrote."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

import msgspec

from ...feeds import Settings
from ...feeds.auditing import Audit, audit
from ...feeds.errors import NotAuthorized, SourceError
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


async def audits(
    settings: Settings, name: str | None, *, history: bool, remove: bool, dry_run: bool
) -> AsyncGenerator[Audited]:
    """Audit one account, or all. One that fails does not end an audit of all; wrong credentials do."""
    async with opened(settings) as store, bluesky(settings) as source:
        if name is not None:
            accounts = [(await store.find(name_in(name))).account]
        else:
            accounts = [stored.account async for stored in store.accounts()]
        since = settings.polling.oldest_kept(store.clock())
        for account in accounts:
            audited = Audited(account=account.account_id, handle=account.handle)
            try:
                found = await audit(
                    store,
                    source,
                    account.account_id,
                    history=history,
                    remove=remove,
                    since=since,
                    dry_run=dry_run,
                )
            except NotAuthorized:
                raise
            except SourceError as error:
                yield msgspec.structs.replace(audited, reason=str(error))
            else:
                yield msgspec.structs.replace(audited, audit=found)


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
    yield f"{counted(found.written, 'record')} at the source"
    if found.missing:
        yield f"{found.missing} {'missing' if dry_run else 'of them missing until now'}"
    elif found.written:
        yield "all stored that polls should have found"
    if found.history:
        older = found.stored > found.missing
        yield f"{found.history} from before the first poll, {'stored' if older else 'not stored (--history)'}"
    if found.hidden:
        yield f"{found.hidden} that the feed does not show"
    if found.removed:
        yield f"{counted(found.removed, 'stored item')} removed because of deletion there"
    elif found.gone:
        yield f"{counted(found.gone, 'stored item')} deleted there (--remove)"
    if found.set_aside:
        yield f"{counted(found.set_aside, 'invalid record')}"
