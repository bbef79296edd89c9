"""MCP on the wire: both task protocols, server and client.

Read `server` (what a server's author writes), `durable` and `calls` (how a call becomes a task), `methods`
and `watching` (how clients follow it), `shapes` (how each protocol spells it).
"""

from .callers import Anonymous, Identify
from .durable import Mode
from .server import Tasks

__all__ = ["Anonymous", "Identify", "Mode", "Tasks"]
