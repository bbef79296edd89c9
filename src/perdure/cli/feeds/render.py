"""Formats the results of the feed commands as text, and the outcomes of polls as JSON events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ...feeds import AccountStatus, PollOutcome, api_types, poll
from ...operating.times import format_clock, format_duration, format_minute, format_when, iso
from ...storage import Micros
from ..output import key_values, one_line, plural, truncate
from ..table import Column, FittedTable

ADD_ACCOUNT = "Add one with `perdure feeds add HANDLE`."
NO_ACCOUNTS = f"No accounts yet. {ADD_ACCOUNT}"
MAX_NAMED = 20
"""Maximum number of accounts that a dry run lists, and of failing accounts that `feeds status` lists."""
MAX_SHARERS = 8
"""Maximum number of accounts that are listed for each link."""


def changes(report: api_types.ChangeReport) -> Iterator[str]:
    for change in report.changes:
        handle, note = one_line(change.handle), one_line(change.note)
        if change.action is None:
            yield f"{handle}: {note}"
        else:
            would = "would be " if report.dry_run else ""
            yield f"{handle}: {would}{change.action}{f' ({note})' if note else ''}"


def follow_list(actor: str, report: api_types.ChangeReport, *, prune: bool) -> Iterator[str]:
    actor = one_line(actor)
    suspended, would = report.count("suspended"), "would be " if report.dry_run else ""
    actions = [(report.count(action), action) for action in ("added", "resumed", "renamed")]
    counts = [f"{count} {would}{action}" for count, action in actions if count]
    counts.append(f"{report.count(None)} already added")
    yield f"{actor} follows {plural(len(report.changes) - suspended, 'account')}: {', '.join(counts)}"
    if prune:
        yield f"{plural(suspended, 'account')} {would}suspended: no longer followed by {actor}"


def outcome_event(outcome: PollOutcome) -> dict[str, object]:
    """Return the JSON event that reports the outcome of a poll."""
    about = {"account": outcome.account.account_id, "handle": outcome.account.handle}
    next_poll_at = iso(outcome.account.next_poll_at)
    match outcome:
        case poll.PollSucceeded():
            return {
                "event": "initial" if outcome.was_initial else "poll",
                **about,
                "new_items": outcome.new_items,
                "new_links": outcome.new_links,
                "pages": outcome.pages,
                "invalid_records": outcome.invalid_records,
                "gaps": len(outcome.account.gaps),
                "next_poll_at": next_poll_at,
            }
        case poll.PollSkipped():
            return {"event": "skip", **about, "reason": str(outcome.error), "next_poll_at": next_poll_at}
        case poll.PollFailed():
            return {"event": "error", **about, "reason": str(outcome.error)}
        case poll.PolledElsewhere():
            until = outcome.error.retry_at
            retry_at = None if until is None else iso(until)
            return {"event": "elsewhere", **about, "reason": str(outcome.error), "retry_at": retry_at}


def outcome(outcome: PollOutcome, *, always: bool = False) -> Iterator[str]:
    """Yield the lines that report the outcome of a poll.

    If the poll succeeded and there is nothing special to report, such as new items, yield no lines. With
    `always`, yield at least one line in this case, too.
    """
    handle = one_line(outcome.account.handle)
    match outcome:
        case poll.PollSucceeded():
            yield from _success(outcome, handle, always=always)
        case poll.PollSkipped():
            yield f"[SKIP] {handle}: Account unavailable ({one_line(str(outcome.error))})"
        case poll.PollFailed():
            yield f"[ERROR] {handle}: {one_line(str(outcome.error))}"
        case poll.PolledElsewhere():
            until = outcome.error.retry_at
            lease = "" if until is None else f", lease until {format_clock(until)}"
            yield f"[SKIP] {handle}: already being polled by {one_line(outcome.error.poller)}{lease}"


def _success(outcome: poll.PollSucceeded, handle: str, *, always: bool) -> Iterator[str]:
    is_first = outcome.was_initial and (outcome.new_items > 0 or outcome.account.poll_count <= 1)
    if outcome.is_high_volume:
        yield f"[POLL] {handle}: High volume, {outcome.pages} pages were fetched"
    if outcome.new_items or is_first or always:
        yield f"{'[INITIAL]' if outcome.was_initial else '[POLL]'} {handle}: {_found(outcome)}"
    if outcome.invalid_records:
        yield f"[POLL] {handle}: {plural(outcome.invalid_records, 'invalid record')} skipped"


def _found(report: poll.PollSucceeded | api_types.BackfillReport) -> str:
    return f"{report.new_items} posts, {report.new_links} URLs across {report.pages} pages"


def preview(accounts: Sequence[api_types.AccountSummary]) -> Iterator[str]:
    yield f"would poll {plural(len(accounts), 'account')} now"
    yield from _first([one_line(each.handle) for each in accounts])


def _first(lines: Sequence[str]) -> Iterator[str]:
    """Yield the first `MAX_NAMED` lines, indented, and then the number of remaining lines, if any."""
    for line in lines[:MAX_NAMED]:
        yield f"  {line}"
    if len(lines) > MAX_NAMED:
        yield f"  and {len(lines) - MAX_NAMED} more; use --json to see all"


def backfill(report: api_types.BackfillReport, *, waited: bool) -> Iterator[str]:
    handle, since = one_line(report.handle), f"{format_minute(report.since)} UTC"
    if report.pages:
        yield f"[POLL] {handle}: {_found(report)}"
    if report.dry_run:
        yield f"{handle}: would be read from {since}"
    elif report.is_done:
        yield f"{handle}: has been read from {since}"
    elif waited:
        yield f"[ERROR] {handle}: {one_line(report.reason)}; the next polls will continue the backfill"
    else:
        yield f"{handle}: the next polls will read from {since}"


def audit(report: api_types.AccountAudit, *, history: bool, remove: bool, dry_run: bool) -> Iterator[str]:
    handle, found = one_line(report.handle), report.audit
    if found is None:
        yield f"[{'ERROR' if report.is_failure else 'SKIP'}] {handle}: {one_line(report.reason)}"
        return
    yield f"{handle}: {', '.join(_audit_counts(found, history=history, remove=remove, dry_run=dry_run))}"
    for item in found.examples:
        yield f"  missing: {format_minute(item.time)}  {truncate(item.text, 80) or one_line(item.uri)}"
    if found.missing > len(found.examples):
        yield f"  and {found.missing - len(found.examples)} more"


def _audit_counts(
    found: api_types.AuditReport, *, history: bool, remove: bool, dry_run: bool
) -> Iterator[str]:
    yield f"{plural(found.source_records, 'record')} at the source"
    if found.missing:
        yield f"{found.missing} missing" if dry_run else f"{found.missing} missing and now stored"
    elif found.source_records:
        yield "none missing"
    if found.history:
        not_stored = "not stored (use --history to store them)"
        stored = f"{found.history_stored} of them stored" if history else not_stored
        yield f"{found.history} too old for polls, {stored}"
    if found.hidden:
        yield f"{found.hidden} not shown by the feed"
    if found.removed:
        yield f"{plural(found.removed, 'stored item')} removed: deleted at the source"
    elif found.deleted:
        why = "the source returned no records" if remove and not dry_run else "use --remove to remove them"
        yield f"{plural(found.deleted, 'stored item')} not removed, although deleted at the source ({why})"
    if found.invalid_records:
        yield f"{found.invalid_records} invalid"


def status(found: api_types.FeedStatus) -> Iterator[str]:
    summary = found.summary
    if not summary.accounts:
        yield NO_ACCOUNTS
        return
    statuses = f"{summary.active} active, {summary.unavailable} unavailable, {summary.suspended} suspended"
    yield from key_values(
        ("accounts", f"{summary.accounts}: {statuses}"),
        ("with watermark", f"{summary.with_watermark} ({found.watermark_share:.0%})"),
        ("with gaps", str(summary.with_gaps)),
        ("last polled", format_when(summary.last_polled_at, found.now)),
        ("next poll", _next_poll(summary.next_poll_at, found.now)),
        ("posts fetched", _fetched(summary.posts_fetched_count, summary.invalid_records)),
        ("items stored", plural(found.items, "item")),
        ("failing", str(len(found.failing))),
    )
    yield from _first([_failing(each) for each in found.failing])
    for alarm in summary.alarms:
        yield f"ALARM: {one_line(alarm.message)}"


def _failing(account: api_types.AccountSummary) -> str:
    failures = plural(account.consecutive_failures, "failure")
    return f"{one_line(account.handle)}: {failures}, {account.status}: {one_line(account.reason)}"


def _next_poll(at: Micros | None, now: Micros) -> str:
    if at is None:
        return "none"
    return format_when(at, now) if at > now else f"overdue by {format_duration(now - at)}"


def _fetched(posts: int, invalid: int) -> str:
    return plural(posts, "post") + (f", {plural(invalid, 'invalid record')}" if invalid else "")


def accounts(found: Sequence[api_types.AccountSummary]) -> Iterator[str]:
    """Yield the lines of a table with one row per account."""
    if not found:
        return
    rows = [("account", "status", "last poll", "watermark", "note"), *map(_account_cells, found)]
    width = max(len(account) for account, *_ in rows)
    for account, status, last_poll, watermark, note in rows:
        line = f"{account:<{width}}  {status:<11}  {last_poll:<16}  {watermark:<16}  {truncate(note, 100)}"
        yield line.rstrip()


def account_table(found: Sequence[api_types.AccountSummary]) -> FittedTable:
    """Return a table with the same rows as `accounts`, whose columns fit the width of the terminal."""
    columns = (
        Column(name="account", wanted_width=30, min_width=16),
        Column(name="status"),
        Column(name="last poll"),
        Column(name="watermark", drop=1),
        Column(name="note", drop=2, wanted_width=24, min_width=12),
    )
    return FittedTable(columns, [[Text(cell) for cell in _account_cells(each)] for each in found])


def _account_cells(account: api_types.AccountSummary) -> tuple[str, str, str, str, str]:
    last_poll, watermark = (
        "never" if time is None else format_minute(time)
        for time in (account.last_polled_at, account.watermark)
    )
    gaps = f"{plural(account.gaps, 'gap')} " if account.gaps else ""
    note = f"{gaps}{one_line(account.reason)}".rstrip()
    return one_line(account.handle), account.status, last_poll, watermark, note


def account(found: api_types.AccountDetail) -> Iterator[str]:
    account, now = found.account, found.now
    reason = f": {one_line(account.reason)}" if account.reason else ""
    stored = "no items yet" if account.watermark is None else format_when(account.watermark, now)
    empty = f"; consecutive polls without new items: {account.empty_polls}" if account.empty_polls else ""
    posts = "unknown" if account.profile_posts is None else plural(account.profile_posts, "post")
    unseen = f", {account.unseen_posts} not found by polling" if account.unseen_posts else ""
    failures = account.consecutive_failures
    yield from key_values(
        ("account", account.account_id),
        ("handle", one_line(account.handle)),
        ("status", f"{account.status}{reason}"),
        ("added", format_when(account.added_at, now)),
        ("added by", one_line(", ".join(account.origins)) or "none (no longer followed)"),
        ("watermark", stored),
        ("last polled", format_when(account.last_polled_at, now)),
        ("next poll", _account_next_poll(found)),
        ("interval", format_duration(account.poll_interval)),
        ("polls", f"{account.poll_count} ({plural(account.pages_read, 'page')}){empty}"),
        ("posts fetched", _fetched(account.posts_fetched_count, account.invalid_records)),
        ("items stored", plural(found.items, "item")),
        ("posts at source", f"{posts}{unseen}"),
        ("profile updated", format_when(account.profile_read_at, now)),
        ("failures", f"{failures} consecutive" if failures else "none"),
        ("gaps", str(len(account.gaps)) if account.gaps else "none"),
    )
    for gap in account.gaps:
        start = "from the newest item" if gap.cursor is None else f"from cursor {truncate(gap.cursor, 60)}"
        yield f"  {start} back to {format_when(gap.floor, now)}"


def _account_next_poll(found: api_types.AccountDetail) -> str:
    account = found.account
    if found.is_leased and account.lease is not None:
        return f"in progress ({account.lease.poller})"
    if account.status is AccountStatus.SUSPENDED:
        return "none (suspended)"
    return _next_poll(account.next_poll_at, found.now)


def item(found: api_types.FeedItem) -> Iterator[str]:
    item = found.item
    by = f" from {one_line(item.author_handle or item.author_id)}" if item.kind == "repost" else ""
    kind = "" if item.kind == "post" else f" ({item.kind}{by})"
    line = f"{format_minute(item.time)}  {one_line(found.account_handle)}{kind}: {truncate(item.text, 200)}"
    yield line.rstrip(": ")
    for link in item.links:
        yield f"{'':16}  {one_line(link.shared_url)}"


def link(link: api_types.RankedLink) -> Iterator[str]:
    yield f"{link.sharers:>4}  {truncate(link.title, 100) or one_line(link.shared_url)}"
    if link.title:
        yield f"      {one_line(link.shared_url)}"
    others = link.sharers - MAX_SHARERS
    names = ", ".join(one_line(each) for each in link.handles[:MAX_SHARERS])
    yield f"      {names}{f' and {others} more' if others > 0 else ''}"
    first = f"first shared {format_minute(link.first_at)} by {one_line(link.handles[0])}"
    last_day = f"shared by {plural(link.today, 'account')} in the last 24 hours"
    yield f"      {first}; {last_day}, and by {link.day_before} in the 24 hours before that"
