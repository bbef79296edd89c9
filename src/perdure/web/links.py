"""The page of links: those that most accounts share, over a day, a week and a month."""

from __future__ import annotations

from functools import partial

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ..feeds import FeedStore, LinkIndex, SharedLink
from ..feeds.link_summary import DAY
from .cache import CachedQuery
from .filters import is_http_url
from .renderer import Renderer

MAX_LINKS = 25
MAX_NAMED = 8
"""Accounts that are named beside a link."""
MAX_READ = 20_000
"""Items that are read for hours that are not summarised yet."""
SINCE = {"24h": DAY, "7d": 7 * DAY, "30d": 30 * DAY}


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """A link, and who shared it, by name."""

    shared: SharedLink
    handles: tuple[str, ...]
    """Of the first of them."""

    @property
    def address(self) -> str:
        return self.shared.address if is_http_url(self.shared.address) else self.shared.url

    @property
    def others(self) -> int:
        return len(self.shared.first_shares) - len(self.handles)


class Links(msgspec.Struct, frozen=True, kw_only=True):
    links: tuple[Ranked, ...]
    missing_hours: int


class LinkPage:
    def __init__(self, renderer: Renderer, store: FeedStore) -> None:
        self._renderer = renderer
        self._store = store
        self._index = LinkIndex(store)
        self._shared = {since: CachedQuery(partial(self._read, since)) for since in SINCE}

    async def show(self, request: Request) -> Response:
        since = request.query_params.get("since", "24h")
        if since not in SINCE:
            raise HTTPException(404, f"There are links of {', '.join(SINCE)}.")
        context = {"since": since, "spans": list(SINCE), "shown": await self._shared[since].get()}
        return self._renderer.page(request, "links", context=context)

    async def _read(self, since: str) -> Links:
        ranking = await self._index.ranking(
            self._store.clock() - SINCE[since], limit=MAX_LINKS, max_items=MAX_READ
        )
        named = {who for each in ranking.links for who in each.sharers[:MAX_NAMED]}
        handles = await self._store.handles(sorted(named))
        links = tuple(_ranked(each, handles) for each in ranking.links if is_http_url(each.url))
        return Links(links=links, missing_hours=ranking.missing_hours)


def _ranked(shared: SharedLink, handles: dict[str, str]) -> Ranked:
    named = shared.sharers[:MAX_NAMED]
    return Ranked(shared=shared, handles=tuple(handles.get(each, each) for each in named))
