"""Durable tasks for servers of FastMCP: `pip install 'perdure[fastmcp]'`.

from fastmcp import Context, FastMCP
from perdure.fastmcp import TasksExtension

mcp = FastMCP("reports")
mcp.add_extension(TasksExtension("sqlite:///tasks.db"))

@mcp.tool(task=True)
async def build_report(year: int, ctx: Context) -> str: ...

Importing this package lets each `fastmcp.Client` wait for tasks, as importing `fastmcp_tasks` does.
"""

from .extension import TasksExtension
from .options import TaskOptions

__all__ = ["TaskOptions", "TasksExtension"]
