"""What a tool that runs in a task has in place of a request: the SDK's own `Context`, and stored credentials.

`ServerSession` and `Context` are the SDK's. Only the channel under them is perdure's: requests to the client
become questions of the task, which are stored, and progress and log messages are stored with the task.

Credentials are the access token of the caller, and the headers of its request that the server was configured
to keep. The module `identity` captures them when a call arrives. The store encrypts them. Without a key, they
are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import anyio
import msgspec
from mcp.server.auth.middleware.auth_context import auth_context_var, get_access_token
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    REQUEST_TIMEOUT,
    CallToolRequestParams,
    RequestId,
)
from pydantic import ValidationError
from starlette.authentication import SimpleUser
from starlette.datastructures import Headers

from ..runtime import ClientCannotAnswer, InputFailed, Task
from ..runtime.errors import CredentialsNotStored
from ..runtime.task import stored_credentials
from ..storage import Micros
from ..tasks import InputKind
from ..tasks.errors import InvalidValue
from ..tasks.inputs import InputError
from ..tasks.secret_contents import SecretContents
from .errors import cannot_answer
from .wire import REQUEST_ID, JsonObject, as_object, client_capabilities, dump_result, protocol_of

_ALTERNATIVES = {
    "ping": "remove the ping; the client may be disconnected while the task runs",
    "notifications/elicitation/complete": "remove it; an answer completes the question of ctx.elicit_url()",
    "notifications/tools/list_changed": "use ctx.notify_tools_changed()",
    "notifications/prompts/list_changed": "use ctx.notify_prompts_changed()",
    "notifications/resources/list_changed": "use ctx.notify_resources_changed()",
    "notifications/resources/updated": "use ctx.notify_resource_updated(uri)",
}


class TaskChannel:
    """Implements the SDK's `DispatchContext` with a task in place of a connection."""

    transport = TransportContext(kind="perdure", can_send_request=True)
    can_send_request = True
    message_metadata = None

    def __init__(self, task: Task) -> None:
        self._task = task
        sent_id = task.meta.get(REQUEST_ID)
        self.request_id: RequestId | None = sent_id if isinstance(sent_id, str | int) else task.id
        """The id of the request that became the task, or the id of the task if there was no request."""
        self.cancel_requested = anyio.Event()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> JsonObject:
        """Ask the client a question that survives this process, and return its answer."""
        if method not in list(InputKind):
            raise _unavailable(method)
        timeout = (opts or {}).get("timeout")
        late = "the client did not answer in time" + (f" ({timeout:g} seconds)" if timeout else "")
        no_answer = InputError(code=REQUEST_TIMEOUT, message=late)
        try:
            given = None if params is None else dict(params)
            asked = await self._task.ask_one(
                InputKind(method), given, timeout=timeout, timeout_error=no_answer
            )
        except ClientCannotAnswer as error:
            raise cannot_answer(error) from error
        except InputFailed as error:
            raise MCPError(error.error.code, error.error.message) from error
        return as_object(asked.raw_answer)

    async def notify(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: CallOptions | None = None,  # noqa: ARG002
    ) -> None:
        given = dict(params or {})
        match method:
            case "notifications/message":
                await self._task.log(given["level"], given.get("data"), logger=given.get("logger"))
            case "notifications/progress":
                await self.progress(given["progress"], given.get("total"), given.get("message"))
            case _:
                raise _unavailable(method)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        await self._task.report_progress(progress, total, message)


def _unavailable(method: str) -> RuntimeError:
    alternative = _ALTERNATIVES.get(method, "send it from a tool that is not durable")
    return RuntimeError(
        f"{method!r} cannot be sent from a task, which has no connection to the client; {alternative}"
    )


def durable_request(
    task: Task, call: CallToolRequestParams, lifespan_state: object, *, session_id: str | None = None
) -> ServerRequestContext[Any, Any]:
    """Return the request of a call that runs in a task, with the protocol version of that call."""
    channel, version, headers = TaskChannel(task), protocol_of(call.meta), stored_headers_of(task)
    client, declared = as_object(call.meta), client_capabilities(task.client_capabilities)
    connection = Connection.from_envelope(
        version, client.get(CLIENT_INFO_META_KEY), declared, outbound=channel
    )
    connection.session_id = session_id
    return ServerRequestContext(
        session=ServerSession(channel, connection, request_meta={LOG_LEVEL_META_KEY: "debug"}),
        lifespan_context=lifespan_state,
        protocol_version=version,
        method="tools/call",
        params=dump_result(call),
        request_id=channel.request_id,
        meta=call.meta,
        request=None if headers is None else StoredRequest(headers),
    )


# Credentials


class Credentials(SecretContents, frozen=True, kw_only=True, omit_defaults=True):
    """The credentials of one call, as they are stored."""

    token: dict[str, Any] | None = None
    """The access token, as the JSON of its class."""
    headers: dict[str, str] = msgspec.field(default_factory=dict[str, str])


def current_token() -> AccessToken | None:
    """Return the access token of the current context. Return None if there is none or it was not stored."""
    user = auth_context_var.get()
    return None if isinstance(user, _TaskUser) and user.is_unknown else get_access_token()


@contextmanager
def restored(task: Task, clock: Callable[[], Micros], token_type: type[AccessToken]) -> Generator[None]:
    """Within this block, let `get_access_token` return the token of the caller of this task.

    The context variable for the user may still contain the user of another request. So it is always set, to
    None if the caller has no token.
    """
    before = auth_context_var.set(_user_of(task, clock, token_type))
    try:
        yield
    finally:
        auth_context_var.reset(before)


class StoredRequest(msgspec.Struct, frozen=True):
    """The stored part of the request of a call, from which `ctx.headers` of the SDK reads."""

    headers: Mapping[str, str]
    cookies: dict[str, str] = {}
    """Always empty, because cookies are never stored."""


def stored_headers_of(task: Task) -> Mapping[str, str] | None:
    """Return the stored headers of the call, or None if there are none. Only for use within `restored`.

    If the server could not store them, the mapping raises CredentialsNotStored when it is used.
    """
    headers, user = _credentials_of(task).headers, auth_context_var.get()
    return StoredHeaders(headers, user) if headers or task.credentials_not_stored else None


class StoredHeaders(Mapping[str, str]):
    """The stored headers of a call. `authorization` is omitted after the token in it has expired."""

    def __init__(self, headers: Mapping[str, str], user: AuthenticatedUser | None) -> None:
        self._headers = Headers(headers)
        self._user = user if isinstance(user, _TaskUser) else None

    def __getitem__(self, key: str) -> str:
        return self._current[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._current)

    def __len__(self) -> int:
        return len(self._current)

    def getlist(self, key: str) -> list[str]:
        return self._current.getlist(key)

    @property
    def _current(self) -> Headers:
        if self._user is None or self._user.access_token is not None:
            return self._headers
        return Headers({name: value for name, value in self._headers.items() if name != "authorization"})


def _credentials_of(task: Task) -> Credentials:
    stored = stored_credentials(task)
    return Credentials() if stored is None else msgspec.convert(stored, Credentials)


def _user_of(task: Task, clock: Callable[[], Micros], token_type: type[AccessToken]) -> _TaskUser | None:
    if task.credentials_not_stored:
        return _TaskUser(task.id, None, clock)
    token = _credentials_of(task).token
    if token is None:
        return None
    known = {name: value for name, value in token.items() if value is not None}  # None may be invalid
    try:
        return _TaskUser(task.id, token_type.model_validate(known), clock)
    except ValidationError:  # its text may quote the token, so it is not passed on
        reason = f"the access token that was stored with the task is not a valid {token_type.__qualname__}"
        raise InvalidValue("credentials", reason) from None


class _TaskUser(AuthenticatedUser):
    """The caller of a task. Its token is None after it has expired, and unknown if it was not stored."""

    def __init__(self, task_id: str, token: AccessToken | None, clock: Callable[[], Micros]) -> None:
        SimpleUser.__init__(self, "unknown" if token is None else token.client_id)
        self._task_id = task_id
        self._token = token
        self._clock = clock

    @property
    def is_unknown(self) -> bool:
        return self._token is None

    @property
    def access_token(self) -> AccessToken | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if self._token is None:
            raise CredentialsNotStored(self._task_id)
        expires_at = self._token.expires_at
        is_expired = expires_at is not None and expires_at * 1_000_000 <= self._clock()
        return None if is_expired else self._token

    @property
    def scopes(self) -> list[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        token = self.access_token
        return [] if token is None else token.scopes
