"""The server that has the sample tools."""

from __future__ import annotations

from mcp.server import MCPServer

from ..mcp import Tasks
from ..runtime import RuntimeConfig
from .feeds import add_feeds
from .reading import Reader
from .reports import add_reports

IMPATIENT = RuntimeConfig(heartbeat=1.0, drain=1.0, cancel_grace=1.0)
"""A killed server is missed within eight seconds, and Ctrl-C does not wait for reports to be written."""


def make_server(tasks: Tasks, reader: Reader) -> MCPServer[object]:
    """Reports and feeds: the feeds are read by this reader, and stand in the storage of the tasks."""
    server: MCPServer[object] = MCPServer("perdure-samples", log_level="WARNING", **tasks.attach())
    add_reports(server, tasks)
    add_feeds(server, tasks, reader)
    return server
