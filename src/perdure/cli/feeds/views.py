"""`perdure feeds status | inspect | items | links`: the commands that only look."""

from __future__ import annotations

from typing import Annotated

import typer

from ...feeds import AccountStatus, FeedSettings, FeedStore
from ...feeds.item import ItemKind
from ...operating.times import iso
from ..backends import open_feeds
from ..errors import CommandError
from ..options import JsonOption, UrlOption, past_time
from ..output import print_message, print_result
from . import looking
from .looking import Filter, Found, Inspected, Listed, Ranked, State
from .options import AccountArgument, LimitOption, OptionalAccount, SettingsOption, SinceOption, done, feeds
from .telling import tell_json


@feeds.command()
def status(
    *,
    settings: SettingsOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if there is an alarm.")] = False,
) -> None:
    """How all accounts are: what is polled, what fails, and whether something is amiss."""

    async def work(settings: FeedSettings) -> State:
        async with open_feeds(settings) as store:
            return await looking.state_of(store)

    state = done(settings, url, work)
    if json:
        tell_json(state)
    else:
        print_result("\n".join(looking.lines_of_state(state)))
    if check and state.summary.alarms:
        raise typer.Exit(1)


@feeds.command("list")
def list_accounts(
    *,
    status: Annotated[
        AccountStatus | None, typer.Option("--status", help="Only accounts with this status.")
    ] = None,
    without_watermark: Annotated[
        bool, typer.Option("--without-watermark", help="Only accounts of which nothing was ever stored.")
    ] = False,
    polled_before: Annotated[
        str | None,
        typer.Option(
            "--polled-before", metavar="TIME", help="Only accounts last polled before TIME (1h, 2026-11-01)."
        ),
    ] = None,
    settings: SettingsOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """List accounts, those first that were polled longest ago."""

    async def work(settings: FeedSettings) -> list[Listed]:
        async with open_feeds(settings) as store:
            before = None if polled_before is None else _since(store, polled_before)
            wanted = Filter(status=status, without_watermark=without_watermark, polled_before=before)
            return await looking.accounts(store, wanted)

    listed = done(settings, url, work)
    if json:
        tell_json({"accounts": listed})
    elif listed:
        print_result("\n".join(looking.lines_of_list(listed)))
    elif status or without_watermark or polled_before:
        print_message("no such accounts")
    else:
        print_message("no accounts yet; add one with `perdure feeds add HANDLE`")


@feeds.command()
def inspect(
    account: AccountArgument,
    *,
    settings: SettingsOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Everything that is known about one account."""

    async def work(settings: FeedSettings) -> Inspected:
        async with open_feeds(settings) as store:
            return await looking.inspected(store, account)

    seen = done(settings, url, work)
    if json:
        tell_json(seen)
    else:
        print_result("\n".join(looking.lines_of_account(seen)))


@feeds.command()
def items(
    account: OptionalAccount = None,
    *,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", help="24h, 7d, 2026-11-01, 2026-11-01T08:30. Default: 24h, or all."
        ),
    ] = None,
    before: Annotated[str | None, typer.Option("--before", metavar="TIME", help="Only older ones.")] = None,
    kind: Annotated[ItemKind | None, typer.Option("--kind", help="Only of this kind.")] = None,
    with_links: Annotated[bool, typer.Option("--with-links", help="Only those with links.")] = False,
    limit: LimitOption = 50,
    settings: SettingsOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """List the items of all accounts or of one, newest first: of the last 24 hours, or all before a time."""
    start = since or ("24h" if before is None else None)

    async def work(settings: FeedSettings) -> list[Found]:
        async with open_feeds(settings) as store:
            first = 0 if start is None else _since(store, start)
            last = None if before is None else _since(store, before)
            if last is not None and last <= first:
                raise CommandError("--before must be later than --since")
            wanted = looking.Wanted(
                account=account,
                since=first,
                before=last,
                kind=kind,
                with_links=with_links,
                limit=limit,
            )
            return await looking.items(store, wanted)

    found = done(settings, url, work)
    if json:
        tell_json({"items": found})
        return
    for each in found:
        print_result("\n".join(looking.lines_of_item(each)))
    if not found:
        print_message(f"no items{f' since {start}' if start else ''}{f' before {before}' if before else ''}")
    elif len(found) >= limit:
        print_message(
            f"{len(found)} are shown; --limit shows more, and --before {iso(found[-1].item.time)} older ones"
        )


@feeds.command()
def links(
    *,
    since: SinceOption = "24h",
    limit: LimitOption = 20,
    settings: SettingsOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Show the links that most accounts have shared, who was first, and the trend against the day before."""

    async def work(settings: FeedSettings) -> list[Ranked]:
        async with open_feeds(settings) as store:
            return await looking.links(store, since=_since(store, since), limit=limit)

    ranked = done(settings, url, work)
    if json:
        tell_json({"links": ranked})
        return
    for each in ranked:
        print_result("\n".join(looking.lines_of_link(each)))
    if not ranked:
        print_message(f"no links since {since}")


def _since(store: FeedStore, text: str) -> int:
    return past_time(text, store.clock())
