"""The items of a feed: posts and reposts, with their links.

The record of an item is written when a poll or an audit first finds the item, and is never updated.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from ..storage import Record, Space
from ..storage.body_format import FORMAT_FIELD, BodyFormat
from ..storage.errors import StorageCorrupt
from ..storage.limits import MAX_INTEGER, MAX_KEY_BYTES
from ..storage.time_types import Timestamp
from .errors import CorruptFeedRecord

ITEMS = Space("items")

ItemKind: TypeAlias = Literal["post", "reply", "quote", "repost"]
LinkVia: TypeAlias = Literal["card", "quote", "facet", "text"]

MAX_ITEM_BYTES = 64 * 1024
"""Maximum size of an encoded item, so that several items fit into one commit. Most items are far smaller."""


class Link(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A link that an item contains."""

    url: str
    """The normalized URL (see `normalize_url`). Links with equal normalized URLs count as links to the same
    page."""
    via: LinkVia
    """Where the link was found: in a link card, a quoted post, a facet (marked-up text) or plain text."""
    title: str = ""
    shared_url: str = ""
    """The URL as it was shared. Stored as an empty string if it equals `url` or is too long."""


class Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field=FORMAT_FIELD, tag=2):
    """A post, reply, quote or repost in the feed of an account."""

    uri: str
    """The URI that identifies the item. A repost usually has its own URI."""
    time: Timestamp
    """The time by which the feed sorts the item."""
    kind: ItemKind
    post_uri: str
    """The URI of the post, or for a repost, the URI of the reposted post."""
    author_id: str
    """The id of the author of the post, or for a repost, of the reposted post."""
    author_handle: str = ""
    """The author's handle at the time when the item was read."""
    text: str = ""
    links: tuple[Link, ...] = ()


def item_record(item: Item, account_id: str) -> Record:
    """Encode the item as a record. It is stored in the same partition as the account."""
    return Record(
        space=ITEMS,
        partition=account_id,
        key=item.uri,
        order=min(max(item.time, 0), MAX_INTEGER),
        body=_format.encode(item),
        tag=item.kind,
    )


def parse_item(record: Record) -> Item:
    """Decode the record of an item. Raise NewerFormat or CorruptFeedRecord if that fails."""
    try:
        return _format.decode(record.key, record.body)
    except StorageCorrupt as error:
        raise CorruptFeedRecord(record.key, f"invalid item record: {error}") from error


def is_valid_uri(uri: str) -> bool:
    """Return whether a URI can be used as the key of a record."""
    return 0 < len(uri.encode("utf-8", "replace")) <= MAX_KEY_BYTES and "\0" not in uri


def is_storable(item: Item) -> bool:
    """Return whether an item is small enough to be stored and contains only valid characters."""
    if not is_valid_uri(item.uri):
        return False
    try:
        body = _format.encode(item).encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return len(body) <= MAX_ITEM_BYTES and b"\0" not in body


_format = BodyFormat(Item)
