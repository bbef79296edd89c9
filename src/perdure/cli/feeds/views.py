"""`perdure feeds status | inspect | items | links`: the commands that only look."""

from __future__ import annotations

from typing import Annotated

import typer

from ...feeds import FeedStore, Settings
from ...feeds.item import Kind
from ..options import Json
from ..saying import say
from ..telling import tell
from ..times import iso, moment
from . import looking
from .looking import Found, Inspected, Ranked, State
from .opening import opened
from .options import File, Limit, MaybeName, Name, Since, Url, done, feeds
from .telling import tell_json


@feeds.command()
def status(
    *,
    settings: File = None,
    storage: Url = None,
    json: Json = False,
    check: Annotated[bool, typer.Option("--check", help="fail if there is an alarm")] = False,
) -> None:
    """How all accounts are: what is polled, what fails, and whether something is amiss."""

    async def work(settings: Settings) -> State:
        async with opened(settings) as store:
            return await looking.state_of(store)

    state = done(settings, storage, work)
    if json:
        tell_json(state)
    else:
        tell("\n".join(looking.lines_of_state(state)))
    if check and state.summary.alarm is not None:
        raise typer.Exit(1)


@feeds.command()
def inspect(account: Name, *, settings: File = None, storage: Url = None, json: Json = False) -> None:
    """Everything that is known about one account."""

    async def work(settings: Settings) -> Inspected:
        async with opened(settings) as store:
            return await looking.inspected(store, account)

    seen = done(settings, storage, work)
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
    storage: Url = None,
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

    found = done(settings, storage, work)
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
    *, since: Since = "24h", limit: Limit = 20, settings: File = None, storage: Url = None, json: Json = False
) -> None:
    """Show the links that most accounts have shared, who was first, and the trend against the day before."""

    async def work(settings: Settings) -> list[Ranked]:
        async with opened(settings) as store:
            return await looking.links(store, since=_since(store, since), limit=limit)

    ranked = done(settings, storage, work)
    if json:
        tell_json({"links": ranked})
        return
    for each in ranked:
        tell("\n".join(looking.lines_of_link(each)))
    if not ranked:
        say(f"no links since {since}")


def _since(store: FeedStore, text: str) -> int:
    return moment(text, store.clock())
