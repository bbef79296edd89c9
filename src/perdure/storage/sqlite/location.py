"""What a `sqlite:` URL says: which file, and the options."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from ..errors import CannotOpen

_OPTIONS_HELP = "the options are synchronous=full|normal, busy_timeout=SECONDS and max_bytes=BYTES"


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    synchronous: Literal["full", "normal"] = "full"
    """full: what was acknowledged survives a power cut. normal: it survives a crash of the process, and a
    power cut may take the last moments. Both keep the file whole."""
    busy_timeout: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 30.0
    """Seconds to wait for other processes before StorageBusy."""
    max_bytes: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """The most that the file may grow to before StorageFull."""


class Location(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    options: Options = Options()

    @property
    def display_name(self) -> str:
        return str(self.path)


def parse_url(url: str) -> Location:
    """`sqlite:///relative.db`, `sqlite:////absolute.db`, with options behind a question mark."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _invalid_url_error(url) from error
    path = unquote(parts.path[1:])
    is_file = url.startswith("sqlite:///") and path not in ("", ":memory:") and "\0" not in path
    if not is_file or parts.fragment:
        raise _invalid_url_error(url)
    try:
        path.encode()
        absolute = Path(path).absolute()
    except (OSError, UnicodeEncodeError) as error:
        raise _invalid_url_error(url) from error
    return Location(path=absolute, options=_options(url, parts.query))


def file_exists(url: str) -> bool:
    """Whether the file is there; opening the URL would make it otherwise."""
    return parse_url(url).path.exists()


def _options(url: str, query: str) -> Options:
    try:
        given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
        options = msgspec.convert(given, Options, strict=False)
    except ValueError as error:
        raise CannotOpen(url, str(error), _OPTIONS_HELP) from error
    if isnan(options.busy_timeout):
        raise CannotOpen(url, "busy_timeout is not a number", _OPTIONS_HELP)
    return options


def _invalid_url_error(url: str) -> CannotOpen:
    remedy = "write sqlite:///relative.db or sqlite:////absolute.db (a # as %23), or memory: without a file"
    return CannotOpen(url, "it does not name a file", remedy)
