"""A tool is durable, or the server does not start: the official SDK."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import pytest
from mcp.client import Client
from mcp.server import MCPServer
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequestParams, CallToolResult, TextContent

from perdure import Task, Tasks
from perdure.tasks.errors import InvalidValue

from ...fork_server import DEVNULL, PIPE, STDOUT, spawn
from ..raw_clients import Client2026, serving
from ..tool_helpers import FAST_CONFIG
from .servers import Request, called, low_level, make

pytestmark = pytest.mark.anyio


async def double(number: int) -> int:
    return 2 * number


async def half(number: int) -> float:
    return number / 2


async def with_task(number: int, task: Task) -> int:
    return number * task.attempt


async def refused(server: MCPServer[Any]) -> str:
    """Return the error with which a server does not start."""
    app = server.streamable_http_app()
    with pytest.raises(InvalidValue) as raised:
        async with app.router.lifespan_context(app):
            pass
    return str(raised.value)


@pytest.fixture
def tasks(url: str) -> Tasks:
    return Tasks(url, runtime=FAST_CONFIG)


@pytest.fixture
def server(tasks: Tasks) -> MCPServer[Any]:
    return MCPServer("host", log_level="ERROR", **tasks.attach())


async def test_a_function_that_is_made_durable_after_its_tool_was_registered_is_an_error_at_start(
    server: MCPServer[Any], tasks: Tasks
) -> None:
    tasks.durable(server.tool(name="twofold")(double))
    assert await refused(server) == (
        "tool: 'twofold' is not durable: it was registered before its function was made durable; write "
        "@tasks.durable below @server.tool(), directly above the function"
    )


async def test_a_durable_function_that_is_not_a_tool_is_an_error_at_start(
    server: MCPServer[Any], tasks: Tasks
) -> None:
    server.tool(name="plain")(half)
    tasks.durable(double)
    assert await refused(server) == (
        "function: 'double' is durable but is not a tool of this server; write @server.tool() directly above "
        "@tasks.durable"
    )


async def test_a_tool_that_is_durable_with_another_tasks_is_an_error_at_start(
    server: MCPServer[Any],
) -> None:
    server.tool()(Tasks("memory:").durable(double))
    assert "'double' was made durable with a different Tasks object" in await refused(server)


async def test_a_server_that_does_not_start_opens_no_storage(
    server: MCPServer[Any], tasks: Tasks, tmp_path: Path
) -> None:
    tasks.durable(double)
    await refused(server)
    assert not (tmp_path / "tasks.db").exists()


async def test_a_server_that_did_not_start_starts_when_its_tool_is_registered(
    server: MCPServer[Any], tasks: Tasks
) -> None:
    durable = tasks.durable(double)
    await refused(server)
    server.add_tool(durable)
    async with Client(server) as client:
        assert await called(client) == 42


async def test_a_function_that_becomes_durable_while_the_server_runs_stops_no_client(url: str) -> None:
    server, tasks = make(url)
    async with Client(server) as client:
        late = tasks.durable(name="late")(double)
        async with Client(server) as other:
            assert await called(other) == 42
        server.add_tool(late, name="late")
        assert await called(client, "late", number=2) == 4


async def test_a_low_level_server_starts_whatever_its_handler_calls(url: str) -> None:
    tasks = Tasks(url, runtime=FAST_CONFIG)
    low = low_level(tasks)
    tasks.durable(name="uncalled")(double)
    async with serving(low.streamable_http_app()) as endpoint, Client2026(endpoint) as modern:
        await modern.until(await modern.start("double", {"number": 1}), "completed")


async def test_a_low_level_server_without_tasks_fails_with_the_advice_for_it(tasks: Tasks) -> None:
    durable = tasks.durable(double)

    async def call_tool(_: Request, params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[TextContent(text=str(await durable(**(params.arguments or {}))))])

    server: Server[Any] = Server("low", on_call_tool=call_tool)
    async with Client(server) as client:
        with pytest.raises(MCPError, match=r"with a low-level Server, call tasks\.install\(server\)"):
            await client.call_tool("double", {"number": 1})


async def test_the_method_of_an_object_is_found_when_it_was_registered_too_early(
    server: MCPServer[Any], tasks: Tasks
) -> None:
    class ToolDashboard:
        async def write(self) -> None: ...

    desk = ToolDashboard()
    server.add_tool(desk.write)
    tasks.durable(desk.write)
    assert "'write' is not durable: it was registered before" in await refused(server)


def test_a_tool_that_takes_a_task_and_is_not_durable_is_an_error_when_it_is_registered(
    server: MCPServer[Any],
) -> None:
    with pytest.raises(InvalidValue, match="has a Task parameter, but is not durable; write"):
        server.tool()(with_task)


NOT_A_TOOL = """
from mcp.server import MCPServer
from perdure import Tasks

tasks = Tasks("sqlite:///own.db")
server = MCPServer("kitchen", **tasks.attach())


@tasks.durable
async def brew() -> str:
    return "coffee"


server.run("stdio")
"""


async def test_over_stdio_the_process_ends_with_the_error(tmp_path: Path, anyio_backend: str) -> None:
    (tmp_path / "own.py").write_text(NOT_A_TOOL)
    program = await spawn("own.py", cwd=tmp_path, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT)
    said = (await program.communicate())[0].decode()
    assert program.returncode != 0
    assert "InvalidValue: function: 'brew' is durable but is not a tool of this server" in said
    assert not (tmp_path / "own.db").exists()


# Without parentheses


@pytest.mark.parametrize("how", ["without parentheses", "with parentheses"])
async def test_the_decorator_is_written_with_parentheses_or_without(
    server: MCPServer[Any], tasks: Tasks, how: str
) -> None:
    decorate: Callable[[Any], Any] = tasks.durable if how == "without parentheses" else tasks.durable()
    server.tool()(decorate(with_task))
    async with serving(server.streamable_http_app()) as endpoint, Client2026(endpoint) as modern:
        done = await modern.until(await modern.start("with_task", {"number": 21}), "completed")
    assert done["result"]["structuredContent"] == {"result": 21}


def test_a_decorated_function_keeps_its_type(tasks: Tasks) -> None:
    bare: Same = tasks.durable(half)
    with_options: Same = tasks.durable(name="other", retries=1)(half)
    assert bare is not with_options
    # pyright reports an ignored error that does not exist, so neither form returns Any
    bare_as_another: Another = Tasks("memory:").durable(half)  # pyright: ignore[reportAssignmentType]
    another: Another = tasks.durable(name="third")(half)  # pyright: ignore[reportAssignmentType]
    assert bare_as_another is not another


class Same(Protocol):
    """The type of `half`, which pyright compares."""

    def __call__(self, number: int) -> Coroutine[Any, Any, float]: ...


class Another(Protocol):
    """A type that `half` does not have."""

    def __call__(self, number: str) -> Coroutine[Any, Any, float]: ...


@pytest.mark.parametrize("thing", ["report", 3, object()])
def test_what_is_not_a_function_cannot_be_durable(tasks: Tasks, thing: Any) -> None:
    with pytest.raises(InvalidValue, match=f"must be a function, not a {type(thing).__name__}; write"):
        tasks.durable(thing)


async def test_a_handler_of_calls_that_would_replace_ours_is_an_error_at_start(tasks: Tasks) -> None:
    async def call_tool(_: Request, __: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[TextContent(text="not durable")])

    server = low_level(tasks)
    tasks.install(server)
    server.add_request_handler("tools/call", CallToolRequestParams, call_tool)
    with pytest.raises(InvalidValue, match=r"'tools/call' was added after tasks.install\(server\)"):
        async with server.lifespan(server):
            pass
