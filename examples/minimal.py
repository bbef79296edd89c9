"""The smallest durable server: three lines more than without perdure.

    python examples/minimal.py

Runs over stdio, for clients that start their servers.
"""

import anyio
from mcp.server import MCPServer

from perdure import Task, Tasks

tasks = Tasks("sqlite:///minimal.db")
server: MCPServer[object] = MCPServer("minimal", **tasks.attach())


@server.tool()
@tasks.durable
async def brew(cups: int, task: Task) -> str:
    """Brew coffee, slowly."""
    for cup in range(1, cups + 1):
        await task.report_progress(cup - 1, cups, f"brewing cup {cup}")
        await anyio.sleep(1)
    return f"{cups} cups of coffee"


if __name__ == "__main__":
    server.run("stdio")
