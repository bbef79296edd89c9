"""What all servers have in common: two tools, and how much they may do at once.

They also answer with JSON instead of a stream, keep no sessions, and write no log.
"""

from __future__ import annotations

import asyncio

PATH = "/mcp"
SLOTS = 128
"""Tasks that a server runs at once: more than the driver has in flight, so that none waits for a slot."""


async def nothing() -> str:
    """The work."""
    return "ok"


async def a_second() -> str:
    """Work that takes as long as its name says."""
    await asyncio.sleep(1)
    return "ok"


TOOLS = (nothing, a_second)
