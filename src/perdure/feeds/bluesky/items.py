"""Items out of what Bluesky shows. Pure.

Each record is read on its own. One that is not what it should be is set aside and counted, and takes nothing
away from the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
from msgspec import Raw

from ...storage import Micros
from ..item import Item, Kind, is_name, is_storable
from ..source import Page, Profile, RecordPage, WrittenRecord
from .embeds import is_quote, links_in
from .lexicon import (
    REASON_PIN,
    REASON_REPOST,
    REPOST,
    Entry,
    Feed,
    Follow,
    Named,
    Post,
    Posts,
    PostView,
    ProfileView,
    Reason,
    Records,
    Repost,
    Written,
)

R = TypeVar("R")
T = TypeVar("T")

LITTLE = 16 * 1024
"""Bytes of a record. Hardly any has more."""


class Unreadable(ValueError):
    """A record that is not what it should be. Never leaves this module."""


def page_of(feed: Feed, etag: str | None = None) -> Page:
    """A page of a feed. What is pinned stands apart, for it says nothing about how far the page reaches."""
    entries, bad = _each(feed.feed, _shown)
    return Page(
        items=tuple(item for item, is_pinned in entries if not is_pinned),
        pinned=tuple(item for item, is_pinned in entries if is_pinned),
        cursor=feed.cursor or None,
        etag=etag,
        set_aside=bad,
    )


def page_written(records: Records, account_id: str, cursor: str | None) -> RecordPage:
    """Return a page of an account's own records."""
    written, _ = _each(records.records, lambda raw: _written(raw, account_id))
    named, _ = _each(records.records, _named.decode)
    return RecordPage(records=tuple(written), uris=tuple(each.uri for each in named), cursor=cursor)


def followed_in(records: Records) -> list[str]:
    """Return the ids of the accounts that these records of a follow list name."""
    return _each(records.records, lambda raw: _follow.decode(_record.decode(raw).value).subject)[0]


def completed(items: Iterable[Item], posts: Posts) -> list[Item]:
    """Return these items with what the posts show. An item whose post is not among them is left out."""
    views = {
        view.uri: (view, raw) for view, raw in _each(posts.posts, lambda raw: (_view.decode(raw), raw))[0]
    }
    pairs = ((item, views[item.post]) for item in items if item.post in views)
    return _each(pairs, lambda pair: _completed(pair[0], *pair[1]))[0]


def _completed(item: Item, view: PostView, raw: Raw) -> Item:
    """A repost keeps its own address and time; a post becomes what the feed has of it."""
    if item.kind != "repost":
        return _storable(_item_of(Entry(post=view)), raw)
    shown = _item_of(Entry(post=view))
    return _storable(
        msgspec.structs.replace(
            item, author=shown.author, handle=shown.handle, text=shown.text, links=shown.links
        ),
        raw,
    )


def newest_of(feed: Feed) -> dict[str, Micros]:
    """Who stands in a feed of many, and the time of the newest item of each."""
    newest: dict[str, Micros] = {}
    for who, time in _each(feed.feed, _who_and_when)[0]:
        newest[who] = max(time, newest.get(who, 0))
    return newest


def profiles_of(raws: Iterable[Raw]) -> list[Profile]:
    return _each(raws, _profile)[0]


def _each(raws: Iterable[R], read: Callable[[R], T]) -> tuple[list[T], int]:
    """Those that can be read, and how many cannot."""
    good: list[T] = []
    bad = 0
    for raw in raws:
        try:
            good.append(read(raw))
        except (ValueError, RecursionError):  # all that decoding raises, and Unreadable
            bad += 1
    return good, bad


def _shown(raw: Raw) -> tuple[Item, bool]:
    """An entry of a feed, and whether it is pinned there."""
    entry = _entry.decode(raw)
    is_pinned = entry.reason is not None and entry.reason.type == REASON_PIN
    return _storable(_item_of(entry), raw), is_pinned


def _item_of(entry: Entry) -> Item:
    post, record = entry.post, entry.post.record
    repost = _repost_in(entry)
    return Item(
        uri=post.uri if repost is None else repost.uri or post.uri,
        time=_time_of(entry),
        kind=_kind_of(record) if repost is None else "repost",
        post=post.uri,
        author=post.author.did,
        handle=post.author.handle,
        text=record.text,
        links=links_in(record, post.embed),
    )


def _repost_in(entry: Entry) -> Reason | None:
    return entry.reason if entry.reason is not None and entry.reason.type == REASON_REPOST else None


def _time_of(entry: Entry) -> Micros:
    """Where the entry stands in its feed: a repost at its own time, a post at the earlier of when it says
    that it was written and when it was first seen.
    """
    repost = _repost_in(entry)
    if repost is not None:
        return _certain(micros_of(repost.indexed_at))
    seen = _certain(micros_of(entry.post.indexed_at))
    if entry.post.record.created_at == entry.post.indexed_at:
        return seen
    said = micros_of(entry.post.record.created_at)
    return seen if said is None else min(said, seen)


def _who_and_when(raw: Raw) -> tuple[str, Micros]:
    entry = _entry.decode(raw)
    repost = _repost_in(entry)
    who = entry.post.author if repost is None or repost.by is None else repost.by
    return who.did, _time_of(entry)


def _kind_of(post: Post) -> Kind:
    if post.reply is not None:
        return "reply"
    return "quote" if post.embed and is_quote(post) else "post"


def _written(raw: Raw, account_id: str) -> WrittenRecord:
    """Return a record as its author's server lists it. Its identity is the one that it has in the feed."""
    written = _record.decode(raw)
    collection, _, key = written.uri.removeprefix(f"at://{account_id}/").partition("/")
    if collection == REPOST:
        repost = _repost.decode(written.value)
        of = repost.subject.uri
        time = _written_at(repost.created_at, key)
        author = of.removeprefix("at://").partition("/")[0]
        item = Item(uri=written.uri, time=time, kind="repost", post=of, author=author)
    else:
        post = _post.decode(written.value)
        item = Item(
            uri=written.uri,
            time=_written_at(post.created_at, key),
            kind=_kind_of(post),
            post=written.uri,
            author=account_id,
            text=post.text,
            links=links_in(post),
        )
    return WrittenRecord(_storable(item, raw), time_of_key(key) or item.time)


def _written_at(said: object, key: str) -> Micros:
    """Nobody knows when it was first seen; its key tells when it was made."""
    times = [time for time in (micros_of(said), time_of_key(key)) if time is not None]
    return _certain(min(times, default=None))


def _profile(raw: Raw) -> Profile:
    profile = _profile_view.decode(raw)
    return Profile(account_id=profile.did, handle=profile.handle, posts=profile.posts_count)


def _certain(time: Micros | None) -> Micros:
    if time is None:
        raise Unreadable("it has no time")
    return time


def _storable(item: Item, raw: Raw) -> Item:
    """What was read from little can fail only by its name."""
    if not (is_name(item.uri) if len(raw) <= LITTLE else is_storable(item)):
        raise Unreadable("it fits into no record")
    return item


_entry = msgspec.json.Decoder(Entry)
_record = msgspec.json.Decoder(Written)
_named = msgspec.json.Decoder(Named)
_follow = msgspec.json.Decoder(Follow)
_view = msgspec.json.Decoder(PostView)
_post = msgspec.json.Decoder(Post)
_repost = msgspec.json.Decoder(Repost)
_profile_view = msgspec.json.Decoder(ProfileView)


_FORM = re.compile(r"\s*\d{4}-\d\d-\d\d(?:[Tt ]\d\d:\d\d|\s*$)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DIGITS = {letter: value for value, letter in enumerate("234567abcdefghijklmnopqrstuvwxyz")}
_KEY_LENGTH = 13
_CLOCK_BITS = 10


def micros_of(written: object) -> Micros | None:
    """A time as the server itself reads it: a date with dashes, and a time of day. Without an offset it is
    UTC, and before 1970 it is 1970. None: it is no time. People's programs write it, so it may be anything.
    """
    if not isinstance(written, str) or not _FORM.match(written):
        return None
    try:
        time = datetime.fromisoformat(written.strip().upper())
    except ValueError:
        return None
    passed = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - _EPOCH
    return max((passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds, 0)


def time_of_key(key: str) -> Micros | None:
    """When a record's key was made: a TID is a time, and ten bits that tell writers apart. None: no TID."""
    if len(key) != _KEY_LENGTH or not all(letter in _DIGITS for letter in key):
        return None
    number = 0
    for letter in key:
        number = number << 5 | _DIGITS[letter]
    return None if number >> 63 else number >> _CLOCK_BITS
