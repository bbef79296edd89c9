"""Durable tasks for FastMCP servers: `mcp.add_extension(TasksExtension(url))`, then `@mcp.tool(task=True)`.

This package requires the `fastmcp` extra. After it is imported, every `fastmcp.Client` waits for the tasks
that its calls create, unless it loses its connection. To reconnect, use `perdure.ClientTasks`.
"""

from ..storage.install_advice import without_extra

try:
    from .extension import TasksExtension
    from .options import TaskOptions
except ModuleNotFoundError as error:
    raise without_extra("fastmcp", error) from error

__all__ = ["TaskOptions", "TasksExtension"]
