"""The links in a post: in its card, in the post that it quotes, marked in its text, or merely written. Pure.

The same place is told once, the way it was shared most plainly. A part that cannot be read has no links, and
takes nothing away from the others.
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
    """Of a post, and of how it is shown, where that is known."""
    if not view and not post.embed and not post.facets and "://" not in post.text:
        return ()
    embeds = [embed for raw in (view, post.embed) if (embed := _read(_embed, raw)) is not None]
    links: dict[str, Link] = {}
    for url, via, title in _iter_links(post, embeds):
        if url not in links and (place := _normalize_cached(url)) is not None:
            links.setdefault(place, Link(place, via, title, original_url(url, place)))
    return tuple(links.values())


def is_quote(post: Post) -> bool:
    """Whether it quotes a post; feeds and lists can be attached in the same way."""
    embed = _read(_embed, post.embed)
    if embed is None or embed.record is None:
        return False
    return f"/{POST}/" in (embed.record.record or embed.record).uri


def _iter_links(post: Post, embeds: list[Embed]) -> Iterator[tuple[str, LinkVia, str]]:
    """All links, the plainest first."""
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
    """Alone, or beside a quote."""
    if embed.external is not None:
        yield embed.external
    if embed.media is not None and embed.media.external is not None:
        yield embed.media.external


def _quoted_links(embed: Embed) -> Iterator[tuple[str, str]]:
    """What the quoted post links to."""
    quoted = _innermost(embed.record)
    if quoted is None:
        return
    own = [raw for raw in (quoted.value.embed if quoted.value else NO_RAW,) if raw]
    for raw in (*quoted.embeds, *own):
        if (within := _read(_embed, raw)) is not None:
            yield from ((card.uri, card.title) for card in _cards(within))
    if quoted.value is not None:
        marked, unmarked = _split_marked_text(quoted.value)
        yield from ((url, "") for url in (*marked, *find_urls(unmarked)))


def _innermost(quoted: QuotedRecord | None) -> QuotedRecord | None:
    return quoted if quoted is None or quoted.record is None else quoted.record


def _split_marked_text(post: Post) -> tuple[list[str], str]:
    """The links that are marked, and the text without what stands for them: that may be shortened."""
    marked: list[str] = []
    text = post.text.encode()
    for facet in _read(_facets, post.facets) or ():
        urls = [feature.uri for feature in facet.features if feature.type == FACET_LINK]
        if urls:
            marked += urls
            text = _blank_out(text, facet.index.byte_start, facet.index.byte_end)
    return marked, text.decode("utf-8", "replace")


def _blank_out(text: bytes, start: int, end: int) -> bytes:
    """As long as before, so that the places of the other marks hold."""
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
"""A link stands in a post up to four times, and what is news is in many posts."""
_embed: msgspec.json.Decoder[Embed | None] = msgspec.json.Decoder(Embed | None)
_facets: msgspec.json.Decoder[list[Facet] | None] = msgspec.json.Decoder(list[Facet] | None)
