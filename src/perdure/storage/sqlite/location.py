"""What a `sqlite:` URL says: which file, and the options."""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from ..errors import CannotOpen

_OPTIONS = "the options are synchronous=full|normal, busy_timeout=SECONDS and max_bytes=BYTES"


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    synchronous: Literal["full", "normal"] = "full"
    """full: what was acknowledged survives a power cut. normal: it survives a crash of the process, and a
    power cut may take the last moments. Both keep the file whole."""
    busy_timeout: float = 30.0
    """Seconds to wait for other processes before StorageBusy."""
    max_bytes: int | None = None
    """The most that the file may grow to before StorageFull."""


class Location(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    options: Options = Options()

    @property
    def name(self) -> str:
        return str(self.path)


def parse(url: str) -> Location:
    """`sqlite:///relative.db`, `sqlite:////absolute.db`, with options behind a question mark."""
    parts = urlsplit(url)
    path = unquote(parts.path[1:])
    if parts.netloc or not url.startswith("sqlite:///") or path in ("", ":memory:"):
        remedy = "write sqlite:///relative.db or sqlite:////absolute.db, or memory: for a storage without one"
        raise CannotOpen(url, "it does not name a file", remedy)
    pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    try:
        options = msgspec.convert(dict(pairs), Options, strict=False)
    except msgspec.ValidationError as error:
        raise CannotOpen(url, str(error), _OPTIONS) from error
    return Location(path=Path(path), options=options)
