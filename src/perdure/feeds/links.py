"""Links: one address for one place, and which of them most people share. Pure."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable
from urllib.parse import urlsplit, urlunsplit

import msgspec

from ..storage import Micros
from .item import Item

_TRACKING = re.compile(
    r"utm_.*|fbclid|gclid|dclid|msclkid|yclid|igshid|mc_cid|mc_eid|_hsenc|_hsmi|ref_src|ref_url|"
    r"s_cid|cmpid|at_medium|at_campaign|smid|smtyp|guccounter|guce_.*|vero_id|wickedid|oly_.*_id",
    re.IGNORECASE,
)
"""Parameters that tell who sent the reader, not where."""

_SPACE = re.compile(r"\s")
_IN_TEXT = re.compile(r"https?://[^\s<>\"'`\u2026]+", re.IGNORECASE)
_AFTER = ".,;:!?\u2026\u2019\u201d"
_PORTS = {"http": 80, "https": 443}

MOST_LENGTH = 2048


def normalised(url: str) -> str | None:
    """The one address of a place: without the fragment, what tracks the reader, and a slash at the end.

    None where this is no address of the web.
    """
    try:
        parts = urlsplit(url.strip())
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:  # a port that is no number, a bracket that is not closed
        return None
    scheme = parts.scheme.lower()
    if scheme not in _PORTS or not host or _SPACE.search(url.strip()):
        return None
    shown = f"[{host}]" if ":" in host else host
    place = shown if port in (None, _PORTS[scheme]) else f"{shown}:{port}"
    short = urlunsplit((scheme, place, parts.path.rstrip("/"), _untracked(parts.query), ""))
    return short if len(short) <= MOST_LENGTH else None


def _untracked(query: str) -> str:
    """The query without what tracks the reader; the rest is left as it was written."""
    return "&".join(part for part in query.split("&") if not _TRACKING.fullmatch(part.partition("=")[0]))


def in_text(text: str) -> list[str]:
    """Addresses that are merely written, without the marks that end the sentence."""
    return [_whole(found.group()) for found in _IN_TEXT.finditer(text)]


def _whole(url: str) -> str:
    """A bracket belongs to the address when it was opened there."""
    while url and (url[-1] in _AFTER or (url[-1] in ")]" and not _is_opened(url))):
        url = url[:-1]
    return url


def _is_opened(url: str) -> bool:
    opening = "(" if url[-1] == ")" else "["
    return url.count(opening) >= url.count(url[-1])


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """A link, and who shared it."""

    url: str
    title: str
    sharers: tuple[str, ...]
    """Accounts, the first to share it first."""
    times: int
    first_at: Micros
    last_at: Micros


async def most_shared(items: AsyncIterable[tuple[str, Item]], *, limit: int) -> list[Shared]:
    """The links of these items, those of most distinct sharers first, and then the newest."""
    gathered: dict[str, _Shares] = {}
    async for account_id, item in items:
        for link in item.links:
            gathered.setdefault(link.url, _Shares()).add(account_id, item.time, link.title)
    ranked = sorted(gathered.items(), key=lambda each: each[1].rank(each[0]))
    return [shares.told(url) for url, shares in ranked[:limit]]


class _Shares:
    def __init__(self) -> None:
        self._first_by: dict[str, Micros] = {}
        self._times: list[Micros] = []
        self._title = ""

    def add(self, account_id: str, time: Micros, title: str) -> None:
        self._first_by[account_id] = min(time, self._first_by.get(account_id, time))
        self._times.append(time)
        self._title = self._title or title

    def rank(self, url: str) -> tuple[int, Micros, str]:
        return -len(self._first_by), -max(self._times), url

    def told(self, url: str) -> Shared:
        return Shared(
            url=url,
            title=self._title,
            sharers=tuple(sorted(self._first_by, key=lambda account: (self._first_by[account], account))),
            times=len(self._times),
            first_at=min(self._times),
            last_at=max(self._times),
        )
