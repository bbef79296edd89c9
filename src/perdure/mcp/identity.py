"""The caller of a request, from what the transport has verified. What a client merely says does not count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, cast
from weakref import WeakKeyDictionary

from mcp.server.auth.provider import AccessToken, principal_components
from mcp.server.session import ServerSession

from ..tasks import Owner
from ..tasks.errors import InvalidValue
from .adapters import connection_of
from .credentials import current_token
from .errors import authentication_required
from .wire import RequestContext

AnonymousPolicy: TypeAlias = Literal["id", "session", "refuse"]
"""What a server without authentication does. `id`: a caller that knows the id of a task has access to it.
`session`: tasks belong to the session in which they were created, if there is one, which can list them.
`refuse`: there are no tasks."""

Identify: TypeAlias = Callable[[RequestContext], Owner | None]
"""A server's own way to identify callers. None means that it cannot identify this one."""

LOCAL = Owner.local()
ANONYMOUS = Owner.anonymous()


class Caller(NamedTuple):
    """The caller of one request."""

    owner: Owner
    session_id: str | None
    can_list_tasks: bool
    """Whether the caller can be distinguished from others, so that it can list its own tasks."""


class Identity:
    """The rules by which a server identifies its callers."""

    def __init__(self, anonymous: AnonymousPolicy, identify: Identify | None) -> None:
        if anonymous not in ("id", "session", "refuse"):
            raise InvalidValue("anonymous", f"must be 'id', 'session' or 'refuse', not {anonymous!r}")
        self.anonymous = anonymous
        self._identify = identify
        self.requires_authentication = False
        """Whether the server accepts only callers with a verified token."""
        self.fixed_owner: Owner | None = None
        """In tests: the owner of all tasks, no matter which client calls."""
        self._callers: WeakKeyDictionary[ServerSession, Caller] = WeakKeyDictionary()
        """The callers of current requests, each of which has a session object of its own."""

    @property
    def may_refuse(self) -> bool:
        """Whether some callers have no access to tasks."""
        return self.requires_authentication or self.anonymous == "refuse"

    def caller_of(self, ctx: RequestContext) -> Caller:
        """Return the caller, which is identified once for each request.

        Raise MCPError if this caller has no access to tasks.
        """
        caller = self._callers.get(ctx.session)
        if caller is None:
            caller = self._callers[ctx.session] = self._identify_caller(ctx)
        return caller

    def _identify_caller(self, ctx: RequestContext) -> Caller:
        session_id = connection_of(ctx).session_id  # a header may be a client's invention
        owner = self._known_owner(ctx)
        if owner is not None:
            return Caller(owner, session_id, can_list_tasks=True)
        if self.may_refuse:
            raise authentication_required()
        if self.anonymous == "session" and session_id is not None:
            return Caller(Owner.session(session_id), session_id, can_list_tasks=True)
        return Caller(ANONYMOUS, session_id, can_list_tasks=False)

    def may_list_tasks(self, ctx: RequestContext) -> bool:
        """Return whether the caller of `initialize` will be able to list its tasks."""
        if self.requires_authentication or self._known_owner(ctx) is not None:
            return True
        # there is no session yet, but there will be one
        return self.anonymous == "session" and ctx.session.can_send_request

    def owns_session(self, ctx: RequestContext) -> bool:
        """Return whether the SDK lets only this caller read the session's own stream.

        It knows the callers of tokens, but not those whom only `identify` distinguishes.
        """
        return self._identify is None or ctx.request is None or current_token() is not None

    def _known_owner(self, ctx: RequestContext) -> Owner | None:
        if self.fixed_owner is not None:
            return self.fixed_owner
        identified = None if self._identify is None else self._identify(ctx)
        if identified is not None:
            return identified
        token = current_token()
        if token is not None:
            return owner_of_token(token)
        return LOCAL if ctx.request is None else None  # stdio, or a client in the same process


def owner_of_token(token: AccessToken) -> Owner:
    """Return the subject of a token, or its client if it has no subject.

    A subject is unique only within its issuer, or within its client if the token names no issuer.
    """
    client, issuer, subject = principal_components(token)
    if not subject:
        return Owner.client(issuer or "", client)
    return Owner.user(f"client {client}" if issuer is None else issuer, subject)


def headers_of(ctx: RequestContext) -> Mapping[str, str]:
    """Return the headers of a request over HTTP; an empty mapping for other transports."""
    return cast("Mapping[str, str]", getattr(cast("Any", ctx.request), "headers", None) or {})
