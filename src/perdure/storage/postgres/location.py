"""What a `postgresql:` URL says: which server and database, which schema in it, and the options.

The options that are ours are taken out of the URL; the rest of it is the driver's. Messages name the place
without user and password.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal
from urllib.parse import SplitResult, parse_qsl, quote, urlsplit
from zlib import crc32

import msgspec

from ..errors import CannotOpen

_OPTIONS_HELP = (
    "our options are schema=NAME, pool=CONNECTIONS, pooler=transaction, migrate=auto|never, "
    "statement_timeout=SECONDS, lock_timeout=SECONDS and persistence=required|always|any; "
    "others are for the driver"
)
_MAX_IDENTIFIER_BYTES = 63
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    schema: str = "perdure"
    """The schema that holds our tables. Each is a storage of its own."""
    pool: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 8
    """The most connections; one more listens while somebody watches."""
    pooler: Literal["transaction"] | None = None
    """Whether a pooler gives us another server connection for each transaction."""
    migrate: Literal["auto", "never"] = "auto"
    """auto: tables are made, or changed to the newest schema, when the storage is opened."""
    statement_timeout: _Seconds = 60.0
    """Seconds that the server may work on a call before StorageBusy. 0: no limit."""
    lock_timeout: _Seconds = 30.0
    """Seconds that a commit may wait for others in its partition before StorageBusy. 0: no limit."""
    persistence: Literal["any", "required", "always"] = "required"
    """any: open a server that does not flush its writes. always: refuse one that a power cut may damage."""


class Location(msgspec.Struct, frozen=True, kw_only=True):
    dsns: tuple[str, ...]
    """The URL as the driver is to see it: one for each host, to be tried in turn."""
    display_name: str
    """The place as people are to see it."""
    options: Options = Options()

    @property
    def requires_read_write(self) -> bool:
        """Whether a host whose transactions may only read by default is to be passed over, like a standby."""
        return "target_session_attrs=read-write" in urlsplit(self.dsns[0]).query.split("&")

    @property
    def quoted_schema(self) -> str:
        """The schema's name, quoted to stand in a statement."""
        return '"' + self.options.schema.replace('"', '""') + '"'

    @property
    def channel(self) -> str:
        """Where commits are told. Two schemas may share one by chance: then some are woken for nothing."""
        return f"perdure_{crc32(self.options.schema.encode()):08x}"

    @property
    def lock_timeout_setting(self) -> str:
        """The time to wait for a lock, as the server writes it."""
        return f"{round(self.options.lock_timeout * 1000)}ms"


def parse_url(url: str) -> Location:
    """`postgresql://user:password@host:port/database`, with options behind a question mark."""
    scheme = url.partition(":")[0]
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _invalid_url_error(scheme) from None  # its message may have the password
    user, at, hosts = parts.netloc.rpartition("@")
    if (
        not url.startswith(f"{scheme}://")
        or _has_unencoded_password(parts)
        or not _are_valid_hosts(hosts.split(","))
    ):
        raise _invalid_url_error(scheme)
    display_name = f"{scheme}://{hosts}{parts.path}"
    pairs = [pair for pair in parts.query.split("&") if pair]
    own_options = [pair for pair in pairs if _option_name(pair) in Options.__struct_fields__]
    query = "&".join(pair for pair in pairs if pair not in own_options)
    options = _options(display_name, "&".join(own_options))
    return Location(
        dsns=tuple(
            parts._replace(netloc=f"{user}{at}{host}", query=query).geturl() for host in hosts.split(",")
        ),
        display_name=f"{display_name}?schema={quote(options.schema, safe='')}",
        options=options,
    )


def _has_unencoded_password(parts: SplitResult) -> bool:
    """Whether a password with a special character may have ended too early, and the rest be part of it."""
    return bool(parts.fragment) or "@" in parts.path or "@" in parts.query


def _are_valid_hosts(hosts: Sequence[str]) -> bool:
    """Whether each has a number for its port: a password whose host was forgotten may stand there."""
    ports = [host.rpartition("]")[2].partition(":")[2] for host in hosts]
    return all(not port or port.isdecimal() for port in ports) and (all(hosts) or len(hosts) == 1)


def _option_name(pair: str) -> str:
    return pair.partition("=")[0]


def _options(display_name: str, query: str) -> Options:
    try:
        given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict"))
        options = msgspec.convert(given, Options, strict=False)
    except ValueError as error:
        raise CannotOpen(display_name, str(error), _OPTIONS_HELP) from error
    _check_schema(display_name, options.schema)
    return options


def _check_schema(display_name: str, schema: str) -> None:
    """Refuse what the server would cut short, or mean something else by."""
    if not 1 <= len(schema.encode()) <= _MAX_IDENTIFIER_BYTES or "\0" in schema:
        reason = f"a schema's name has 1 to {_MAX_IDENTIFIER_BYTES} bytes and no NUL"
        raise CannotOpen(display_name, reason, "choose another schema")
    if schema == "$user" or schema.startswith("pg_") or schema == "information_schema":
        raise CannotOpen(
            display_name, f"{schema} has a meaning of its own in PostgreSQL", "choose another schema"
        )


def _invalid_url_error(scheme: str) -> CannotOpen:
    """Nothing of the URL is told: anything in it may be a part of the password."""
    remedy = (
        "write postgresql://user:password@host:port/database "
        "(in a password, and wherever else they mean themselves, @ as %40, / as %2F, ? as %3F, # as %23)"
    )
    return CannotOpen(f"{scheme}:", "it does not name a server", remedy)
