"""The server that the public suites judge: `python -m tests.mcp.conformance_server PORT [URL]`.

Its tools are those that the suites of the tasks extension ask for, and the plain ones of the core suites.
"""

from __future__ import annotations

import sys
from typing import Annotated

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Elicit, Resolve
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from perdure import Task, Tasks
from perdure.runtime import RuntimeConfig
from perdure.tasks import InputKind, InputRequest

from .conformance.core_fixtures import add_core_fixtures


class Person(BaseModel):
    name: str


def who() -> Elicit[Person]:
    return Elicit("Who is asking?", Person)


def confirmation(question: str) -> InputRequest:
    schema = {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}
    return InputRequest(
        kind=InputKind.ELICITATION, params={"mode": "form", "message": question, "requestedSchema": schema}
    )


NO_DRAIN = RuntimeConfig(drain_timeout=0.0, cancel_grace=1.0)
"""Most tests leave tasks behind that wait."""


def make_server(url: str, runtime: RuntimeConfig = NO_DRAIN) -> tuple[MCPServer[object], Tasks]:
    tasks = Tasks(url, runtime=runtime)
    server: MCPServer[object] = MCPServer("perdure-fixture", version="1.0", **tasks.attach())
    add_task_fixtures(server, tasks)
    return server, tasks


def add_task_fixtures(server: MCPServer[object], tasks: Tasks) -> None:
    @server.tool()
    def greet(name: str) -> str:
        """Greets; never a task."""
        return f"Hello, {name}!"

    @server.tool()
    @tasks.durable()
    async def slow_compute(seconds: float, task: Task, label: str = "") -> str:
        """Takes its time."""
        await task.report_progress(0, seconds, f"computing {label}".strip())
        await anyio.sleep(seconds)
        return f"computed {label} in {seconds} seconds"

    @server.tool()
    @tasks.durable(mode="required")
    async def failing_job() -> str:
        """Takes a second, and does not work out."""
        await anyio.sleep(1)
        raise ValueError("the job does not work out")

    @server.tool()
    @tasks.durable()
    async def protocol_error_job() -> str:
        """Ends with a JSON-RPC error."""
        await anyio.sleep(0.1)
        raise MCPError(-32603, "the job broke the protocol", {"why": "on purpose"})

    @server.tool()
    @tasks.durable()
    async def confirm_delete(filename: str, task: Task) -> str:
        """Asks before it deletes."""
        asked = await task.ask({"confirm": confirmation(f"Delete {filename}?")})
        answer = asked["confirm"].answer
        confirmed = answer is not None and getattr(answer, "values", {}).get("confirm") is True
        return f"deleted {filename}" if confirmed else f"kept {filename}"

    @server.tool()
    @tasks.durable()
    async def multi_input(task: Task) -> str:
        """Asks two things at once."""
        asked = await task.ask({"first": confirmation("First?"), "second": confirmation("Second?")})
        return ", ".join(f"{key}: {getattr(each.answer, 'action', None)}" for key, each in asked.items())

    @server.tool()
    @tasks.durable()
    async def test_tool_with_task(person: Annotated[Person, Resolve(who)]) -> str:
        """Asks who it is for before there is a task."""
        await anyio.sleep(0.2)
        return f"done for {person.name}"


def main() -> None:
    port, url = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "memory:"
    server, _ = make_server(url)
    add_core_fixtures(server)
    server.run("streamable-http", port=port)


if __name__ == "__main__":
    main()
