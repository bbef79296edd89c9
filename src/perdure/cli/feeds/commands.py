"""The `perdure feeds ...` commands: they parse options, call `Feeds` and print the result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar, get_args

import anyio
import typer
from typer import Argument, Option

from ...feeds import AccountStatus, Feeds, FeedSettings, PollSucceeded
from ...feeds.api_types import AccountAudit, AccountSummary, ChangeReport
from ...feeds.item import ItemKind
from ...operating.times import iso
from ...storage import storage_exists
from ...storage.time_types import system_clock
from ..errors import CommandError
from ..options import (
    CommonOptions,
    DryRunOption,
    VerboseOption,
    choice_option,
    command,
    past_time,
    read_settings_file,
)
from ..output import configure_logging, one_line, plural, print_json, print_message, print_result, stdout
from . import progress, render

T = TypeVar("T")

feeds = typer.Typer(
    name="feeds",
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Poll Bluesky accounts, and show their posts.",
)

ACCOUNT_HELP = "Handle, DID or profile URL of the account."
AccountArgument = Annotated[str, Argument(metavar="ACCOUNT", help=ACCOUNT_HELP)]
AccountsArgument = Annotated[list[str], Argument(metavar="ACCOUNT", help=ACCOUNT_HELP)]
OptionalAccount = Annotated[str | None, Argument(metavar="ACCOUNT", help=ACCOUNT_HELP)]
ADD_ACCOUNT = "add the first account with `perdure feeds add HANDLE`, or "
SETTINGS_HELP = (
    "Settings file (TOML or YAML). Default: feeds.toml, feeds.yaml or feeds.yml in the current directory."
)
SINCE_HELP = "Start time: an age (24h, 7d) or a time in UTC (2026-11-01, 2026-11-01T08:30)."
STATUS_HELP = "List only accounts with this status: active, unavailable or suspended."
KIND_HELP = "List only items of this kind: post, reply, quote or repost."
PRUNE_HELP = "Suspend accounts that ACTOR no longer follows, unless they were also added in another way."
SinceOption = Annotated[str, Option(metavar="TIME", help=SINCE_HELP)]
AccountStatusOption = Annotated[
    AccountStatus | None,
    choice_option(tuple(AccountStatus), "STATUS", STATUS_HELP),
]
ItemKindOption = Annotated[
    ItemKind | None,
    choice_option(get_args(ItemKind), "KIND", KIND_HELP),
]
ITEMS_LIMIT_HELP = "Maximum number of items. Items with the same time as the last one are also shown."


@dataclass(frozen=True, kw_only=True)
class FeedOptions(CommonOptions):
    settings: Annotated[Path | None, Option(metavar="FILE", help=SETTINGS_HELP)] = None

    def run(self, work: Callable[[Feeds], Awaitable[T]]) -> T:
        """Call `work` with a `Feeds` object, and return what `work` returns.

        Raise CommandError if the storage does not exist.
        """
        settings = read_settings_file(self.settings)
        url = self.existing_storage(settings.url, hint=ADD_ACCOUNT)
        return anyio.run(_run, url, settings, work)


@dataclass(frozen=True, kw_only=True)
class ChangeOptions(FeedOptions):
    dry_run: DryRunOption = False

    def run_and_create(self, change: Callable[[Feeds], Awaitable[ChangeReport]]) -> ChangeReport:
        """Call `change` with a `Feeds` object, and return what `change` returns.

        A storage that does not exist yet is created only when `change` adds accounts.
        """
        settings = read_settings_file(self.settings)
        url = self.storage(settings.url)
        if storage_exists(url):
            return anyio.run(_run, url, settings, change)

        async def change_and_create(trial: Feeds) -> ChangeReport:
            report = await change(trial)
            await trial.copy_accounts(url)
            return report

        return anyio.run(_run, "memory:", settings, change_and_create)

    def preview(self, accounts: Sequence[AccountSummary]) -> None:
        """Print the accounts that the command would poll if --dry-run were not set."""
        self.print({"dry_run": True, "accounts": accounts}, render.preview(accounts))

    def print_changes(self, report: ChangeReport, lines: Iterable[str] | None = None) -> None:
        self.print(report, render.changes(report) if lines is None else lines)
        if self.dry_run and not self.json:
            print_message("Dry run: nothing was changed.")


@dataclass(frozen=True, kw_only=True)
class PollOptions(ChangeOptions):
    json: Annotated[bool, Option("--json", help="Print each event as a line of JSON.")] = False


async def _run(url: str, settings: FeedSettings, work: Callable[[Feeds], Awaitable[T]]) -> T:
    async with Feeds.open(url, settings) as opened:
        opened.rate_limiter.on_wait = progress.print_wait
        return await work(opened)


@command(feeds)
def add(accounts: AccountsArgument, *, options: ChangeOptions) -> None:
    """Add accounts to poll. Skip unknown accounts, and exit with status 1 if there were any."""
    report = options.run_and_create(lambda feeds: feeds.add(accounts, dry_run=options.dry_run))
    options.print_changes(report)
    for name in report.unknown:
        print_message(f"perdure: unknown Bluesky account {one_line(name)}; check the spelling or use the DID")
    if report.unknown:
        raise typer.Exit(1)


@command(feeds)
def remove(
    accounts: AccountsArgument,
    *,
    delete_items: Annotated[bool, Option("--delete-items", help="Also delete the stored items.")] = False,
    options: ChangeOptions,
) -> None:
    """Remove accounts, and stop polling them. Their items are kept unless you use --delete-items."""
    work = partial(Feeds.remove, names=accounts, delete_items=delete_items, dry_run=options.dry_run)
    options.print_changes(options.run(work))


@command(feeds, "follow-list")
def follow_list(
    actor: Annotated[
        str,
        Argument(
            metavar="ACTOR", help="Handle or DID of an account. The accounts that it follows are added."
        ),
    ],
    *,
    prune: Annotated[bool, Option("--prune", help=PRUNE_HELP)] = False,
    options: ChangeOptions,
) -> None:
    """Add all accounts that ACTOR follows. Run the command again to add newly followed accounts."""
    report = options.run_and_create(lambda feeds: feeds.follow(actor, prune=prune, dry_run=options.dry_run))
    options.print_changes(report, render.follow_list(actor, report, prune=prune))


@command(feeds)
def suspend(
    accounts: AccountsArgument,
    *,
    reason: Annotated[str, Option(metavar="TEXT", help="Reason to show in `perdure feeds list`.")] = "",
    options: ChangeOptions,
) -> None:
    """Stop polling accounts until you run `perdure feeds resume`."""
    work = partial(Feeds.suspend, names=accounts, reason=reason, dry_run=options.dry_run)
    options.print_changes(options.run(work))


@command(feeds)
def resume(accounts: AccountsArgument, *, options: ChangeOptions) -> None:
    """Resume polling suspended accounts. They are polled as soon as possible."""
    options.print_changes(options.run(partial(Feeds.resume, names=accounts, dry_run=options.dry_run)))


@command(feeds)
def reset(account: AccountArgument, *, options: ChangeOptions) -> None:
    """Forget how far an account's feed has been read.

    The next poll reads the feed as if the account were new. Stored items are kept.
    """
    options.print_changes(options.run(partial(Feeds.reset, names=[account], dry_run=options.dry_run)))


@command(feeds)
def run(*, verbose: VerboseOption = False, options: PollOptions) -> None:
    """Poll accounts, each at its own interval, until stopped (Ctrl+C or SIGTERM).

    Several processes can run this command with the same storage.
    """
    configure_logging(verbose=verbose)
    if options.dry_run:
        options.preview(options.run(Feeds.due_accounts))
    else:
        options.run(partial(progress.run, json=options.json))


@command(feeds)
def once(*, verbose: VerboseOption = False, options: PollOptions) -> None:
    """Poll every active account once, even if it is not due. Also poll unavailable accounts that are due.

    Exit with status 1 if there were accounts to poll but no poll succeeded, or if the command is interrupted.
    """
    configure_logging(verbose=verbose)
    if options.dry_run:
        options.preview(options.run(Feeds.pollable_accounts))
    elif not options.run(partial(progress.run_once, json=options.json)):
        raise typer.Exit(1)


@command(feeds)
def poll(account: AccountArgument, *, options: ChangeOptions) -> None:
    """Poll one account now, even if it is suspended. Exit with status 1 if the poll does not succeed."""
    configure_logging()
    if options.dry_run:
        found = options.run(partial(Feeds.account, name=account))
        options.preview([AccountSummary.from_account(found.account)])
        return
    outcome = options.run(partial(Feeds.poll, name=account))
    is_ok = isinstance(outcome, PollSucceeded)
    options.print(render.outcome_event(outcome), render.outcome(outcome, always=True), ok=is_ok)


@command(feeds)
def backfill(
    account: AccountArgument,
    *,
    since: SinceOption,
    no_wait: Annotated[
        bool, Option("--no-wait", help="Return immediately; later polls read the items.")
    ] = False,
    options: ChangeOptions,
) -> None:
    """Read an account's feed back to a given time, and store missing items."""
    configure_logging()
    start = past_time(since, system_clock())
    work = partial(Feeds.backfill, name=account, since=start, wait=not no_wait, dry_run=options.dry_run)
    report = options.run(work)
    is_ok = report.is_done or report.dry_run or no_wait
    options.print(report, render.backfill(report, waited=not no_wait), ok=is_ok)


@command(feeds)
def audit(
    account: OptionalAccount = None,
    *,
    all_accounts: Annotated[bool, Option("--all", help="Audit every account.")] = False,
    history: Annotated[
        bool, Option("--history", help="Also store items that are too old for polls to read.")
    ] = False,
    remove: Annotated[
        bool, Option("--remove", help="Delete stored items that no longer exist on Bluesky.")
    ] = False,
    options: ChangeOptions,
) -> None:
    """Compare the stored items of an account with all its posts, and store missing posts.

    An audit also finds backdated posts, which polls can miss. Exit with status 1 if an account cannot be
    read, unless polls have already found that the account is unavailable.
    """
    configure_logging()
    if all_accounts == (account is not None):
        raise CommandError("give either an account or --all")

    async def work(feeds: Feeds) -> list[AccountAudit]:
        audits: list[AccountAudit] = []
        async for each in feeds.audit(account, history=history, remove=remove, dry_run=options.dry_run):
            audits.append(each)
            if not options.json:
                lines = render.audit(each, history=history, remove=remove, dry_run=options.dry_run)
                print_result("\n".join(lines))
        return audits

    audits = options.run(work)
    if options.json:
        print_json({"audits": audits, "dry_run": options.dry_run})
    if any(each.is_failure for each in audits):
        raise typer.Exit(1)


@command(feeds)
def status(
    *,
    check: Annotated[bool, Option("--check", help="Exit with status 1 if there are alarms.")] = False,
    options: FeedOptions,
) -> None:
    """Show a summary of all accounts, and list the failing accounts and the alarms."""
    found = options.run(Feeds.status)
    options.print(found, render.status(found), ok=not (check and found.summary.alarms))


@command(feeds, "list")
def list_accounts(
    *,
    status: AccountStatusOption = None,
    without_watermark: Annotated[
        bool, Option("--without-watermark", help="List only accounts from which no item has been read yet.")
    ] = False,
    polled_before: Annotated[
        str | None,
        Option(
            metavar="TIME",
            help="List only accounts that have not been polled since this time, such as 1h or 2026-11-01.",
        ),
    ] = None,
    options: FeedOptions,
) -> None:
    """List accounts, least recently polled first."""
    before = None if polled_before is None else past_time(polled_before, system_clock())
    work = partial(Feeds.accounts, status=status, without_watermark=without_watermark, polled_before=before)
    accounts = options.run(work)
    if accounts and stdout.is_interactive and not options.json:
        stdout.print(render.account_table(accounts))
    else:
        is_filtered = status or without_watermark or polled_before
        empty = "No matching accounts." if is_filtered else render.NO_ACCOUNTS
        options.print({"accounts": accounts}, render.accounts(accounts), empty=empty)


@command(feeds)
def show(account: AccountArgument, *, options: FeedOptions) -> None:
    """Show one account in detail."""
    found = options.run(partial(Feeds.account, name=account))
    options.print(found, render.account(found))


@command(feeds)
def items(
    account: OptionalAccount = None,
    *,
    since: Annotated[
        str | None, Option(metavar="TIME", help=f"{SINCE_HELP} Default: 24h, or no limit with --before.")
    ] = None,
    before: Annotated[
        str | None,
        Option(metavar="TIME", help="End time, in the formats of --since. Only older items are listed."),
    ] = None,
    kind: ItemKindOption = None,
    with_links: Annotated[bool, Option("--with-links", help="List only items with links.")] = False,
    limit: Annotated[int, Option(metavar="NUMBER", min=1, help=ITEMS_LIMIT_HELP)] = 50,
    options: FeedOptions,
) -> None:
    """List recent items (posts, replies, quotes, reposts) of one account or of all accounts, newest first."""
    start = since or ("24h" if before is None else None)
    first = 0 if start is None else past_time(start, system_clock())
    last = None if before is None else past_time(before, system_clock())
    if last is not None and last <= first:
        raise CommandError("--before must be later than --since")
    page = options.run(
        lambda feeds: feeds.items(
            account, since=first, before=last, kind=kind, with_links=with_links, limit=limit, keep_ties=True
        )
    )
    lines = (line for each in page.items for line in render.item(each))
    empty = "No items found. Use an earlier --since, or other filters."
    options.print({"items": page.items}, lines, empty=empty)
    if page.items and page.next_position is not None and not options.json:
        oldest = iso(page.items[-1].item.time)
        shown = plural(len(page.items), "item")
        print_message(f"Showing {shown}. For more, use a higher --limit, or --before {oldest}.")


@command(feeds)
def links(
    *,
    since: SinceOption = "24h",
    limit: Annotated[int, Option(metavar="NUMBER", min=1, help="Maximum number of results.")] = 20,
    options: FeedOptions,
) -> None:
    """List the most widely shared links, and the accounts that shared them."""
    start = past_time(since, system_clock())
    ranking = options.run(partial(Feeds.links, since=start, limit=limit))
    lines = (line for each in ranking.links for line in render.link(each))
    options.print({"links": ranking.links}, lines, empty="No links found. Use an earlier --since.")
