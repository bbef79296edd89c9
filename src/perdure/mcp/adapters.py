"""The servers that have durable tools, and how a tool of theirs is called by its name outside of any request.

This is the only module that knows the SDK's `Tool`, and private attributes of the SDK.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Generic, TypeAlias, TypeVar

from mcp.server.auth.provider import AccessToken
from mcp.server.connection import Connection
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.server.mcpserver.tools import Tool, ToolManager
from mcp.server.subscriptions import SubscriptionBus
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    InputRequiredResult,
    TextContent,
)
from pydantic import ValidationError

from ..runtime import Again, Pause, Task
from ..runtime.endings import said_by
from ..runtime.errors import is_signal, loggable
from ..runtime.task import set_current_task
from ..tasks import InputKind, InputRequest, Success
from ..tasks.errors import InvalidValue
from ..tasks.task_record import headline
from .context import durable_context
from .tool import (
    DurableTool,
    check_owner,
    durable_of,
    find_unregistered,
    refuse_unregistered,
    wrap,
)
from .wire import JsonObject, RequestContext, StoredCall, as_object, dump_result, error_text

log = logging.getLogger("perdure.mcp")

S = TypeVar("S", bound=MCPServer[Any] | Server[Any])

PLACEHOLDER_NAME = "mcp-server"
"""The name of every `MCPServer` that was created without one."""

Prepared: TypeAlias = StoredCall | InputRequiredResult | CallToolResult
"""A call that may become a task, or the answer in its place: a question of a resolver, or an error."""


def connection_of(ctx: RequestContext) -> Connection:
    """Return the connection of a request, whose state and exit stack the SDK keeps for extensions."""
    return ctx.session._connection  # pyright: ignore[reportPrivateUsage] # noqa: SLF001


class ServerAdapter(ABC):
    """A server with tools."""

    state: object = None
    """What the user's own lifespan yielded."""
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

    @cached_property
    def info_stamp(self) -> JsonObject:
        return dump_result(self.info)

    @property
    def requires_authentication(self) -> bool:
        """Whether the server accepts only callers with a verified token."""
        return False

    @abstractmethod
    async def find(self, name: str) -> DurableTool | None:
        """Return the tool that is registered under this name now, if it is durable."""

    async def find_called(self, params: CallToolRequestParams) -> DurableTool | None:
        """Return the tool that a client calls, if it is durable."""
        return await self.find(params.name)

    async def durable_tools(self) -> dict[str, DurableTool]:
        """Return the durable tools by the names under which they are registered now."""
        return {name: tool for name, tool in (await self.tools()).items() if tool is not None}

    @abstractmethod
    async def tools(self) -> Mapping[str, DurableTool | None]:
        """Return all tools that are registered now, as far as the server knows them outside of a request."""

    async def check_tools(self, known: Mapping[str, DurableTool]) -> None:  # noqa: B027, optional
        """Raise InvalidValue unless each of these functions is a durable tool of the server."""

    def registered_name(self, tool: DurableTool, called: str) -> str:  # noqa: ARG002
        """Return the name under which a tool is registered now, which was called by a name, or submitted."""
        return called

    @abstractmethod
    async def prepare(self, params: CallToolRequestParams, ctx: RequestContext, *, resolve: bool) -> Prepared:
        """Validate a call, and run its resolvers if `resolve` is set. The function of the tool is not run."""

    @abstractmethod
    async def run(self, params: CallToolRequestParams, task: Task) -> CallToolResult | InputRequiredResult:
        """Run the tool outside of any request. Raise MCPError, or an exception of the tool."""

    async def call(self, tool: DurableTool, task: Task) -> Success:
        """Run the stored call of a task, and again with the answers if it asks before it returns a result."""
        stored = as_object(task.params)
        name = self.registered_name(tool, stored["name"])
        params = CallToolRequestParams.model_validate(
            {**stored, "name": name, "_meta": task.meta}, by_name=False
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
                wire = dump_result(result)
                wire.pop("resultType", None)
                return Success.of(wire, error=error_text(wire))
            params = await _ask_round(result, params, task, number)
            task = task.again()
            set_current_task(task)


def _error_result(error: Exception, tool: DurableTool, task: Task, name: str) -> Success:
    """Return the result of a tool that raised, as the SDK would. Raise what is meant for the runtime.

    An exception that the tool did not raise deliberately is kept for operators: the result does not show it.
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
        log.error("task %s: tool %r raised an unexpected exception", task.id, name, exc_info=shown)
    result = dump_result(CallToolResult(content=[TextContent(text=str(error))], is_error=True))
    return Success.of(result, error=error_text(result), cause=None if cause is None else said_by(cause))


def _shown(error: MCPError | ToolError, task: Task) -> str:
    return headline(str(loggable(error, is_encrypted=task.is_encrypted)))


def _retry_if_possible(error: BaseException, tool: DurableTool, task: Task) -> None:
    for each in (error, error.__cause__):
        if each is not None and isinstance(each, tool.retry_on) and task.has_retries:
            raise Again(said_by(each)) from each


async def _ask_round(
    asked: InputRequiredResult, params: CallToolRequestParams, task: Task, number: int
) -> CallToolRequestParams:
    """Ask what a resolver or the tool itself asks, and return the call with the answers."""
    if not asked.input_requests:
        raise MCPError(INTERNAL_ERROR, f"tool {params.name!r} requires input, but asks no question")
    suffix = "" if number == 1 else f"-{number}"  # a key is used once in the life of a task
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
    """A server whose tools are the SDK's `Tool`."""

    server: S

    @property
    def info(self) -> Implementation:
        server = self.server
        return Implementation(
            name=server.name,
            version=server.version,
            title=server.title,
            description=server.description,
            website_url=server.website_url,
            icons=server.icons,
        )

    @abstractmethod
    def _find_tool(self, name: str) -> Tool | None: ...

    def _context(self, params: CallToolRequestParams, ctx: RequestContext | Task) -> Context[Any, Any]:
        """Return the context of a call in a request, or in a task."""
        server = self.server if isinstance(self.server, MCPServer) else None
        bus = None if server is None else _subscriptions_of(server)
        if isinstance(ctx, Task):
            state = self.state
            return durable_context(ctx, params, server=server, lifespan_state=state, subscriptions=bus)
        return Context(request_context=ctx, mcp_server=server, input_params=params, subscriptions=bus)

    async def find(self, name: str) -> DurableTool | None:
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
            result = await tool.model_copy(update=update).run(
                params.arguments or {}, self._context(params, ctx)
            )
        except ToolError as error:
            _log_refusal(error, params.name, is_encrypted=self.encrypts_contents)
            return CallToolResult(content=[TextContent(text=str(error))], is_error=True)
        if isinstance(result, InputRequiredResult):
            return result
        sent = ctx.params or {}
        return StoredCall(
            name=params.name,
            arguments=params.arguments,
            input_responses=sent.get("inputResponses"),
            request_state=params.request_state,
        )

    async def run(self, params: CallToolRequestParams, task: Task) -> CallToolResult | InputRequiredResult:
        tool = self._find_tool(params.name)
        if tool is None:
            return unknown_tool(params.name)
        return await tool.run(params.arguments or {}, self._context(params, task), convert_result=True)


def _subscriptions_of(server: MCPServer[Any]) -> SubscriptionBus:
    """Return the bus behind `ctx.notify_tools_changed()`, to which there is no public way."""
    return server._subscriptions  # pyright: ignore[reportPrivateUsage] # noqa: SLF001


async def _capture(**_: object) -> None:
    """Stands in for the function of a tool whose call is only validated."""


def unknown_tool(name: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=f"Unknown tool: {name}")], is_error=True)


def _log_refusal(error: ToolError, tool: str, *, is_encrypted: bool) -> None:
    """Log why a call did not become a task, without the values that the client sent."""
    if isinstance(error.__cause__, ValidationError):
        fields = sorted({".".join(str(part) for part in each["loc"]) for each in error.__cause__.errors()})
        log.info("tool %r refused its arguments: %r", tool, fields)
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
        functions = [(tool.name, tool.fn) for tool in self._tools.list_tools()]
        check_owner(known, functions)
        refuse_unregistered(find_unregistered(known, functions), functions)

    def registered_name(self, tool: DurableTool, called: str) -> str:
        names = [each.name for each in self._tools.list_tools() if durable_of(each.fn) is tool]
        return called if called in names or not names else names[0]

    def _find_tool(self, name: str) -> Tool | None:
        return self._tools.get_tool(name)

    @property
    def _tools(self) -> ToolManager:
        """The SDK has no public way from a tool to its function."""
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
                "the handler of 'tools/call' was added after tasks.install(server), so that no call would be "
                "durable; add it before",
            )
        for name in known:
            self._find_tool(name)  # raises if the SDK cannot make a tool of the function

    def _find_tool(self, name: str) -> Tool | None:
        known = self._known.get(name)
        if known is not None and name not in self._made:
            self._made[name] = Tool.from_function(wrap(known), name=name)
        return self._made.get(name)
