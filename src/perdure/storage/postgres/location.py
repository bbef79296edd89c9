"""Parses a `postgresql:` URL into the server, the database, the schema and the options.

perdure removes its own options from the URL and passes the rest to the driver. Messages show the URL without
the user and the password.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal
from urllib.parse import SplitResult, quote, urlsplit
from zlib import crc32

import msgspec

from ..errors import CannotOpen
from ..url_options import parse_options

_OPTIONS_HELP = (
    "perdure's options are schema=NAME, pool=CONNECTIONS, pooler=transaction, migrate=auto|never, "
    "statement_timeout=SECONDS, lock_timeout=SECONDS and persistence=required|always|any; "
    "all others are passed to asyncpg"
)
_MAX_IDENTIFIER_BYTES = 63
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a `postgresql:` URL that are for perdure and not for the driver."""

    schema: str = "perdure"
    """The schema that contains the tables. Each schema is a separate storage."""
    pool: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 8
    """Maximum number of connections. While a watch (a reader that waits for a change) is open, one more
    connection receives notifications.
    """
    pooler: Literal["transaction"] | None = None
    """The mode of a connection pooler, such as PgBouncer, in front of the server. None if there is none."""
    migrate: Literal["auto", "never"] = "auto"
    """With `auto`, opening the storage creates or migrates the tables if necessary. With `never`, it raises
    MissingSchema instead.
    """
    statement_timeout: _Seconds = 60.0
    """Maximum number of seconds that a statement can take before StorageBusy is raised. 0 means no limit."""
    lock_timeout: _Seconds = 30.0
    """Maximum number of seconds that a commit waits for other writes to its partition. 0 means no limit."""
    persistence: Literal["any", "required", "always"] = "required"
    """How durable the writes of the server must be. `required` refuses a server with `fsync` off. `always`
    also refuses a server with `full_page_writes` off. `any` accepts every server.
    """


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """The result of parsing a URL: a server, a schema and options."""

    dsns: tuple[str, ...]
    """The URLs that are passed to the driver, one for each host. The hosts are tried in this order."""
    display_name: str
    """The URL to show in messages. It contains neither user nor password, and its only option is `schema`."""
    options: Options = Options()

    @property
    def requires_read_write(self) -> bool:
        """Whether to skip a host whose transactions are read-only by default. Standbys are always skipped."""
        return "target_session_attrs=read-write" in urlsplit(self.dsns[0]).query.split("&")

    @property
    def quoted_schema(self) -> str:
        """The name of the schema, quoted for use in an SQL statement."""
        return '"' + self.options.schema.replace('"', '""') + '"'

    @property
    def channel(self) -> str:
        """The name of the notification channel, which contains a hash of the schema name.

        If two schemas have the same hash by chance, watches may wake without a change.
        """
        return f"perdure_{crc32(self.options.schema.encode()):08x}"

    @property
    def lock_timeout_setting(self) -> str:
        """The value of PostgreSQL's `lock_timeout` setting, in milliseconds."""
        return f"{round(self.options.lock_timeout * 1000)}ms"


def parse_url(url: str) -> Location:
    """Parse `postgresql://user:password@host:port/database`, with options after a question mark."""
    scheme = url.partition(":")[0]
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _invalid_url_error(scheme) from None  # the message of the cause may contain the password
    user, at, hosts = parts.netloc.rpartition("@")
    if (
        not url.startswith(f"{scheme}://")
        or _has_unencoded_password(parts)
        or not _are_valid_hosts(hosts.split(","))
    ):
        raise _invalid_url_error(scheme)
    display_name = f"{scheme}://{hosts}{parts.path}"
    pairs = [pair for pair in parts.query.split("&") if pair]
    own_options = [pair for pair in pairs if pair.partition("=")[0] in Options.__struct_fields__]
    query = "&".join(pair for pair in pairs if pair not in own_options)
    options = parse_options("&".join(own_options), Options, display_name, _OPTIONS_HELP)
    _check_schema(display_name, options.schema)
    return Location(
        dsns=tuple(
            parts._replace(netloc=f"{user}{at}{host}", query=query).geturl() for host in hosts.split(",")
        ),
        display_name=f"{display_name}?schema={quote(options.schema, safe='')}",
        options=options,
    )


def _has_unencoded_password(parts: SplitResult) -> bool:
    """Return whether the password seems to contain a special character that is not percent-encoded."""
    return bool(parts.fragment) or "@" in parts.path or "@" in parts.query


def _are_valid_hosts(hosts: Sequence[str]) -> bool:
    """Return whether every port is a number and, in a list of several hosts, no host is empty."""
    ports = [host.rpartition("]")[2].partition(":")[2] for host in hosts]
    return all(not port or port.isdecimal() for port in ports) and (all(hosts) or len(hosts) == 1)


def _check_schema(display_name: str, schema: str) -> None:
    """Raise CannotOpen if the schema name is reserved, or so long that PostgreSQL would truncate it."""
    if not 1 <= len(schema.encode()) <= _MAX_IDENTIFIER_BYTES or "\0" in schema:
        reason = f"a schema name must be 1 to {_MAX_IDENTIFIER_BYTES} bytes long and must not contain NUL"
        raise CannotOpen(display_name, reason, "use another schema name")
    if schema == "$user" or schema.startswith("pg_") or schema == "information_schema":
        reason = f"the schema name {schema!r} is reserved by PostgreSQL"
        raise CannotOpen(display_name, reason, "use another schema name")


def _invalid_url_error(scheme: str) -> CannotOpen:
    """Return an error that does not show the URL, because any part of it may belong to the password."""
    remedy = (
        "use postgresql://user:password@host:port/database "
        "(write @ / ? # in user, password and database as %40 %2F %3F %23)"
    )
    return CannotOpen(f"{scheme}:", "the URL is not valid", remedy)
