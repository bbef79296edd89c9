"""A server of FastMCP whose tasks are durable, with a mounted server and a question.

    python examples/fastmcp_reports.py

Runs over stdio, for clients that start their servers. Needs the `fastmcp` extra of perdure.
"""

from typing import Any

import anyio
from fastmcp import Context, FastMCP
from fastmcp.dependencies import Progress

from perdure.fastmcp import TaskOptions, TasksExtension

mcp: FastMCP[Any] = FastMCP("reports")
mcp.add_extension(TasksExtension("sqlite:///fastmcp_reports.db"))
printing: FastMCP[Any] = FastMCP("printing")
mcp.mount(printing, namespace="print")


@mcp.tool(task=TaskOptions(retries=3, retry_on=(OSError,)))
async def build_report(year: int, ctx: Context, progress: Progress = Progress()) -> str:
    """Build the report of a year, month by month, and have it signed."""
    await progress.set_total(12)
    for month in range(1, 13):
        await progress.set_message(f"month {month}")
        await anyio.sleep(0.1)
        await progress.increment()
    answer = await ctx.elicit("Who signs it?", str)
    return f"Report {year}, signed by {answer.data if answer.action == 'accept' else 'no one'}"


@printing.tool(task=True)
async def on_paper(pages: int, ctx: Context) -> str:
    """Print some pages."""
    for page in range(1, pages + 1):
        await ctx.report_progress(page, pages, f"page {page}")
        await anyio.sleep(0.1)
    return f"{pages} pages by {ctx.fastmcp.name}"


if __name__ == "__main__":
    mcp.run("stdio", show_banner=False)
