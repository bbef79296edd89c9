"""Count the files of `perdure.mcp` that one durable call and its poll enter: `python -m tools.walk`.

A client of 2026-07-28 calls a durable tool over HTTP, and polls until the task has ended. The files are those
in which a function was called meanwhile, in the server's process. Fails if there are more than `MAX_FILES`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from mcp.server import MCPServer

import perdure.mcp
from perdure import Tasks
from tests.mcp.raw_clients import Client2026, serving

MAX_FILES = 8
FOLDER = Path(perdure.mcp.__file__).parent


async def walk() -> set[str]:
    tasks = Tasks("memory:")
    server: MCPServer[Any] = MCPServer("walk", log_level="ERROR", **tasks.attach())

    @server.tool()
    @tasks.durable
    async def double(number: int) -> int:
        return 2 * number

    entered: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and FOLDER in path.parents:
            entered.add(path.relative_to(FOLDER).as_posix())

    async with serving(server.streamable_http_app()) as url, Client2026(url) as client:
        await client.until(await client.start("double", {"number": 1}), "completed")  # imports and caches
        sys.setprofile(note)
        try:
            await client.until(await client.start("double", {"number": 2}), "completed")
        finally:
            sys.setprofile(None)
    return entered


def main() -> None:
    entered = asyncio.run(walk())
    print(f"{len(entered)} files of mcp/: {', '.join(sorted(entered))}")
    if len(entered) > MAX_FILES:
        sys.exit(f"more than {MAX_FILES}")


if __name__ == "__main__":
    main()
