"""What a world is made of: accounts, and the rows of their feeds; how it behaves, and how it says no."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, TypeAlias

import msgspec

from perdure.feeds.item import ItemKind
from perdure.storage import Micros

Json: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[int, str]
"""Where a row stands in a feed: its time, and among equal times its cid."""
Cursors: TypeAlias = Literal["time", "keyset"]
Foreign: TypeAlias = Literal["fails", "empty", "malformed"]

POSTS = "app.bsky.feed.post"
REPOSTS = "app.bsky.feed.repost"


class Refusal(Exception):
    """What the server says instead of an answer."""

    def __init__(self, status: int, error: str, message: str) -> None:
        super().__init__(f"{status} {error}: {message}")
        self.status = status
        self.error = error
        self.message = message


class State(StrEnum):
    THERE = "there"
    DEACTIVATED = "deactivated"
    TAKEN_DOWN = "taken down"


class Knobs(msgspec.Struct, kw_only=True):
    """How this Bluesky behaves where real ones differ, or where chance decides. May be turned at any time."""

    cursors: Cursors = "keyset"
    """`ms__cid`, or an ISO time as in production. Cursors of the other style are foreign."""
    foreign: Foreign = "fails"
    """What a foreign cursor gets: a 500, a 200 with an empty feed, or a 400."""
    short_pages: float = 0.0
    """How many pages are short, and still have a cursor."""
    empty_pages: float = 0.0
    """How many pages are empty, and still have a cursor."""
    splits_ties: bool = False
    """Whether a page may end between equal times though the cursor is a time. What comes after is then
    never shown: with this, no reader of feeds can have everything."""
    shows_sort_time: bool = True
    """Whether `indexedAt` is shown as the earlier of itself and createdAt, as the recorded server does."""


class Account:
    """An account, with everything in its repository."""

    def __init__(self, did: str, handle: str, display_name: str | None) -> None:
        self.did = did
        self.handle = handle
        self.display_name = display_name
        self.state = State.THERE
        self.rows: list[Row] = []
        """The feed, oldest first."""
        self.records: dict[str, dict[str, Row]] = {POSTS: {}, REPOSTS: {}}
        """By collection and rkey."""
        self.keys: dict[str, list[str]] = {POSTS: [], REPOSTS: []}
        """The rkeys, in order."""
        self.follows: dict[str, None] = {}
        """In the order of following."""
        self.blocks: set[str] = set()
        self.pinned: str | None = None
        self.ever: dict[str, Micros] = {}
        """Everything that was ever written, deleted or not."""
        self.last_key = 0


class Row:
    """A post in its author's feed, or a repost in that of who made it."""

    __slots__ = (
        "by",
        "cid",
        "indexed",
        "is_deleted",
        "is_spoiled",
        "key",
        "post",
        "quotes",
        "record",
        "replies",
        "reposts",
        "sort",
        "time",
        "uri",
        "version",
    )

    def __init__(self, by: Account, uri: str, cid: str, record: Json, indexed: Micros) -> None:
        self.by = by
        self.uri = uri
        self.cid = cid
        self.record = record
        self.indexed = indexed
        """When the server saw it."""
        self.sort = self.time = indexed
        """Where it stands in the feed, in milliseconds' steps; and its time as a reader sees it."""
        self.key: Key = (0, "")
        self.post: Row = self
        """What is shown. Another one for a repost."""
        self.replies = self.reposts = self.quotes = self.version = 0
        self.is_deleted = False
        self.is_spoiled = False
        """Whether the answer shows garbage in its place."""

    @property
    def is_repost(self) -> bool:
        return self.post is not self

    @property
    def is_visible(self) -> bool:
        post = self.post
        return not (self.is_deleted or post.is_deleted) and post.by.state is State.THERE

    @property
    def kind(self) -> ItemKind:
        if self.is_repost:
            return "repost"
        if "reply" in self.record:
            return "reply"
        embed = self.record.get("embed", {}).get("$type", "")
        return "quote" if embed in _QUOTING else "post"


_QUOTING = ("app.bsky.embed.record", "app.bsky.embed.recordWithMedia")


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a feed: the pinned post if it was asked for, the rows, and the cursor of the next page."""

    rows: list[Row]
    cursor: str | None
    pinned: Row | None = None


def ref_to(row: Row) -> Json:
    return {"cid": row.cid, "uri": row.uri}


def parent_in(record: Json) -> str | None:
    return record["reply"]["parent"]["uri"] if "reply" in record else None


def quoted_in(record: Json) -> str | None:
    """The uri of the post that a post shows."""
    match record.get("embed"):
        case {"$type": "app.bsky.embed.record", "record": {"uri": uri}}:
            return uri
        case {"$type": "app.bsky.embed.recordWithMedia", "record": {"record": {"uri": uri}}}:
            return uri
        case _:
            return None


def key_of(row: Row) -> Key:
    return row.key
