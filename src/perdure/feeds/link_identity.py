"""The identity of a link: one normal form for one page, however its address was written. Pure.

The normal form says whether two links are the same; what is opened is the address as it was shared. In the
normal form

- the scheme is https, the host is in lower case and ASCII, without credentials, default port and final dot;
- letters, digits and `-._~` are written plainly, everything else that must be is percent-encoded in upper
  case;
- parameters that track the reader are removed (see `tracking`), the others are sorted by their names;
- a trailing slash is removed, and so is the fragment, unless it selects the page: `#/article/5`, `#!/news`.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from .trackers import is_tracking

MAX_LENGTH = 2048
"""Characters of a normal form."""

_DEFAULT_PORTS = {"http": (80, 443), "https": (443,)}
"""Both ports of http, since its normal form is https."""
_SPACE = re.compile(r"\s")
_HOST = re.compile(r"[^\x00-\x20\"#%/:<>?@\[\\\]^`{|}\x7f]+")
_IPV6 = re.compile(r"[0-9a-f:.]+")
_UNUSUAL = re.compile(r"%([0-9A-Fa-f]{2})?|[^A-Za-z0-9\-._~!$&'()*+,;=:@/?%]")
"""What may have to be written otherwise: percent signs, and characters that no URL has as they are."""
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_TEXT_DIRECTIVE = ":~:"
"""Starts what a browser highlights, which is not a part of the page's own fragment."""

_IN_TEXT = re.compile(r"https?://[^\s<>\"'`\u2026]+", re.IGNORECASE)
_AFTER = ".,;:!?\u2026\u2019\u201d"


def normalised(url: str) -> str | None:
    """Return the normal form of a web address, or None if it is not a valid one."""
    written = url.strip()
    if _SPACE.search(written):
        return None
    try:
        parts = urlsplit(written)
        place = _place(parts)
        if place is None:
            return None
        host, authority = place
        query, fragment = _query(host, parts.query), _fragment(parts.fragment)
        path = _unified(parts.path).rstrip("/")
    except ValueError:  # a port that is not a number, a bracket that is not closed, half a surrogate pair
        return None
    normal = f"https://{authority}{path}{query and f'?{query}'}{fragment and f'#{fragment}'}"
    return normal if len(normal) <= MAX_LENGTH else None


def _place(parts: SplitResult) -> tuple[str, str] | None:
    """Return the host, and the host with its port as a URL has them."""
    scheme, host, port = parts.scheme.lower(), parts.hostname or "", parts.port
    if scheme not in _DEFAULT_PORTS:
        return None
    if not host.isascii():
        host = host.encode("idna").decode()
    host = host.rstrip(".")
    if ":" in host:
        if not _IPV6.fullmatch(host):
            return None
        authority = f"[{host}]"
    elif _HOST.fullmatch(host):
        authority = host
    else:
        return None
    return host, authority if port in (None, *_DEFAULT_PORTS[scheme]) else f"{authority}:{port}"


def _query(host: str, query: str) -> str:
    """Return the parameters that select the page, in the order of their names."""
    if not query:
        return ""
    pairs = [_unified(part).partition("=") for part in query.split("&") if part]
    kept = [(name, sign, value) for name, sign, value in pairs if not is_tracking(host, name, value)]
    return "&".join(f"{name}{sign}{value}" for name, sign, value in sorted(kept, key=lambda each: each[0]))


def _fragment(fragment: str) -> str:
    """Return the fragment if it selects the page, as in applications that route by it."""
    own = _unified(fragment).partition(_TEXT_DIRECTIVE)[0]
    return own if "/" in own or own.startswith("!") else ""


def _unified(text: str) -> str:
    """Return a part of a URL with its percent-encoding in the one normal form."""
    return _UNUSUAL.sub(_written, text)


def _written(found: re.Match[str]) -> str:
    text, digits = found[0], found[1]
    if digits is not None:
        byte = int(digits, 16)
        return chr(byte) if byte in _UNRESERVED else text.upper()
    return "".join(f"%{byte:02X}" for byte in text.encode())


def as_shared(url: str, normal: str) -> str:
    """Return what is stored of the address as it was shared: nothing if it is the normal form."""
    written = url.strip()
    return "" if written == normal or len(written) > MAX_LENGTH else written


def in_text(text: str) -> list[str]:
    """Return the addresses that are merely written in a text, without the punctuation of its sentences."""
    return [_whole(found.group()) for found in _IN_TEXT.finditer(text)]


def _whole(url: str) -> str:
    """A bracket belongs to the address if it was opened there."""
    while url and (url[-1] in _AFTER or (url[-1] in ")]" and not _is_opened(url))):
        url = url[:-1]
    return url


def _is_opened(url: str) -> bool:
    opening = "(" if url[-1] == ")" else "["
    return url.count(opening) >= url.count(url[-1])
