"""What `perdure feeds audit` does: one account after the other, each against everything that it wrote."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

import msgspec

from ...feeds import AccountStatus, FeedSettings
from ...feeds.audit import AuditReport, audit_account
from ...feeds.errors import AccountUnavailable, AuthenticationFailed, FeedError
from ...operating.times import format_minute
from ..backends import open_feeds, open_source
from ..output import one_line, plural, truncate
from .changing import name_in


class Audited(msgspec.Struct, frozen=True, kw_only=True):
    """An account that was audited, or not."""

    account: str
    handle: str
    audit: AuditReport | None = None
    reason: str = ""
    """Why not."""
    is_failure: bool = False
    """Whether that is a fault. An account that polls do not find either is skipped."""


async def audits(
    settings: FeedSettings, name: str | None, *, history: bool, remove: bool, dry_run: bool
) -> AsyncGenerator[Audited]:
    """Audit one account, or all. One that fails does not end an audit of all; wrong credentials do."""
    async with open_feeds(settings) as store, open_source(settings) as source:
        if name is not None:
            accounts = [(await store.find(name_in(name))).account]
        else:
            accounts = [stored.account async for stored in store.accounts()]
        since = settings.polling.oldest_kept(store.clock())
        for account in accounts:
            audited = Audited(account=account.account_id, handle=account.handle)
            try:
                found = await audit_account(
                    store,
                    source,
                    account.account_id,
                    history=history,
                    remove=remove,
                    since=since,
                    dry_run=dry_run,
                )
            except AuthenticationFailed:
                raise
            except FeedError as error:
                is_known = account.status is AccountStatus.UNAVAILABLE and isinstance(
                    error, AccountUnavailable
                )
                yield msgspec.structs.replace(audited, reason=str(error), is_failure=not is_known)
            else:
                yield msgspec.structs.replace(audited, audit=found)


def lines_of(
    audited: Audited, *, history: bool = False, remove: bool = False, dry_run: bool = False
) -> Iterator[str]:
    handle, found = one_line(audited.handle), audited.audit
    if found is None:
        yield f"[{'ERROR' if audited.is_failure else 'SKIP'}] {handle}: {one_line(audited.reason)}"
        return
    counts = _counts(found, history=history, remove=remove, dry_run=dry_run)
    yield f"{handle}: {', '.join(counts)}"
    for item in found.examples:
        yield f"  missing: {format_minute(item.time)}  {truncate(item.text, 80) or one_line(item.uri)}"
    if found.missing > len(found.examples):
        yield f"  and {found.missing - len(found.examples)} more"


def _counts(found: AuditReport, *, history: bool, remove: bool, dry_run: bool) -> Iterator[str]:
    yield f"{plural(found.source_records, 'record')} at the source"
    if found.missing:
        yield f"{found.missing} {'missing' if dry_run else 'of them missing until now'}"
    elif found.source_records:
        yield "all stored that polls should have found"
    if found.history:
        stored = f"{found.history_stored} of them stored" if history else "not stored (--history)"
        yield f"{found.history} from before the first poll, {stored}"
    if found.hidden:
        yield f"{found.hidden} that the feed does not show"
    if found.removed:
        yield f"{plural(found.removed, 'stored item')} removed: deleted at the source"
    elif found.deleted:
        why = "the source lists no record at all" if remove and not dry_run else "--remove"
        yield f"{plural(found.deleted, 'stored item')} deleted at the source, not removed ({why})"
    if found.invalid_records:
        yield f"{plural(found.invalid_records, 'invalid record')}"
