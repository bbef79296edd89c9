"""The sample server and its report tools: they report progress, ask questions, fail and retry."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from ..mcp import Tasks
from ..runtime import Retry, RuntimeConfig, Task
from .feed_tools import SampleFeeds, add_feed_tools

DEMO_CONFIG = RuntimeConfig(heartbeat_interval=1.0, drain_timeout=1.0, cancel_grace=1.0)
"""Short times for demonstrations: a killed server's tasks resume within seconds, and Ctrl+C acts quickly."""
REPORT_SECONDS = 20
"""Default duration of a report. It is short, because many clients wait at most a minute for a result."""
PAGES = 12
NAME_FORM = {
    "type": "object",
    "properties": {"name": {"type": "string", "title": "Name", "description": "as printed on the cover"}},
    "required": ["name"],
}
APPROVAL_FORM = {
    "type": "object",
    "properties": {"approved": {"type": "boolean", "title": "Approved"}},
    "required": ["approved"],
}

Seconds = Annotated[float, Field(ge=0, le=3600, description="Duration in seconds")]


def make_server(tasks: Tasks, feeds: SampleFeeds) -> MCPServer[object]:
    """Return a server with the report tools and the feed tools. Both use the storage of `tasks`."""
    server: MCPServer[object] = MCPServer(
        "perdure-samples", version=metadata.version("perdure"), log_level="WARNING", **tasks.attach()
    )
    add_report_tools(server, tasks)
    add_failing_tools(server, tasks)
    add_feed_tools(server, tasks, feeds)
    return server


def add_report_tools(server: MCPServer[object], tasks: Tasks) -> None:
    @server.tool()
    @tasks.durable
    async def build_report(year: int, task: Task, seconds: Seconds = REPORT_SECONDS) -> str:
        """Write a twelve-page report within `seconds` seconds. The task survives a restart of the server."""
        first = task.checkpoint.get_int("page", 0) + 1
        for page in range(first, PAGES + 1):
            message = f"writing page {page} of {PAGES}, attempt {task.attempt}"
            await task.report_progress(page - 1, PAGES, message)
            await anyio.sleep(seconds / PAGES)
            await task.save_checkpoint({"page": page})
        await task.report_progress(PAGES, PAGES, f"{PAGES} pages written")
        return (
            f"{year} report: {PAGES} pages, finished by attempt {task.attempt}, which started at page {first}"
        )

    @server.tool()
    @tasks.durable
    async def sign_report(year: int, task: Task) -> str:
        """Ask who signs a report, then sign the report with that name."""
        answer = await task.elicit(f"Who signs the {year} report?", NAME_FORM)
        if answer.action != "accept":
            return f"the {year} report is not signed"
        return f"the {year} report is signed by {answer.data['name']}"

    @server.tool()
    @tasks.durable(operators_answer=True)
    async def approve_report(year: int, task: Task) -> str:
        """Ask whether a report is approved. An operator can answer on the dashboard."""
        answer = await task.elicit(f"Is the {year} report approved?", APPROVAL_FORM)
        is_approved = answer.action == "accept" and answer.data["approved"]
        return f"the {year} report is {'approved' if is_approved else 'not approved'}"

    @server.tool()
    @tasks.durable(concurrency=1)
    async def archive_report(year: int, seconds: Seconds = 5) -> str:
        """Copy a report into the archive. A worker archives only one report at a time."""
        await anyio.sleep(seconds)
        return f"the {year} report is in the archive"


def add_failing_tools(server: MCPServer[object], tasks: Tasks) -> None:
    @server.tool()
    @tasks.durable
    async def print_report(year: int) -> str:
        """Print a report. This always fails, because the printer is out of paper."""
        raise ToolError(f"cannot print the {year} report: the printer is out of paper")

    @server.tool()
    @tasks.durable(retries=1)
    async def mail_report(year: int, task: Task, delay: Seconds = 5) -> str:
        """Mail a report. The first attempt fails, and the second one succeeds after a delay."""
        if task.attempt == 1:
            raise Retry("the mail server is busy", after=delay)
        return f"the {year} report was mailed"
