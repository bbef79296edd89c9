"""`TasksExtension`, with which `task=True` of FastMCP means a durable task, and the part of the client."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any, Unpack, cast

from fastmcp import Context, FastMCP
from fastmcp.client.extension_hooks import register_internal_client_extension_factory
from fastmcp.exceptions import ToolError
from fastmcp.server.extensions import ServerExtension, ToolCallContinuation
from fastmcp.server.providers import Provider
from fastmcp.tools.base import InputRequiredToolResult, ToolResult
from mcp.client.extension import ClaimContext, ClientExtension
from mcp.server.context import HandlerResult
from mcp.shared.exceptions import MCPError
from mcp_types import REQUEST_TIMEOUT, CallToolRequestParams, CallToolResult, InputRequiredResult, TextContent
from pydantic import BaseModel

from ..mcp.client import ClientTasks
from ..mcp.client.errors import ClientTaskError
from ..mcp.client.protocols import CreateTaskResult
from ..mcp.handlers import raises_mcp_errors
from ..mcp.server import Tasks, TasksOptions
from ..mcp.wire import EXTENSION, RequestContext, as_object, meta_of, requested_task
from ..storage import Storage
from ..tasks.errors import InvalidValue
from .adapter import SESSION_ID, FastMCPAdapter, client_request, extension_of, low_level_server
from .context import TaskCreated

log = logging.getLogger("perdure.fastmcp")

_DOCKET_OPTIONS = {
    "name": "perdure keeps the tasks of each server apart by its name; to set another, use application",
    "worker_name": "perdure names its workers itself",
    "redelivery_timeout": "perdure notices a lost worker by its heartbeat; see RuntimeConfig",
    "reconnection_delay": "perdure reconnects by itself",
    "minimum_check_interval": "perdure is woken by the database; see queue_poll_interval of RuntimeConfig",
}
"""The options of `fastmcp_tasks.TasksExtension` that perdure does not have, with the reason."""
_OTHER_VARIABLES = {
    "FASTMCP_DOCKET_": "pass the URL to TasksExtension, or set PERDURE_URL",
    "FASTMCP_TASKS_ENCRYPTION_KEY": "set PERDURE_ENCRYPTION_KEY to a key that perdure key makes",
}
"""The environment variables of `fastmcp_tasks`, by their names or prefixes, with what to do instead."""


class TasksExtension(ServerExtension):
    """Makes the tools of a server, and of the servers mounted in it, durable where they have `task=True`."""

    identifier = EXTENSION

    def __init__(self, url: str | Storage | None = None, **options: Unpack[TasksOptions]) -> None:
        """Keep tasks in the storage of this URL. The options are those of `Tasks`.

        Without a URL, that of the environment variable PERDURE_URL counts. Without both, tasks are kept in
        memory.
        """
        for name, reason in _DOCKET_OPTIONS.items():
            if name in options:
                raise InvalidValue(name, f"is an option of fastmcp-tasks; {reason}")
        url = url or os.environ.get("PERDURE_URL")
        if not url:
            log.warning("tasks are kept in memory, until the server stops; give TasksExtension a URL")
        self.tasks = Tasks("memory:" if url in (None, "", "memory://") else url, **options)
        self._adapter: FastMCPAdapter | None = None

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Let tasks run within the lifespans of all providers of the server, such as mounted servers."""
        server = self.server
        if self._adapter is None:
            self._adapter = FastMCPAdapter(server, self.tasks)
            self.tasks.join(low_level_server(server), self._adapter)
            _log_variables()
        host = _RuntimeProvider(self.tasks.serving(server))
        server.add_provider(host)
        try:
            yield
        finally:
            server.providers.remove(host)

    @raises_mcp_errors
    async def intercept_tool_call(
        self, params: CallToolRequestParams, context: Context, call_next: ToolCallContinuation
    ) -> ToolResult | BaseModel:
        async def proceed(_: RequestContext) -> HandlerResult:
            return cast("HandlerResult", await call_next())

        adapter, request = self._adapter, client_request(context)
        if adapter is None:  # the extension of a mounted server: that of the server that runs has answered
            return await call_next()
        tool = await adapter.find_called(params)
        if request is None:  # a call by a tool or by middleware
            if tool is not None and tool.mode == "required":
                raise ToolError(
                    f"Tool {params.name!r} runs as a task only, which a client requests by calling it itself."
                )
            return await call_next()
        is_added = self.tasks.extension.serves(params.name, request)
        if tool is None and requested_task(request) is None and not is_added:
            return await call_next()
        meta = {**meta_of(request), SESSION_ID: context.session_id}
        version = None if tool is None else tool.name.removeprefix(params.name).removeprefix("@")
        if version:  # workers run the version that was the newest at the call
            meta["fastmcp"] = {**as_object(meta.get("fastmcp")), "version": version}
        ctx = replace(request, params={**(request.params or {}), "_meta": meta})
        return _to_fastmcp(await self.tasks.extension.intercept_tool_call(params, ctx, proceed))


def tasks_of(server: FastMCP[Any]) -> Tasks | None:
    """Return the tasks that were added to a server."""
    extension = extension_of(server, EXTENSION)
    return extension.tasks if isinstance(extension, TasksExtension) else None


class _RuntimeProvider(Provider):
    """A provider without tools. Its lifespan, in which tasks run, is entered last and left first."""

    def __init__(self, serving: AbstractAsyncContextManager[None]) -> None:
        super().__init__()
        self._serving = serving

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        async with self._serving:
            yield


def _to_fastmcp(result: HandlerResult) -> ToolResult | BaseModel:
    """Return the answer to a call for the middleware of FastMCP, which expects the result of a tool."""
    if not isinstance(result, dict):
        return cast("ToolResult | BaseModel", result)
    match result.get("resultType"):
        case "task":
            return TaskCreated(result)
        case "input_required":
            return InputRequiredToolResult(InputRequiredResult.model_validate(result))
        case _:
            return ToolResult.from_mcp_result(CallToolResult.model_validate(result))


def _log_variables() -> None:
    """Log which environment variables of `fastmcp_tasks` are set and have no effect."""
    for prefix, advice in _OTHER_VARIABLES.items():
        for name in sorted(os.environ):
            if name.startswith(prefix):
                log.warning(
                    "the environment variable %s is for fastmcp-tasks and is ignored; %s", name, advice
                )


# The part of the client


class _ClientTasks(ClientTasks):
    """Waits for tasks in `Client.call_tool`, which raises ToolError if a task failed."""

    async def _resolve(self, created: CreateTaskResult, context: ClaimContext) -> CallToolResult:
        try:
            return await super()._resolve(created, context)
        except (ClientTaskError, MCPError) as error:
            if isinstance(error, MCPError) and error.error.code == REQUEST_TIMEOUT:
                raise
            return CallToolResult(content=[TextContent(text=str(error))], is_error=True)


def _client_extension(_: object) -> ClientExtension | None:
    """Return the extension for a client, unless `fastmcp_tasks` adds its own: with two, it cannot connect."""
    return None if "fastmcp_tasks" in sys.modules else _ClientTasks()


register_internal_client_extension_factory(_client_extension)
