"""What a `dynamodb:` URL says: which table, where it is, and how patient to be."""

from __future__ import annotations

from math import isnan
from typing import Annotated
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from ..errors import CannotOpen

_OPTIONS = (
    "the options are endpoint_url, region_name, profile_name, attempts=NUMBER, timeout=SECONDS and "
    "connections=NUMBER; anything else of the client is set by the AWS environment or its config file"
)


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
    url: str
    table: str
    options: Options = Options()

    @property
    def name(self) -> str:
        return f"DynamoDB table {self.table}"


def parse(url: str) -> Location:
    """`dynamodb://TABLE`, with options behind a question mark."""
    try:
        parts = urlsplit(url)
        table = unquote(parts.netloc)
    except ValueError as error:
        raise _no_table(url) from error
    if not url.startswith("dynamodb://") or not table or parts.path.strip("/") or parts.fragment:
        raise _no_table(url)
    return Location(url=url, table=table, options=_options(url, parts.query))


def _options(url: str, query: str) -> Options:
    try:
        given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
        options = msgspec.convert(given, Options, strict=False)
    except ValueError as error:
        raise CannotOpen(url, str(error), _OPTIONS) from error
    if isnan(options.timeout):
        raise CannotOpen(url, "timeout is not a number", _OPTIONS)
    return options


def _no_table(url: str) -> CannotOpen:
    remedy = "write dynamodb://TABLE, and the region as ?region_name=... if the environment does not say it"
    return CannotOpen(url, "it does not name a table", remedy)
