"""What Bluesky's answers look like, as far as they are read. Fields that are not named here are passed over.

People's programs write the records, so of each only what an item cannot do without must have its shape; a
list's members, and whatever holds links, stay raw here and are read on their own.
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
    """A part of an answer. None of them can be part of a cycle."""


# Feeds


class Feed(LexiconObject):
    feed: list[Raw]
    cursor: str | None = None


class Author(LexiconObject):
    did: str
    handle: str = ""


class Reply(LexiconObject):
    """That there is one is all that matters."""


class Post(LexiconObject):
    """The record that its author wrote."""

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
    """Why a post is in this feed, where that is not for its author's sake."""

    type: str = msgspec.field(name="$type", default="")
    by: Author | None = None
    uri: str | None = None
    indexed_at: str | None = None


class FeedEntry(LexiconObject):
    post: PostView
    reason: Reason | None = None


# What a post shows


class External(LexiconObject):
    uri: str
    title: str = ""


class QuotedRecord(LexiconObject):
    """What is quoted: only its address in a record, all of it in a view, one level deeper beside media."""

    uri: str = ""
    value: Post | None = None
    embeds: list[Raw] = []
    record: QuotedRecord | None = None


class Embed(LexiconObject):
    """What is attached, as it was written (`embed`) or as it is shown (`embed#view`)."""

    external: External | None = None
    media: Embed | None = None
    record: QuotedRecord | None = None


class Index(LexiconObject):
    """Bytes of the text in UTF-8."""

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


class AnyRecord(LexiconObject):
    """A record of any kind."""

    uri: str


class Follow(LexiconObject):
    """That somebody follows an account."""

    subject: str


class Posts(LexiconObject):
    posts: list[Raw]


class Subject(LexiconObject):
    uri: str


class Repost(LexiconObject):
    subject: Subject
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
