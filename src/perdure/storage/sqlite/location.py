"""Parses a `sqlite:` URL into a file path and options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from ..errors import CannotOpen
from ..url_options import parse_options

_OPTIONS_HELP = "the options are synchronous=full|normal, busy_timeout=SECONDS and max_bytes=BYTES"


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a `sqlite:` URL."""

    synchronous: Literal["full", "normal"] = "full"
    """How durable acknowledged writes are. With `full`, they survive a power cut. With `normal`, they survive
    a crash of the process, but a power cut can lose the newest writes. The file is not damaged in either
    case.
    """
    busy_timeout: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 30.0
    """Number of seconds to wait for another process to release a lock. After that, StorageBusy is raised."""
    max_bytes: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Maximum size of the file in bytes. A write that would exceed it raises StorageFull. None means no
    limit.
    """


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """The path of a database file, and the options for opening it."""

    path: Path
    options: Options = Options()

    @property
    def display_name(self) -> str:
        return str(self.path)


def parse_url(url: str) -> Location:
    """Parse `sqlite:///relative.db` or `sqlite:////absolute.db`, with options after a question mark."""
    try:
        parts = urlsplit(url)
        path = unquote(parts.path[1:])
        path.encode()
        absolute = Path(path).absolute()
    except (OSError, ValueError) as error:  # UnicodeEncodeError is a ValueError
        raise _invalid_url_error(url) from error
    is_file = url.startswith("sqlite:///") and path not in ("", ":memory:") and "\0" not in path
    if not is_file or parts.fragment:
        raise _invalid_url_error(url)
    return Location(path=absolute, options=parse_options(parts.query, Options, url, _OPTIONS_HELP))


def file_exists(url: str) -> bool:
    """Return whether the file of a `sqlite:` URL exists. Opening the URL creates a missing file."""
    return parse_url(url).path.exists()


def _invalid_url_error(url: str) -> CannotOpen:
    remedy = "use sqlite:///relative.db or sqlite:////absolute.db (write # as %23), or memory:"
    return CannotOpen(url, "the URL does not contain a valid path of a file", remedy)
