"""Calls a tool with a client that knows no tasks, and then does what each answer says, as a model would.

`python -m tests.mcp.without_tasks.late_client FRAMEWORK MODE TIMEOUT URL SECONDS` prints, as JSON, the tools
that the client sees and the answers that it gets. It is a process of its own because FastMCP's client
declares tasks as soon as `fastmcp_tasks` or `perdure.fastmcp` is imported.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from fastmcp import Client as FastMCPClient
from mcp.client import Client

NEXT_CALL = re.compile(r"To get the result, call the tool '(\w+)' with (\{.*?\})")

Call = Callable[[str, dict[str, Any]], Awaitable[Any]]


def next_call(text: str) -> tuple[str, dict[str, Any]] | None:
    """The call that a text tells the model to make."""
    found = NEXT_CALL.search(text)
    return None if found is None else (found[1], json.loads(found[2]))


async def follow(call: Call, seconds: float) -> list[dict[str, Any]]:
    """Call the tool, and whatever the answers say, and return the answers."""
    answers: list[dict[str, Any]] = []
    following: tuple[str, dict[str, Any]] | None = ("build_report", {"seconds": seconds})
    while following is not None:
        result = await call(*following)
        text = "".join(block.text for block in result.content)
        answers.append({"tool": following[0], "text": text, "structured": result.structured_content})
        following = next_call(text)
    return answers


async def official(mode: str, read_timeout: float, url: str, seconds: float) -> dict[str, Any]:
    chosen: Any = mode
    async with Client(url, mode=chosen, read_timeout_seconds=read_timeout) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        return {"tools": tools, "answers": await follow(client.call_tool, seconds)}


async def fastmcp(mode: str, read_timeout: float, url: str, seconds: float) -> dict[str, Any]:
    chosen: Any = mode
    async with FastMCPClient(url, mode=chosen, timeout=read_timeout) as client:
        tools = [tool.name for tool in await client.list_tools()]
        return {"tools": tools, "answers": await follow(client.call_tool, seconds)}


async def main(framework: str, mode: str, read_timeout: str, url: str, seconds: str) -> None:
    assert not {"fastmcp_tasks", "perdure.fastmcp"} & sys.modules.keys()
    run = official if framework == "official" else fastmcp
    print(json.dumps(await run(mode, float(read_timeout), url, float(seconds))))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
