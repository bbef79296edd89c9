"""The pages of feeds: the accounts, what was found, and the links that most of them share."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from urllib.parse import urlencode

import msgspec
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..feeds import Account, FeedStore, Item, Shared, Summary, most_shared, summary_of
from ..feeds.account import Stored
from ..feeds.errors import UnknownAccount
from ..feeds.item import Link
from ..storage import Micros
from .guarding import base_of
from .keeping import Kept
from .screens import Screen, digest_of
from .site import Site
from .wording import is_web

PAGE = 200
"""Accounts on one page."""
MOST_ITEMS = 50
MOST_LINKS = 25
MOST_NAMED = 8
"""Accounts that are named beside a link."""
MOST_READ = 5000
"""Items that are looked at for the links that most share."""
DAY: Micros = 24 * 3600 * 1_000_000
SINCE = {"24h": DAY, "7d": 7 * DAY, "30d": 30 * DAY}


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """An item, and in whose feed it is."""

    account_id: str
    handle: str
    item: Item

    @property
    def links(self) -> tuple[Link, ...]:
        return tuple(link for link in self.item.links if is_web(link.url))


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """A link, and who shared it, by name."""

    shared: Shared
    handles: tuple[str, ...]
    """Of the first of them."""


class Links(msgspec.Struct, frozen=True, kw_only=True):
    """Those that most share."""

    links: tuple[Ranked, ...]
    is_whole: bool
    """False where there were more items than were looked at."""


class FeedPages:
    def __init__(self, site: Site, store: FeedStore) -> None:
        self._site = site
        self._store = store
        self._summary = Kept(self._look)
        self._shared = {since: Kept(partial(self._look_at_links, since)) for since in SINCE}

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/feeds", self._accounts),
            Route("/events/feeds", self._accounts_events),
            Route("/feeds/items", self._items),
            Route("/feeds/links", self._links),
            Route("/feeds/accounts/{account_id:path}", self._account),
        ]

    async def _accounts(self, request: Request) -> Response:
        after = request.query_params.get("after")
        return self._site.page(
            request,
            "feeds",
            screen=await self._accounts_screen(base_of(request), after),
            events=f"/events/feeds?{urlencode({'after': after})}" if after else "/events/feeds",
        )

    async def _accounts_events(self, request: Request) -> Response:
        after, base = request.query_params.get("after"), base_of(request)
        return await self._site.updates(
            request, f"feeds {after or ''}", lambda: self._accounts_screen(base, after)
        )

    async def _accounts_screen(self, base: str, after: str | None) -> Screen:
        before = await self._stored(after) if after else None
        found, has_more = await self._store.accounts_after(before, PAGE)
        rows = {f"account-{digest_of(each.account.account_id)}": each.account for each in found}
        more = {"last": found[-1].account if found and has_more else None, "after": after, "base": base}
        summary = {"summary": await self._summary.told(), "items": await self._store.count_items()}
        return Screen(
            {
                "summary": self._site.piece("feed_summary", "summary", summary),
                "more": self._site.piece("more_accounts", "more", more),
                **{name: self._row(name, account, base) for name, account in rows.items()},
            },
            {"rows": tuple(rows)},
        )

    def _row(self, name: str, account: Account, base: str) -> Markup:
        return self._site.piece("account_row", name, {"account": account, "base": base}, tag="tr")

    async def _look(self) -> Summary:
        """Of all accounts, each of which is read."""
        accounts = [stored.account async for stored in self._store.accounts()]
        return summary_of(accounts, now=self._store.clock())

    async def _stored(self, account_id: str) -> Stored:
        try:
            return await self._store.get(account_id)
        except UnknownAccount as error:
            raise HTTPException(404, "There is no such account.") from error

    async def _account(self, request: Request) -> Response:
        account = (await self._stored(request.path_params["account_id"])).account
        context = {
            "account": account,
            "items": await self._store.count_items(account.account_id),
            "found": await self._newest(account.account_id),
            "is_held": account.is_held(self._store.clock()),
        }
        return self._site.page(request, "account", context=context)

    async def _items(self, request: Request) -> Response:
        return self._site.page(request, "items", context={"found": await self._newest(None)})

    async def _links(self, request: Request) -> Response:
        since = request.query_params.get("since", "24h")
        if since not in SINCE:
            raise HTTPException(404, f"There are links of {', '.join(SINCE)}.")
        told = await self._shared[since].told()
        context = {"since": since, "spans": list(SINCE), "told": told, "most": MOST_READ}
        return self._site.page(request, "links", context=context)

    async def _look_at_links(self, since: str) -> Links:
        reading = _Some(self._store.newest(since=self._store.clock() - SINCE[since]), MOST_READ)
        shared = await most_shared(reading, limit=MOST_LINKS)
        handles = await self._store.handles(name for each in shared for name in each.sharers[:MOST_NAMED])
        links = tuple(_ranked(each, handles) for each in shared if is_web(each.url))
        return Links(links=links, is_whole=not reading.left_some)

    async def _newest(self, account_id: str | None) -> list[Found]:
        found = [each async for each in _Some(self._store.newest(account_id), MOST_ITEMS)]
        handles = await self._store.handles(owner for owner, _ in found)
        return [Found(account_id=owner, handle=handles.get(owner, owner), item=item) for owner, item in found]


def _ranked(shared: Shared, handles: dict[str, str]) -> Ranked:
    named = shared.sharers[:MOST_NAMED]
    return Ranked(shared=shared, handles=tuple(handles.get(each, each) for each in named))


class _Some:
    """The first of these items."""

    def __init__(self, items: AsyncGenerator[tuple[str, Item]], most: int) -> None:
        self._items = items
        self._most = most
        self.left_some = False

    async def __aiter__(self) -> AsyncGenerator[tuple[str, Item]]:
        left = self._most
        async with aclosing(self._items) as items:
            async for each in items:
                if not left:
                    self.left_some = True
                    return
                yield each
                left -= 1
