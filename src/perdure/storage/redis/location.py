"""What a URL says: which servers, how they hang together, and the options.

    redis://user:password@host:6379/0
    redis+sentinel://host:26379,host:26379/service/0
    redis+cluster://host:7000,host:7001/

`rediss` in the place of `redis` is the same with TLS. Options that are not ours are the driver's.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import msgspec
from redis.asyncio.connection import Connection, SSLConnection, parse_url
from redis.exceptions import RedisError

from ..errors import CannotOpen
from .node import Host, greet, greet_master

Kind: TypeAlias = Literal["single", "sentinel", "cluster"]

_KINDS: dict[str, tuple[Kind, int]] = {
    "": ("single", 6379),
    "sentinel": ("sentinel", 26379),
    "cluster": ("cluster", 6379),
}
"""What follows the plus sign, and the usual port."""
_NOT_THEIRS = frozenset(
    {
        "connection_class",
        "decode_responses",
        "encoding",
        "host",
        "port",
        "path",
        "db",
        "retry",
        "socket_timeout",
    }
)
_WRITE = (
    "write redis://host:port/db, redis+sentinel://host:port,host:port/service/db or redis+cluster://host:port"
)
_ENCODE = "in user, password and options write %40 for @, %2F for /, %3F for ? and %23 for #"
_OPTIONS = (
    "perdure's options are prefix, timeout, replicas, replica_timeout, persistence=required|always|any and "
    "eviction=refuse|accept; others are those of a redis-py connection"
)

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    prefix: Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.:-]+$")] = (
        "perdure"
    )
    """What the names of all keys begin with: two storages on one server have two."""
    timeout: Seconds = 5.0
    """Seconds for an answer, and for a connection."""
    replicas: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """How many replicas must have a commit before it returns."""
    replica_timeout: Seconds = 1.0
    """Seconds to wait for them before OutcomeUnknown."""
    persistence: Literal["any", "required", "always"] = "required"
    """any: open a server that keeps no log of its writes. always: refuse one that flushes its log later."""
    eviction: Literal["refuse", "accept"] = "refuse"
    """accept: open a server that drops records when its memory is full."""


class Location(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """The URL without the secrets, for people."""
    kind: Kind
    hosts: tuple[Host, ...]
    service: str
    options: Options
    driver: dict[str, Any]
    """The driver's arguments for a connection, but for the host."""
    sentinel: dict[str, Any]
    """The same for a connection to a sentinel, where they differ."""


def parse(url: str) -> Location:
    """Take a URL apart, or say what is wrong with it."""
    name = _without_secrets(url)
    if _is_ambiguous(url):
        raise CannotOpen(name, "it has an @ behind a /, ? or #", _ENCODE)
    try:
        parts = urlsplit(url)
        kind, port = _KINDS[parts.scheme.partition("+")[2]]
        user, _, hosts = parts.netloc.rpartition("@")
        places = tuple(_host(each, port) for each in hosts.split(","))
        service, database = _path(parts.path + parts.fragment, kind)
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except (ValueError, LookupError):  # which may hold a password in the wrong place
        raise CannotOpen(name, "it is not of a form that is known", _WRITE) from None
    if kind == "single" and len(places) > 1:
        raise CannotOpen(name, "it names several servers, and not what they are to each other", _WRITE)
    options, theirs = _ours(name, given), _theirs(name, given)
    secure = parts.scheme.startswith("rediss")
    for_sentinels = {each: theirs.pop(f"sentinel_{each}") for each in _sentinel_names(theirs)}
    driver = {
        **_credentials(user),
        "db": database,
        "connection_class": SSLConnection if secure else Connection,
        "redis_connect_func": greet if kind == "cluster" else greet_master,
        "socket_timeout": None,
        "socket_connect_timeout": options.timeout,
        **theirs,
    }
    _check_driver(name, driver)
    return Location(
        name=name,
        kind=kind,
        hosts=places,
        service=service,
        options=options,
        driver=driver,
        sentinel={"ssl": secure, **for_sentinels},
    )


def _path(path: str, kind: Kind) -> tuple[str, int]:
    """The service that sentinels watch, and the number of the database."""
    names = [unquote(each) for each in path.split("/") if each]
    service = names.pop(0) if kind == "sentinel" else ""
    database = int(names.pop(0)) if names and kind != "cluster" else 0
    if names:
        raise ValueError("it has more parts than it should")
    return service, database


def _ours(name: str, given: dict[str, str]) -> Options:
    ours = {key: value for key, value in given.items() if key in Options.__struct_fields__}
    try:
        options = msgspec.convert(ours, Options, strict=False)
    except ValueError as error:
        raise CannotOpen(name, str(error), _OPTIONS) from error
    if not (isfinite(options.timeout) and isfinite(options.replica_timeout)):
        raise CannotOpen(name, "a timeout is not a number", _OPTIONS)
    return options


def _theirs(name: str, given: dict[str, str]) -> dict[str, Any]:
    theirs = {key: value for key, value in given.items() if key not in Options.__struct_fields__}
    forbidden = sorted(_NOT_THEIRS.intersection(theirs))
    if forbidden:
        raise CannotOpen(name, f"{', '.join(forbidden)} cannot be set here", _OPTIONS)
    try:
        return dict(parse_url(f"redis:///?{urlencode(theirs)}"))
    except ValueError as error:
        raise CannotOpen(name, str(error), _OPTIONS) from error


def _check_driver(name: str, driver: dict[str, Any]) -> None:
    """Let the driver look at its options before they are used."""
    arguments = {
        key: value for key, value in driver.items() if key not in ("connection_class", "max_connections")
    }
    try:
        driver["connection_class"](**arguments)
    except (TypeError, ValueError, RedisError) as error:
        raise CannotOpen(name, str(error), _OPTIONS) from error


def _sentinel_names(theirs: dict[str, Any]) -> list[str]:
    return [key.removeprefix("sentinel_") for key in theirs if key.startswith("sentinel_")]


def _credentials(user: str) -> dict[str, Any]:
    name, _, password = (unquote(each) for each in user.partition(":"))
    return {key: value for key, value in (("username", name), ("password", password)) if value}


def _host(text: str, port: int) -> Host:
    """`host`, `host:port`, `[::1]` or `[::1]:port`."""
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("it names no host")
    return parts.hostname, parts.port or port


def _is_ambiguous(url: str) -> bool:
    """Nobody can tell whether the password has a /, ? or # in it, or what follows has an @."""
    return re.search("[/?#].*@", _behind_scheme(url), re.DOTALL) is not None


def _without_secrets(url: str) -> str:
    place = _behind_scheme(url).partition("?")[0].rpartition("@")[2]
    return f"{url.partition(':')[0]}://{'...' if _is_ambiguous(url) else place}"


def _behind_scheme(url: str) -> str:
    return url.partition(":")[2].lstrip("/")
