"""Who is asking: an owner, from what the transport has verified. Nothing that a client says counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, cast

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken, principal_components

from ..tasks import Owner
from .protocol import MODERN, Request
from .refusals import unauthenticated

Anonymous: TypeAlias = Literal["id", "session", "refuse"]
"""What a server without authentication does: the id of a task is the key to it, or the session in which it
was created (where there is one) is its owner and can list it; or there are no tasks."""

Identify: TypeAlias = Callable[[Request], Owner | None]
"""A server's own way to tell callers apart. None: it cannot tell this one."""


LOCAL = Owner.local()
ANYBODY = Owner.anonymous()


class Callers:
    """Tells whose a request is."""

    def __init__(self, anonymous: Anonymous, identify: Identify | None) -> None:
        self._anonymous = anonymous
        self._identify = identify
        self.authenticated = False
        """Whether the server lets in only whom it knows."""

    def owner_of(self, request: Request) -> Owner:
        """Raises where this caller is to be served no tasks."""
        identified = None if self._identify is None else self._identify(request)
        if identified is not None:
            return identified
        token = get_access_token()
        if token is not None:
            return owner_of_token(token)
        if request.request is None:  # stdio, or a client in the same process
            return LOCAL
        if self.authenticated or self._anonymous == "refuse":
            raise unauthenticated()
        session = session_of(request)
        if self._anonymous == "session" and session is not None:
            return Owner.session(session)
        return ANYBODY

    def can_list(self, request: Request) -> bool:
        """Whether this caller can be told apart from others, so that it can be shown what is its own."""
        if request.request is None or self.authenticated or get_access_token() is not None:
            return True
        if self._identify is not None and self._identify(request) is not None:
            return True
        if request.method == "initialize":  # there is no session yet, but there will be one
            return self._anonymous == "session" and request.session.can_send_request
        return self._anonymous == "session" and session_of(request) is not None


def owner_of_token(token: AccessToken) -> Owner:
    """The subject of a token; where it has none, the client.

    A subject is one only within its issuer. Where the token names none, it counts within its client.
    """
    client, issuer, subject = principal_components(token)
    if not subject:
        return Owner.client(issuer or "", client)
    return Owner.user(f"client {client}" if issuer is None else issuer, subject)


def session_of(request: Request) -> str | None:
    """The session in which this is asked. Only one that the transport itself began, with a handshake, is one.

    Elsewhere (a protocol or a transport without sessions) a header that names one is a client's invention.
    """
    if request.protocol_version == MODERN or request.session.client_params is None:
        return None
    return headers_of(request).get("mcp-session-id")


def headers_of(request: Request) -> Mapping[str, str]:
    """The headers of the request, where it came over HTTP."""
    return cast("Mapping[str, str]", getattr(cast("Any", request.request), "headers", None) or {})
