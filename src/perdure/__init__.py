"""Long-running work of MCP servers that survives restarts, on the database you already run."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .mcp import Tasks as Tasks
    from .runtime import Task as Task

__all__ = ["Task", "Tasks"]

_HOMES = {"Task": ".runtime", "Tasks": ".mcp"}


def __getattr__(name: str) -> object:
    """Import what is asked for when it is asked for: a worker or a storage needs no server."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
