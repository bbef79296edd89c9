"""The servers that tools live on, and how to call a tool of theirs by name outside of any request."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any, cast

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.server.mcpserver.tools import ToolManager
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    InputRequiredResult,
    TextContent,
)
from pydantic import BaseModel

from ..tasks.task_record import headline
from .durable import Durable, current_run
from .protocol import MODERN, Wire
from .registration import check_owner, mark_of, refuse_unregistered, unregistered

log = logging.getLogger("perdure.mcp")


class Host(ABC):
    """A server with tools."""

    state: object = None
    """What the user's own lifespan yielded."""

    def __init__(self, server: object) -> None:
        self.server = server
        """The server itself, as its lifespan is given it."""

    @property
    @abstractmethod
    def info(self) -> Implementation:
        """Who the server says it is."""

    @cached_property
    def stamp(self) -> Wire:
        """Who it says it is, as that goes on the wire."""
        return self.info.model_dump(by_alias=True, mode="json", exclude_none=True)

    @property
    def is_authenticated(self) -> bool:
        """Whether it lets in only whom it knows."""
        return False

    @abstractmethod
    async def durable_tool(self, name: str) -> Durable | None:
        """The tool that is registered under this name now, where it is a durable one."""

    @abstractmethod
    async def durable_tools(self) -> dict[str, Durable]:
        """Its durable tools, by the names under which they are registered now."""

    @abstractmethod
    async def tools(self) -> Mapping[str, Durable | None]:
        """Return the tools that are registered now, as far as the server can say outside of a request."""

    async def check_tools(self, known: Mapping[str, Durable]) -> None:  # noqa: B027, optional
        """Raise InvalidValue unless each of these functions is a durable tool of the server.

        A low-level server cannot say which tools it has: its calls are checked instead.
        """

    @abstractmethod
    async def call(self, params: CallToolRequestParams) -> object:
        """What the tool answers to this call. An exception of the tool is an answer too."""

    async def result_of(self, params: CallToolRequestParams) -> Wire:
        """What the tool answers, as it goes on the wire. Raises MCPError where that is a JSON-RPC error."""
        result = await self.call(params)
        if isinstance(result, InputRequiredResult):
            raise MCPError(
                INTERNAL_ERROR, f"tool {params.name!r} asks what it did not ask before it became a task"
            )
        return wire_of(result)


def error_in(result: Wire) -> str | None:
    """Return the text of the error that a result reports, or None if it reports none."""
    if result.get("isError") is not True:
        return None
    blocks = cast("list[Mapping[str, Any]]", result.get("content") or [])
    texts = (block.get("text") for block in blocks if block.get("type") == "text")
    return next(
        (text for text in texts if isinstance(text, str) and text.strip()), "the tool reported an error"
    )


def wire_of(result: object) -> Wire:
    """A result as it goes on the wire, without what only one protocol says."""
    if isinstance(result, BaseModel):
        wire = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    else:
        wire = dict(cast("Mapping[str, Any]", result or {}))
    wire.pop("resultType", None)
    return wire


def marked(functions: Mapping[str, object]) -> dict[str, Durable]:
    """Which of these functions, by the names of their tools, are durable."""
    marks = {name: mark_of(function) for name, function in functions.items()}
    return {name: mark for name, mark in marks.items() if mark is not None}


class MCPServerHost(Host):
    """The server of the official SDK."""

    def __init__(self, server: MCPServer[Any]) -> None:
        super().__init__(server)
        self._server = server

    @property
    def info(self) -> Implementation:
        return _info(self._server)

    @property
    def is_authenticated(self) -> bool:
        return self._server.settings.auth is not None

    async def durable_tool(self, name: str) -> Durable | None:
        tool = self._tools.get_tool(name)
        return None if tool is None else mark_of(tool.fn)

    async def durable_tools(self) -> dict[str, Durable]:
        return marked({tool.name: tool.fn for tool in self._tools.list_tools()})

    async def tools(self) -> Mapping[str, Durable | None]:
        return {tool.name: mark_of(tool.fn) for tool in self._tools.list_tools()}

    async def check_tools(self, known: Mapping[str, Durable]) -> None:
        functions = [(tool.name, tool.fn) for tool in self._tools.list_tools()]
        check_owner(known, functions)
        refuse_unregistered(unregistered(known, functions), functions)

    @property
    def _tools(self) -> ToolManager:
        # There is no public way from a tool to its function. The title of its schema has the function's name,
        # which another function may have too.
        return self._server._tool_manager  # pyright: ignore[reportPrivateUsage] # noqa: SLF001

    async def call(self, params: CallToolRequestParams) -> object:
        context = Context[Any, Any](
            request_context=_no_request(self.state), mcp_server=self._server, input_params=params
        )
        try:
            return await self._server.call_tool(params.name, params.arguments or {}, context)
        except ToolError as error:
            _note(error, params.name)
            return CallToolResult(content=[TextContent(text=str(error))], is_error=True)


def _note(error: ToolError, tool: str) -> None:
    """Log what the SDK would log of a call that fails, with the id of the task.

    An exception that the tool did not raise on purpose is kept for operators: the result does not show it.
    """
    run = current_run()
    task_id = "unknown" if run is None else run.task.id
    if not isinstance(error, UnexpectedToolError):
        log.info("task %s: tool %r failed: %r", task_id, tool, headline(str(error)))
        return
    cause = error.__cause__ or error
    log.error("task %s: tool %r raised an unexpected exception", task_id, tool, exc_info=cause)
    if run is not None:
        run.cause = cause


class LowLevelHost(Host):
    """The SDK's low-level server, whose own handler of `tools/call` finds the tool."""

    def __init__(self, server: Server[Any], known: Mapping[str, Durable], *, authenticated: bool) -> None:
        super().__init__(server)
        self._server = server
        self._known = known
        self._authenticated = authenticated

    @property
    def info(self) -> Implementation:
        return _info(self._server)

    @property
    def is_authenticated(self) -> bool:
        return self._authenticated

    async def durable_tool(self, name: str) -> Durable | None:
        return self._known.get(name)

    async def durable_tools(self) -> dict[str, Durable]:
        return dict(self._known)

    async def tools(self) -> Mapping[str, Durable | None]:
        return dict(self._known)

    async def call(self, params: CallToolRequestParams) -> object:
        handler = self._server.get_request_handler("tools/call")
        if handler is None:
            raise MCPError(INTERNAL_ERROR, "the server has no handler of tools/call")
        return await handler.handler(_no_request(self.state), params)


def _info(server: MCPServer[Any] | Server[Any]) -> Implementation:
    return Implementation(
        name=server.name,
        version=server.version,
        title=server.title,
        description=server.description,
        website_url=server.website_url,
        icons=server.icons,
    )


class _NoSession:
    """Stands where a request has its session."""

    client_capabilities = None
    can_send_request = False

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"a durable tool runs outside of any request: there is no session to {name} with")


def _no_request(state: object) -> ServerRequestContext[Any, Any]:
    """The surroundings of a call that no request brings: resolvers find in them the answers of back then."""
    return ServerRequestContext(
        session=cast("ServerSession", _NoSession()),
        lifespan_context=state,
        protocol_version=MODERN,
        method="tools/call",
    )
