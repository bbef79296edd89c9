"""Creates the tasks of `perdure samples`, by calling tools of the sample server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, cast

import anyio
import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from ..mcp.client import ClientTask, ClientTasks
from ..mcp.errors import ClientTaskError, TaskWasCancelled
from .errors import CommandError
from .output import one_line, print_result

LONG_SECONDS = 600
"""Number of seconds that some sample tasks take, or wait before their next attempt. It is high, because these
tasks should not finish: they show the states running, queued, cancelled and waiting to retry.
"""
MAX_WAIT_SECONDS = 30
"""Maximum number of seconds to wait for each HTTP response, and until all tasks with an expected final state
have finished.
"""


class SampleTask(NamedTuple):
    """A tool call that creates a task, and the state in which the dashboard then shows the task."""

    tool: str
    arguments: dict[str, object]
    state: str

    def __str__(self) -> str:
        """Return the call as Python code, such as `build_report(2024, seconds=2)`."""
        year, *others = self.arguments.items()
        return f"{self.tool}({', '.join([str(year[1]), *(f'{name}={value}' for name, value in others)])})"


SAMPLE_TASKS = (
    SampleTask("build_report", {"year": 2024, "seconds": 2}, "completed"),
    SampleTask("print_report", {"year": 2024}, "failed"),
    SampleTask("build_report", {"year": 2023, "seconds": LONG_SECONDS}, "cancelled"),
    SampleTask("mail_report", {"year": 2024, "delay": LONG_SECONDS}, "waiting to retry"),
    SampleTask("approve_report", {"year": 2025}, "input required"),
    SampleTask("build_report", {"year": 2026, "seconds": LONG_SECONDS}, "running"),
    SampleTask("archive_report", {"year": 2023, "seconds": LONG_SECONDS}, "running"),
    SampleTask("archive_report", {"year": 2024, "seconds": LONG_SECONDS}, "queued"),
)


async def call_tools(address: str, token: str | None) -> None:
    """Create the sample tasks, and print the expected state of each one.

    If the expected state is completed, failed or cancelled, first wait until the task has finished.
    """
    async with _connect(address, token) as (client, tasks):
        names = {tool.name for tool in (await client.list_tools()).tools}
        if not names.issuperset(sample.tool for sample in SAMPLE_TASKS):
            raise CommandError(
                f"{address} is not the sample server; "
                "to start the sample server, run `perdure serve` without MODULE:SERVER"
            )
        started = [
            (sample, await tasks.start(client, sample.tool, sample.arguments)) for sample in SAMPLE_TASKS
        ]
        with anyio.move_on_after(MAX_WAIT_SECONDS) as waiting:
            for sample, task in started:
                await _reach_state(sample, task)
                print_result(f"{sample}: {sample.state}")
        if waiting.cancelled_caught:
            raise CommandError(
                "the tasks were created, but not all of them reached the expected state within "
                f"{MAX_WAIT_SECONDS} seconds; "
                "start the server without --no-work, or check its log"
            )


async def _reach_state(sample: SampleTask, task: ClientTask) -> None:
    """Cancel the task if its expected state, `sample.state`, is `cancelled`.

    If the expected state is completed, failed or cancelled, wait until the task has finished.
    """
    if sample.state == "cancelled":
        await task.cancel()
    if sample.state in ("completed", "failed", "cancelled"):
        with suppress(TaskWasCancelled):
            await task.wait()


@asynccontextmanager
async def _connect(address: str, token: str | None) -> AsyncGenerator[tuple[Client, ClientTasks]]:
    """Connect to a server. Raise CommandError with advice if it cannot be reached or rejects a request."""
    refused: list[int] = []

    async def note_status(response: httpx2.Response) -> None:
        if response.is_error:
            refused.append(response.status_code)

    tasks = ClientTasks()
    http = httpx2.AsyncClient(
        headers={"Authorization": f"Bearer {token}"} if token else {},
        timeout=MAX_WAIT_SECONDS,
        event_hooks={"response": [note_status]},
    )
    try:
        async with (
            http,
            Client(streamable_http_client(address, http_client=http), extensions=[tasks]) as client,
        ):
            yield client, tasks
    except Exception as error:
        raise _explain(address, error, refused) from error


def _explain(address: str, error: Exception, refused: list[int]) -> Exception:
    """Return the exception to raise instead of `error`, which may be a group of connection errors.

    `refused` contains the HTTP status codes of the failed responses.
    """
    causes = list(_causes(error))
    other = [
        each for each in causes if not isinstance(each, httpx2.TransportError | MCPError | ClientTaskError)
    ]
    if other:
        return other[0]
    if 401 in refused:
        advice = "set --token or PERDURE_TOKEN to the token of the server"
        return CommandError(f"{address} requires a token; {advice}")
    if refused or isinstance(causes[0], MCPError):
        reason = f"HTTP status {refused[-1]}" if refused else one_line(str(causes[0]))
        advice = "use the MCP address that `perdure serve` prints"
        return CommandError(f"{address} did not answer as an MCP server ({reason}); {advice}")
    advice = "start the sample server with `perdure serve`, and use the MCP address that it prints"
    return CommandError(f"cannot connect to {address}; {advice}")


def _causes(error: Exception) -> Iterator[Exception]:
    """Yield `error`, or the exceptions that it contains if it is an exception group."""
    if isinstance(error, ExceptionGroup):
        for each in cast("ExceptionGroup[Any]", error).exceptions:
            yield from _causes(each)
    else:
        yield error
