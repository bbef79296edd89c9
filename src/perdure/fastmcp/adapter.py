"""Finds the tools of a FastMCP server, validates their calls, and runs them outside of any request.

Only this module uses private names of FastMCP. The table shows what happens if FastMCP removes one:

| name | consequence |
| --- | --- |
| `_background_task_headers` | every task fails: its tool would run without the headers of its caller |
| `_is_client_tool_call` | every call of a tool fails: calls by clients and by tools look the same |
| `FastMCPRequestContext._srctx` | every call of a tool fails: the SDK request of the call is not known |
| `FastMCP._mcp_server` | the server does not start: the methods of tasks cannot be added to it |
| `FastMCP._extensions` | `perdure serve` and `perdure.testing` fail: they do not find the tasks of a server |
| `FastMCP._mask_error_details` | the details of errors are always hidden |
| `FastMCPProviderTool._server`, `._original_name` | every call of a tool of a mounted server fails |
| `FastMCP._state_store` | state that a mounted server's middleware sets before the first task is lost |
| `_WrappedProvider._inner` | a transformed tool of a renamed mount is registered only at its first call |
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial, wraps
from typing import Any, cast

import mcp_types
from fastmcp import Context, FastMCP, exceptions
from fastmcp.server import dependencies
from fastmcp.server.auth import AccessToken
from fastmcp.server.context import reset_transport, set_transport
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
from uncalled_for import CycleError

from ..mcp.adapters import Prepared, ServerAdapter
from ..mcp.context import durable_request, stored_headers_of
from ..mcp.server import Tasks
from ..mcp.tool import DurableTool
from ..mcp.wire import EXTENSION, JsonObject, RequestContext, StoredCall, as_object
from ..runtime import Task
from ..runtime.errors import is_signal, loggable
from ..tasks.errors import InvalidValue
from .context import MAX_CACHED_FUNCTIONS, AnyFunction, TaskContext, TaskState, for_task
from .options import check_task, check_tool, tool_options

log = logging.getLogger("perdure.fastmcp")

UNRESOLVED = "Failed to resolve dependency "
"""The start of FastMCP's error message when a dependency of a tool raises an exception."""
SESSION_ID, TRANSPORT = "perdure/sessionId", "perdure/transport"
"""Keys in the stored `_meta` of a call. FastMCP keeps state, and rules for the session, under the id."""
ContextFor = Callable[[FastMCP[Any]], TaskContext]  # makes the context of a task for a tool of this server


class FastMCPAdapter(ServerAdapter):
    """The adapter for a FastMCP server."""

    token_type = AccessToken

    def __init__(self, server: FastMCP[Any], tasks: Tasks) -> None:
        super().__init__(server)
        self._server, self._tasks = server, tasks
        self._registered: dict[str, tuple[TaskConfig, DurableTool, Tool]] = {}  # by the name of the function
        tasks.join(low_level_server(server), self)

    @property
    def info(self) -> Implementation:
        return Implementation(name=self._server.name, version=self._server.version or "")

    @property
    def name(self) -> str | None:
        generated = rf"{type(self._server).__name__}-(.*-)?[0-9a-f]{{4}}"  # different at each start
        return None if re.fullmatch(generated, self._server.name) else self._server.name

    @property
    def requires_authentication(self) -> bool:
        return self._server.auth is not None

    async def find(self, name: str, meta: object) -> DurableTool | None:
        return await self._durable(await self._called(name, meta))

    async def tools(self) -> Mapping[str, DurableTool | None]:
        newest: dict[str, DurableTool | None] = {}
        for tool in await _tools_of(self._server):
            try:
                newest[tool.name] = await self._durable(tool)
            except InvalidValue as error:  # added after the start; a call of it fails
                log.warning("tool %r cannot run as a task: %s", tool.name, error)
        return newest

    async def check_tools(self, known: Mapping[str, DurableTool]) -> None:  # noqa: ARG002, FastMCP knows them
        """Register all tools that are declared as tasks. Raise InvalidValue if one cannot run as a task."""
        for tool in await _tools_of(self._server):
            await self._durable(tool)

    async def _durable(self, tool: Tool | None) -> DurableTool | None:
        """Register a tool, and return it as a durable tool. Return None if its calls cannot become tasks."""
        sources = await _with_sources(tool)  # FastMCP does not copy the configuration to transformed tools
        check_tool(sources)
        config = next((each.task_config for each in sources if each.task_config.supports_tasks()), None)
        if tool is None or config is None:
            return None
        name = tool.name if tool.version is None else f"{tool.name}@{tool.version}"
        registered = self._registered.get(name)
        if registered is None or registered[0] != config:
            check_task(tool.name, sources)
            options = tool_options(config) | {"name": name}
            durable = self._tasks.register(getattr(tool, "fn", tool.run), options)
            registered = self._registered[name] = config, durable, tool
        return registered[1]

    async def _called(self, name: str, meta: object) -> Tool | None:
        """Return the called tool in the requested or the newest version, or None if there is no such tool."""
        version = dependencies.extract_version_spec(as_object(meta))
        return await self._server.get_tool(name, None if version is None else VersionSpec(eq=version))

    async def prepare(self, params: CallToolRequestParams, ctx: RequestContext, *, resolve: bool) -> Prepared:  # noqa: ARG002
        passage = _Passage(params.arguments or {})
        _, tool = await _locate(self._server, await self._called(params.name, params.meta), passage)
        try:
            await tool.run(passage.arguments)
        except exceptions.FastMCPError:
            raise
        except Exception as error:  # from a transformation, or from middleware of a mounted server
            if _is_passed_on(error):
                raise
            shown = loggable(error, is_encrypted=self.encrypts_contents)
            log.warning("a call of tool %r failed before a task was created", params.name, exc_info=shown)
            raise exceptions.ToolError(_error_text(error, tool, self._server, *passage.mounts)) from error
        if passage.answer is not _ADMITTED:
            return cast("Prepared", passage.answer)
        return StoredCall.of(params, ctx, passage.arguments)

    async def run(self, params: CallToolRequestParams, task: Task) -> CallToolResult | InputRequiredResult:
        registered = self._registered[params.name][2]
        params = params.model_copy(update={"name": registered.name})
        found = await _find_tool(self._server, registered.name, registered.version)
        meta = {**as_object(params.meta), "progress_token": task.id}
        state = Context(self._server).lifespan_context
        request = durable_request(task, params, state, session_id=meta.get(SESSION_ID, task.id))
        request.meta, request.request = cast("Any", meta), None
        context_for = partial(TaskContext, request=request, task=task)
        server, tool = await _locate(self._server, found, None, context_for)
        set_transport(cast("Any", meta.get(TRANSPORT)))  # the rules of a session depend on it
        headers: Any = stored_headers_of(task)
        dependencies._background_task_headers.set(headers)  # pyright: ignore[reportPrivateUsage] # noqa: SLF001
        try:
            async with context_for(server).entered():
                result = await tool.run(params.arguments or {})
        except (MCPError, _MountedToolError):
            raise
        except exceptions.FastMCPError as error:
            raise ToolError(str(error)) from error
        except Exception as error:
            text = _error_text(error, tool, server)
            if not isinstance(error, CycleError) and not str(error).startswith(UNRESOLVED):
                raise UnexpectedToolError(text) from error
            shown = loggable(error, is_encrypted=task.is_encrypted)
            log.exception("task %s: tool %r cannot start", task.id, params.name, exc_info=shown)
            raise MCPError(mcp_types.INTERNAL_ERROR, text) from (error.__cause__ or error)
        return _to_mcp(result)


def _to_mcp(result: ToolResult) -> CallToolResult | InputRequiredResult:
    if isinstance(result, InputRequiredToolResult):
        if not result.input_required.input_requests:
            raise ToolError("The tool requires input, but its result contains no input requests")
        return result.input_required
    ready = result.to_mcp_result()
    if isinstance(ready, CallToolResult):
        return ready
    return CallToolResult(content=result.content, structured_content=result.structured_content)


class _MountedToolError(exceptions.ToolError, UnexpectedToolError):
    """Raised in the function of a transformed tool if the tool of a mounted server that it calls raises."""


def _is_passed_on(error: Exception) -> bool:
    code = error.code if isinstance(error, MCPError) else None
    return code == mcp_types.MISSING_REQUIRED_CLIENT_CAPABILITY or is_signal(error)


def _error_text(error: Exception, tool: Tool, *servers: FastMCP[Any]) -> str:
    """Return the error text that FastMCP would return if a tool raised `error`."""
    if get_http_status_code(error) == 429:
        return "Rate limited by upstream API, please retry later"
    if is_timeout_error(error):
        return "Upstream request timed out, please retry"
    is_masked = any(getattr(server, "_mask_error_details", True) for server in servers)
    return f"Error calling tool {tool.name!r}" + ("" if is_masked else f": {error}")


async def _find_tool(server: FastMCP[Any], name: str, version: str | None) -> Tool | None:
    """Return a tool for a worker. Access was checked when the tool was called, and is not checked again."""
    exactly, token = VersionSpec(eq=version), set_transport("stdio")  # for which FastMCP checks no token
    try:
        return await server.get_tool(name, exactly) or await Provider.get_tool(server, name, exactly)
    finally:
        reset_transport(token)


async def _locate(
    server: FastMCP[Any], tool: Tool | None, passage: _Passage | None, context_for: ContextFor | None = None
) -> tuple[FastMCP[Any], Tool]:
    """Return the server that defines a tool, and a tool to run in a task, or to validate a call before it.

    A tool can be mounted from another server or transformed from another tool. If `passage` is given, a call
    of the returned tool goes through the middleware of the mounted servers.
    """
    if tool is None:
        raise exceptions.NotFoundError("The server has removed the tool")
    if isinstance(tool, FastMCPProviderTool):
        server, found = await _locate(_mount_of(tool)[0], await _source_of(tool), passage, context_for)
        return server, found if passage is None else passage.through(tool, found)
    if not isinstance(tool, TransformedTool):
        return server, _only_validating(tool) if context_for is None else _for_task(tool)
    has_function = tool.fn is not tool.forwarding_fn
    if has_function and context_for is None:
        return server, _only_validating(tool)
    if has_function:  # it calls the other tool in the task
        passage = _Passage({}, context_for)
    owner, parent = await _locate(server, tool.parent_tool, passage, context_for)
    return server if has_function else owner, TransformedTool.from_tool(
        parent,
        name=tool.name,
        transform_fn=for_task(tool.fn) if has_function else None,
        transform_args=tool.transform_args,
        output_schema=parent.output_schema if context_for is None else tool.output_schema,
    )


def _for_task(tool: Tool) -> Tool:
    """Return a tool to run in tasks. FastMCP's timeout, which is for calls without tasks, is removed."""
    if not isinstance(tool, FunctionTool):
        return tool
    return tool.model_copy(update={"fn": for_task(tool.fn), "timeout": None})


def _only_validating(tool: Tool) -> Tool:
    """Return a tool that validates its arguments, and does nothing else."""
    function = tool.fn if isinstance(tool, FunctionTool) else _accept  # others validate only when they run
    return FunctionTool(name=tool.name, parameters=tool.parameters, fn=_accepting(function))


@lru_cache(maxsize=MAX_CACHED_FUNCTIONS)
def _accepting(function: AnyFunction) -> AnyFunction:
    """Return a function that takes the arguments of `function`, has no dependencies, and does nothing."""
    return wraps(dependencies.without_injected_parameters(function))(partial(_accept))


async def _accept(**_: object) -> ToolResult:
    return ToolResult(content=[])


_ADMITTED = TaskState({"resultType": "task"})
"""The result that the middleware of a mounted server receives for a call that will become a task."""


class _Passage:
    """Passes a call through the middleware of mounted servers.

    Before the task is created, the call is only validated after the middleware. In a task, the function of a
    transformed tool makes the call, and the inner tool runs after the middleware.
    """

    def __init__(self, arguments: JsonObject, context_for: ContextFor | None = None) -> None:
        self.arguments = arguments  # after the middleware has processed them
        self.answer: object = _ADMITTED
        """The result. If the middleware returns a result of its own, no task is created."""
        self.mounts: list[FastMCP[Any]] = []  # from the innermost to the outermost
        self._context_for = context_for  # None before the task is created

    def through(self, tool: FastMCPProviderTool, inner: Tool) -> Tool:
        """Return a tool that calls `inner` through the middleware of the mounted server of `tool`."""
        mounted = _mount_of(tool)[0]
        self.mounts.append(mounted)
        getattr(mounted, "_state_store", None)  # makes the store, which else only the copy would have
        server: Any = copy.copy(mounted)
        call, given = cast("Any", type(server)).call_tool, dict[str, Any]()

        async def call_tool(
            name: str, sent: JsonObject, *, run_middleware: bool = True, **options: object
        ) -> object:
            if not run_middleware:
                return await self._arrive(mounted, inner, given, sent)
            given.update(sent)
            answer = await call(server, name, sent, **options)
            if self._context_for is None:
                self.answer, answer = answer, ToolResult(content=[])
            return answer

        server.call_tool = call_tool
        guarded = tool.model_copy()
        guarded._server = server  # pyright: ignore[reportPrivateUsage] # noqa: SLF001
        return guarded

    async def _arrive(self, server: FastMCP[Any], inner: Tool, given: JsonObject, left: JsonObject) -> object:
        """Call `inner` after the middleware, which was given the arguments `given` and passes on `left`."""
        if self._context_for is not None:
            try:
                async with self._context_for(server).entered():
                    return await inner.run(left)
            except exceptions.FastMCPError:
                raise
            except Exception as error:
                if _is_passed_on(error):
                    raise
                raise _MountedToolError(_error_text(error, inner, server)) from error
        if left != given and not self.arguments.items() <= given.items():
            text = f"Middleware changed the arguments of {inner.name!r}, which no transformed tool supports"
            raise exceptions.ToolError(text)
        self.arguments = self.arguments if left == given else left
        await inner.run(left)
        return self.answer


async def _tools_of(server: FastMCP[Any]) -> Sequence[Tool]:
    """Return all tools, with the names that clients use, except the tools of servers behind proxies."""
    found = [*await server.get_tasks(), *reversed(await _tools_in(server))]  # the first of a name wins
    tools = {(each.name, each.version): each for each in found if isinstance(each, Tool)}
    return sorted(tools.values(), key=version_sort_key)


async def _tools_in(provider: Provider) -> Sequence[Tool]:
    if isinstance(provider, LocalProvider):
        return await provider.list_tools()
    inner: object = getattr(provider, "_inner", None)  # of a mount with a namespace or with renamed tools
    if isinstance(provider, FastMCPProvider):
        inner = provider.server
    several = provider.providers if isinstance(provider, AggregateProvider) else []
    parts = [inner] if isinstance(inner, Provider) else several
    tools: Sequence[Tool] = [tool for each in parts for tool in await _tools_in(each)]
    for transform in provider.transforms:
        if not isinstance(transform, CatalogTransform):  # it changes only which tools are listed
            tools = await transform.list_tools(tools)
    return tools


async def _with_sources(tool: Tool | None) -> Sequence[Tool]:
    """Return a tool and the tools from which it is transformed or mounted. The last is the innermost."""
    return [] if tool is None else [tool, *await _with_sources(await _source_of(tool))]


async def _source_of(tool: Tool) -> Tool | None:
    if isinstance(tool, TransformedTool):
        return tool.parent_tool
    return await _find_tool(*_mount_of(tool), tool.version) if isinstance(tool, FastMCPProviderTool) else None


def _mount_of(tool: FastMCPProviderTool) -> tuple[FastMCP[Any], str]:
    """Return the server from which a tool is mounted, and the name of the tool there."""
    return tool._server, cast("str", tool._original_name)  # pyright: ignore[reportPrivateUsage] # noqa: SLF001


def low_level_server(server: FastMCP[Any]) -> Server[Any]:
    return server._mcp_server  # pyright: ignore[reportPrivateUsage] # noqa: SLF001


def tasks_of(server: FastMCP[Any]) -> Tasks | None:
    """Return the `Tasks` of the server's `TasksExtension`, or None if it has no such extension."""
    extension = server._extensions.get(EXTENSION)  # pyright: ignore[reportPrivateUsage] # noqa: SLF001
    tasks = getattr(extension, "tasks", None)
    return tasks if isinstance(tasks, Tasks) else None


def client_request(context: Context) -> RequestContext | None:
    """Return the client request that is being handled, or None if a tool or other code made the call."""
    is_client = dependencies._is_client_tool_call()  # pyright: ignore[reportPrivateUsage] # noqa: SLF001
    if context.request_context is None or not is_client:
        return None
    return cast("RequestContext", context.request_context._srctx)  # pyright: ignore[reportPrivateUsage] # noqa: SLF001
