"""`perdure feeds status | inspect | items | links`: the commands that only look."""

from __future__ import annotations

from typing import Annotated

import typer

from ...feeds import FeedStore, Settings, Status
from ...feeds.item import Kind
from ..options import Json, Url
from ..saying import say
from ..telling import tell
from ..times import iso, moment
from . import looking
from .looking import Filter, Found, Inspected, Listed, Ranked, State
from .opening import opened
from .options import File, Limit, MaybeName, Name, Since, done, feeds
from .telling import tell_json


@feeds.command()
def status(
    *,
    settings: File = None,
    url: Url = None,
    json: Json = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if there is an alarm.")] = False,
) -> None:
    """How all accounts are: what is polled, what fails, and whether something is amiss."""

    async def work(settings: Settings) -> State:
        async with opened(settings) as store:
            return await looking.state_of(store)

    state = done(settings, url, work)
    if json:
        tell_json(state)
    else:
        tell("\n".join(looking.lines_of_state(state)))
    if check and state.summary.alarms:
        raise typer.Exit(1)


@feeds.command("list")
def list_accounts(
    *,
    status: Annotated[Status | None, typer.Option("--status", help="Only accounts with this status.")] = None,
    without_watermark: Annotated[
        bool, typer.Option("--without-watermark", help="Only accounts of which nothing was ever stored.")
    ] = False,
    polled_before: Annotated[
        str | None,
        typer.Option(
            "--polled-before", metavar="TIME", help="Only accounts last polled before TIME (1h, 2026-11-01)."
        ),
    ] = None,
    settings: File = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """List accounts, those first that were polled longest ago."""

    async def work(settings: Settings) -> list[Listed]:
        async with opened(settings) as store:
            before = None if polled_before is None else _since(store, polled_before)
            wanted = Filter(status=status, without_watermark=without_watermark, polled_before=before)
            return await looking.accounts(store, wanted)

    listed = done(settings, url, work)
    if json:
        tell_json({"accounts": listed})
    elif listed:
        tell("\n".join(looking.lines_of_list(listed)))
    else:
        say("no such accounts")


@feeds.command()
def inspect(account: Name, *, settings: File = None, url: Url = None, json: Json = False) -> None:
    """Everything that is known about one account."""

    async def work(settings: Settings) -> Inspected:
        async with opened(settings) as store:
            return await looking.inspected(store, account)

    seen = done(settings, url, work)
    if json:
        tell_json(seen)
    else:
        tell("\n".join(looking.lines_of_account(seen)))


@feeds.command()
def items(
    account: MaybeName = None,
    *,
    since: Since = "24h",
    before: Annotated[str | None, typer.Option("--before", metavar="TIME", help="only older ones")] = None,
    kind: Annotated[Kind | None, typer.Option("--kind", help="only of this kind")] = None,
    with_links: Annotated[bool, typer.Option("--with-links", help="only those with links")] = False,
    limit: Limit = 50,
    settings: File = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """What was found of late, the newest first: of everybody, or of one account."""

    async def work(settings: Settings) -> list[Found]:
        async with opened(settings) as store:
            wanted = looking.Wanted(
                account=account,
                since=_since(store, since),
                before=None if before is None else _since(store, before),
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
        tell("\n".join(looking.lines_of_item(each)))
    if not found:
        say(f"no items since {since}")
    elif len(found) == limit:
        older = f"--before {iso(found[-1].item.time)}"
        say(f"no more than {limit} are shown; --limit shows more, and {older} older ones")


@feeds.command()
def links(
    *, since: Since = "24h", limit: Limit = 20, settings: File = None, url: Url = None, json: Json = False
) -> None:
    """Show the links that most accounts have shared, who was first, and the trend against the day before."""

    async def work(settings: Settings) -> list[Ranked]:
        async with opened(settings) as store:
            return await looking.links(store, since=_since(store, since), limit=limit)

    ranked = done(settings, url, work)
    if json:
        tell_json({"links": ranked})
        return
    for each in ranked:
        tell("\n".join(looking.lines_of_link(each)))
    if not ranked:
        say(f"no links since {since}")


def _since(store: FeedStore, text: str) -> int:
    return moment(text, store.clock())
