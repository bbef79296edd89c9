"""`make run`: a server to try perdure with. Kill it in the middle of a report, start it again, and the report
goes on.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from .mcp import Tasks
from .runtime import RuntimeConfig, Task

PAGES = 12
SECONDS_A_PAGE = 5.0
IMPATIENT = RuntimeConfig(heartbeat=1.0, clock_skew=0.5, drain=1.0, cancel_grace=1.0)
"""A killed server is missed after about five seconds, and Ctrl-C does not wait for a report to be written."""

NAME_FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def make_server(url: str, seconds_a_page: float = SECONDS_A_PAGE) -> MCPServer[object]:
    """A report that takes a minute, a tool that asks, and one that fails."""
    tasks = Tasks(url, runtime=IMPATIENT)
    server: MCPServer[object] = MCPServer("perdure-demo", log_level="WARNING", **tasks.attach())

    @server.tool()
    @tasks.durable(retries=5, backoff=0.1)
    async def build_report(year: int, task: Task) -> str:
        """Write a report of twelve pages. It takes a minute, and survives a restart of the server."""
        for page in range(task.variables.get_int("page", 0) + 1, PAGES + 1):
            await task.report(f"writing page {page} of {PAGES}, attempt {task.attempt}", page - 1, PAGES)
            await anyio.sleep(seconds_a_page)
            await task.set_variables({"page": page})
        return f"the report of {year}: {PAGES} pages, written in {task.attempt} attempt(s)"

    @server.tool()
    @tasks.durable(retries=5)
    async def sign_report(year: int, task: Task) -> str:
        """Ask whose name goes on a report, and put it there."""
        answer = await task.elicit(f"Whose name goes on the report of {year}?", NAME_FORM)
        if answer.action != "accept":
            return f"the report of {year} stays unsigned"
        return f"the report of {year}, signed by {answer.values['name']}"

    @server.tool()
    @tasks.durable()
    async def print_report(year: int) -> str:
        """Print a report. There is no paper, so this fails."""
        raise ToolError(f"the report of {year} cannot be printed: the printer is out of paper")

    return server


def free_port(first: int = 8000, last: int = 8099) -> int:
    """The first port that nobody has taken: the same one again when the server is started again."""
    for port in range(first, last + 1):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise SystemExit(f"the ports {first} to {last} are all taken")


GREETING = """\
perdure demo server
    endpoint   {endpoint}   (streamable HTTP; 2026-07-28 and 2025-11-25)
    storage    {file}   (tasks survive in it)
    tools      build_report(year)  takes a minute and reports its progress
               sign_report(year)   asks for a name
               print_report(year)  fails

Connect any MCP client to the endpoint; or, in another terminal:
    {python} examples/resuming_client.py {endpoint}
Kill this server with `kill -9 {pid}` while a report is being written, start it again, and the report goes on.
Ctrl-C stops it.
"""


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    file = Path(sys.argv[1] if sys.argv[1:] else "demo.db").resolve()
    port = free_port()
    greeting = GREETING.format(
        endpoint=f"http://127.0.0.1:{port}/mcp",
        file=file,
        python=os.path.relpath(sys.executable),
        pid=os.getpid(),
    )
    sys.stdout.write(greeting)
    sys.stdout.flush()
    with suppress(KeyboardInterrupt):
        make_server(f"sqlite:///{file}").run("streamable-http", port=port)


if __name__ == "__main__":
    main()
