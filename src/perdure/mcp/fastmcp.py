"""The same `Tasks` for a server of FastMCP 4.1: `pip install 'perdure[fastmcp]'`.

from fastmcp import FastMCP
from perdure.mcp.fastmcp import attach

tasks = Tasks("sqlite:///tasks.db")
server = FastMCP("reports")
attach(tasks, server)

@server.tool()
@tasks.durable
async def build_report(year: int, task: Task) -> str: ...

This module uses three private names of FastMCP: it has no public way to its low-level server, whose
middleware tasks need, to the SDK's request, and to the source of a call. A server does not start if a mounted
server has a durable tool.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any, NamedTuple, cast

from fastmcp import FastMCP
from fastmcp.exceptions import FastMCPError, NotFoundError
from fastmcp.server.context import Context
from fastmcp.server.dependencies import _is_client_tool_call  # pyright: ignore[reportPrivateUsage]
from fastmcp.server.extensions import ServerExtension, ToolCallContinuation
from fastmcp.server.providers import FastMCPProvider, LocalProvider, Provider
from fastmcp.server.providers.aggregate import AggregateProvider
from fastmcp.server.transforms import Transform
from fastmcp.server.transforms.catalog import CatalogTransform
from fastmcp.tools.base import InputRequiredToolResult, Tool, ToolResult
from fastmcp.tools.tool_transform import TransformedTool
from fastmcp.utilities.versions import VersionSpec
from mcp.server.context import HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp_types import CallToolRequestParams, CallToolResult, Implementation, InputRequiredResult

from ..runtime import Task
from ..runtime.task import find_current_task
from ..tasks.errors import InvalidValue
from .adapters import Prepared, ServerAdapter
from .server import Tasks
from .tool import DurableTool, check_owner, durable_of, find_unregistered, refuse_unregistered
from .wire import EXTENSION, RequestContext, StoredCall


def attach(tasks: Tasks, server: FastMCP[Any]) -> None:
    """Make the durable tools of this server survive it. Call it before the server runs."""
    low_level = cast("Server[Any]", server._mcp_server)  # pyright: ignore[reportPrivateUsage] # noqa: SLF001
    tasks.bind(server)
    server.add_extension(_TasksExtension(tasks))
    tasks.join(low_level, FastMCPAdapter(server))
    logging.getLogger(FastMCP.__module__).addFilter(_is_not_of_a_task)


def _is_not_of_a_task(record: logging.LogRecord) -> bool:
    """Return whether FastMCP should log an exception: those of tasks are logged with the id of the task."""
    return record.exc_info is None or find_current_task() is None


class _TasksExtension(ServerExtension):
    """Advertises tasks, admits calls, and runs tasks as long as the server runs."""

    identifier = EXTENSION

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    def lifespan(self) -> AbstractAsyncContextManager[None]:
        return self._tasks.serving(self.server)

    async def intercept_tool_call(
        self, params: CallToolRequestParams, context: Context, call_next: ToolCallContinuation
    ) -> Any:  # noqa: ANN401
        async def proceed(_: RequestContext) -> HandlerResult:
            return cast("HandlerResult", await call_next())

        request = context.request_context
        if request is None or not _is_client_tool_call():  # a call by a tool, or by other code
            return await call_next()
        ctx = cast("RequestContext", request._srctx)  # pyright: ignore[reportPrivateUsage] # noqa: SLF001
        return await self._tasks.extension.intercept_tool_call(params, ctx, proceed)


class FastMCPAdapter(ServerAdapter):
    """A server of FastMCP."""

    def __init__(self, server: FastMCP[Any]) -> None:
        super().__init__(server)
        self._server = server

    @property
    def info(self) -> Implementation:
        return Implementation(name=self._server.name, version=self._server.version or "")

    @property
    def requires_authentication(self) -> bool:
        return self._server.auth is not None

    async def find(self, name: str) -> DurableTool | None:
        return durable_of(getattr(await self._server.get_tool(name), "fn", None))

    async def durable_tools(self) -> dict[str, DurableTool]:
        listed = await self._server.list_tools(run_middleware=False)
        tools = {tool.name: durable_of(getattr(tool, "fn", None)) for tool in listed}
        return {name: tool for name, tool in tools.items() if tool is not None}

    async def tools(self) -> Mapping[str, DurableTool | None]:
        tools = await _tools_in(self._server)
        others = dict.fromkeys(tool.name for tool in tools.mounted)
        return {**others, **{tool.name: durable_of(getattr(tool, "fn", None)) for tool in tools.own}}

    async def check_tools(self, known: Mapping[str, DurableTool]) -> None:
        tools = await _tools_in(self._server)
        functions = [(tool.name, _function_of(tool)) for tool in (*tools.own, *tools.mounted)]
        check_owner(known, functions)
        _check_reachable(tools)
        _check_task_option(tools)
        missing = find_unregistered(known, functions)
        if missing:  # perhaps a provider of the user's own has them
            found = (await self.durable_tools()).values()
            missing = [tool for tool in missing if tool not in found]
        refuse_unregistered(missing, functions)

    async def prepare(
        self,
        params: CallToolRequestParams,
        ctx: RequestContext,  # noqa: ARG002, FastMCP has it in its context
        *,
        resolve: bool,  # noqa: ARG002, FastMCP has no resolvers
    ) -> Prepared:
        """Run a copy of the tool whose function does nothing."""
        tool = await self._server.get_tool(params.name, _requested_version(params))
        function = cast("Callable[..., object]", getattr(tool, "fn", None))
        if tool is None:
            raise NotFoundError(f"Unknown tool: {params.name!r}")

        @wraps(function)
        async def capture(**_: object) -> ToolResult:
            return ToolResult(content=[])

        copy = tool.model_copy(update={"fn": capture, "output_schema": None})
        await copy.run(params.arguments or {})
        return StoredCall(name=params.name, arguments=params.arguments)

    async def run(self, params: CallToolRequestParams, task: Task) -> CallToolResult | InputRequiredResult:  # noqa: ARG002, the function takes it from its context
        try:
            result = await self._run(params)
        except FastMCPError as error:
            cause = error.__cause__
            kind = ToolError if cause is None or isinstance(cause, FastMCPError) else UnexpectedToolError
            raise kind(str(error)) from cause
        if isinstance(result, InputRequiredToolResult):
            return result.input_required
        ready = result.to_mcp_result()
        if isinstance(ready, CallToolResult):
            return ready
        content, structured = ready if isinstance(ready, tuple) else (ready, None)
        return CallToolResult(content=content, structured_content=structured)

    async def _run(self, params: CallToolRequestParams) -> ToolResult:
        """Run the tool by name. The permission of the caller was checked at the call."""
        name, arguments, version = params.name, params.arguments or {}, _requested_version(params)
        try:
            return await self._server.call_tool(name, arguments, version=version, run_middleware=False)
        except NotFoundError:
            for provider in self._server.providers:
                tool = await provider.get_tool(name, version)
                if tool is not None:
                    return await tool.run(arguments)
            raise


def _requested_version(params: CallToolRequestParams) -> VersionSpec | None:
    """Return the version of the tool that the client requests; FastMCP has it in the metadata."""
    ours = cast("Mapping[str, Any]", params.meta or {}).get("fastmcp")
    version = cast("Mapping[str, Any]", ours).get("version") if isinstance(ours, Mapping) else None
    return VersionSpec(eq=version) if isinstance(version, str) else None


# The check at the start


class _Tools(NamedTuple):
    """The tools of a server, under the names that its clients use."""

    own: Sequence[Tool]
    mounted: Sequence[Tool]
    """Those of the servers that are mounted in it."""


async def _tools_in(provider: Provider) -> _Tools:
    """Return the tools whose functions are in this process.

    Unlike `list_tools`, this returns the mounted tools themselves and not their proxies, hides no tool from
    callers without a token, and asks no provider that may need a connection.
    """
    if isinstance(provider, LocalProvider):
        return _Tools(await provider.list_tools(), [])
    tools = await _tools_below(provider)
    return _Tools(
        await _transformed(tools.own, provider.transforms),
        await _transformed(tools.mounted, provider.transforms),
    )


async def _tools_below(provider: Provider) -> _Tools:
    if isinstance(provider, FastMCPProvider):
        tools = await _tools_in(provider.server)
        return _Tools([], [*tools.own, *tools.mounted])
    # A namespace or another name for a mounted tool is a wrapper. There is no public way to what it wraps;
    # without this one, a durable tool of such a mounted server is found at its first call.
    inner = getattr(provider, "_inner", None)
    if isinstance(inner, Provider):
        return await _tools_in(inner)
    parts = (
        [await _tools_in(each) for each in provider.providers]
        if isinstance(provider, AggregateProvider)
        else []
    )
    return _Tools(
        [tool for part in parts for tool in part.own], [tool for part in parts for tool in part.mounted]
    )


async def _transformed(tools: Sequence[Tool], transforms: Sequence[Transform]) -> Sequence[Tool]:
    """Return the tools as they are called. A catalog only changes which of them are listed."""
    for transform in transforms:
        if not isinstance(transform, CatalogTransform):
            tools = await transform.list_tools(tools)
    return tools


def _function_of(tool: Tool) -> object:
    """Return the function that the tool calls in the end."""
    while isinstance(tool, TransformedTool):
        tool = tool.parent_tool
    return getattr(tool, "fn", None)


def _check_reachable(tools: _Tools) -> None:
    """Raise InvalidValue if calls of a tool reach a durable function and cannot become tasks."""
    durable = {tool.name for tool in tools.own if durable_of(getattr(tool, "fn", None)) is not None}
    for tool in tools.mounted:
        inner = durable_of(_function_of(tool))
        if inner is not None and tool.name not in durable:
            function = getattr(inner.function, "__name__", inner.name)
            raise InvalidValue(
                "tool",
                f"{tool.name!r} is a tool of a mounted server and would not be durable; register its "
                f"function on the server that you run: server.tool({function}, name={tool.name!r})",
            )
    for tool in tools.own:
        if durable_of(_function_of(tool)) is not None and tool.name not in durable:
            raise InvalidValue(
                "tool",
                f"{tool.name!r} is transformed from a durable tool and would not be durable itself; remove "
                "the transformation, and give @server.tool() the name and the description",
            )


def _check_task_option(tools: _Tools) -> None:
    """Raise InvalidValue if a tool is declared as a task for FastMCP's own engine."""
    names = [
        repr(tool.name)
        for tool in (*tools.own, *tools.mounted)
        if tool.task_config.supports_tasks() and durable_of(_function_of(tool)) is None
    ]
    if names:
        raise InvalidValue(
            "task",
            f"the calls of {', '.join(names)} would not become tasks; write @tasks.durable below "
            "@server.tool(), or remove task=True from the tool and tasks=True from its server",
        )
