"""The pages of feeds: the accounts, what was found, and the links that most of them share."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from markupsafe import Markup
from msgspec.structs import replace
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..feeds import Account, FeedStore, FeedSummary, summarize
from ..feeds.account import StoredAccount
from ..feeds.errors import UnknownAccount
from .cache import CachedQuery
from .items import KINDS, ItemList, Wanted
from .links import LinkPage
from .live import PageFragments, digest
from .renderer import Renderer
from .security import mount_path

PAGE = 200
"""Accounts on one page."""


class FeedPages:
    def __init__(self, renderer: Renderer, store: FeedStore) -> None:
        self._renderer = renderer
        self._store = store
        self._summary = CachedQuery(self._look)
        self._list = ItemList(store)
        self._links = LinkPage(renderer, store)

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/feeds", self._accounts),
            Route("/events/feeds", self._accounts_events),
            Route("/feeds/items", self._items),
            Route("/feeds/links", self._links.show),
            Route("/feeds/accounts/{account_id:path}", self._account),
        ]

    async def _accounts(self, request: Request) -> Response:
        after = request.query_params.get("after")
        return self._renderer.page(
            request,
            "feeds",
            page=await self._accounts_screen(mount_path(request), after),
            events=f"/events/feeds?{urlencode({'after': after})}" if after else "/events/feeds",
        )

    async def _accounts_events(self, request: Request) -> Response:
        after, base = request.query_params.get("after"), mount_path(request)
        return await self._renderer.event_stream(
            request, f"feeds {after or ''}", lambda: self._accounts_screen(base, after)
        )

    async def _accounts_screen(self, base: str, after: str | None) -> PageFragments:
        before = await self._stored(after) if after else None
        found, has_more = await self._store.account_page(before, PAGE)
        rows = {f"account-{digest(each.account.account_id)}": each.account for each in found}
        more = {"last": found[-1].account if found and has_more else None, "after": after, "base": base}
        summary = {"summary": await self._summary.get(), "items": await self._store.count_items()}
        return PageFragments(
            {
                "summary": self._renderer.fragment("feed_summary", "summary", summary),
                "pagination": self._renderer.fragment("account_pagination", "pagination", more),
                **{name: self._row(name, account, base) for name, account in rows.items()},
            },
            {"rows": tuple(rows)},
        )

    def _row(self, name: str, account: Account, base: str) -> Markup:
        return self._renderer.fragment("account_row", name, {"account": account, "base": base}, tag="tr")

    async def _look(self) -> FeedSummary:
        """Of all accounts, each of which is read."""
        accounts = [stored.account async for stored in self._store.accounts()]
        return summarize(accounts, now=self._store.clock())

    async def _stored(self, account_id: str) -> StoredAccount:
        try:
            return await self._store.get(account_id)
        except UnknownAccount as error:
            raise HTTPException(404, "There is no such account.") from error

    async def _account(self, request: Request) -> Response:
        account = (await self._stored(request.path_params["account_id"])).account
        wanted = replace(Wanted.of(request.query_params), account=account.account_id)
        context = {
            "account": account,
            "items": await self._store.count_items(account.account_id),
            "listed": await self._list.page(wanted),
            "wanted": wanted,
            "path": f"/feeds/accounts/{quote(account.account_id, safe='')}",
            "is_held": account.is_leased(self._store.clock()),
        }
        return self._renderer.page(request, "account", context=context)

    async def _items(self, request: Request) -> Response:
        wanted = Wanted.of(request.query_params)
        context = {
            "listed": await self._list.page(wanted),
            "wanted": wanted,
            "path": "/feeds/items",
            "kinds": KINDS,
        }
        return self._renderer.page(request, "items", context=context)
