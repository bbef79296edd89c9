"""A client that can be stopped at any time: it saves its task in a file, and resumes it.

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

SAVED = Path("report.task")


async def main(endpoint: str, seconds: float) -> None:
    tasks = ClientTasks(push=True)
    async with Client(endpoint, extensions=[tasks]) as client:
        if SAVED.exists():
            print(f"resuming the task in {SAVED}")
            task = tasks.resume(client, SAVED.read_text())
        else:
            task = await start(tasks, client, seconds)
        result = await task.wait(on_state=Show())
        SAVED.unlink()
        print(text_of(result))


async def start(tasks: ClientTasks, client: Client, seconds: float) -> ClientTask:
    task = await tasks.start(client, "build_report", {"year": 2026, "seconds": seconds})
    if isinstance(task, CallToolResult):
        raise SystemExit(text_of(task))
    SAVED.write_text(task.save())
    print(f"the task is saved in {SAVED}; stop me with Ctrl-C and start me again")
    return task


class Show:
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
