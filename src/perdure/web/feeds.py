"""The pages of feeds: the accounts, what was found, and the links that most of them share."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from itertools import islice

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..feeds import FeedStore, Item, Shared, most_shared, summary_of
from ..feeds.errors import UnknownAccount
from ..feeds.item import Link
from ..storage import Micros
from .guarding import base_of
from .screens import Screen
from .site import Site

MOST_ACCOUNTS = 500
MOST_ITEMS = 50
MOST_LINKS = 25
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


class FeedPages:
    def __init__(self, site: Site, store: FeedStore) -> None:
        self._site = site
        self._store = store

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/feeds", self._accounts),
            Route("/events/feeds", self._accounts_events),
            Route("/feeds/items", self._items),
            Route("/feeds/links", self._links),
            Route("/feeds/accounts/{account_id:path}", self._account),
        ]

    async def _accounts(self, request: Request) -> Response:
        screen = await self._accounts_screen(base_of(request))
        return self._site.page(request, "feeds", screen=screen, events="/events/feeds")

    async def _accounts_events(self, request: Request) -> Response:
        base = base_of(request)
        return await self._site.updates(request, lambda: self._accounts_screen(base))

    async def _accounts_screen(self, base: str) -> Screen:
        everybody = [stored.account async for stored in self._store.accounts()]
        items = await self._store.count_items()
        summary = self._site.piece(
            "feed_summary", "summary", {"summary": summary_of(everybody), "items": items}
        )
        rows = {
            f"account-{place}": self._site.piece(
                "account_row", f"account-{place}", {"account": account, "base": base}, tag="tr"
            )
            for place, account in enumerate(islice(everybody, MOST_ACCOUNTS))
        }
        return Screen({"summary": summary, **rows}, {"rows": tuple(rows)})

    async def _account(self, request: Request) -> Response:
        try:
            account = (await self._store.get(request.path_params["account_id"])).account
        except UnknownAccount as error:
            raise HTTPException(404, "There is no such account.") from error
        context = {
            "account": account,
            "items": await self._store.count_items(account.account_id),
            "found": await self._newest(account.account_id, {account.account_id: account.handle}),
            "is_held": account.is_held(self._store.clock()),
        }
        return self._site.page(request, "account", context=context)

    async def _items(self, request: Request) -> Response:
        return self._site.page(
            request, "items", context={"found": await self._newest(None, await self._handles())}
        )

    async def _links(self, request: Request) -> Response:
        since = request.query_params.get("since", "24h")
        if since not in SINCE:
            raise HTTPException(404, f"There are links of {', '.join(SINCE)}.")
        newest = self._store.newest(since=self._store.clock() - SINCE[since])
        shared = await most_shared(_some(newest, MOST_READ), limit=MOST_LINKS)
        handles = await self._handles()
        links = [_ranked(each, handles) for each in shared if is_web(each.url)]
        context = {"since": since, "spans": list(SINCE), "links": links}
        return self._site.page(request, "links", context=context)

    async def _newest(self, account_id: str | None, handles: dict[str, str]) -> list[Found]:
        return [
            Found(account_id=owner, handle=handles.get(owner, owner), item=item)
            async for owner, item in _some(self._store.newest(account_id), MOST_ITEMS)
        ]

    async def _handles(self) -> dict[str, str]:
        return {each.account.account_id: each.account.handle async for each in self._store.accounts()}


def is_web(url: str) -> bool:
    """Whether a link may be a link here: what is stored may say anything."""
    return url.startswith(("https://", "http://"))


def _ranked(shared: Shared, handles: dict[str, str]) -> Ranked:
    return Ranked(shared=shared, handles=tuple(handles.get(each, each) for each in shared.sharers))


async def _some(items: AsyncGenerator[tuple[str, Item]], most: int) -> AsyncGenerator[tuple[str, Item]]:
    """The first of them."""
    left = most
    try:
        async for each in items:
            yield each
            left -= 1
            if not left:
                return
    finally:
        await items.aclose()
