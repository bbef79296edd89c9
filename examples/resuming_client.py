"""A client that may be stopped at any time: it keeps the handle of its task in a file, and resumes it.

    python examples/resuming_client.py [ENDPOINT [SECONDS]]

The endpoint is that of `perdure serve` if none is given, and the report takes a minute if not told otherwise.
Stop the client while the report is written, start it again, and it goes on waiting for the same report.
"""

import sys
from pathlib import Path

import anyio
import httpx2
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, TextContent

from perdure.mcp.client import ClientTask, ClientTasks, TaskState

SAVED_TASK_FILE = Path("report.handle")


async def main(endpoint: str, seconds: float) -> None:
    tasks = ClientTasks(push=True)
    async with Client(endpoint, extensions=[tasks]) as client:
        if SAVED_TASK_FILE.exists():
            print(f"resuming the task in {SAVED_TASK_FILE}")
            handle = tasks.resume(client, SAVED_TASK_FILE.read_text())
        else:
            handle = await start(tasks, client, seconds)
        result = await handle.wait(on_state=PrintStatus())
        SAVED_TASK_FILE.unlink()
        print(text_of(result))


async def start(tasks: ClientTasks, client: Client, seconds: float) -> ClientTask:
    handle = await tasks.start(client, "build_report", {"year": 2026, "seconds": seconds})
    if isinstance(handle, CallToolResult):
        raise SystemExit(text_of(handle))
    SAVED_TASK_FILE.write_text(handle.save())
    print(f"the task is kept in {SAVED_TASK_FILE}; stop me with Ctrl-C and start me again")
    return handle


class PrintStatus:
    """Prints what the task says, when it says something new."""

    said = ""

    def __call__(self, state: TaskState) -> None:
        saying = state.status_message or state.status
        if saying != self.said:
            print(f"    {saying}")
        self.said = saying


def text_of(result: CallToolResult) -> str:
    return " ".join(block.text for block in result.content if isinstance(block, TextContent))


if __name__ == "__main__":
    endpoint = sys.argv[1] if sys.argv[1:] else "http://127.0.0.1:8000/mcp"
    try:
        anyio.run(main, endpoint, float(sys.argv[2]) if sys.argv[2:] else 60.0)
    except* KeyboardInterrupt:
        print("stopped; the task goes on")
    except* (httpx2.TransportError, MCPError) as gone:
        print(f"the server cannot be reached ({gone.exceptions[0]}); start me again when it is back")
