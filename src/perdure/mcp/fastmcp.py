"""The same `Tasks` for a server of FastMCP 4.1: `pip install 'perdure[fastmcp]'`.

from fastmcp import FastMCP
from perdure.mcp.fastmcp import attach

tasks = Tasks("sqlite:///tasks.db")
server = FastMCP("reports")
attach(tasks, server)

@server.tool()
@tasks.durable(retries=2)
async def build_report(year: int, task: Task) -> str: ...

FastMCP has no public way to its low-level server, whose middleware tasks need: the one private attribute that
is used stands in `attach`. A tool of a mounted server is not known as durable to its parent.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

from fastmcp import FastMCP
from fastmcp.exceptions import FastMCPError, NotFoundError
from fastmcp.server.context import Context
from fastmcp.server.extensions import ServerExtension, ToolCallContinuation
from fastmcp.tools.base import ToolResult
from fastmcp.utilities.versions import VersionSpec
from mcp.server.lowlevel import Server
from mcp_types import CallToolRequestParams, CallToolResult, Implementation, TextContent

from .durable import Durable, current_admission, current_run
from .hosts import Host, mark_of, marked
from .protocol import EXTENSION
from .server import Tasks


def attach(tasks: Tasks, server: FastMCP[Any]) -> None:
    """Make the durable tools of this server survive it. Before it runs."""
    low_level = cast("Server[Any]", server._mcp_server)  # pyright: ignore[reportPrivateUsage] # noqa: SLF001
    tasks.belong_to(server)
    server.add_extension(_Joined(tasks))
    logging.getLogger(FastMCP.__module__).addFilter(_name_task)
    tasks.join(low_level, FastMCPHost(server))


def _name_task(record: logging.LogRecord) -> bool:
    """Put the id of the task in front of what FastMCP itself logs of a tool that fails in a task."""
    run = current_run()
    if run is not None:
        record.msg = f"task {run.task.id}: {record.msg}"
    return True


class _Joined(ServerExtension):
    """Advertises tasks, and runs them as long as the server runs."""

    identifier = EXTENSION

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    def lifespan(self) -> AbstractAsyncContextManager[None]:
        return cast("AbstractAsyncContextManager[None]", self._tasks.lifespan(self.server))

    async def intercept_tool_call(
        self,
        params: CallToolRequestParams,
        context: Context,  # noqa: ARG002, FastMCP's own signature
        call_next: ToolCallContinuation,
    ) -> Any:  # noqa: ANN401
        """Note the call as it comes to the tool, after FastMCP's own middleware."""
        admission = current_admission()
        if admission is not None:
            admission.called = params
        return await call_next()


class FastMCPHost(Host):
    """A server of FastMCP."""

    def __init__(self, server: FastMCP[Any]) -> None:
        super().__init__(server)
        self._server = server

    @property
    def info(self) -> Implementation:
        return Implementation(name=self._server.name, version=self._server.version or "")

    @property
    def is_authenticated(self) -> bool:
        return self._server.auth is not None

    async def durable_tool(self, name: str) -> Durable | None:
        return mark_of(getattr(await self._server.get_tool(name), "fn", None))

    async def durable_tools(self) -> dict[str, Durable]:
        tools = await self._server.list_tools(run_middleware=False)
        return marked({tool.name: getattr(tool, "fn", None) for tool in tools})

    async def call(self, params: CallToolRequestParams) -> object:
        try:
            result = await self._run(params)
        except FastMCPError as error:
            run = current_run()
            if run is not None:
                run.cause = error.__cause__
            return CallToolResult(content=[TextContent(text=str(error))], is_error=True)
        ready = result.to_mcp_result()
        if isinstance(ready, CallToolResult):
            return ready
        content, structured = ready if isinstance(ready, tuple) else (ready, None)
        return CallToolResult(content=content, structured_content=structured)

    async def _run(self, params: CallToolRequestParams) -> ToolResult:
        """By name. Who may call it was checked when it was called: here there is no caller to check."""
        name, arguments, version = params.name, params.arguments or {}, _version_of(params)
        try:
            return await self._server.call_tool(name, arguments, version=version, run_middleware=False)
        except NotFoundError:
            for provider in self._server.providers:
                tool = await provider.get_tool(name, version)
                if tool is not None:
                    return await tool.run(arguments)
            raise


def _version_of(params: CallToolRequestParams) -> VersionSpec | None:
    """Of which version of the tool the client spoke; FastMCP has it in the metadata."""
    ours = cast("Mapping[str, Any]", params.meta or {}).get("fastmcp")
    wanted = cast("Mapping[str, Any]", ours).get("version") if isinstance(ours, Mapping) else None
    return VersionSpec(eq=wanted) if isinstance(wanted, str) else None
