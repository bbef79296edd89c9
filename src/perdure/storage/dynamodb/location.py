"""What a `dynamodb:` URL says: which table, where it is, and how patient to be."""

from __future__ import annotations

import re
from math import isnan
from typing import Annotated
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from ..errors import CannotOpen

_OPTIONS = (
    "the options are endpoint_url, region_name, profile_name, attempts=NUMBER, timeout=SECONDS and "
    "connections=NUMBER; anything else of the client is set by the AWS environment or its config file"
)
_TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    endpoint_url: str | None = None
    """Another address than the region's own: a stand-in, or a private endpoint."""
    region_name: str | None = None
    profile_name: str | None = None
    """The section of the AWS config files that region and credentials are taken from."""
    attempts: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10
    """How often one request is made before the caller is told that it did not work."""
    timeout: Annotated[float, msgspec.Meta(gt=0, le=60)] = 10.0
    """Seconds to wait for a connection, and for an answer on it."""
    connections: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 64
    """The most that are open at once."""


class Location(msgspec.Struct, frozen=True, kw_only=True):
    table: str
    options: Options = Options()

    @property
    def name(self) -> str:
        return f"DynamoDB table {self.table}"


def parse(url: str) -> Location:
    """`dynamodb://TABLE`, with options behind a question mark.

    What is refused is not repeated: who writes a secret into a URL should not find it in a log.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _no_table() from None
    table = unquote(parts.netloc)
    if not url.startswith("dynamodb://") or parts.path.strip("/") or parts.fragment:
        raise _no_table()
    if not _TABLE.fullmatch(table):
        raise _no_table()
    return Location(table=table, options=_options(f"dynamodb://{table}", parts.query))


def _options(shown: str, query: str) -> Options:
    """`shown` is as much of the URL as an error may show."""
    try:
        given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise CannotOpen(shown, "its options are not written as NAME=VALUE", _OPTIONS) from None
    try:
        options = msgspec.convert(given, Options, strict=False)
    except ValueError as error:  # which names the option, and not its value
        raise CannotOpen(shown, str(error), _OPTIONS) from error
    if isnan(options.timeout):
        raise CannotOpen(shown, "timeout is not a number", _OPTIONS)
    if "@" in (options.endpoint_url or ""):
        raise CannotOpen(shown, "endpoint_url holds a user or a password", "DynamoDB knows neither")
    return options


def _no_table() -> CannotOpen:
    remedy = (
        "write dynamodb://TABLE, which is 3 to 255 letters, digits, dots, hyphens or underscores, "
        "and the region as ?region_name=... if the environment does not say it"
    )
    return CannotOpen("dynamodb://...", "it does not name a table", remedy)
