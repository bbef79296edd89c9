"""The schemas of Bluesky's responses. Fields that are not declared here are ignored.

Records can be partly invalid, because any client can write them. So the members of lists, and the embeds and
facets of posts, are kept as raw JSON and parsed separately. One invalid part does not affect the others.
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
    """The base class of all objects in responses. `gc=False` is safe because the objects form no cycles."""


# Feeds


class Feed(LexiconObject):
    feed: list[Raw]
    cursor: str | None = None


class Author(LexiconObject):
    did: str
    handle: str = ""


class Reply(LexiconObject):
    """Marks a post as a reply. Its fields are not used."""


class Post(LexiconObject):
    """The record of a post, as its author's client wrote it."""

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
    """Explains why a feed shows a post: because the account reposted or pinned it."""

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
    """A quoted record. If the quoting post also has media, the quoted record is in the field `record`.

    In the quoting post's own record, a quoted record has only a `uri`. In the server's view of the quoting
    post, it can have all fields.
    """

    uri: str = ""
    value: Post | None = None
    embeds: list[Raw] = []
    record: QuotedRecord | None = None


class Embed(LexiconObject):
    """The embedded content in the record or the view of a post, such as a link card or a quoted post."""

    external: External | None = None
    media: Embed | None = None
    record: QuotedRecord | None = None


class Index(LexiconObject):
    """A range of bytes in the UTF-8 encoding of a post's text."""

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
    """A record, or a reference to a record. Only the URI is used."""

    uri: str


class Follow(LexiconObject):
    """The record that an account writes when it follows another account. `subject` is the other account."""

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
