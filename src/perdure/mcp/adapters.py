"""Adapters for the kinds of servers. Each finds the durable tools of a server, and calls them in tasks.

Only this module uses the SDK's `Tool` and private attributes of the SDK.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Generic, TypeAlias, TypeVar

from mcp.server.auth.provider import AccessToken
from mcp.server.connection import Connection
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.server.mcpserver.tools import Tool, ToolManager
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    INTERNAL_ERROR,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    InputRequiredResult,
    TextContent,
)
from pydantic import ValidationError
from starlette.requests import Request

from ..runtime import Pause, Retry, Task
from ..runtime.errors import is_signal, loggable
from ..runtime.task import set_current_task
from ..storage.exception_text import type_and_text_of
from ..tasks import InputKind, InputRequest, Success
from ..tasks.errors import InvalidValue
from ..tasks.task_record import headline
from .context import durable_request
from .tool import DurableTool, check_registered, durable_of, wrap
from .wire import RequestContext, StoredCall, as_object, dump_result, error_text

log = logging.getLogger("perdure.mcp")

S = TypeVar("S", bound=MCPServer[Any] | Server[Any])

PLACEHOLDER_NAME = "mcp-server"
"""The name of every `MCPServer` that was created without one."""

Prepared: TypeAlias = StoredCall | InputRequiredResult | CallToolResult
"""A call that may become a task, or the answer in its place: a question of a resolver, or an error."""


def connection_of(ctx: RequestContext) -> Connection:
    """Return the connection of a request, whose state and exit stack the SDK keeps for extensions."""
    return ctx.session._connection  # pyright: ignore[reportPrivateUsage] # noqa: SLF001


def request_key(ctx: RequestContext) -> int:
    """Return a number that identifies a request while it is served, even if middleware wraps the session."""
    return id(ctx.session._request_outbound)  # pyright: ignore[reportPrivateUsage] # noqa: SLF001


async def has_disconnected(ctx: RequestContext) -> bool:
    """Return whether the connection of a request is closed, so that its answer cannot be received.

    Only streamable HTTP up to 2025-11-25 needs this check. Otherwise, the SDK itself cancels such a request,
    and this returns False. It also returns False if the client can resume the stream, because the server has
    an event store.
    """
    transport = transport_of(ctx)
    request: object = ctx.request
    if transport is None or not isinstance(request, Request):
        return False
    has_event_store = transport._event_store is not None  # pyright: ignore[reportPrivateUsage] # noqa: SLF001
    is_resumable = has_event_store and not transport.is_json_response_enabled
    return not is_resumable and await request.is_disconnected()


def transport_of(ctx: RequestContext) -> StreamableHTTPServerTransport | None:
    """Return the transport of a request over streamable HTTP up to 2025-11-25, or None for others.

    The only way from a request to its transport is the method that ends an unanswered request.
    """
    outbound = ctx.session._request_outbound  # pyright: ignore[reportPrivateUsage] # noqa: SLF001
    metadata = getattr(outbound, "message_metadata", None)
    end_request = metadata.on_request_unanswered if isinstance(metadata, ServerMessageMetadata) else None
    transport = getattr(end_request.func, "__self__", None) if isinstance(end_request, partial) else None
    return transport if isinstance(transport, StreamableHTTPServerTransport) else None


class ServerAdapter(ABC):
    """Gives uniform access to the tools of a server."""

    states: Sequence[object] = ()
    """What the user's own lifespan yielded, once for each time that the lifespan is currently entered."""
    encrypts_contents: bool = False
    """Whether the contents of new tasks are encrypted, and must not be logged."""
    token_type: type[AccessToken] = AccessToken
    """The class of access tokens that tools of this server receive."""

    def __init__(self, server: object) -> None:
        self.server = server
        """The server itself, as its lifespan receives it."""

    @property
    @abstractmethod
    def info(self) -> Implementation:
        """The name and version that the server sends to clients."""

    @property
    def name(self) -> str | None:
        """The name that the user gave to the server, or None if there is only a placeholder."""
        return self.info.name or None

    @property
    def requires_authentication(self) -> bool:
        """Whether the server accepts only callers with a verified token."""
        return False

    @abstractmethod
    async def find(self, name: str, meta: object) -> DurableTool | None:
        """Return the tool that a call with this name and `_meta` calls. Return None unless it is durable."""

    @abstractmethod
    async def tools(self) -> Mapping[str, DurableTool | None]:
        """Return the tools that are known outside of a request, by name. None means a tool is not durable."""

    async def check_tools(self, known: Mapping[str, DurableTool]) -> None:  # noqa: B027, optional
        """Raise InvalidValue unless each of these functions is a durable tool of the server."""

    def registered_name(self, tool: DurableTool, called: str) -> str:  # noqa: ARG002
        """Return the name under which a tool is registered now. `called` is the name in the stored call."""
        return tool.name

    @abstractmethod
    async def prepare(self, params: CallToolRequestParams, ctx: RequestContext, *, resolve: bool) -> Prepared:
        """Validate a call, and run its resolvers if `resolve` is set. The function of the tool is not run."""

    @abstractmethod
    async def run(self, params: CallToolRequestParams, task: Task) -> CallToolResult | InputRequiredResult:
        """Run the tool outside of any request. Raise MCPError, or an exception of the tool."""

    async def call(self, tool: DurableTool, task: Task) -> Success:
        """Run the stored call of a task. If it asks questions, run it again with the answers."""
        stored = as_object(task.params)
        name = self.registered_name(tool, stored["name"])
        params = CallToolRequestParams.model_validate(
            {**stored, "name": name, "_meta": task.meta or None}, by_name=False
        )
        number = 0
        while True:
            number += 1
            try:
                result = await self.run(params, task)
            except MCPError as error:
                _retry_if_possible(error, tool, task)
                log.info("task %s: tool %r failed: %r", task.id, params.name, _shown(error, task))
                raise
            except Exception as error:
                return _error_result(error, tool, task, params.name)
            if not isinstance(result, InputRequiredResult):
                return _success(result)
            params = await _ask_round(result, params, task, number)
            task = task.again()
            set_current_task(task)


def _error_result(error: Exception, tool: DurableTool, task: Task, name: str) -> Success:
    """Return the result of a tool that raised an exception, as the SDK would.

    Re-raise exceptions that are meant for the runtime. An exception that the tool did not raise deliberately
    is also stored for operators, because the result does not show it.
    """
    cause = error.__cause__ if isinstance(error, ToolError) else error
    if isinstance(cause, Pause):
        task.check_askable(cause.requests)
    if cause is not None and is_signal(cause):
        raise cause
    _retry_if_possible(cause or error, tool, task)
    if isinstance(error, ToolError) and not isinstance(error, UnexpectedToolError):
        log.info("task %s: tool %r failed: %r", task.id, name, _shown(error, task))
        cause = None
    else:
        shown = loggable(cause or error, is_encrypted=task.is_encrypted)
        how = "raised an unexpected exception"
        if any(isinstance(each, tool.run.retry_on) for each in (error, cause)):
            how = f"failed in its last attempt ({task.attempt})"
        elif task.has_retries:
            how += f"; it is not retried, because {type(cause or error).__name__} is not in retry_on"
        log.error("task %s: tool %r %s", task.id, name, how, exc_info=shown)
    return _success(_error(str(error)), None if cause is None else type_and_text_of(cause))


def _success(result: CallToolResult, cause: str | None = None) -> Success:
    stored = dump_result(result)
    stored.pop("resultType", None)  # each protocol adds its own
    return Success.of(stored, error=error_text(stored), cause=cause)


def _shown(error: MCPError | ToolError, task: Task) -> str:
    return headline(str(loggable(error, is_encrypted=task.is_encrypted)))


def _retry_if_possible(error: BaseException, tool: DurableTool, task: Task) -> None:
    for each in (error, error.__cause__):
        if each is not None and isinstance(each, tool.run.retry_on) and task.has_retries:
            raise Retry(type_and_text_of(each)) from each


async def _ask_round(
    asked: InputRequiredResult, params: CallToolRequestParams, task: Task, number: int
) -> CallToolRequestParams:
    """Ask what a resolver or the tool itself asks, and return the call with the answers."""
    if not asked.input_requests:
        raise MCPError(
            INTERNAL_ERROR, f"tool {params.name!r} requires input, but its result contains no input requests"
        )
    suffix = "" if number == 1 else f"-{number}"  # a task can use each key only once
    requests = {
        key + suffix: InputRequest(
            kind=InputKind(request.method),
            params=None if request.params is None else dump_result(request.params),
        )
        for key, request in asked.input_requests.items()
    }
    answers = await task.ask(requests)
    responses = {key: answers[key + suffix].raw_answer for key in asked.input_requests}
    call = {**dump_result(params), "inputResponses": responses, "requestState": asked.request_state}
    return CallToolRequestParams.model_validate(call, by_name=False)


class _ToolAdapter(ServerAdapter, Generic[S]):
    """An adapter for a server whose tools are instances of the SDK's `Tool`."""

    server: S

    @property
    def info(self) -> Implementation:
        return Implementation.model_validate(self.server, from_attributes=True, by_name=True)

    @abstractmethod
    def _find_tool(self, name: str) -> Tool | None: ...

    def _context(self, params: CallToolRequestParams, request: RequestContext) -> Context[Any, Any]:
        server, bus = None, None
        if isinstance(self.server, MCPServer):
            server = self.server
            # there is no public way to the bus behind `ctx.notify_tools_changed()`
            bus = server._subscriptions  # pyright: ignore[reportPrivateUsage] # noqa: SLF001
        return Context(request_context=request, mcp_server=server, input_params=params, subscriptions=bus)

    async def find(self, name: str, meta: object) -> DurableTool | None:  # noqa: ARG002
        tool = self._find_tool(name)
        return None if tool is None else durable_of(tool.fn)

    async def prepare(self, params: CallToolRequestParams, ctx: RequestContext, *, resolve: bool) -> Prepared:
        """Run a copy of the tool whose function does nothing."""
        tool = self._find_tool(params.name)
        if tool is None:
            return unknown_tool(params.name)
        update: dict[str, Any] = {"fn": _capture, "is_async": True}
        if not resolve:
            update["resolved_params"] = {}
        try:
            validating = tool.model_copy(update=update)
            result = await validating.run(params.arguments or {}, self._context(params, ctx))
        except ToolError as error:
            _log_refusal(error, params.name, is_encrypted=self.encrypts_contents)
            return _error(str(error))
        if isinstance(result, InputRequiredResult):
            return result
        return StoredCall.of(params, ctx, params.arguments)

    async def run(self, params: CallToolRequestParams, task: Task) -> CallToolResult | InputRequiredResult:
        tool = self._find_tool(params.name)
        if tool is None:
            return unknown_tool(params.name)
        request = durable_request(task, params, self.states[-1] if self.states else None)
        return await tool.run(params.arguments or {}, self._context(params, request), convert_result=True)


async def _capture(**_: object) -> None:
    """Stands in for the function of a tool whose call is only validated."""


def unknown_tool(name: str) -> CallToolResult:
    return _error(f"Unknown tool: {name}")


def _error(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], is_error=True)


def _log_refusal(error: ToolError, tool: str, *, is_encrypted: bool) -> None:
    """Log why a call did not become a task, without the values that the client sent."""
    if isinstance(error.__cause__, ValidationError):
        fields = sorted({".".join(str(part) for part in each["loc"]) for each in error.__cause__.errors()})
        log.info("tool %r was called with invalid arguments: %r", tool, fields)
        return
    shown = loggable(error, is_encrypted=is_encrypted)
    if isinstance(error, UnexpectedToolError):
        log.error("a resolver of tool %r raised an unexpected exception", tool, exc_info=shown)
    else:
        log.info("a resolver of tool %r refused the call: %r", tool, headline(str(shown)))


class MCPServerAdapter(_ToolAdapter[MCPServer[Any]]):
    """The server of the official SDK."""

    @property
    def name(self) -> str | None:
        return None if self.server.name == PLACEHOLDER_NAME else self.server.name

    @property
    def requires_authentication(self) -> bool:
        return self.server.settings.auth is not None

    async def tools(self) -> Mapping[str, DurableTool | None]:
        return {tool.name: durable_of(tool.fn) for tool in self._tools.list_tools()}

    async def check_tools(self, known: Mapping[str, DurableTool]) -> None:
        check_registered(known, {tool.name: tool.fn for tool in self._tools.list_tools()})

    def registered_name(self, tool: DurableTool, called: str) -> str:
        names = [each.name for each in self._tools.list_tools() if durable_of(each.fn) is tool]
        return called if called in names or not names else names[0]

    def _find_tool(self, name: str) -> Tool | None:
        return self._tools.get_tool(name)

    @cached_property
    def _tools(self) -> ToolManager:
        """The manager of the tools, because the SDK has no public way from a tool to its function."""
        return self.server._tool_manager  # pyright: ignore[reportPrivateUsage] # noqa: SLF001


class LowLevelAdapter(_ToolAdapter[Server[Any]]):
    """The SDK's low-level server. Its handler of `tools/call` does not see calls of durable functions."""

    def __init__(self, server: Server[Any], known: Mapping[str, DurableTool], *, authenticated: bool) -> None:
        super().__init__(server)
        self._known = known
        self._authenticated = authenticated
        self._made: dict[str, Tool] = {}
        self.handler: object = None
        """The handler of `tools/call` that admits durable calls."""

    @property
    def requires_authentication(self) -> bool:
        return self._authenticated

    async def tools(self) -> Mapping[str, DurableTool | None]:
        return self._known

    async def check_tools(self, known: Mapping[str, DurableTool]) -> None:
        registered = self.server.get_request_handler("tools/call")
        if registered is None or registered.handler is not self.handler:
            raise InvalidValue(
                "server",
                "the handler of 'tools/call' was added after tasks.install(server), so no call would be "
                "durable; add the handler before you call tasks.install(server)",
            )
        for name in known:
            self._find_tool(name)  # raises if the SDK cannot make a tool of the function

    def _find_tool(self, name: str) -> Tool | None:
        known = self._known.get(name)
        if known is not None and name not in self._made:
            self._made[name] = Tool.from_function(wrap(known), name=name)
        return self._made.get(name)
