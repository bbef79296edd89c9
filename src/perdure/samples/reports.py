"""Reports: one that takes a minute, two that ask, and one that fails."""

from __future__ import annotations

from typing import Annotated

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from ..mcp import Tasks
from ..runtime import Task

PAGES = 12
NAME_FORM = {
    "type": "object",
    "properties": {"name": {"type": "string", "title": "Name", "description": "as it stands on the cover"}},
    "required": ["name"],
}
APPROVAL_FORM = {
    "type": "object",
    "properties": {"approved": {"type": "boolean", "title": "Approved"}},
    "required": ["approved"],
}

Seconds = Annotated[float, Field(ge=0, le=3600, description="how long it takes")]


def add_reports(server: MCPServer[object], tasks: Tasks) -> None:
    @server.tool()
    @tasks.durable
    async def build_report(year: int, task: Task, seconds: Seconds = 60) -> str:
        """Write a report of twelve pages. It takes a minute, and survives a restart of the server."""
        first = task.checkpoint.get_int("page", 0) + 1
        for page in range(first, PAGES + 1):
            await task.report(f"writing page {page} of {PAGES}, attempt {task.attempt}", page - 1, PAGES)
            await anyio.sleep(seconds / PAGES)
            await task.save_checkpoint({"page": page})
        await task.report(f"{PAGES} pages written", PAGES, PAGES)
        begun = f"written in {task.attempt} attempt(s), the last from page {first}"
        return f"the report of {year}: {PAGES} pages, {begun}"

    @server.tool()
    @tasks.durable
    async def sign_report(year: int, task: Task) -> str:
        """Ask whose name goes on a report, and put it there."""
        answer = await task.elicit(f"Whose name goes on the report of {year}?", NAME_FORM)
        if answer.action != "accept":
            return f"the report of {year} stays unsigned"
        return f"the report of {year}, signed by {answer.values['name']}"

    @server.tool()
    @tasks.durable(operators_answer=True)
    async def approve_report(year: int, task: Task) -> str:
        """Ask for the approval of a report. An operator answers on the dashboard, whatever the client can."""
        answer = await task.elicit(f"Is the report of {year} approved?", APPROVAL_FORM)
        is_approved = answer.action == "accept" and answer.values["approved"]
        return f"the report of {year} is {'approved' if is_approved else 'not approved'}"

    @server.tool()
    @tasks.durable
    async def print_report(year: int) -> str:
        """Print a report. There is no paper, so this fails."""
        raise ToolError(f"the report of {year} cannot be printed: the printer is out of paper")
