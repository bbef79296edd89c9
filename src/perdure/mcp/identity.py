"""Identifies the caller of a request by what the transport has verified, not by what the client claims.

A task can keep the credentials of its caller: they are captured here, and restored in `context`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken, principal_components
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST
from msgspec import UNSET, UnsetType

from ..tasks import Owner
from ..tasks.canonical_json import JsonLike
from ..tasks.errors import InvalidValue
from .adapters import connection_of, request_key
from .context import Credentials, current_token
from .wire import JsonObject, RequestContext

AnonymousPolicy: TypeAlias = Literal["id", "session", "refuse"]
"""How a server treats callers without authentication. `id`: a caller that knows the id of a task has access
to the task. `session`: a task belongs to the session in which it was created, if there is one, and the
session can list its tasks. `refuse`: such callers have no access to tasks."""

Identify: TypeAlias = Callable[[RequestContext], Owner | None]
"""A server's own function that identifies callers. It returns None for a caller that it cannot identify."""

DEFAULT_HEADERS = ("authorization", "x-request-id")
"""The request headers that a tool can read, unless the server names others."""
_PROXY_HEADERS = frozenset({"x-request-id"})
"""Headers that proxies add to each request. If they are not stored, a task does not record that."""
_REFUSED_HEADERS = frozenset({"cookie", "set-cookie"})

LOCAL = Owner.local()
ANONYMOUS = Owner.anonymous()


class Identity:
    """The rules by which a server identifies its callers."""

    def __init__(
        self, anonymous: AnonymousPolicy, identify: Identify | None, stored_headers: Iterable[str]
    ) -> None:
        if anonymous not in ("id", "session", "refuse"):
            raise InvalidValue("anonymous", f"must be 'id', 'session' or 'refuse', not {anonymous!r}")
        self.anonymous = anonymous
        self._identify = identify
        self._stored_headers = _check_headers(stored_headers)
        self.requires_authentication = False
        """Whether the server accepts only callers with a verified token."""
        self.fixed_owner: Owner | None = None
        """In tests: the owner of all tasks, no matter which client calls."""
        self._owners: dict[int, Owner] = {}
        """The callers of current requests, by the key of the request."""

    @property
    def may_refuse(self) -> bool:
        """Whether some callers have no access to tasks."""
        return self.requires_authentication or self.anonymous == "refuse"

    def owner_of(self, ctx: RequestContext) -> Owner:
        """Return the caller of a request, as the owner of its tasks. Identify it only once for each request.

        Raise MCPError if this caller has no access to tasks.
        """
        owner = self._owners.get(request_key(ctx))
        if owner is None:
            owner = self._owners[request_key(ctx)] = self._known_owner(ctx) or self._unknown_owner(ctx)
        return owner

    def forget(self, ctx: RequestContext) -> None:
        """Forget the caller of a request that was answered."""
        self._owners.pop(request_key(ctx), None)

    def _unknown_owner(self, ctx: RequestContext) -> Owner:
        if self.may_refuse:
            raise MCPError(
                INVALID_REQUEST, "this server serves tasks only to authenticated callers; authenticate first"
            )
        session_id = connection_of(ctx).session_id  # clients can send any header
        if self.anonymous == "session" and session_id is not None:
            return Owner.session(session_id)
        return ANONYMOUS

    def may_list_tasks(self, ctx: RequestContext) -> bool:
        """Return whether the caller of `initialize` will be able to list its tasks."""
        if self.requires_authentication or self._known_owner(ctx) is not None:
            return True
        # at `initialize`, the session does not exist yet, but it will
        return self.anonymous == "session" and ctx.session.can_send_request

    def owns_session(self, ctx: RequestContext) -> bool:
        """Return whether the SDK lets only this caller read the session's own stream.

        The SDK distinguishes callers by their tokens, but not callers that only `identify` distinguishes.
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

    def capture(self, ctx: RequestContext, *, has_key: bool) -> JsonLike | UnsetType:
        """Return the credentials of a request for `NewTask.credentials`, or UNSET if it has none.

        Without a key, the credentials are not stored. The task then records only that the request had some,
        and not even that if they consist only of headers that proxies add.
        """
        token = _token_of(ctx)
        headers = headers_of(ctx)
        kept = {name: headers[name] for name in sorted(self._stored_headers) if name in headers}
        is_worth_noting = token is not None or not kept.keys() <= _PROXY_HEADERS
        if not is_worth_noting and not (kept and has_key):
            return UNSET
        if not has_key:
            return {}
        dumped = None if token is None else _dump_token(token)
        return msgspec.to_builtins(Credentials(token=dumped, headers=kept))


def owner_of_token(token: AccessToken) -> Owner:
    """Return the subject of a token, or its client if it has no subject.

    A subject is unique only within its issuer, or within its client if the token names no issuer.
    """
    client, issuer, subject = principal_components(token)
    if not subject:
        return Owner.client(issuer or "", client)
    return Owner.user(f"client {client}" if issuer is None else issuer, subject)


def headers_of(ctx: RequestContext) -> Mapping[str, str]:
    """Return the headers of a request over HTTP, or an empty mapping for other transports."""
    request: Any = ctx.request
    return getattr(request, "headers", None) or {}


def _check_headers(names: Iterable[str]) -> frozenset[str]:
    """Return the names of headers in lower case. Raise InvalidValue if one must not be stored."""
    if isinstance(names, str):
        raise InvalidValue("stored_headers", f"must be a sequence of names, not the string {names!r}")
    lower = frozenset(name.lower() for name in names)
    for name in sorted(lower & _REFUSED_HEADERS):
        raise InvalidValue("stored_headers", f"must not contain {name!r}: cookies are never stored")
    return lower


def _dump_token(token: AccessToken) -> JsonObject:
    try:
        return token.model_dump(mode="json", warnings=False)  # a warning or an error may quote the token
    except ValueError as error:
        reason = (
            f"the access token cannot be stored with the task, because it has a claim that is not JSON "
            f"({type(error).__name__}); change the claims that the token verifier of the server returns"
        )
        raise InvalidValue("credentials", reason) from None


def _token_of(ctx: RequestContext) -> AccessToken | None:
    """Return the token of this request. The context variable may contain that of an earlier request."""
    request: Any = ctx.request
    scope: Mapping[str, Any] = getattr(request, "scope", None) or {}
    user = scope.get("user")
    return user.access_token if isinstance(user, AuthenticatedUser) else current_token()
