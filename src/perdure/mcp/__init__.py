"""Both task protocols of MCP, server and client.

Read `server` (what the author of a server writes), `admission` (how a call becomes a task), `adapters` and
`context` (how a task runs its tool), `handlers`, `task_stream` and `subscription` (how clients follow it),
and `wire` (what each protocol writes).
"""

from .identity import AnonymousPolicy, Identify
from .server import ServerArguments, Tasks
from .tool import TaskMode, ToolOptions

__all__ = ["AnonymousPolicy", "Identify", "ServerArguments", "TaskMode", "Tasks", "ToolOptions"]
