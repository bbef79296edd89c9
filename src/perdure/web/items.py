"""Items of feeds: a page of them, the newest first, of one account or of all, and the filters."""

from __future__ import annotations

from contextlib import aclosing
from typing import get_args
from urllib.parse import urlencode

import msgspec
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException

from ..feeds import FeedStore, Item
from ..feeds.errors import AmbiguousHandle, UnknownAccount
from ..feeds.item import ItemKind, Link
from ..storage import Position
from ..storage.errors import InvalidArgument
from .filters import is_http_url

PAGE = 50
"""Items on one page."""
MAX_READ = 2000
"""Items that are read for a page whose filter leaves most of them out."""
KINDS: tuple[str, ...] = get_args(ItemKind)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """An item, and in whose feed it is."""

    account_id: str
    handle: str
    item: Item

    @property
    def links(self) -> tuple[Link, ...]:
        return tuple(link for link in self.item.links if is_http_url(link.url) and is_http_url(link.address))


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which items a page shows, as its address says."""

    account: str | None
    """A handle or an id."""
    kind: str | None
    with_links: bool
    after: Position | None

    @classmethod
    def of(cls, params: QueryParams) -> Wanted:
        return cls(
            account=params.get("account", "").strip() or None,
            kind=_kind_in(params.get("kind")),
            with_links=params.get("links") == "1",
            after=_position_in(params.get("after")),
        )

    @property
    def is_filtered(self) -> bool:
        return bool(self.account or self.kind or self.with_links)

    def query(self, after: Position | None = None) -> str:
        """The address of these items, from a position on."""
        every = {
            "account": self.account,
            "kind": self.kind,
            "links": "1" if self.with_links else None,
            "after": None if after is None else f"{after.order} {after.partition} {after.key}",
        }
        return urlencode({name: value for name, value in every.items() if value})


def _kind_in(text: str | None) -> str | None:
    if text and text not in KINDS:
        raise HTTPException(404, "There is no such kind of item.")
    return text or None


def _position_in(text: str | None) -> Position | None:
    if not text:
        return None
    order, _, rest = text.partition(" ")
    partition, _, key = rest.partition(" ")
    if not (order.isascii() and order.isdecimal() and len(order) <= len(str(2**53)) and partition and key):
        raise HTTPException(404, "This link does not lead to a page of the list.")
    return Position(int(order), key, partition)


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A page of items."""

    found: tuple[Found, ...]
    after: Position | None
    """Where the next page starts. None: there is none."""


class ItemList:
    def __init__(self, store: FeedStore) -> None:
        self._store = store

    async def page(self, wanted: Wanted) -> Listed:
        """Return the items of a page. A filter may leave fewer than there is room for."""
        account_id = None if wanted.account is None else await self._id_of(wanted.account)
        try:
            return await self._page(wanted, account_id)
        except InvalidArgument as error:  # a position that no listing has
            raise HTTPException(404, "This link does not lead to a page of the list.") from error

    async def _page(self, wanted: Wanted, account_id: str | None) -> Listed:
        found: list[tuple[str, Item]] = []
        read, position = 0, wanted.after
        records = self._store.item_records(account_id, after=wanted.after, kind=wanted.kind)
        async with aclosing(records):
            async for record in records:
                if len(found) == PAGE or read == MAX_READ:
                    return await self._listed(found, position)
                read, position = read + 1, record.position
                item = self._store.parse_item(record)
                if item is not None and (item.links or not wanted.with_links):
                    found.append((record.partition, item))
        return await self._listed(found, None)

    async def _listed(self, found: list[tuple[str, Item]], after: Position | None) -> Listed:
        handles = await self._store.handles(owner for owner, _ in found)
        named = (
            Found(account_id=owner, handle=handles.get(owner, owner), item=item) for owner, item in found
        )
        return Listed(found=tuple(named), after=after)

    async def _id_of(self, name: str) -> str:
        """Items of an account that was removed are still listed under its id."""
        try:
            return (await self._store.find(name)).account.account_id
        except UnknownAccount as error:
            if name.startswith("did:"):
                return name
            raise HTTPException(404, "There is no such account.") from error
        except AmbiguousHandle as error:
            raise HTTPException(404, f"{str(error)[:1].upper()}{str(error)[1:]}.") from error
        except InvalidArgument as error:
            raise HTTPException(404, "There is no such account.") from error
