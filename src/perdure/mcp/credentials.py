"""The credentials of a caller: captured at its call, and restored in the tool that runs later, elsewhere.

Credentials are the access token that the server has verified, and the request headers that the server was
configured to keep. The store encrypts them, and does not store them if it has no key.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, cast

import msgspec
from mcp.server.auth.middleware.auth_context import auth_context_var, get_access_token
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from msgspec import UNSET, UnsetType
from pydantic import ValidationError
from starlette.authentication import SimpleUser
from starlette.datastructures import Headers
from starlette.requests import Request

from ..runtime import Task
from ..runtime.errors import CredentialsNotStored
from ..storage import Micros
from ..tasks.canonical_json import JsonLike
from ..tasks.errors import InvalidValue
from .wire import RequestContext

DEFAULT_HEADERS = ("authorization", "x-request-id")
"""The request headers that a tool can read, unless the server names others."""
_REFUSED_HEADERS = frozenset({"cookie", "set-cookie"})


class Credentials(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The credentials of one call, as they are stored."""

    token: dict[str, Any] | None = None
    """The access token, as the JSON of its class."""
    headers: dict[str, str] = {}


def check_headers(names: Iterable[str]) -> frozenset[str]:
    """Return the names of headers in lower case. Raise InvalidValue if one must not be stored."""
    if isinstance(names, str):
        raise InvalidValue("stored_headers", f"must be a sequence of names, not the string {names!r}")
    lower = frozenset(name.lower() for name in names)
    for name in sorted(lower & _REFUSED_HEADERS):
        raise InvalidValue("stored_headers", f"must not contain {name!r}: cookies are never stored")
    return lower


# At the call


def capture(ctx: RequestContext, stored_headers: frozenset[str], *, has_key: bool) -> JsonLike | UnsetType:
    """Return the credentials of a request for `NewTask.credentials`, or UNSET if it has none.

    Without a key nothing is stored, and the task notes that it lacks them. Headers such as `x-request-id`,
    which a proxy adds to each request, are not missed.
    """
    token = _token_of(ctx)
    headers: Mapping[str, str] = getattr(cast("Any", ctx.request), "headers", None) or {}
    kept = {name: headers[name] for name in sorted(stored_headers) if name in headers}
    is_worth_noting = token is not None or "authorization" in kept
    if not is_worth_noting and not (kept and has_key):
        return UNSET
    dumped = None if token is None else token.model_dump(mode="json")
    return msgspec.to_builtins(Credentials(token=dumped, headers=kept))


def _token_of(ctx: RequestContext) -> AccessToken | None:
    """Return the token of this very request: the context variable can be as old as the session."""
    scope: Mapping[str, Any] = getattr(cast("Any", ctx.request), "scope", None) or {}
    user = scope.get("user")
    return user.access_token if isinstance(user, AuthenticatedUser) else current_token()


def current_token() -> AccessToken | None:
    """Return the access token of the current context; None in a task whose credentials were not stored."""
    return None if isinstance(auth_context_var.get(), _UnknownUser) else get_access_token()


# In the tool


@contextmanager
def restored(
    task: Task, clock: Callable[[], Micros], token_type: type[AccessToken] = AccessToken
) -> Generator[None]:
    """Let `get_access_token` return the token of the caller of this task, within the block.

    Outside of a task's own context the variable may still have the user of another request, so it is always
    set: to None for a caller without a token.
    """
    before = auth_context_var.set(_user_of(task, clock, token_type))
    try:
        yield
    finally:
        auth_context_var.reset(before)


def stored_request(task: Task) -> StoredRequest | None:
    """Return what is known of the request that became the task, or None if it had no headers to keep."""
    headers = stored_headers_of(task)
    return None if headers is None else StoredRequest(headers)


class StoredRequest(Request):
    """The request of a call, as far as it is stored: its headers, which `ctx.headers` of the SDK returns."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__({"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []})
        self._stored = headers

    @property
    def headers(self) -> Mapping[str, str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._stored


def stored_headers_of(task: Task) -> Mapping[str, str] | None:
    """Return the stored headers of the call, or None if there are none.

    If the server could not store them, the mapping raises CredentialsNotStored when it is used.
    """
    if task.credentials_omitted:
        return _UnknownHeaders(task.id)
    headers = _credentials_of(task).headers
    return Headers(headers) if headers else None


def _credentials_of(task: Task) -> Credentials:
    stored = task.credentials
    return Credentials() if stored is None else msgspec.convert(stored, Credentials)


def _user_of(
    task: Task, clock: Callable[[], Micros], token_type: type[AccessToken]
) -> AuthenticatedUser | None:
    if task.credentials_omitted:
        return _UnknownUser(task.id)
    token = _credentials_of(task).token
    if token is None:
        return None
    known = {name: value for name, value in token.items() if value is not None}  # another class has defaults
    try:
        return _StoredUser(token_type.model_validate(known), clock)
    except ValidationError:  # whose text may quote the token
        raise InvalidValue("credentials", f"do not contain an {token_type.__qualname__}") from None


class _StoredUser(AuthenticatedUser):
    """The user of a stored token. When the token expires, there is none any more."""

    def __init__(self, token: AccessToken, clock: Callable[[], Micros]) -> None:
        SimpleUser.__init__(self, token.client_id)
        self._token = token
        self._clock = clock

    @property
    def access_token(self) -> AccessToken | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        expires_at = self._token.expires_at
        is_expired = expires_at is not None and expires_at * 1_000_000 <= self._clock()
        return None if is_expired else self._token

    @property
    def scopes(self) -> list[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        token = self.access_token
        return [] if token is None else token.scopes


class _UnknownUser(AuthenticatedUser):
    """The user of a task whose credentials were not stored."""

    def __init__(self, task_id: str) -> None:
        SimpleUser.__init__(self, "unknown")
        self._task_id = task_id

    @property
    def access_token(self) -> NoReturn:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise CredentialsNotStored(self._task_id)

    @property
    def scopes(self) -> NoReturn:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise CredentialsNotStored(self._task_id)


class _UnknownHeaders(Mapping[str, str]):
    """The headers of a task whose credentials were not stored."""

    def __init__(self, task_id: str) -> None:
        self._task_id = task_id

    def __getitem__(self, key: str) -> str:
        raise CredentialsNotStored(self._task_id)

    def __iter__(self) -> Iterator[str]:
        raise CredentialsNotStored(self._task_id)

    def __len__(self) -> int:
        raise CredentialsNotStored(self._task_id)
