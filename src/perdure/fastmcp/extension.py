"""`TasksExtension`, which makes FastMCP tools with `task=True` durable, and an extension for clients."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Unpack, cast

from fastmcp import Context
from fastmcp.client.extension_hooks import register_internal_client_extension_factory as register_factory
from fastmcp.exceptions import ToolError
from fastmcp.server.extensions import ServerExtension, ToolCallContinuation
from fastmcp.server.providers import Provider
from fastmcp.tools.base import InputRequiredToolResult, Tool, ToolResult
from fastmcp.utilities.versions import VersionSpec
from mcp.client.extension import ClaimContext
from mcp.server.context import CallNext, HandlerResult
from mcp.shared.exceptions import MCPError
from mcp_types import REQUEST_TIMEOUT, CallToolRequestParams, CallToolResult, InputRequiredResult, TextContent
from pydantic import BaseModel

from ..mcp import wire
from ..mcp.client import ClientTasks
from ..mcp.client.protocols import CreateTaskResult
from ..mcp.errors import ClientTaskError
from ..mcp.hand_over import NAMES
from ..mcp.server import Tasks, TasksOptions
from ..runtime.config import check_options
from ..runtime.delayed_sigterm import delayed_sigterm
from ..storage import Storage
from ..tasks.errors import InvalidValue
from .adapter import SESSION_ID, TRANSPORT, FastMCPAdapter, client_request
from .context import TaskState

log = logging.getLogger("perdure.fastmcp")

_DOCKET_OPTIONS = {
    "name": "perdure separates tasks by the name of the server; to use another name, set application",
    "worker_name": "perdure generates the names of workers; remove the option",
    "redelivery_timeout": "to change when a lost worker is detected, set heartbeat_interval in RuntimeConfig",
    "reconnection_delay": "perdure reconnects automatically; remove the option",
    "minimum_check_interval": "to change how often workers read the queue, set queue_poll_interval",
}
"""The options of `fastmcp_tasks.TasksExtension` that perdure does not have, and what to do instead."""
_OTHER_VARIABLES = {
    "FASTMCP_DOCKET_URL": "pass the URL to TasksExtension, or set PERDURE_URL",
    "FASTMCP_DOCKET_CONCURRENCY": "pass concurrency to TasksExtension",
    **{f"FASTMCP_DOCKET_{name.upper()}": advice for name, advice in _DOCKET_OPTIONS.items()},
    "FASTMCP_TASKS_ENCRYPTION_KEY": "set PERDURE_ENCRYPTION_KEY to a key from `perdure key`",
}
"""The environment variables of `fastmcp_tasks`, and what to do instead of setting them."""


class TasksExtension(ServerExtension):
    """Makes the tools with `task=True` durable, on a server and on the servers that are mounted in it."""

    identifier = wire.EXTENSION

    def __init__(self, url: str | Storage | None = None, **options: Unpack[TasksOptions]) -> None:
        """Keep tasks in the storage at `url`, by default at PERDURE_URL. Without either, or if the URL is
        `memory://name`, they are kept in memory. The options are those of `Tasks`.
        """
        for name, reason in _DOCKET_OPTIONS.items():
            if cast("dict[str, Any]", options).pop(name, None) is not None:
                raise InvalidValue(name, f"is an option of fastmcp-tasks, but not of perdure; {reason}")
        check_options("TasksExtension", options, TasksOptions.__annotations__)
        url = url or os.environ.get("PERDURE_URL", "")
        if not url:
            log.warning("tasks are lost when the server stops; pass TasksExtension a URL, or set PERDURE_URL")
        self.tasks = Tasks("memory:" if not url or str(url).startswith("memory://") else url, **options)

    @cached_property
    def _adapter(self) -> FastMCPAdapter:
        return FastMCPAdapter(self.server, self.tasks)

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Run tasks while the lifespans of the server's providers, such as mounted servers, are active."""
        for name in os.environ:
            if advice := _OTHER_VARIABLES.get(name.upper()):  # fastmcp-tasks ignores the case of names
                log.warning("environment variable %s is for fastmcp-tasks and is ignored; %s", name, advice)
        host = _AddedTools() if self.tasks.extension.hands_over else Provider()
        server = self.server  # which enters the lifespan of the host last, and exits it first
        host.lifespan = cast("Any", partial(self.tasks.serving, self._adapter.server))
        server.add_provider(host)
        with delayed_sigterm():  # until the lifespan of the host has ended
            try:
                yield
            finally:
                server.providers.remove(host)

    async def intercept_tool_call(
        self, params: CallToolRequestParams, context: Context, call_next: ToolCallContinuation
    ) -> ToolResult | BaseModel:
        if context.fastmcp is not self.server:  # its copy, with which an outer server handles the call
            return await call_next()
        adapter, request = self._adapter, client_request(context)  # without an adapter, no call is a task
        if request is None:  # a call by a tool or by middleware
            tool = await adapter.find(params.name, params.meta)
            if tool is not None and tool.mode == "required":
                raise ToolError(f"Tool {params.name!r} can only run as a task; call it from a client")
            return await call_next()
        proceed = cast("CallNext", lambda _: call_next())  # pyright: ignore[reportUnknownLambdaType]
        meta = {**wire.meta_of(request), SESSION_ID: context.session_id, TRANSPORT: context.transport}
        ctx = replace(request, params={**(request.params or {}), "_meta": meta})
        return _to_fastmcp(await self.tasks.extension.intercept_tool_call(params, ctx, proceed))


class _AddedTools(Provider):
    """The tools that are added for clients without tasks. Middleware can get them, but nothing lists them."""

    async def _get_tool(self, name: str, version: VersionSpec | None = None) -> Tool | None:  # noqa: ARG002
        return _AddedTool(name=name, parameters={}) if name in NAMES else None


class _AddedTool(Tool):
    async def run(self, arguments: dict[str, Any]) -> ToolResult:  # noqa: ARG002, for clients with tasks
        raise ToolError(f"Unknown tool: {self.name!r}")


def _to_fastmcp(result: HandlerResult) -> ToolResult | BaseModel:
    """Convert the result of a call to the type that FastMCP middleware expects."""
    if not isinstance(result, dict):
        return cast("ToolResult | BaseModel", result)
    match result:
        case {"resultType": "task"} | {"_meta": {wire.RELATED_TASK: _}}:
            return TaskState(result)
        case {"resultType": "input_required"}:
            return InputRequiredToolResult(InputRequiredResult.model_validate(result))
        case _:
            return ToolResult.from_mcp_result(CallToolResult.model_validate(result))


class _ClientTasks(ClientTasks):
    """Lets `Client.call_tool` wait for tasks. If a task fails, `call_tool` raises ToolError."""

    max_repeats = 4

    async def _resolve(self, created: CreateTaskResult, context: ClaimContext) -> CallToolResult:
        try:
            return await super()._resolve(created, context)
        except (ClientTaskError, MCPError) as error:
            if isinstance(error, MCPError) and error.error.code == REQUEST_TIMEOUT:
                raise
            return CallToolResult(content=[TextContent(text=str(error))], is_error=True)


# if `fastmcp_tasks` adds an extension to a client, another one would conflict with it
register_factory(lambda _: None if "fastmcp_tasks" in sys.modules else _ClientTasks())
