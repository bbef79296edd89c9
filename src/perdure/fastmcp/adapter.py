"""A server of FastMCP with its tools: how they are found, validated, and run outside of any request.

This is the only module that knows private names of FastMCP, which has no public ones for the same:

| name | if it is gone |
| --- | --- |
| `_background_task_headers` | a tool reads no headers of its caller |
| `_is_client_tool_call` | a call by a tool or by middleware becomes a task like a client's |
| `FastMCPRequestContext._srctx` | a call cannot be admitted: this is the SDK's request |
| `FastMCP._mcp_server` | there are no tasks at 2025-11-25, which needs middleware of the low-level server |
| `FastMCP._extensions` | `perdure serve` does not find the tasks of a server |
| `FastMCP._mask_error_details` | errors are always masked |
| `FastMCPProviderTool._server`, `._original_name` | a tool of a mounted server runs in a plain `Context` |
| `_WrappedProvider._inner` | a transformed tool of a renamed mount is registered at its first call |
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache, wraps
from typing import Any, cast

from fastmcp import Context, FastMCP, exceptions
from fastmcp.server.auth import AccessToken
from fastmcp.server.context import reset_transport, set_transport
from fastmcp.server.dependencies import (
    _background_task_headers,  # pyright: ignore[reportPrivateUsage]
    _is_client_tool_call,  # pyright: ignore[reportPrivateUsage]
    extract_version_spec,
    get_context,
    without_injected_parameters,
)
from fastmcp.server.providers import FastMCPProvider, LocalProvider, Provider
from fastmcp.server.providers.aggregate import AggregateProvider
from fastmcp.server.providers.fastmcp_provider import FastMCPProviderTool
from fastmcp.server.transforms.catalog import CatalogTransform
from fastmcp.tools import FunctionTool, Tool
from fastmcp.tools.base import InputRequiredToolResult, ToolResult
from fastmcp.tools.tool_transform import TransformedTool
from fastmcp.utilities.exceptions import get_http_status_code, is_timeout_error
from fastmcp.utilities.tasks import TaskConfig
from fastmcp.utilities.versions import VersionSpec, version_sort_key
from mcp.server.lowlevel import Server
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequestParams, CallToolResult, Implementation, InputRequiredResult
from mcp_types.jsonrpc import INTERNAL_ERROR

from ..mcp.adapters import Prepared, ServerAdapter
from ..mcp.context import durable_request
from ..mcp.credentials import stored_headers_of
from ..mcp.server import Tasks
from ..mcp.tool import DurableTool
from ..mcp.wire import JsonObject, RequestContext, StoredCall, as_object
from ..runtime import Task
from ..runtime.errors import is_signal, loggable
from ..tasks.errors import InvalidValue
from .context import MAX_CACHED_FUNCTIONS, AnyFunction, TaskContext, TaskCreated, for_task, with_signature
from .options import check_task, check_tool, tool_options

log = logging.getLogger("perdure.fastmcp")

SESSION_ID = "perdure/sessionId"
"""In the stored `_meta` of a call: the id of the session, under which FastMCP keeps state."""


class FastMCPAdapter(ServerAdapter):
    """A server of FastMCP."""

    token_type = AccessToken

    def __init__(self, server: FastMCP[Any], tasks: Tasks) -> None:
        super().__init__(server)
        self._server = server
        self._tasks = tasks
        self._registered: dict[str, tuple[TaskConfig, DurableTool]] = {}

    @property
    def info(self) -> Implementation:
        return Implementation(name=self._server.name, version=self._server.version or "")

    @property
    def name(self) -> str | None:
        # FastMCP generates a name for a server without one, and another at each start.
        generated = rf"{type(self._server).__name__}-(.*-)?[0-9a-f]{{4}}"
        return None if re.fullmatch(generated, self._server.name) else self._server.name

    @property
    def requires_authentication(self) -> bool:
        return self._server.auth is not None

    # Tools

    async def find(self, name: str) -> DurableTool | None:
        return self._durable(await self._server.get_tool(name))

    async def find_called(self, params: CallToolRequestParams) -> DurableTool | None:
        return self._durable(await self._server.get_tool(params.name, requested_version(params)))

    async def durable_tools(self) -> dict[str, DurableTool]:
        listed, newest = await self._server.list_tools(run_middleware=False), dict[str, DurableTool | None]()
        for tool in sorted(listed, key=version_sort_key):
            try:
                newest[tool.name] = self._durable(tool)
            except InvalidValue as error:  # added after the start; a call of it fails
                log.warning("tool %r cannot be a task: %s", tool.name, error)
        return {name: tool for name, tool in newest.items() if tool is not None}

    async def tools(self) -> Mapping[str, DurableTool | None]:
        return {tool.name: self._durable(tool) for tool in await _tools_of(self._server)}

    async def check_tools(self, known: Mapping[str, DurableTool]) -> None:  # noqa: ARG002, FastMCP knows them
        """Register all tools that are declared as tasks. Raise InvalidValue if one of them cannot be one."""
        for tool in await _tools_of(self._server):
            check_tool(tool.name, _innermost(tool))
            self._durable(tool)

    def _durable(self, tool: Tool | None) -> DurableTool | None:
        """Return the tool as workers know it, if its calls may become tasks."""
        config = None if tool is None else _task_config(tool)
        if tool is None or config is None or not config.supports_tasks():
            return None
        name = tool.name if tool.version is None else f"{tool.name}@{tool.version}"
        registered = self._registered.get(name)
        if registered is None or registered[0] != config:
            check_task(tool.name, _innermost(tool))
            options = tool_options(config) | {"name": name}
            durable = self._tasks.register(getattr(tool, "fn", tool.run), options)
            registered = self._registered[name] = config, durable
        return registered[1]

    # Calls

    async def prepare(self, params: CallToolRequestParams, ctx: RequestContext, *, resolve: bool) -> Prepared:  # noqa: ARG002
        tool = await self._server.get_tool(params.name, requested_version(params))
        if tool is None:
            raise exceptions.NotFoundError(f"Unknown tool: {params.name!r}")
        passage = _Passage(params.arguments or {})
        server, checked = await _locate(self._server, tool, _only_validating, passage)
        try:
            await checked.run(passage.arguments)
        except (exceptions.FastMCPError, MCPError):
            raise
        except Exception as error:  # of a transformation, or of middleware of a mounted server
            shown = loggable(error, is_encrypted=self.encrypts_contents)
            log.warning("tool %r refused a call", params.name, exc_info=shown)
            raise exceptions.ToolError(_error_text(error, tool, server)) from error
        if passage.answer is not None and passage.answer is not _ADMITTED:
            return cast("Prepared", passage.answer)
        return StoredCall(
            name=params.name,
            arguments=passage.arguments,
            input_responses=(ctx.params or {}).get("inputResponses"),
            request_state=params.request_state,
        )

    async def run(self, params: CallToolRequestParams, task: Task) -> CallToolResult | InputRequiredResult:
        tool = await _find_tool(self._server, params.name, requested_version(params))
        if tool is None:
            raise ToolError(f"Unknown tool: {params.name!r}")
        server, tool = await _locate(self._server, tool, _for_task, None)
        meta = {**as_object(params.meta), "progress_token": task.id}
        request = durable_request(task, params, None, session_id=meta.get(SESSION_ID, task.id))
        request.meta, request.request = cast("Any", meta), None
        headers = stored_headers_of(task)
        _background_task_headers.set(None if headers is None else cast("dict[str, str]", headers))
        context = TaskContext(server, request, task)
        context.has_started = not isinstance(_innermost(tool), FunctionTool)  # others have no dependencies
        try:
            async with context.entered():
                result = await tool.run(params.arguments or {})
        except exceptions.FastMCPError as error:
            raise ToolError(str(error)) from error
        except Exception as error:
            if isinstance(error, MCPError) or is_signal(error):
                raise
            text = _error_text(error, tool, server)
            if context.has_started:
                raise UnexpectedToolError(text) from error
            shown = loggable(error, is_encrypted=task.is_encrypted)
            log.exception("task %s: tool %r cannot start", task.id, params.name, exc_info=shown)
            raise MCPError(INTERNAL_ERROR, text) from (error.__cause__ or error)
        return _to_mcp(result)


def _to_mcp(result: ToolResult) -> CallToolResult | InputRequiredResult:
    if isinstance(result, InputRequiredToolResult):
        if not result.input_required.input_requests:
            raise ToolError("The tool requires input, but asks no question")
        return result.input_required
    ready = result.to_mcp_result()
    if isinstance(ready, CallToolResult):
        return ready
    content, structured = ready if isinstance(ready, tuple) else (ready, None)
    return CallToolResult(content=content, structured_content=structured)


def _error_text(error: Exception, tool: Tool, server: FastMCP[Any]) -> str:
    """Return what FastMCP answers if a tool raises this."""
    if get_http_status_code(error) == 429:
        return "Rate limited by upstream API, please retry later"
    if is_timeout_error(error):
        return "Upstream request timed out, please retry"
    is_masked = getattr(server, "_mask_error_details", True)
    return f"Error calling tool {tool.name!r}" + ("" if is_masked else f": {error}")


def requested_version(params: CallToolRequestParams) -> VersionSpec | None:
    """Return the version of the tool that is called, if the call names one."""
    version = extract_version_spec(as_object(params.meta))
    return None if version is None else VersionSpec(eq=version)


# What a call runs in the end


async def _find_tool(server: FastMCP[Any], name: str, version: VersionSpec | None) -> Tool | None:
    """Return a tool for a worker. Whether the caller may see and call it was checked at the call."""
    token = set_transport("stdio")  # with which FastMCP does not check tokens
    try:
        found = await server.get_tool(name, version)
        return await Provider.get_tool(server, name, version) if found is None else found
    finally:
        reset_transport(token)


async def _locate(
    server: FastMCP[Any], tool: Tool, adapt: Callable[[Tool], Tool], passage: _Passage | None
) -> tuple[FastMCP[Any], Tool]:
    """Return the server to which a tool belongs in the end, and the tool with its inner tool adapted.

    With a passage, it is called through the middleware of the mounted servers on the way to it.
    """
    mounted, name = getattr(tool, "_server", None), getattr(tool, "_original_name", None)
    if isinstance(tool, FastMCPProviderTool) and isinstance(mounted, FastMCP) and isinstance(name, str):
        version = None if tool.version is None else VersionSpec(eq=tool.version)
        inner = await _find_tool(cast("FastMCP[Any]", mounted), name, version)
        if inner is None:
            raise exceptions.NotFoundError(f"Unknown tool: {name!r}")
        owner, found = await _locate(cast("FastMCP[Any]", mounted), inner, adapt, passage)
        return owner, found if passage is None else passage.through(tool, found)
    if not isinstance(tool, TransformedTool):
        return server, adapt(tool)
    has_function = tool.fn is not tool.forwarding_fn
    if has_function and adapt is _for_task:  # the function calls the other tool in the task
        passage = _TaskPassage({})
    server, parent = await _locate(server, tool.parent_tool, adapt, passage)
    if has_function and adapt is _only_validating:
        return server, adapt(tool)
    return server, TransformedTool.from_tool(
        parent,
        name=tool.name,
        transform_fn=for_task(tool.fn) if has_function else None,
        transform_args=tool.transform_args,
        output_schema=parent.output_schema if adapt is _only_validating else tool.output_schema,
    )


def _for_task(tool: Tool) -> Tool:
    """Return a tool for its runs in tasks. FastMCP's timeout is for calls that a client waits for."""
    if not isinstance(tool, FunctionTool):
        return tool
    return tool.model_copy(update={"fn": for_task(tool.fn), "timeout": None})


def _only_validating(tool: Tool) -> Tool:
    """Return a tool that validates its arguments and does nothing."""
    if not isinstance(tool, FunctionTool):
        return _UncheckedTool(name=tool.name, parameters=tool.parameters)
    return tool.model_copy(update={"fn": _idle(tool.fn), "output_schema": None, "timeout": None})


_ADMITTED = TaskCreated({"resultType": "task"})
"""What the middleware of a mounted server sees of a call that will become a task."""


class _Passage:
    """Leads a call through the middleware of mounted servers, to a tool that is only validated."""

    def __init__(self, arguments: JsonObject) -> None:
        self.arguments = arguments
        """The arguments as the middleware has left them."""
        self.answer: object = None
        """What the middleware answers itself: then there is no task."""

    def through(self, tool: FastMCPProviderTool, inner: Tool) -> Tool:
        """Return the tool of a mounted server, with `inner` behind the middleware of that server."""
        server: Any = copy.copy(tool._server)  # pyright: ignore[reportPrivateUsage] # noqa: SLF001
        call, given = cast("Any", type(server)).call_tool, dict[str, Any]()

        async def call_tool(
            name: str, sent: JsonObject, *, version: VersionSpec | None, run_middleware: bool = True
        ) -> object:
            if not run_middleware:
                return await self.arrive(inner, given, sent)
            given.update(sent)
            return await self.answered(call(server, name, sent, version=version))

        server.call_tool = call_tool
        guarded = tool.model_copy()
        guarded._server = server  # pyright: ignore[reportPrivateUsage] # noqa: SLF001
        return guarded

    async def arrive(self, inner: Tool, given: JsonObject, left: JsonObject) -> object:
        """Validate the arguments that middleware has left of those that it was given."""
        if left != given and not self.arguments.items() <= given.items():
            raise exceptions.ToolError(
                f"Middleware changes arguments of {inner.name!r}, which is transformed"
            )
        self.arguments = self.arguments if left == given else left
        await inner.run(left)
        return self.answer or _ADMITTED

    async def answered(self, answer: Awaitable[object]) -> object:
        self.answer = await answer
        return ToolResult(content=[])


class _TaskPassage(_Passage):
    """Leads a call by the function of a tool in a task to the tool from which it is transformed."""

    async def arrive(self, inner: Tool, given: JsonObject, left: JsonObject) -> object:  # noqa: ARG002
        async with self._context.entered():
            return await inner.run(left)

    async def answered(self, answer: Awaitable[object]) -> object:
        self._context = cast("TaskContext", get_context())
        return await answer


class _UncheckedTool(Tool):
    """Stands in for a tool that validates its arguments only when it runs."""

    async def run(self, arguments: dict[str, Any]) -> ToolResult:  # noqa: ARG002
        return ToolResult(content=[])


@lru_cache(maxsize=MAX_CACHED_FUNCTIONS)
def _idle(function: AnyFunction) -> AnyFunction:
    """Return a function that takes the same arguments, has no dependencies, and does nothing."""
    visible = without_injected_parameters(function)

    @wraps(visible)
    async def accept(**_: object) -> ToolResult:
        return ToolResult(content=[])

    return with_signature(accept, visible)


# What a server has


async def _tools_of(server: FastMCP[Any]) -> Sequence[Tool]:
    """Return all tools, by the names that clients use, but not those of servers behind proxies."""
    walked, declared = await _tools_in(server), await server.get_tasks()
    tools = {(tool.name, tool.version): tool for tool in declared if isinstance(tool, Tool)}
    tools |= {(tool.name, tool.version): tool for tool in walked}
    return sorted(tools.values(), key=version_sort_key)


async def _tools_in(provider: Provider) -> Sequence[Tool]:
    if isinstance(provider, LocalProvider):
        return await provider.list_tools()
    tools: Sequence[Tool] = [tool for each in _parts(provider) for tool in await _tools_in(each)]
    for transform in provider.transforms:
        if not isinstance(transform, CatalogTransform):  # which only changes which tools are listed
            tools = await transform.list_tools(tools)
    return tools


def _parts(provider: Provider) -> Iterable[Provider]:
    if isinstance(provider, FastMCPProvider):
        return [provider.server]
    inner = getattr(provider, "_inner", None)  # of a mount with a namespace or with other names
    if isinstance(inner, Provider):
        return [inner]
    return provider.providers if isinstance(provider, AggregateProvider) else []


def _task_config(tool: Tool) -> TaskConfig:
    """Return the configuration of a tool. FastMCP drops that of the tool from which it is transformed."""
    while isinstance(tool, TransformedTool) and not tool.task_config.supports_tasks():
        tool = tool.parent_tool
    return tool.task_config


def _innermost(tool: Tool) -> Tool:
    while isinstance(tool, TransformedTool):
        tool = tool.parent_tool
    return tool


# Servers and requests


def low_level_server(server: FastMCP[Any]) -> Server[Any]:
    return cast("Server[Any]", server._mcp_server)  # pyright: ignore[reportPrivateUsage] # noqa: SLF001


def extension_of(server: FastMCP[Any], identifier: str) -> object:
    return server._extensions.get(identifier)  # pyright: ignore[reportPrivateUsage] # noqa: SLF001


def client_request(context: Context) -> RequestContext | None:
    """Return the request of the client whose call is handled. None for a call by a tool or by other code."""
    request = context.request_context
    if request is None or not _is_client_tool_call():
        return None
    return cast("RequestContext", request._srctx)  # pyright: ignore[reportPrivateUsage] # noqa: SLF001
