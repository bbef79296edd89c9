"""Sockets, host names and tokens of the server."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from errno import EADDRINUSE
from ipaddress import ip_address

from ...operating.access import LOOPBACK_HOSTS, MIN_TOKEN_LENGTH, is_loopback
from ..errors import CommandError

FIRST_PORT, LAST_PORT = 8000, 8099
GENERATE_HINT = 'python -c "import secrets; print(secrets.token_urlsafe(24))"'
_HOST_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def allowed_hosts(host: str, others: Sequence[str]) -> tuple[str, ...] | None:
    """Return the host names that requests may use, or None for any.

    A local server accepts only known names. Otherwise a web page elsewhere could make its own name resolve to
    this machine. A server that other machines reach can have any name, and is protected by its token.
    """
    if not others and not is_loopback(host):
        return None
    for name in others:
        if not _HOST_NAME.fullmatch(name):
            raise CommandError(f"invalid --allowed-host {name}; use a host name without scheme and port")
    return tuple(dict.fromkeys(name.lower() for name in (*LOOPBACK_HOSTS, host, *others)))


def require_token(host: str, others: Sequence[str], token: str | None) -> str | None:
    """Return a valid token, or None. Refuse a server without a token that other machines can reach."""
    reachable = [*others, *([] if is_loopback(host) else [host])]
    if not token and reachable:
        raise CommandError(
            f"{reachable[0]} is reachable from other machines, so a token is required; "
            f"set --token or PERDURE_TOKEN; generate a token with: {GENERATE_HINT}"
        )
    return validate_token("token", token)


def validate_token(what: str, token: str | None) -> str | None:
    """Return a token that fits into a header and is hard to guess, or None if there is none."""
    if not token:
        return None
    if not token.isascii() or not token.isprintable() or " " in token:
        raise CommandError(f"the {what} must be printable ASCII without spaces")
    if len(token) < MIN_TOKEN_LENGTH:
        raise CommandError(
            f"the {what} must have at least {MIN_TOKEN_LENGTH} characters; generate one with: {GENERATE_HINT}"
        )
    return token


def bind(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens on this port, or on the first free one from 8000.

    Ports are tried in order, so that a restarted server usually gets its old one.
    """
    for each in range(FIRST_PORT, LAST_PORT + 1) if port is None else (port,):
        try:
            return _listen(host, each)
        except socket.gaierror as error:
            raise CommandError(f"invalid --host {host}: {error.strerror}") from error
        except OSError as error:
            if error.errno != EADDRINUSE:
                raise CommandError(f"cannot listen on {host}:{each}: {error.strerror}") from error
    if port is None:
        raise CommandError(
            f"ports {FIRST_PORT} to {LAST_PORT} on {host} are all in use; choose one with --port"
        )
    raise CommandError(f"port {port} on {host} is in use; choose another with --port, or omit it")


def _listen(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)  # a bound port that does not listen can still be taken
    except OSError:
        listener.close()
        raise
    return listener


def base_url(listener: socket.socket, host: str) -> str:
    """Return the URL at which this machine reaches the server: http://host:port."""
    port = listener.getsockname()[1]
    with suppress(ValueError):
        if ip_address(host).is_unspecified:
            return f"http://127.0.0.1:{port}"
        if ip_address(host).version == 6:
            return f"http://[{host}]:{port}"
    return f"http://{host}:{port}"
