"""`perdure feeds add | remove | follow-list | reset | suspend | resume`: which accounts are polled."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from ...feeds import FeedSettings, transitions
from ...feeds.follows import follow_accounts, read_follow_list
from ...feeds.reports import AccountChange
from ...storage import storage_exists
from ..backends import create_feeds, open_feeds, open_source
from ..options import DryRunOption, JsonOption, UrlOption, storage_url
from ..output import one_line, plural, print_message, print_result
from . import changing
from .changing import Steps, name_in
from .options import AccountArgument, AccountsArgument, SettingsOption, done, feeds
from .telling import tell_json

UNCHANGED = "dry run: nothing was changed"


@feeds.command()
def add(
    accounts: AccountsArgument,
    *,
    settings: SettingsOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Start polling accounts. Unknown names are reported; the others are added."""

    async def work(settings: FeedSettings) -> Steps:
        async with open_source(settings) as source:
            known = await changing.look_up(source, accounts)
        if not known.profiles and not storage_exists(storage_url(settings.url)):
            return Steps(steps=(), unknown=known.unknown, dry_run=dry_run)
        async with create_feeds(settings, dry_run=dry_run) as store:
            return await changing.add(store, known, polling=settings.polling, dry_run=dry_run)

    report = done(settings, url, work)
    _tell(report, json=json)
    for name in report.unknown:
        print_message(f"perdure: unknown Bluesky account {one_line(name)}; check the spelling or use the DID")
    if report.unknown:
        raise typer.Exit(1)


@feeds.command()
def remove(
    accounts: AccountsArgument,
    *,
    items: Annotated[bool, typer.Option("--items", help="its items too")] = False,
    settings: SettingsOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Forget accounts. Their items stay unless --items is given."""

    async def work(settings: FeedSettings) -> Steps:
        async with open_feeds(settings) as store:
            return await changing.remove(store, accounts, with_items=items, dry_run=dry_run)

    _tell(done(settings, url, work), json=json)


@feeds.command("follow-list")
def follow_list(
    actor: Annotated[str, typer.Argument(metavar="ACTOR", help="the handle or DID of who follows")],
    *,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Suspend accounts that this list added and ACTOR no longer follows."),
    ] = False,
    settings: SettingsOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Poll the accounts that ACTOR follows. Run it again to add new ones."""

    async def work(settings: FeedSettings) -> Steps:
        async with open_source(settings) as source:
            follows = await read_follow_list(source, name_in(actor))
            if prune:
                follows.check_prunable()
            elif not follows.followed:
                return Steps(steps=(), dry_run=dry_run)
            async with create_feeds(settings, dry_run=dry_run) as store:
                changes = await follow_accounts(
                    store, source, follows, settings=settings.polling, prune=prune, dry_run=dry_run
                )
            return Steps(steps=tuple(changes), dry_run=dry_run)

    report = done(settings, url, work)
    if json:
        tell_json(report)
        return
    _tell_following(one_line(actor), report, prune=prune)


def _tell_following(actor: str, report: Steps, *, prune: bool) -> None:
    pruned, would = report.count("suspended"), "would be " if report.dry_run else ""
    changes = [(report.count(done), done) for done in ("added", "resumed", "renamed")]
    counts = [f"{count} {would}{done}" for count, done in changes if count]
    counts.append(f"{report.count(None)} already added")
    print_result(f"{actor} follows {plural(len(report.steps) - pruned, 'account')}: {', '.join(counts)}")
    if prune:
        print_result(f"{plural(pruned, 'account')} {would}suspended: no longer followed by {actor}")
    if report.dry_run:
        print_message(UNCHANGED)


@feeds.command()
def suspend(
    accounts: AccountsArgument,
    *,
    reason: Annotated[str, typer.Option("--reason", help="for whoever wonders later")] = "",
    settings: SettingsOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Do not poll these accounts, until they are resumed."""

    async def work(settings: FeedSettings) -> Steps:
        async with open_feeds(settings) as store:
            edit = partial(transitions.suspended, reason=reason or "by hand")
            return await changing.change(store, accounts, edit, "suspended", dry_run=dry_run)

    _tell(done(settings, url, work), json=json)


@feeds.command()
def resume(
    accounts: AccountsArgument,
    *,
    settings: SettingsOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Poll these accounts again, at once and then at their times."""

    async def work(settings: FeedSettings) -> Steps:
        async with open_feeds(settings) as store:
            edit = partial(transitions.resumed, now=store.clock())
            return await changing.change(store, accounts, edit, "resumed", dry_run=dry_run)

    _tell(done(settings, url, work), json=json)


@feeds.command()
def reset(
    account: AccountArgument,
    *,
    settings: SettingsOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Forget how far an account was read: its next poll begins anew. No item is lost, or stored twice."""

    async def work(settings: FeedSettings) -> Steps:
        async with open_feeds(settings) as store:
            edit = partial(transitions.reset, now=store.clock())
            return await changing.change(store, [account], edit, "reset", dry_run=dry_run)

    _tell(done(settings, url, work), json=json)


def _tell(report: Steps, *, json: bool) -> None:
    if json:
        tell_json(report)
        return
    for step in report.steps:
        print_result(_line(step, dry_run=report.dry_run))
    if report.dry_run:
        print_message(UNCHANGED)


def _line(step: AccountChange, *, dry_run: bool) -> str:
    handle, note = one_line(step.handle), one_line(step.note)
    if step.action is None:
        return f"{handle}: {note}"
    return f"{handle}: {'would be ' if dry_run else ''}{step.action}{f' ({note})' if note else ''}"
