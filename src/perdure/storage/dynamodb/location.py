"""Parses the URL of a DynamoDB storage into the table name and the options."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import unquote, urlsplit

import msgspec

from ..errors import CannotOpen
from ..url_options import parse_options

_OPTIONS_HELP = (
    "the options are endpoint_url, region_name, profile_name, attempts=NUMBER, timeout=SECONDS and "
    "connections=NUMBER; set other options in the AWS environment or config file"
)
_URL_HELP = (
    "use dynamodb://TABLE with a name of 3 to 255 letters, digits, dots, hyphens or underscores, and add "
    "?region_name=... if the environment does not set the region"
)
_TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    endpoint_url: str | None = None
    """The URL of a private endpoint or a local server. The default is the public endpoint of the region."""
    region_name: str | None = None
    """The AWS region of the table. The default is the region that the AWS environment or profile sets."""
    profile_name: str | None = None
    """The name of the AWS profile that provides the region and the credentials."""
    attempts: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10
    """Maximum number of attempts to send a request, including the first attempt."""
    timeout: Annotated[float, msgspec.Meta(gt=0, le=60)] = 10.0
    """Number of seconds to wait for a connection or a response."""
    connections: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 64
    """Maximum number of open connections to DynamoDB."""


class Location(msgspec.Struct, frozen=True, kw_only=True):
    table: str
    options: Options = Options()

    @property
    def display_name(self) -> str:
        return f"DynamoDB table {self.table}"


def parse_url(url: str) -> Location:
    """Parse a URL of the form `dynamodb://TABLE?OPTIONS`. Raise CannotOpen if the URL is invalid.

    Error messages do not repeat invalid values, because a URL may contain a secret by mistake.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    table = unquote(parts.netloc)
    is_valid = url.startswith("dynamodb://") and _TABLE.fullmatch(table)
    if not is_valid or parts.path.strip("/") or parts.fragment:
        reason = "the URL does not have the form dynamodb://TABLE?OPTIONS"
        raise CannotOpen("dynamodb://...", reason, _URL_HELP)
    shown = f"dynamodb://{table}"
    options = parse_options(parts.query, Options, shown, _OPTIONS_HELP)
    if "@" in (options.endpoint_url or ""):
        raise CannotOpen(shown, "endpoint_url must not contain a user or password", "remove them")
    return Location(table=table, options=options)
