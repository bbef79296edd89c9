"""An item of a feed: a post or a repost, with its links. Its record is written once and never changes.

The content of an item does not depend on when or how often the item is read from the source.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from ..storage import Record, Space
from ..storage.body_format import FORMAT_FIELD, BodyFormat
from ..storage.errors import StorageCorrupt
from ..storage.limits import MAX_INTEGER, MAX_KEY_BYTES
from ..storage.time_units import Timestamp
from .errors import CorruptFeedRecord

ITEMS = Space("items")

ItemKind: TypeAlias = Literal["post", "reply", "quote", "repost"]
LinkVia: TypeAlias = Literal["card", "quote", "facet", "text"]

MAX_ITEM_BYTES = 64 * 1024
"""Maximum size of an item's body. Several items must fit into one commit. A post has up to 300 characters."""


class Link(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A link in an item."""

    url: str
    """The normal form of the URL, which is the same for all links to a page."""
    via: LinkVia
    """How the link was shared: as a card, in a quoted post, as a marked link, or as plain text."""
    title: str = ""
    shared_url: str = ""
    """The URL as it was shared. It is stored as an empty string if it equals `url`."""


class Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field=FORMAT_FIELD, tag=2):
    """A post, reply, quote or repost in the feed of an account."""

    uri: str
    """The id of the item. A repost has a URI of its own."""
    time: Timestamp
    """The time of the item, by which its feed is sorted."""
    kind: ItemKind
    post_uri: str
    """The URI of the post itself, or of the reposted post."""
    author_id: str
    """The id of the account that wrote the post."""
    author_handle: str = ""
    """The handle of the author when the item was read."""
    text: str = ""
    links: tuple[Link, ...] = ()


def item_record(item: Item, account_id: str) -> Record:
    """Encode the item as a record in the partition of the account."""
    return Record(
        space=ITEMS,
        partition=account_id,
        key=item.uri,
        order=min(max(item.time, 0), MAX_INTEGER),
        body=_format.encode(item),
        tag=item.kind,
    )


def parse_item(record: Record) -> Item:
    """Decode a record. Raise NewerFormat or CorruptFeedRecord if that is not possible."""
    try:
        return _format.decode(record.key, record.body)
    except StorageCorrupt as error:
        raise CorruptFeedRecord(record.key, f"invalid item record: {error}") from error


def is_valid_uri(uri: str) -> bool:
    """Return whether a URI can be the key of a record."""
    return 0 < len(uri.encode("utf-8", "replace")) <= MAX_KEY_BYTES and "\0" not in uri


def is_storable(item: Item) -> bool:
    """Return whether an item can be stored in a record."""
    if not is_valid_uri(item.uri):
        return False
    try:
        body = _format.encode(item).encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return len(body) <= MAX_ITEM_BYTES and b"\0" not in body


_format = BodyFormat(Item)
