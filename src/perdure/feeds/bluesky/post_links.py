"""Finds the links in a post: in its link card, its quoted post, its facets (marked-up text) and plain text.

The functions in this module are pure. If a post links to the same page several times, only the first link is
returned. Invalid parts of a post are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TypeVar

import msgspec
from msgspec import Raw

from ..item import Link, LinkVia
from ..urls import find_urls, normalize_url, original_url
from .lexicon import FACET_LINK, NO_RAW, POST, Embed, External, Facet, Post, QuotedRecord

T = TypeVar("T")


def find_links(post: Post, view: Raw = NO_RAW) -> tuple[Link, ...]:
    """Return the links in a post. `view` is the embed as the feed shows it; it may be empty."""
    if not view and not post.embed and not post.facets and "://" not in post.text:
        return ()
    embeds = [embed for raw in (view, post.embed) if (embed := _read(_embed, raw)) is not None]
    links: dict[str, Link] = {}
    for url, via, title in _iter_links(post, embeds):
        if url not in links and (normalized := _normalize_cached(url)) is not None:
            links.setdefault(normalized, Link(normalized, via, title, original_url(url, normalized)))
    return tuple(links.values())


def is_quote(post: Post) -> bool:
    """Return whether a post quotes another post. Embedded feeds and lists do not count."""
    embed = _read(_embed, post.embed)
    quoted = None if embed is None else _quoted_record(embed)
    return quoted is not None and f"/{POST}/" in quoted.uri


def _iter_links(post: Post, embeds: list[Embed]) -> Iterator[tuple[str, LinkVia, str]]:
    """Yield the URL, kind and title of each link: first link cards, then quotes, facets and plain text."""
    for embed in embeds:
        for card in _cards(embed):
            yield card.uri, "card", card.title
    for embed in embeds:
        for url, title in _quoted_links(embed):
            yield url, "quote", title
    marked, unmarked = _split_marked_text(post)
    for url in marked:
        yield url, "facet", ""
    for url in find_urls(unmarked):
        yield url, "text", ""


def _cards(embed: Embed) -> Iterator[External]:
    """Yield the link cards of an embed. If the post also quotes another post, the card is in `media`."""
    if embed.external is not None:
        yield embed.external
    if embed.media is not None and embed.media.external is not None:
        yield embed.media.external


def _quoted_links(embed: Embed) -> Iterator[tuple[str, str]]:
    """Yield the URL and the title of each link in the quoted post."""
    quoted = _quoted_record(embed)
    if quoted is None:
        return
    for raw in (*quoted.embeds, quoted.value.embed if quoted.value else NO_RAW):
        if (within := _read(_embed, raw)) is not None:
            yield from ((card.uri, card.title) for card in _cards(within))
    if quoted.value is not None:
        marked, unmarked = _split_marked_text(quoted.value)
        yield from ((url, "") for url in (*marked, *find_urls(unmarked)))


def _quoted_record(embed: Embed) -> QuotedRecord | None:
    """Return the quoted record. If the post also has media, the record is nested one level deeper."""
    return embed.record and (embed.record.record or embed.record)


def _split_marked_text(post: Post) -> tuple[list[str], str]:
    """Return the URLs of link facets, and the post's text with the text of these facets replaced by spaces.

    The text of a link facet is often a shortened URL, which does not count as a separate link.
    """
    marked: list[str] = []
    text = post.text.encode()
    for facet in _read(_facets, post.facets) or ():
        urls = [feature.uri for feature in facet.features if feature.type == FACET_LINK]
        if urls:
            marked += urls
            text = _blank_out(text, facet.index.byte_start, facet.index.byte_end)
    return marked, text.decode("utf-8", "replace")


def _blank_out(text: bytes, start: int, end: int) -> bytes:
    """Replace a range of bytes with spaces, so that the offsets of other ranges stay valid."""
    start, end = max(start, 0), min(end, len(text))
    return text[:start] + b" " * (end - start) + text[end:] if start < end else text


def _read(decoder: msgspec.json.Decoder[T], raw: Raw) -> T | None:
    if not raw:
        return None
    try:
        return decoder.decode(raw)
    except (ValueError, RecursionError):
        return None


_normalize_cached = lru_cache(4096)(normalize_url)
"""Calls `normalize_url` with a cache, because the same link often occurs several times."""
_embed: msgspec.json.Decoder[Embed | None] = msgspec.json.Decoder(Embed | None)
_facets: msgspec.json.Decoder[list[Facet] | None] = msgspec.json.Decoder(list[Facet] | None)
