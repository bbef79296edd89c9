"""Parses Bluesky's responses into items, profiles and timestamps.

The functions in this module are pure. Each record is parsed separately, so an invalid record does not affect
the others. Invalid records are skipped and counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
from msgspec import Raw

from ...storage import Micros
from ..item import Item, ItemKind, is_storable, is_valid_uri
from ..source import FeedPage, Profile, RecordPage, SourceRecord
from .lexicon import (
    REASON_PIN,
    REASON_REPOST,
    REPOST,
    Feed,
    FeedEntry,
    Follow,
    ListedRecord,
    Post,
    Posts,
    PostView,
    ProfileView,
    Reason,
    Records,
    RecordUri,
    Repost,
)
from .post_links import find_links, is_quote

R = TypeVar("R")
T = TypeVar("T")

SMALL_RECORD_BYTES = 16 * 1024
"""The size of an item is not checked if its record is at most this large. Few records are larger."""


class InvalidRecord(ValueError):
    """Raised for an invalid record. This module catches it and skips the record."""


def parse_page(feed: Feed, etag: str | None = None) -> FeedPage:
    """Parse a page of a feed. Separate pinned items, because they are not sorted by time."""
    entries, bad = _parse_each(feed.feed, _parse_entry)
    return FeedPage(
        items=tuple(item for item, is_pinned in entries if not is_pinned),
        pinned=tuple(item for item, is_pinned in entries if is_pinned),
        cursor=feed.cursor or None,
        etag=etag,
        invalid_records=bad,
    )


def parse_records(records: Records, account_id: str) -> RecordPage:
    """Parse a page of an account's own records."""
    written, _ = _parse_each(records.records, lambda raw: _parse_record(raw, account_id))
    named, _ = _parse_each(records.records, _named.decode)
    return RecordPage(records=tuple(written), uris=tuple(each.uri for each in named))


def parse_follows(records: Records) -> list[str]:
    """Return the ids of the followed accounts from a page of follow records."""
    return _parse_each(records.records, lambda raw: _follow.decode(_record.decode(raw).value).subject)[0]


def complete_items(items: Iterable[Item], posts: Posts) -> list[Item]:
    """Complete `items` with data from `posts`. Omit items whose post is not in `posts`."""
    views = {
        view.uri: (view, raw)
        for view, raw in _parse_each(posts.posts, lambda raw: (_view.decode(raw), raw))[0]
    }
    pairs = ((item, views[item.post_uri]) for item in items if item.post_uri in views)
    return _parse_each(pairs, lambda pair: _complete_item(pair[0], *pair[1]))[0]


def _complete_item(item: Item, view: PostView, raw: Raw) -> Item:
    """Return `item`, completed with the data of the post in `view`. A repost keeps its own URI and time."""
    shown = _make_item(FeedEntry(post=view))
    if item.kind == "repost":
        shown = msgspec.structs.replace(shown, uri=item.uri, time=item.time, kind=item.kind)
    return _require_storable(shown, raw)


def latest_by_author(feed: Feed) -> dict[str, Micros]:
    """Return the time of each account's newest item on a page of a feed, by account id."""
    newest: dict[str, Micros] = {}
    for author, time in _parse_each(feed.feed, _author_and_time)[0]:
        newest[author] = max(time, newest.get(author, 0))
    return newest


def parse_profiles(raws: Iterable[Raw]) -> list[Profile]:
    return _parse_each(raws, _profile)[0]


def _parse_each(raws: Iterable[R], read: Callable[[R], T]) -> tuple[list[T], int]:
    """Parse each record with `read`. Return the parsed records, and the number of invalid records."""
    valid: list[T] = []
    invalid = 0
    for raw in raws:
        try:
            valid.append(read(raw))
        except (ValueError, RecursionError):  # InvalidRecord and all errors of decoding
            invalid += 1
    return valid, invalid


def _parse_entry(raw: Raw) -> tuple[Item, bool]:
    """Parse an entry of a feed. Return its item, and whether the item is pinned."""
    entry = _entry.decode(raw)
    is_pinned = entry.reason is not None and entry.reason.type == REASON_PIN
    return _require_storable(_make_item(entry), raw), is_pinned


def _make_item(entry: FeedEntry) -> Item:
    post, record = entry.post, entry.post.record
    repost = _repost_reason(entry)
    return Item(
        uri=post.uri if repost is None else repost.uri or post.uri,
        time=_entry_time(entry),
        kind=_post_kind(record) if repost is None else "repost",
        post_uri=post.uri,
        author_id=post.author.did,
        author_handle=post.author.handle,
        text=record.text,
        links=find_links(record, post.embed),
    )


def _repost_reason(entry: FeedEntry) -> Reason | None:
    return entry.reason if entry.reason is not None and entry.reason.type == REASON_REPOST else None


def _entry_time(entry: FeedEntry) -> Micros:
    """Return the time by which the feed sorts an entry.

    For a repost, this is the time when the repost was indexed. For a post, it is the creation time
    that its author specified or the time when the post was indexed, whichever is earlier.
    """
    repost = _repost_reason(entry)
    if repost is not None:
        return _require_time(parse_timestamp(repost.indexed_at))
    indexed_at = _require_time(parse_timestamp(entry.post.indexed_at))
    if entry.post.record.created_at == entry.post.indexed_at:
        return indexed_at
    author_time = parse_timestamp(entry.post.record.created_at)
    return indexed_at if author_time is None else min(author_time, indexed_at)


def _author_and_time(raw: Raw) -> tuple[str, Micros]:
    entry = _entry.decode(raw)
    repost = _repost_reason(entry)
    author = entry.post.author if repost is None or repost.by is None else repost.by
    return author.did, _entry_time(entry)


def _post_kind(post: Post) -> ItemKind:
    if post.reply is not None:
        return "reply"
    return "quote" if post.embed and is_quote(post) else "post"


def _parse_record(raw: Raw, account_id: str) -> SourceRecord:
    """Parse a post or repost from the list of an account's own records."""
    written = _record.decode(raw)
    collection, _, key = written.uri.removeprefix(f"at://{account_id}/").partition("/")
    if collection == REPOST:
        repost = _repost.decode(written.value)
        of = repost.subject.uri
        time = _record_time(repost.created_at, key)
        author = of.removeprefix("at://").partition("/")[0]
        item = Item(uri=written.uri, time=time, kind="repost", post_uri=of, author_id=author)
    else:
        post = _post.decode(written.value)
        item = Item(
            uri=written.uri,
            time=_record_time(post.created_at, key),
            kind=_post_kind(post),
            post_uri=written.uri,
            author_id=account_id,
            text=post.text,
            links=find_links(post),
        )
    return SourceRecord(_require_storable(item, raw), tid_time(key) or item.time)


def _record_time(author_time: object, key: str) -> Micros:
    """Return the earlier of the time that the author specified and the time in the record's key."""
    times = [time for time in (parse_timestamp(author_time), tid_time(key)) if time is not None]
    return _require_time(min(times, default=None))


def _profile(raw: Raw) -> Profile:
    profile = _profile_view.decode(raw)
    return Profile(account_id=profile.did, handle=profile.handle, post_count=profile.posts_count)


def _require_time(time: Micros | None) -> Micros:
    if time is None:
        raise InvalidRecord("the record has no valid time")
    return time


def _require_storable(item: Item, raw: Raw) -> Item:
    """Return `item`, or raise InvalidRecord if it cannot be stored. Skip the size check for small records."""
    if not (is_valid_uri(item.uri) if len(raw) <= SMALL_RECORD_BYTES else is_storable(item)):
        raise InvalidRecord("the item is too large or has an invalid URI")
    return item


_entry = msgspec.json.Decoder(FeedEntry)
_record = msgspec.json.Decoder(ListedRecord)
_named = msgspec.json.Decoder(RecordUri)
_follow = msgspec.json.Decoder(Follow)
_view = msgspec.json.Decoder(PostView)
_post = msgspec.json.Decoder(Post)
_repost = msgspec.json.Decoder(Repost)
_profile_view = msgspec.json.Decoder(ProfileView)


_TIMESTAMP = re.compile(r"\s*\d{4}-\d\d-\d\d(?:[Tt ]\d\d:\d\d|\s*$)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TID_DIGITS = {character: value for value, character in enumerate("234567abcdefghijklmnopqrstuvwxyz")}
_TID_LENGTH = 13
_TID_CLOCK_BITS = 10


def parse_timestamp(written: object) -> Micros | None:
    """Parse a timestamp as Bluesky does: a date such as 2024-12-31, usually followed by a time of day.

    Without a UTC offset, the time is UTC. A time before 1970 becomes the start of 1970. Clients can write any
    value. If it is not a timestamp, return None.
    """
    if not isinstance(written, str) or not _TIMESTAMP.match(written):
        return None
    try:
        time = datetime.fromisoformat(written.strip().upper())
    except ValueError:
        return None
    passed = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - _EPOCH
    return max((passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds, 0)


def tid_time(key: str) -> Micros | None:
    """Return the time in a TID (timestamp identifier), or None if `key` is not a TID.

    Most records have a TID as their key. A TID consists of a time and ten bits that distinguish writers.
    """
    if len(key) != _TID_LENGTH or not all(character in _TID_DIGITS for character in key):
        return None
    number = 0
    for character in key:
        number = number << 5 | _TID_DIGITS[character]
    return None if number >> 63 else number >> _TID_CLOCK_BITS
