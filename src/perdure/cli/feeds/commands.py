"""`perdure feeds ...`: parse options, call `Feeds`, print what it returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, TypeVar

import anyio
import typer
from msgspec.structs import replace

from ...feeds import AccountStatus, Feeds, FeedSettings, PollSucceeded
from ...feeds.item import ItemKind
from ...feeds.reports import AccountAudit, AccountSummary, ChangeReport
from ...operating.times import iso
from ...storage import storage_exists
from ...storage.clock import Timestamp, system_clock
from ..backends import load_settings, open_feeds
from ..errors import CommandError, report_errors
from ..options import (
    CommonOptions,
    DryRunOption,
    SettingsOption,
    VerboseOption,
    common_options,
    past_time,
    storage_url,
)
from ..output import configure_logging, one_line, print_json, print_message, print_result, replace_unencodable
from . import progress, render

T = TypeVar("T")

feeds = typer.Typer(name="feeds", no_args_is_help=True)

AccountArgument = Annotated[str, typer.Argument(metavar="ACCOUNT", help="Handle or DID.")]
AccountsArgument = Annotated[list[str], typer.Argument(metavar="ACCOUNT", help="Handles or DIDs.")]
OptionalAccount = Annotated[str | None, typer.Argument(metavar="ACCOUNT", help="Handle or DID.")]
SINCE_HELP = "Start time: 24h, 7d, 2026-11-01 or 2026-11-01T08:30 (UTC)."
SinceOption = Annotated[str, typer.Option("--since", metavar="TIME", help=SINCE_HELP)]
LimitOption = Annotated[int, typer.Option("--limit", min=1, help="Maximum number of results.")]


@dataclass(frozen=True, kw_only=True)
class FeedOptions(CommonOptions):
    """The options of every command."""

    settings: SettingsOption = None


@dataclass(frozen=True, kw_only=True)
class ChangeOptions(FeedOptions):
    """The options of commands that change something."""

    dry_run: DryRunOption = False


@dataclass(frozen=True, kw_only=True)
class PollOptions(ChangeOptions):
    """The options of commands that poll many accounts."""

    verbose: VerboseOption = False


@feeds.callback()
def feeds_callback() -> None:
    """Poll feeds, and show their posts and links."""
    replace_unencodable()


def run_with_feeds(options: FeedOptions, work: Callable[[Feeds], Awaitable[T]]) -> T:
    """Run `work` with the feeds of an existing storage. Errors are printed in one line."""

    async def run(settings: FeedSettings) -> T:
        async with open_feeds(settings) as opened:
            return await work(opened)

    with report_errors():
        return anyio.run(run, load_settings(options.settings, options.url))


# Accounts


@feeds.command()
@common_options
def add(accounts: AccountsArgument, *, options: ChangeOptions) -> None:
    """Start polling accounts. Unknown handles are reported; the rest are added."""
    report = _create(options, partial(Feeds.add, names=accounts))
    _print_changes(report, options)
    for name in report.unknown:
        print_message(f"perdure: unknown Bluesky account {one_line(name)}; check the spelling or use the DID")
    if report.unknown:
        raise typer.Exit(1)


@feeds.command()
@common_options
def remove(
    accounts: AccountsArgument,
    *,
    delete_items: Annotated[
        bool, typer.Option("--delete-items", help="Delete the stored items too.")
    ] = False,
    options: ChangeOptions,
) -> None:
    """Stop polling accounts and remove them. Their items are kept unless --delete-items is given."""
    work = partial(Feeds.remove, names=accounts, delete_items=delete_items, dry_run=options.dry_run)
    _print_changes(run_with_feeds(options, work), options)


@feeds.command("follow-list")
@common_options
def follow_list(
    actor: Annotated[str, typer.Argument(metavar="ACTOR", help="Handle or DID whose follows are added.")],
    *,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Suspend accounts that this list added and ACTOR no longer follows."),
    ] = False,
    options: ChangeOptions,
) -> None:
    """Add all accounts that ACTOR follows. Run it again to add new ones."""
    report = _create(options, partial(Feeds.follow, actor=actor, prune=prune))
    options.print(report, render.follow_list(actor, report, prune=prune))
    _print_dry_run(options)


@feeds.command()
@common_options
def suspend(
    accounts: AccountsArgument,
    *,
    reason: Annotated[str, typer.Option("--reason", help="Reason to show in the status.")] = "",
    options: ChangeOptions,
) -> None:
    """Stop polling accounts until they are resumed."""
    work = partial(Feeds.suspend, names=accounts, reason=reason, dry_run=options.dry_run)
    _print_changes(run_with_feeds(options, work), options)


@feeds.command()
@common_options
def resume(accounts: AccountsArgument, *, options: ChangeOptions) -> None:
    """Resume polling accounts, starting now."""
    work = partial(Feeds.resume, names=accounts, dry_run=options.dry_run)
    _print_changes(run_with_feeds(options, work), options)


@feeds.command()
@common_options
def reset(account: AccountArgument, *, options: ChangeOptions) -> None:
    """Reset the position of an account: the next poll starts from the initial look-back.

    Stored items are kept and not duplicated.
    """
    work = partial(Feeds.reset, names=[account], dry_run=options.dry_run)
    _print_changes(run_with_feeds(options, work), options)


def _create(options: ChangeOptions, change: Callable[..., Awaitable[ChangeReport]]) -> ChangeReport:
    """Change accounts of a storage. A storage that does not exist is created if accounts are added to it."""

    async def run(settings: FeedSettings) -> ChangeReport:
        if not storage_exists(storage_url(settings.url)):
            async with open_feeds(replace(settings, url="memory:"), create=True) as trial:
                report = await change(trial, dry_run=True)
                if options.dry_run or not report.changes:
                    return replace(report, dry_run=options.dry_run)
                async with open_feeds(settings, create=True, source=await trial.source()) as opened:
                    return await change(opened, dry_run=False)
        async with open_feeds(settings, create=True) as opened:
            return await change(opened, dry_run=options.dry_run)

    with report_errors():
        return anyio.run(run, load_settings(options.settings, options.url))


def _print_changes(report: ChangeReport, options: ChangeOptions) -> None:
    options.print(report, render.changes(report))
    _print_dry_run(options)


def _print_dry_run(options: ChangeOptions) -> None:
    if options.dry_run and not options.json:
        print_message("Dry run: nothing was changed.")


# Polls


@feeds.command()
@common_options
def run(*, options: PollOptions) -> None:
    """Poll all accounts, each at its own interval, until stopped (Ctrl+C or SIGTERM).

    Several processes can share one storage.
    """
    configure_logging(verbose=options.verbose)
    if options.dry_run:
        _preview(run_with_feeds(options, Feeds.due_accounts), options)
    else:
        run_with_feeds(options, partial(progress.run, json=options.json))


@feeds.command()
@common_options
def once(*, options: PollOptions) -> None:
    """Poll every account once, due or not. Exit with 1 if no account could be polled."""
    configure_logging(verbose=options.verbose)
    if options.dry_run:
        _preview(run_with_feeds(options, Feeds.pollable_accounts), options)
    elif not run_with_feeds(options, partial(progress.run_once, json=options.json)):
        raise typer.Exit(1)


@feeds.command()
@common_options
def poll(account: AccountArgument, *, options: ChangeOptions) -> None:
    """Poll one account now, even if it is suspended. Exit with 1 if that fails."""
    configure_logging()
    if options.dry_run:
        found = run_with_feeds(options, partial(Feeds.account, name=account))
        _preview([AccountSummary.from_account(found.account)], options)
        return
    outcome = run_with_feeds(options, partial(Feeds.poll, name=account))
    options.print(render.outcome_event(outcome), render.outcome(outcome, always=True))
    if not isinstance(outcome, PollSucceeded):
        raise typer.Exit(1)


def _preview(accounts: Sequence[AccountSummary], options: ChangeOptions) -> None:
    """Print which accounts a command would poll."""
    options.print({"dry_run": True, "accounts": accounts}, render.preview(accounts))


@feeds.command()
@common_options
def backfill(
    account: AccountArgument,
    *,
    since: SinceOption,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Let the next polls do the work.")] = False,
    options: ChangeOptions,
) -> None:
    """Read an account back to a given time and store missing items."""
    configure_logging()
    start = _past_time(since)
    work = partial(Feeds.backfill, name=account, since=start, wait=not no_wait, dry_run=options.dry_run)
    report = run_with_feeds(options, work)
    options.print(report, render.backfill(report, waited=not no_wait))
    if not (report.is_done or report.dry_run or no_wait):
        raise typer.Exit(1)


@feeds.command()
@common_options
def audit(
    account: OptionalAccount = None,
    *,
    all_accounts: Annotated[bool, typer.Option("--all", help="Audit every account.")] = False,
    history: Annotated[
        bool, typer.Option("--history", help="Store items from before the first poll too.")
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove stored items that were deleted at the source.")
    ] = False,
    options: ChangeOptions,
) -> None:
    """Compare the stored items with the account's own records and store missing ones.

    This finds back-dated posts that polling cannot see. The exit code is 1 if an account could not be read.
    """
    configure_logging()

    async def work(feeds: Feeds) -> list[AccountAudit]:
        if all_accounts == (account is not None):
            raise CommandError("name an account or use --all")
        audits: list[AccountAudit] = []
        async for each in feeds.audit(account, history=history, remove=remove, dry_run=options.dry_run):
            audits.append(each)
            if not options.json:
                lines = render.audit(each, history=history, remove=remove, dry_run=options.dry_run)
                print_result("\n".join(lines))
        return audits

    audits = run_with_feeds(options, work)
    if options.json:
        print_json({"audits": audits, "dry_run": options.dry_run})
    if any(each.is_failure for each in audits):
        raise typer.Exit(1)


# Views


@feeds.command()
@common_options
def status(
    *,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if there is an alarm.")] = False,
    options: FeedOptions,
) -> None:
    """Show the health of all accounts."""
    found = run_with_feeds(options, Feeds.status)
    options.print(found, render.status(found))
    if check and found.summary.alarms:
        raise typer.Exit(1)


@feeds.command("list")
@common_options
def list_accounts(
    *,
    status: Annotated[
        AccountStatus | None, typer.Option("--status", help="List only accounts with this status.")
    ] = None,
    without_watermark: Annotated[
        bool, typer.Option("--without-watermark", help="List only accounts without stored items.")
    ] = False,
    polled_before: Annotated[
        str | None,
        typer.Option(
            "--polled-before",
            metavar="TIME",
            help="List only accounts that were last polled before this time (1h, 2026-11-01).",
        ),
    ] = None,
    options: FeedOptions,
) -> None:
    """List accounts, starting with the least recently polled."""
    before = None if polled_before is None else _past_time(polled_before)
    accounts = run_with_feeds(
        options,
        partial(Feeds.accounts, status=status, without_watermark=without_watermark, polled_before=before),
    )
    options.print({"accounts": accounts}, render.accounts(accounts))
    if not accounts and not options.json:
        is_filtered = status or without_watermark or polled_before
        print_message("No matching accounts." if is_filtered else render.NO_ACCOUNTS)


@feeds.command()
@common_options
def show(account: AccountArgument, *, options: FeedOptions) -> None:
    """Show one account in detail."""
    found = run_with_feeds(options, partial(Feeds.account, name=account))
    options.print(found, render.account(found))


@feeds.command()
@common_options
def items(
    account: OptionalAccount = None,
    *,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help=f"{SINCE_HELP} Default: 24h, or all with --before."),
    ] = None,
    before: Annotated[
        str | None, typer.Option("--before", metavar="TIME", help="List only older items.")
    ] = None,
    kind: Annotated[ItemKind | None, typer.Option("--kind", help="List only this kind.")] = None,
    with_links: Annotated[bool, typer.Option("--with-links", help="List only items with links.")] = False,
    limit: LimitOption = 50,
    options: FeedOptions,
) -> None:
    """List recent items of all accounts or of one, newest first."""
    start = since or ("24h" if before is None else None)
    first = 0 if start is None else _past_time(start)
    last = None if before is None else _past_time(before)
    if last is not None and last <= first:
        with report_errors():
            raise CommandError("--before must be later than --since")
    page = run_with_feeds(
        options,
        lambda feeds: feeds.items(
            account,
            since=first,
            before=last,
            kind=kind,
            with_links=with_links,
            limit=limit,
            keep_ties=True,
        ),
    )
    options.print({"items": page.items}, (line for each in page.items for line in render.item(each)))
    if options.json:
        return
    if not page.items:
        print_message(f"No items{f' since {start}' if start else ''}{f' before {before}' if before else ''}.")
    elif page.next_position is not None:
        oldest = iso(page.items[-1].item.time)
        print_message(f"Showing {len(page.items)}; use --limit for more, or --before {oldest}.")


@feeds.command()
@common_options
def links(*, since: SinceOption = "24h", limit: LimitOption = 20, options: FeedOptions) -> None:
    """List the links that the most accounts shared, and who shared them."""
    start = _past_time(since)
    ranking = run_with_feeds(options, partial(Feeds.links, since=start, limit=limit))
    options.print({"links": ranking.links}, (line for each in ranking.links for line in render.link(each)))
    if not ranking.links and not options.json:
        print_message(f"No links since {since}.")


def _past_time(text: str) -> Timestamp:
    with report_errors():
        return past_time(text, system_clock())
