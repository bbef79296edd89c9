"""Parses the URL of a Redis storage into servers, topology and options.

    redis://user:password@host:6379/0
    redis+sentinel://host:26379,host:26379/service/0
    redis+cluster://host:7000,host:7001/

Use `rediss` instead of `redis` for TLS. Options that are not perdure's own are passed to redis-py.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import msgspec
from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.connection import parse_url as parse_driver_url
from redis.exceptions import RedisError

from ..errors import CannotOpen
from ..url_options import convert_options
from .node import Host, ping_on_connect, require_master_on_connect

Kind: TypeAlias = Literal["single", "sentinel", "cluster"]

_KINDS: dict[str, tuple[Kind, int]] = {
    "": ("single", 6379),
    "sentinel": ("sentinel", 26379),
    "cluster": ("cluster", 6379),
}
"""Maps the part of a URL scheme after its plus sign to the kind of topology and the default port."""
_RESERVED_DRIVER_OPTIONS = frozenset(
    [
        "connection_class",
        "decode_responses",
        "encoding",
        "host",
        "port",
        "path",
        "db",
        "retry",
        "socket_timeout",
    ]
)
_URL_HELP = (
    "use redis://host:port/db, redis+sentinel://host:port,host:port/service/db or redis+cluster://host:port"
)
_ENCODING_HELP = "percent-encode user, password and options: @ as %40, / as %2F, ? as %3F and # as %23"
_OPTIONS_HELP = (
    "perdure's options are prefix, timeout, replicas, replica_timeout, persistence=required|always|any and "
    "eviction=refuse|accept; all others are passed to redis-py's connection"
)

_Prefix = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.:-]+$")]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    prefix: _Prefix = "perdure"
    """The prefix of all keys. Each storage on the same server needs a different prefix."""
    timeout: Seconds = 5.0
    """Number of seconds to wait for a connection or a reply. Retries of a call also stop after this time."""
    replicas: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """Number of replicas that must confirm a commit before it returns."""
    replica_timeout: Seconds = 1.0
    """Number of seconds to wait for the replicas. If too few confirm in time, OutcomeUnknown is raised."""
    persistence: Literal["any", "required", "always"] = "required"
    """The persistence that a server must have: `any` (even none), `required` (an append-only file), or
    `always` (an append-only file that is flushed to disk after each write).
    """
    eviction: Literal["refuse", "accept"] = "refuse"
    """Whether to `refuse` or `accept` a server that evicts records when its memory is full."""


class Location(msgspec.Struct, frozen=True, kw_only=True):
    display_name: str
    """The URL without credentials and options, for messages."""
    kind: Kind
    hosts: tuple[Host, ...]
    service: str
    options: Options
    driver: dict[str, Any]
    """Keyword arguments for redis-py's connections to the servers, except host and port."""
    sentinel: dict[str, Any]
    """Keyword arguments for redis-py's connections to the sentinels, except hosts, timeouts and retries."""


def parse_url(url: str) -> Location:
    """Parse `url`. Raise CannotOpen if the URL is invalid."""
    scheme, _, rest = url.partition(":")
    rest = rest.lstrip("/")
    # The @ may belong to a password that contains /, ? or # without encoding.
    is_ambiguous = re.search("[/?#].*@", rest, re.DOTALL) is not None
    name = f"{scheme}://{'...' if is_ambiguous else rest.partition('?')[0].rpartition('@')[2]}"
    if is_ambiguous:
        raise CannotOpen(name, "the URL has an @ after an unencoded /, ? or #", _ENCODING_HELP)
    try:
        parts = urlsplit(url)
        kind, port = _KINDS[parts.scheme.partition("+")[2]]
        user, _, hosts = parts.netloc.rpartition("@")
        servers = tuple(_host(each, port) for each in hosts.split(","))
        service, database = _path(parts.path + parts.fragment, kind)
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except (ValueError, LookupError):  # the text of the error may contain a password
        raise CannotOpen(name, "the URL is malformed", _URL_HELP) from None
    if kind == "single" and len(servers) > 1:
        raise CannotOpen(
            name, "a URL with several servers must start with redis+sentinel or redis+cluster", _URL_HELP
        )
    own_names = given.keys() & set(Options.__struct_fields__)
    options = convert_options({each: given.pop(each) for each in own_names}, Options, name, _OPTIONS_HELP)
    driver_options = _driver_options(name, given)
    secure = parts.scheme.startswith("rediss")
    sentinel_names = [each for each in driver_options if each.startswith("sentinel_")]
    for_sentinels = {each.removeprefix("sentinel_"): driver_options.pop(each) for each in sentinel_names}
    driver = {
        **_credentials(user),
        "db": database,
        "connection_class": SSLConnection if secure else Connection,
        "redis_connect_func": ping_on_connect if kind == "cluster" else require_master_on_connect,
        "socket_timeout": None,
        "socket_connect_timeout": options.timeout,
        **driver_options,
    }
    _check_driver(name, driver)
    return Location(
        display_name=name,
        kind=kind,
        hosts=servers,
        service=service,
        options=options,
        driver=driver,
        sentinel={"ssl": secure, **for_sentinels},
    )


def _path(path: str, kind: Kind) -> tuple[str, int]:
    """Return the service name of the master and the database number. Without sentinels, the name is empty."""
    names = [unquote(each) for each in path.split("/") if each]
    service = names.pop(0) if kind == "sentinel" else ""
    database = int(names.pop(0)) if names and kind != "cluster" else 0
    if names:
        raise ValueError("the path of the URL has too many parts")
    return service, database


def _driver_options(name: str, given: dict[str, str]) -> dict[str, Any]:
    """Let redis-py parse the options in `given`. Return them as keyword arguments for its connections."""
    forbidden = sorted(_RESERVED_DRIVER_OPTIONS.intersection(given))
    if forbidden:
        raise CannotOpen(name, f"{', '.join(forbidden)} cannot be set in the URL", _OPTIONS_HELP)
    try:
        return dict(parse_driver_url(f"redis:///?{urlencode(given)}"))
    except ValueError as error:
        raise CannotOpen(name, str(error), _OPTIONS_HELP) from error


def _check_driver(name: str, driver: dict[str, Any]) -> None:
    """Check the arguments for redis-py by creating a connection object, which is not connected."""
    arguments = {
        key: value for key, value in driver.items() if key not in ("connection_class", "max_connections")
    }
    try:
        driver["connection_class"](**arguments)
    except (TypeError, ValueError, RedisError) as error:
        raise CannotOpen(name, str(error), _OPTIONS_HELP) from error


def _credentials(user: str) -> dict[str, Any]:
    name, _, password = (unquote(each) for each in user.partition(":"))
    return {key: value for key, value in (("username", name), ("password", password)) if value}


def _host(text: str, port: int) -> Host:
    """Parse `host`, `host:port`, `[::1]` or `[::1]:port`."""
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("the URL has an empty host name")
    return parts.hostname, parts.port or port
