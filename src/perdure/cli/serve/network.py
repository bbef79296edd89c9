"""Where the server listens, and what one must know to be answered there."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from errno import EADDRINUSE
from ipaddress import ip_address

from ...operating.token import MIN_TOKEN_LENGTH
from ..errors import CannotDo

FIRST_PORT, LAST_PORT = 8000, 8099
MAKE_ONE = 'python -c "import secrets; print(secrets.token_urlsafe(24))"'
LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""What this machine is called by everybody on it."""
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def names_of(host: str, others: Sequence[str]) -> tuple[str, ...] | None:
    """The names that a request for this server may call it by: a page elsewhere could point a name of its own
    at loopback. None: any, since others reach it, by names that we do not know, and it asks for a token.
    """
    if not others and not is_loopback(host):
        return None
    for name in others:
        if not _NAME.fullmatch(name):
            raise CannotDo(f"invalid --allowed-host {name}; use a host name without scheme and port")
    return tuple(dict.fromkeys(name.lower() for name in (*LOOPBACK, host, *others)))


def needed_token(host: str, others: Sequence[str], token: str | None) -> str | None:
    """The token that opens everything, if there is one. Where others reach the server, there has to be."""
    far = [*others, *([] if is_loopback(host) else [host])]
    if not token and far:
        raise CannotDo(
            f"{far[0]} can be reached by others, who would need no password; "
            f"give a token, with --token or in the variable PERDURE_TOKEN, made with: {MAKE_ONE}"
        )
    return checked_token("token", token)


def checked_token(what: str, token: str | None) -> str | None:
    """A token that a header can carry and nobody guesses, or none."""
    if not token:
        return None
    if not token.isascii() or not token.isprintable() or " " in token:
        raise CannotDo(f"the {what} must be of ASCII letters, digits and signs, without spaces")
    if len(token) < MIN_TOKEN_LENGTH:
        raise CannotDo(
            f"the {what} must have at least {MIN_TOKEN_LENGTH} characters; make one with: {MAKE_ONE}"
        )
    return token


def bound(host: str, port: int | None) -> socket.socket:
    """A socket at this port; where none was asked for, at the first one that is free, so that a server that
    is started again is where it was.
    """
    for each in range(FIRST_PORT, LAST_PORT + 1) if port is None else (port,):
        try:
            return _bind(host, each)
        except socket.gaierror as error:
            raise CannotDo(f"--host {host} is no address: {error.strerror}") from error
        except OSError as error:
            if error.errno != EADDRINUSE:
                raise CannotDo(f"cannot listen at {host}, port {each}: {error.strerror}") from error
    if port is None:
        raise CannotDo(f"the ports {FIRST_PORT} to {LAST_PORT} of {host} are all taken; name one with --port")
    raise CannotDo(f"port {port} of {host} is taken; name another with --port, or none to get a free one")


def _bind(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)  # else another that asks for the same port may still get it
    except OSError:
        listener.close()
        raise
    return listener


def address_of(listener: socket.socket, host: str) -> str:
    """Where a person of this machine finds it: http://host:port."""
    port = listener.getsockname()[1]
    with suppress(ValueError):
        if ip_address(host).is_unspecified:
            return f"http://127.0.0.1:{port}"
        if ip_address(host).version == 6:
            return f"http://[{host}]:{port}"
    return f"http://{host}:{port}"
