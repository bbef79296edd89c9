"""The schemas of Bluesky's responses, as far as they are used. Other fields are ignored.

Clients write the records, so only the fields that an item needs must be valid. The members of lists, and
everything that contains links, stay raw here and are parsed separately.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

NO_RAW = Raw()

POST = "app.bsky.feed.post"
FOLLOW = "app.bsky.graph.follow"
REPOST = "app.bsky.feed.repost"
REASON_REPOST = "app.bsky.feed.defs#reasonRepost"
REASON_PIN = "app.bsky.feed.defs#reasonPin"
FACET_LINK = "app.bsky.richtext.facet#link"


class LexiconObject(msgspec.Struct, rename="camel", gc=False):
    """A part of a response. It is never part of a reference cycle."""


# Feeds


class Feed(LexiconObject):
    feed: list[Raw]
    cursor: str | None = None


class Author(LexiconObject):
    did: str
    handle: str = ""


class Reply(LexiconObject):
    """The parent of a reply. Only its presence matters."""


class Post(LexiconObject):
    """The record of a post, as its author wrote it."""

    text: str = ""
    created_at: object = None
    reply: Reply | None = None
    embed: Raw = NO_RAW
    facets: Raw = NO_RAW


class PostView(LexiconObject):
    uri: str
    author: Author
    record: Post
    indexed_at: str
    embed: Raw = NO_RAW


class Reason(LexiconObject):
    """Why a post of another account, or a pinned post, is in this feed."""

    type: str = msgspec.field(name="$type", default="")
    by: Author | None = None
    uri: str | None = None
    indexed_at: str | None = None


class FeedEntry(LexiconObject):
    post: PostView
    reason: Reason | None = None


# Embeds


class External(LexiconObject):
    uri: str
    title: str = ""


class QuotedRecord(LexiconObject):
    """A quoted record: its URI in a record, all of it in a view, one level deeper if there is media."""

    uri: str = ""
    value: Post | None = None
    embeds: list[Raw] = []
    record: QuotedRecord | None = None


class Embed(LexiconObject):
    """An embed, as it was written (`embed`) or as it is shown (`embed#view`)."""

    external: External | None = None
    media: Embed | None = None
    record: QuotedRecord | None = None


class Index(LexiconObject):
    """A range of bytes of the text in UTF-8."""

    byte_start: int
    byte_end: int


class Feature(LexiconObject):
    type: str = msgspec.field(name="$type", default="")
    uri: str = ""


class Facet(LexiconObject):
    index: Index
    features: list[Feature] = []


# Records


class Records(LexiconObject):
    records: list[Raw]
    cursor: str | None = None


class ListedRecord(LexiconObject):
    uri: str
    value: Raw


class RecordUri(LexiconObject):
    """The URI of a record, without what else describes it."""

    uri: str


class Follow(LexiconObject):
    """The record of a follow."""

    subject: str


class Posts(LexiconObject):
    posts: list[Raw]


class Repost(LexiconObject):
    subject: RecordUri
    created_at: object = None


# Accounts


class ProfileView(LexiconObject):
    did: str
    handle: str = ""
    posts_count: int | None = None


class Profiles(LexiconObject):
    profiles: list[Raw]


class Follows(LexiconObject):
    follows: list[Raw]
    cursor: str | None = None


class Tokens(LexiconObject):
    access_jwt: str
    refresh_jwt: str


class ErrorResponse(LexiconObject):
    error: str
    message: str = ""
