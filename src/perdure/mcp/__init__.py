"""Implements both task protocols of MCP, for servers and clients.

Read `server` (what the author of a server writes), `admission` (how a call becomes a task), `adapters` and
`context` (how a task runs its tool), `handlers`, `streams` and `task_stream` (how clients follow a task),
`hand_over` (clients that do not support tasks), and `wire` (the messages of each protocol).
"""

from .identity import AnonymousPolicy, Identify
from .server import ServerArguments, Tasks, TasksOptions
from .tool import TaskMode, ToolOptions

__all__ = [
    "AnonymousPolicy",
    "Identify",
    "ServerArguments",
    "TaskMode",
    "Tasks",
    "TasksOptions",
    "ToolOptions",
]
