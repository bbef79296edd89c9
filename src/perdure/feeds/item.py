"""An item of a feed: a post, or a repost, with the links in it. Its record is written once and never changes.

Nothing in it depends on when or how often it was read, so that reading it again gives the same bytes.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from ..storage import Address, Record, Space
from ..storage.body import FORMAT_FIELD, BodyFormat
from ..storage.clock import Timestamp
from ..storage.errors import StorageCorrupt
from ..storage.limits import MAX_INTEGER, MAX_KEY_BYTES
from .errors import CorruptFeedRecord

ITEMS = Space("items")

ItemKind: TypeAlias = Literal["post", "reply", "quote", "repost"]
LinkVia: TypeAlias = Literal["card", "quote", "facet", "text"]

MAX_ITEM_BYTES = 64 * 1024
"""Of an item's body, so that a commit has room for as many as it takes. A post has three hundred letters."""


class Link(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Something that an item points at."""

    url: str
    """The normal form, which is the same for all links to a page: its identity."""
    via: LinkVia
    """How it was shared: as a card, within a quoted post, marked in the text, or only written there."""
    title: str = ""
    shared_url: str = ""
    """The URL as it was shared. Empty if that is the normal form, except in what `Feeds` returns."""


class Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field=FORMAT_FIELD, tag=2):
    uri: str
    """What it is known by: the repost's own, where it is one."""
    time: Timestamp
    """Where it stands in its feed."""
    kind: ItemKind
    post_uri: str
    """The post that it is, or that it reposts."""
    author_id: str
    """Who wrote the post, by id."""
    author_handle: str = ""
    """The author's name, as it was."""
    text: str = ""
    links: tuple[Link, ...] = ()


def item_record(item: Item, account_id: str) -> Record:
    """The item as a record of the account's partition."""
    return Record(
        space=ITEMS,
        partition=account_id,
        key=item.uri,
        order=min(max(item.time, 0), MAX_INTEGER),
        body=_format.encode(item),
        tag=item.kind,
    )


def item_address(item: Item, account_id: str) -> Address:
    return Address(ITEMS, account_id, item.uri)


def parse_item(record: Record) -> Item:
    """The item of a record. Raises NewerFormat or CorruptFeedRecord."""
    try:
        return _format.decode(record.key, record.body)
    except StorageCorrupt as error:
        raise CorruptFeedRecord(record.key, f"not an item: {error}") from error


def is_valid_uri(uri: str) -> bool:
    """Whether an item can be known by this."""
    return 0 < len(uri.encode("utf-8", "replace")) <= MAX_KEY_BYTES and "\0" not in uri


def is_storable(item: Item) -> bool:
    """Whether an item fits into a record. What does not is set aside."""
    if not is_valid_uri(item.uri):
        return False
    try:
        body = _format.encode(item).encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return len(body) <= MAX_ITEM_BYTES and b"\0" not in body


_format = BodyFormat(Item)
