"""Durable tasks for MCP servers: long-running tool calls that survive restarts, stored in your database."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .mcp import Tasks as Tasks
    from .runtime import Task as Task

__all__ = ["Task", "Tasks"]

_HOMES = {"Task": ".runtime", "Tasks": ".mcp"}


def __getattr__(name: str) -> object:
    """Import `Task` or `Tasks` on first use. `import perdure.storage` then does not load the MCP SDK."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
