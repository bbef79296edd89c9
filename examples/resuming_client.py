"""A client that can be stopped at any time: it saves its task in a file, and resumes it.

    python examples/resuming_client.py [ENDPOINT [SECONDS]]

The default endpoint is that of `perdure serve`, and the report takes a minute by default. Stop the client
while the report is written, start it again, and it waits for the same report. If the server is stopped and
started again in the meantime, the client keeps waiting.
"""

import sys
from pathlib import Path

import anyio
import httpx2
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, TextContent

from perdure.mcp.client import ClientTask, ClientTasks, TaskState
from perdure.mcp.errors import ConnectionLost

SAVED_TASK_FILE = Path("report.task")


async def main(endpoint: str, seconds: float) -> None:
    tasks = ClientTasks(push=True)
    async with Client(endpoint, extensions=[tasks]) as client:
        if SAVED_TASK_FILE.exists():
            print(f"Resuming the task in {SAVED_TASK_FILE}.")
            task = tasks.resume(client, SAVED_TASK_FILE.read_text())
        else:
            task = await start(tasks, client, seconds)
        result = await task.wait(on_state=PrintStatus())
        SAVED_TASK_FILE.unlink()
        print(text_of(result))


async def start(tasks: ClientTasks, client: Client, seconds: float) -> ClientTask:
    task = await tasks.start(client, "build_report", {"year": 2026, "seconds": seconds})
    SAVED_TASK_FILE.write_text(task.save())
    print(f"Task saved in {SAVED_TASK_FILE}. Stop with Ctrl+C and run again to resume.")
    return task


class PrintStatus:
    """Prints the status of the task when it changes."""

    last = ""

    def __call__(self, state: TaskState) -> None:
        status = state.status_message or state.status
        if status != self.last:
            print(f"    {status}")
        self.last = status


def text_of(result: CallToolResult) -> str:
    return " ".join(block.text for block in result.content if isinstance(block, TextContent))


if __name__ == "__main__":
    endpoint = sys.argv[1] if sys.argv[1:] else "http://127.0.0.1:8000/mcp"
    try:
        anyio.run(main, endpoint, float(sys.argv[2]) if sys.argv[2:] else 60.0)
    except* KeyboardInterrupt:
        print("Stopped. The task keeps running.")
    except* (httpx2.TransportError, MCPError, ConnectionLost) as errors:
        print(f"Cannot reach the server ({errors.exceptions[0]}). Try again later.")
