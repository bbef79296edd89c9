"""`perdure feeds run | once | poll | backfill | audit`: the commands that read from Bluesky."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated

import typer

from ...feeds import Account, FeedSettings, FeedStore, PollOutcome, PollSucceeded
from ...operating.times import format_minute
from ...storage.clock import system_clock
from ..backends import open_feeds
from ..errors import CommandError, report_errors
from ..options import DryRunOption, JsonOption, UrlOption, past_time
from ..output import configure_logging, one_line, plural, print_result
from . import auditing, running
from .auditing import Audited
from .changing import name_in
from .options import AccountArgument, OptionalAccount, SettingsOption, SinceOption, VerboseOption, done, feeds
from .running import Backfill
from .telling import event_of, lines_of, tell_json

MOST_NAMED = 20


@feeds.command()
def run(
    *,
    settings: SettingsOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
    dry_run: DryRunOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Poll every account at its own times, until SIGTERM or Ctrl+C.

    Any number of these processes may share the accounts of one storage.
    """
    configure_logging(verbose=verbose)
    if dry_run:
        _preview(done(settings, url, partial(_whom, running.due_now)), json=json)
    else:
        done(settings, url, partial(running.run, json=json))


@feeds.command()
def once(
    *,
    settings: SettingsOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
    dry_run: DryRunOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Poll every account once, whether its time has come or not. Fails if none of them could be polled."""
    configure_logging(verbose=verbose)
    if dry_run:
        _preview(done(settings, url, partial(_whom, running.in_cycle)), json=json)
    elif not done(settings, url, partial(running.once, json=json)):
        raise typer.Exit(1)


async def _whom(
    choice: Callable[[FeedStore], Awaitable[list[Account]]], settings: FeedSettings
) -> list[Account]:
    async with open_feeds(settings) as store:
        return await choice(store)


def _preview(accounts: Sequence[Account], *, json: bool) -> None:
    """Whom a command would poll."""
    if json:
        tell_json({"dry_run": True, "accounts": [_named(each) for each in accounts]})
        return
    print_result(f"would poll {plural(len(accounts), 'account')} now")
    for each in accounts[:MOST_NAMED]:
        print_result(f"  {one_line(each.handle)}")
    if len(accounts) > MOST_NAMED:
        print_result(f"  and {len(accounts) - MOST_NAMED} more; --json lists all")


def _named(account: Account) -> dict[str, object]:
    return {
        "account": account.account_id,
        "handle": account.handle,
        "watermark": account.watermark,
        "gaps": len(account.gaps),
    }


@feeds.command()
def poll(
    account: AccountArgument,
    *,
    settings: SettingsOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Poll one account now, even a suspended one. Fails if it could not be polled."""
    configure_logging(verbose=False)
    if dry_run:
        _preview(done(settings, url, partial(_whom, partial(_just, name=account))), json=json)
        return
    outcome = done(settings, url, partial(running.poll, name=account))
    _tell(outcome, json=json)
    if not isinstance(outcome, PollSucceeded):
        raise typer.Exit(1)


async def _just(store: FeedStore, *, name: str) -> list[Account]:
    return [(await store.find(name_in(name))).account]


def _tell(outcome: PollOutcome, *, json: bool) -> None:
    if json:
        tell_json(event_of(outcome))
        return
    for line in lines_of(outcome, always=True):
        print_result(line)


@feeds.command()
def backfill(
    account: AccountArgument,
    *,
    since: SinceOption,
    later: Annotated[bool, typer.Option("--later", help="leave the reading to the next polls")] = False,
    settings: SettingsOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Read an account again, back to a time, and store what is missing."""
    configure_logging(verbose=False)
    with report_errors():
        start = past_time(since, system_clock())
    if dry_run:
        seen = done(settings, url, partial(_just_one, name=account))
        if json:
            tell_json({"dry_run": True, **_named(seen), "since": start})
        else:
            print_result(f"{one_line(seen.handle)}: would be read again back to {format_minute(start)} UTC")
        return
    result = done(settings, url, partial(running.backfill, name=account, since=start, later=later))
    _tell_backfill(result, later=later, json=json)
    if not result.is_done and not later:
        raise typer.Exit(1)


async def _just_one(settings: FeedSettings, *, name: str) -> Account:
    async with open_feeds(settings) as store:
        return (await _just(store, name=name))[0]


def _tell_backfill(result: Backfill, *, later: bool, json: bool) -> None:
    if json:
        tell_json(result)
        return
    handle = one_line(result.handle)
    if result.pages:
        print_result(f"[POLL] {handle}: {result.new} posts, {result.links} URLs across {result.pages} pages")
    if result.is_done:
        print_result(f"{handle}: everything since {format_minute(result.since)} UTC was read")
    elif later:
        print_result(f"{handle}: the next polls read everything since {format_minute(result.since)} UTC")
    else:
        print_result(f"[ERROR] {handle}: {one_line(result.reason)}; the next polls read what is left")


@feeds.command()
def audit(
    account: OptionalAccount = None,
    *,
    everybody: Annotated[bool, typer.Option("--all", help="Audit every account.")] = False,
    history: Annotated[
        bool, typer.Option("--history", help="Store what was written before the first poll too.")
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove stored items that were deleted at the source.")
    ] = False,
    settings: SettingsOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Compare what is stored with everything that an account wrote, and store what polls should have found.

    It finds what no poll can see: posts that were dated far back. Exit with 1 if an account was not read.
    """
    configure_logging(verbose=False)

    async def work(settings: FeedSettings) -> list[Audited]:
        if everybody == (account is not None):
            raise CommandError("name one account, or say --all")
        found: list[Audited] = []
        async for each in auditing.audits(settings, account, history=history, remove=remove, dry_run=dry_run):
            found.append(each)
            if not json:
                print_result(
                    "\n".join(auditing.lines_of(each, history=history, remove=remove, dry_run=dry_run))
                )
        return found

    audited = done(settings, url, work)
    if json:
        tell_json({"audits": audited, "dry_run": dry_run})
    if any(each.is_failure for each in audited):
        raise typer.Exit(1)
