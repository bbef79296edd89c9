"""Count the Python calls of an empty durable call and its poll, over HTTP on SQLite: `python -m tools.calls`.

A client of 2026-07-28 calls a tool that does nothing, and polls once its task has ended. The server is in the
same process and has no socket; all its threads are counted. Fails if there are more than `MAX_CALLS`.
`--functions` lists the functions that were called most.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from mcp.server import MCPServer
from starlette.types import ASGIApp, Message, Scope

from perdure import Tasks

MAX_CALLS = 1905
"""A tenth less than the first edition needed."""
ROUNDS = 7
"""How often it is counted. The smallest number is the result: a heartbeat may fall into some rounds."""
WARM_UP_ROUNDS = 2
"""Rounds before, in which caches are filled."""
RUN_SECONDS = 0.03
"""How long after the answer to the call the poll is sent. If the task has not ended by then, the round is not
counted, and the next one takes twice as long."""
VERSION = "2026-07-28"
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "calls", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
}


async def nothing() -> str:
    """The work."""
    return "ok"


async def post(app: ASGIApp, method: str, name: str, params: dict[str, Any]) -> dict[str, Any]:
    """Send a request to the application and return its result."""
    sent = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
    body, parts = json.dumps(sent).encode(), list[bytes]()
    headers = {
        "host": "127.0.0.1:80",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": VERSION,
        "mcp-method": method,
        "mcp-name": name,
        "content-length": str(len(body)),
    }
    scope: Scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/mcp",
        "query_string": b"",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
    }
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else await asyncio.Future()

    async def send(message: Message) -> None:
        parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return json.loads(b"".join(parts))["result"]


Parts = dict[str, Counter[CodeType]]
"""The calls of each function, by the part of the exchange."""


def total_of(parts: Parts) -> int:
    return sum(part.total() for part in parts.values())


async def measure(folder: Path) -> Parts:
    """Return the round with the fewest calls."""
    tasks = Tasks(f"sqlite:///{folder / 'tasks.db'}")
    server: MCPServer[Any] = MCPServer("calls", log_level="ERROR", **tasks.attach())
    server.add_tool(tasks.durable(nothing))
    app = server.streamable_http_app(json_response=True, stateless_http=True)
    counted: list[Parts] = []
    counter: Counter[CodeType] = Counter()
    seconds = RUN_SECONDS

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            counter[frame.f_code] += 1

    threading.setprofile(note)  # before the storage starts its threads
    try:
        async with server.session_manager.run():
            while len(counted) < WARM_UP_ROUNDS + ROUNDS:
                parts = {"call": Counter[CodeType](), "run": Counter[CodeType](), "poll": Counter[CodeType]()}
                await asyncio.sleep(0.1)
                sys.setprofile(note)
                counter = parts["call"]
                task_id = (await post(app, "tools/call", "nothing", {"name": "nothing"}))["taskId"]
                counter = parts["run"]
                await asyncio.sleep(seconds)
                counter = parts["poll"]
                task = await post(app, "tasks/get", task_id, {"taskId": task_id})
                sys.setprofile(None)
                counter = Counter()
                if task["status"] == "completed":
                    counted.append(parts)
                    seconds = RUN_SECONDS
                else:
                    seconds *= 2
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # pyright: ignore[reportArgumentType]
    return min(counted[WARM_UP_ROUNDS:], key=total_of)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        parts = asyncio.run(measure(Path(folder)))
    total = total_of(parts)
    print(f"{total} calls: " + ", ".join(f"{name} {part.total()}" for name, part in parts.items()))
    if "--functions" in sys.argv:
        for name, part in parts.items():
            print(f"\n{name}")
            for code, count in part.most_common():
                print(f"{count:5} {code.co_qualname}  {'/'.join(Path(code.co_filename).parts[-3:])}")
    if total > MAX_CALLS:
        sys.exit(f"more than {MAX_CALLS}")


if __name__ == "__main__":
    main()
