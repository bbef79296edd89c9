"""Serves the feed pages: accounts, items and links."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import get_args
from urllib.parse import quote, urlencode

import msgspec
from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..feeds import Feeds
from ..feeds.api_types import ItemPage
from ..feeds.errors import AmbiguousHandle, InvalidActor, UnknownAccount
from ..feeds.item import ItemKind
from ..storage import Position
from ..storage.errors import InvalidArgument
from .cache import CachedQuery
from .live import PageFragments, digest
from .renderer import Renderer
from .security import mount_path

ACCOUNTS_PER_PAGE = 200
ITEMS_PER_PAGE = 50
MAX_SCANNED = 2000
"""Maximum number of items that are read for one page. A filter may exclude most of them."""
KINDS: tuple[ItemKind, ...] = get_args(ItemKind)
LINK_WINDOWS = {"24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
WINDOW_NAMES = {"24h": "24 hours", "7d": "7 days", "30d": "30 days"}
MAX_LINKS = 25
INVALID_LINK = "Invalid page link. Start from the first page."
MAX_NAMED_SHARERS = 8
MAX_RANKED_ITEMS = 20_000
"""Maximum number of items that are read to rank links. Items are read only for hours whose links have no
stored summary."""


class ItemQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The filter and the position of an item list, parsed from the URL of the page."""

    account: str | None
    """The handle or DID of an account. `None` means all accounts."""
    kind: ItemKind | None
    with_links: bool
    after: Position | None

    @classmethod
    def from_params(cls, params: QueryParams) -> ItemQuery:
        return cls(
            account=params.get("account", "").strip() or None,
            kind=_parse_kind(params.get("kind")),
            with_links=params.get("links") == "1",
            after=_parse_position(params.get("after")),
        )

    @property
    def is_filtered(self) -> bool:
        return bool(self.account or self.kind or self.with_links)

    def query(self, after: Position | None = None) -> str:
        """Return the query string for the page after the position `after`.

        If `after` is None, return the query string for the first page.
        """
        params = {
            "account": self.account,
            "kind": self.kind,
            "links": "1" if self.with_links else None,
            "after": None if after is None else f"{after.order} {after.partition} {after.key}",
        }
        return urlencode({name: value for name, value in params.items() if value})


class FeedPages:
    def __init__(self, renderer: Renderer, feeds: Feeds) -> None:
        self._renderer = renderer
        self._feeds = feeds
        self._status = CachedQuery(feeds.status)
        rank = partial(
            feeds.links, limit=MAX_LINKS, max_items=MAX_RANKED_ITEMS, max_handles=MAX_NAMED_SHARERS
        )
        self._rankings = {window: CachedQuery(partial(rank, span)) for window, span in LINK_WINDOWS.items()}

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
        return self._renderer.page(
            request,
            "feeds",
            page=await self._accounts_page(mount_path(request), after),
            events=f"/events/feeds?{urlencode({'after': after})}" if after else "/events/feeds",
        )

    async def _accounts_events(self, request: Request) -> Response:
        after, base = request.query_params.get("after"), mount_path(request)
        return await self._renderer.event_stream(
            request, f"feeds {after or ''}", lambda: self._accounts_page(base, after)
        )

    async def _accounts_page(self, base: str, after: str | None) -> PageFragments:
        with _not_found():
            found = await self._feeds.account_page(after, limit=ACCOUNTS_PER_PAGE)
        rows = {f"account-{digest(account.account_id)}": account for account in found.accounts}
        pagination = {"next_account": found.next_account, "after": after, "base": base}
        status = {"status": await self._status.get()}
        return PageFragments(
            {
                "summary": self._renderer.fragment("feed_summary", "summary", status),
                "pagination": self._renderer.fragment("account_pagination", "pagination", pagination),
                **{
                    name: self._renderer.fragment(
                        "account_row", name, {"account": each, "base": base}, tag="tr"
                    )
                    for name, each in rows.items()
                },
            },
            {"rows": tuple(rows)},
        )

    async def _account(self, request: Request) -> Response:
        with _not_found():
            detail = await self._feeds.account(request.path_params["account_id"])
        account_id = detail.account.account_id
        query = replace(ItemQuery.from_params(request.query_params), account=account_id)
        context = {
            "account": detail.account,
            "detail": detail,
            "found": await self._find_items(query),
            "query": query,
            "path": f"/feeds/accounts/{quote(account_id, safe='')}",
            "accounts": 1,
        }
        return self._renderer.page(request, "account", context=context)

    async def _items(self, request: Request) -> Response:
        query = ItemQuery.from_params(request.query_params)
        context = {
            "found": await self._find_items(query),
            "query": query,
            "path": "/feeds/items",
            "kinds": KINDS,
            "accounts": (await self._status.get()).summary.accounts,
        }
        return self._renderer.page(request, "items", context=context)

    async def _find_items(self, query: ItemQuery) -> ItemPage:
        with _not_found("Account not found." if query.after is None else INVALID_LINK):
            return await self._feeds.items(
                query.account,
                after=query.after,
                kind=query.kind,
                with_links=query.with_links,
                limit=ITEMS_PER_PAGE,
                max_scanned=MAX_SCANNED,
            )

    async def _links(self, request: Request) -> Response:
        window = request.query_params.get("since", "24h")
        if window not in LINK_WINDOWS:
            raise HTTPException(404, f"Unknown time span. Use one of {', '.join(LINK_WINDOWS)}.")
        ranking = await self._rankings[window].get()
        context = {
            "window": window,
            "windows": list(LINK_WINDOWS),
            "window_names": WINDOW_NAMES,
            "ranking": ranking,
            "accounts": (await self._status.get()).summary.accounts,
        }
        return self._renderer.page(request, "links", context=context)


@contextmanager
def _not_found(message: str = "Account not found.") -> Generator[None]:
    """Respond with 404 if the URL contains an unknown account or an invalid position."""
    try:
        yield
    except AmbiguousHandle as error:
        text = str(error)
        raise HTTPException(404, f"{text[:1].upper()}{text[1:]}.") from error
    except (UnknownAccount, InvalidActor) as error:
        raise HTTPException(404, "Account not found.") from error
    except InvalidArgument as error:
        raise HTTPException(404, message) from error


def _parse_kind(text: str | None) -> ItemKind | None:
    if not text:
        return None
    if text not in KINDS:
        raise HTTPException(404, f"Unknown kind of item. Use one of {', '.join(KINDS)}.")
    return text


def _parse_position(text: str | None) -> Position | None:
    if not text:
        return None
    order, _, rest = text.partition(" ")
    partition, _, key = rest.partition(" ")
    if not (order.isascii() and order.isdecimal() and len(order) <= len(str(2**53)) and partition and key):
        raise HTTPException(404, INVALID_LINK)
    return Position(int(order), key, partition)
