"""What answers look like: the world's rows and accounts as the recorded server writes them.

An item is encoded once, and again only when something that it shows has changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

import msgspec

from ..simulation import Account, Json, Row, Shown, World, iso, quoted_in

_DEFS = "app.bsky.feed.defs"
_ASSOCIATED: Json = {"activitySubscription": {"allowSubscriptions": "followers"}}
_GARBAGE: tuple[bytes, ...] = (
    b"null",
    b"17",
    b"{}",
    b'{"post":null}',
    b'{"post":{"uri":5,"cid":[],"author":"me","record":{},"indexedAt":0}}',
    b'{"post":{"uri":"at://did:plc:x/app.bsky.feed.post/y","cid":"z","author":{"did":"did:plc:x","handle":"x.test"},'
    b'"record":{"$type":"app.bsky.feed.post","text":"when?","createdAt":"soon"},"indexedAt":"yesterday"}}',
)
"""What may stand where an item should."""

encode = msgspec.json.encode


class Views:
    def __init__(self, world: World) -> None:
        self._world = world
        self._encoded: dict[str, tuple[tuple[int, ...], bytes]] = {}

    def page(self, shown: Shown) -> bytes:
        pinned = [] if shown.pinned is None else [self._pinned(shown.pinned)]
        items = b",".join([*pinned, *(self.item(row) for row in shown.rows)])
        cursor = b"" if shown.cursor is None else b',"cursor":' + encode(shown.cursor)
        return b'{"feed":[' + items + b"]" + cursor + b"}"

    def item(self, row: Row) -> bytes:
        if row.is_spoiled:
            return _GARBAGE[crc32(row.uri.encode()) % len(_GARBAGE)]
        stamp = self._stamp(row)
        known = self._encoded.get(row.uri)
        if known is None or known[0] != stamp:
            known = self._encoded[row.uri] = stamp, encode(self._item(row))
        return known[1]

    def _stamp(self, row: Row) -> tuple[int, ...]:
        """Changes when anything does that the item shows."""
        record = row.post.record
        others = [quoted_in(record), *(ref["uri"] for ref in record.get("reply", {}).values())]
        seen = (self._world.rows.get(uri) for uri in others if uri is not None)
        versions = (-1 if other is None else other.version for other in seen)
        return (self._world.revision, row.version, row.post.version, *versions)

    def _item(self, row: Row) -> Json:
        item: Json = {"post": self.post(row.post)}
        if "reply" in row.post.record:
            item["reply"] = {
                name: self._context(row.post.record["reply"][name]["uri"]) for name in ("root", "parent")
            }
        if row.is_repost:
            item["reason"] = {
                "by": basic(row.by),
                "uri": row.uri,
                "cid": row.cid,
                "indexedAt": iso(row.sort),
                "$type": f"{_DEFS}#reasonRepost",
            }
        return item

    def _pinned(self, row: Row) -> bytes:
        return encode({"post": self.post(row), "reason": {"$type": f"{_DEFS}#reasonPin"}})

    def post(self, row: Row) -> Json:
        embed = self._embed(row.record.get("embed"))
        return {
            "uri": row.uri,
            "cid": row.cid,
            "author": basic(row.by),
            "record": row.record,
            **({} if embed is None else {"embed": embed}),
            "bookmarkCount": 0,
            **_counts(row),
            "indexedAt": self._indexed(row),
            "labels": [],
        }

    def _indexed(self, row: Row) -> str:
        return iso(row.sort if self._world.knobs.shows_sort_time else row.indexed)

    def _context(self, uri: str) -> Json:
        """A post that is shown because another one answers it."""
        row = self._world.rows.get(uri)
        if row is None or not row.is_visible:
            return {"uri": uri, "notFound": True, "$type": f"{_DEFS}#notFoundPost"}
        return {**self.post(row), "$type": f"{_DEFS}#postView"}

    def _embed(self, embed: Json | None) -> Json | None:
        match embed:
            case {"$type": "app.bsky.embed.external", "external": external}:
                return {"external": external, "$type": "app.bsky.embed.external#view"}
            case {"$type": "app.bsky.embed.record", "record": {"uri": uri}}:
                return {"record": self._quoted(uri), "$type": "app.bsky.embed.record#view"}
            case {"$type": "app.bsky.embed.recordWithMedia", "record": {"record": {"uri": uri}}}:
                return {
                    "media": self._embed(embed["media"]),
                    "record": {"record": self._quoted(uri)},
                    "$type": "app.bsky.embed.recordWithMedia#view",
                }
            case _:
                return None

    def _quoted(self, uri: str) -> Json:
        row = self._world.rows.get(uri)
        if row is None or not row.is_visible:
            return {"uri": uri, "notFound": True, "$type": "app.bsky.embed.record#viewNotFound"}
        embed = self._embed(row.record.get("embed"))
        return {
            "uri": row.uri,
            "cid": row.cid,
            "author": basic(row.by),
            "value": row.record,
            "labels": [],
            **_counts(row),
            "indexedAt": self._indexed(row),
            "embeds": [] if embed is None else [embed],
            "$type": "app.bsky.embed.record#viewRecord",
        }

    def posts(self, rows: Iterable[Row]) -> bytes:
        shown = (b"null" if row.is_spoiled else encode(self.post(row)) for row in rows)
        return b'{"posts":[' + b",".join(shown) + b"]}"

    def profiles(self, accounts: Iterable[Account]) -> bytes:
        return encode({"profiles": [self._detailed(account) for account in accounts]})

    def _detailed(self, account: Account) -> Json:
        return {
            **basic(account),
            "followersCount": sum(account.did in other.follows for other in self._world.accounts.values()),
            "followsCount": len(account.follows),
            "postsCount": self._world.posts_of(account.did),
        }

    def follows(self, subject: Account, followed: Iterable[Account], cursor: str | None) -> bytes:
        body = {"subject": basic(subject), "follows": [basic(account) for account in followed]}
        return encode(body if cursor is None else {**body, "cursor": cursor})

    def records(self, rows: Iterable[Row], cursor: str | None) -> bytes:
        body = {"records": [_record(row) for row in rows]}
        return encode(body if cursor is None else {**body, "cursor": cursor})


def _record(row: Row) -> Json:
    value = None if row.is_spoiled else row.record
    return {"uri": row.uri, "cid": row.cid, "value": value}


def basic(account: Account) -> Json:
    name = {} if account.display_name is None else {"displayName": account.display_name}
    return {
        "did": account.did,
        "handle": account.handle,
        **name,
        "associated": _ASSOCIATED,
        "labels": [],
    }


def _counts(row: Row) -> Json:
    return {
        "replyCount": row.replies,
        "repostCount": row.reposts,
        "likeCount": 0,
        "quoteCount": row.quotes,
    }
