"""A tool is durable, or the server does not start: FastMCP."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias

import fastmcp
import pytest
from fastmcp import FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.providers import Provider
from fastmcp.server.providers.proxy import ProxyProvider
from fastmcp.server.transforms import ToolTransform
from fastmcp.server.transforms.search import RegexSearchTransform
from fastmcp.tools import Tool
from fastmcp.tools.tool_transform import ToolTransformConfig
from fastmcp.utilities.versions import VersionSpec

from perdure import Task, Tasks
from perdure.mcp.fastmcp import attach
from perdure.tasks.errors import InvalidValue

from ..raw_clients import Client2026, serving
from ..tool_helpers import FAST_CONFIG, text_of

pytestmark = pytest.mark.anyio


Nap: TypeAlias = Callable[[int], Coroutine[Any, Any, str]]


@pytest.fixture
def nap() -> Nap:
    """A function of its own for each test: FastMCP writes its options on it."""

    async def nap(number: int) -> str:
        return f"slept {number}"

    return nap


@pytest.fixture
def tasks(anyio_backend: str) -> Tasks:
    return Tasks("memory:", runtime=FAST_CONFIG)


@pytest.fixture
def server(tasks: Tasks) -> FastMCP[Any]:
    server: FastMCP[Any] = FastMCP("root")
    attach(tasks, server)
    return server


@pytest.fixture
def sub() -> FastMCP[Any]:
    return FastMCP("sub")


async def refused(server: FastMCP[Any]) -> str:
    """Return the error with which a server does not start."""
    app = server.http_app()
    with pytest.raises(InvalidValue) as raised:
        async with app.router.lifespan_context(app):
            pass
    return str(raised.value)


async def work(server: FastMCP[Any], *tools: str) -> None:
    """Start the server, and call these tools as tasks."""
    async with serving(server.http_app(path="/mcp")) as url, Client2026(url) as modern:
        for tool in tools:
            done = await modern.until(await modern.start(tool, {"number": 1}), "completed")
            assert text_of(done["result"]) == "slept 1"


# Durable functions


async def test_a_function_that_is_made_durable_after_its_tool_was_registered_is_an_error_at_start(
    server: FastMCP[Any], tasks: Tasks, nap: Nap
) -> None:
    tasks.durable(server.tool(nap))
    assert await refused(server) == (
        "tool: 'nap' is not durable: it was registered before its function was made durable; write "
        "@tasks.durable below @server.tool(), directly above the function"
    )


async def test_a_durable_function_that_is_not_a_tool_is_an_error_at_start(
    server: FastMCP[Any], tasks: Tasks, nap: Nap
) -> None:
    tasks.durable(nap)
    assert await refused(server) == (
        "function: 'nap' is durable but is not a tool of this server; write @server.tool() directly above "
        "@tasks.durable"
    )


async def test_a_tool_that_is_durable_with_another_tasks_is_an_error_at_start(
    server: FastMCP[Any], sub: FastMCP[Any], nap: Nap
) -> None:
    others = Tasks("memory:")
    attach(others, sub)
    sub.tool(others.durable(nap))
    server.mount(sub)
    assert "'nap' was made durable with another Tasks than the one" in await refused(server)


def test_a_registered_tool_cannot_be_made_durable(server: FastMCP[Any], tasks: Tasks, nap: Nap) -> None:
    registered: Any = server.add_tool(nap)
    with pytest.raises(InvalidValue, match="must be a function, not a FunctionTool; write"):
        tasks.durable(registered)


def test_a_tool_that_takes_a_task_and_is_not_durable_is_an_error_when_it_is_registered(
    server: FastMCP[Any],
) -> None:
    with pytest.raises(InvalidValue, match="takes a Task, but is not durable; write"):

        @server.tool
        async def nap(task: Task) -> None: ...  # pyright: ignore[reportUnusedFunction]


async def test_a_durable_tool_that_callers_may_not_see_is_still_a_tool(
    server: FastMCP[Any], tasks: Tasks, nap: Nap
) -> None:
    server.tool(tasks.durable(nap), auth=lambda _: False)
    server.tool(tasks.durable(name="off")(nap), name="off")
    server.disable(names={"off"})
    await work(server)


class OwnProvider(Provider):
    """A provider of the user's own, with one tool."""

    def __init__(self, tool: Tool) -> None:
        super().__init__()
        self._tool = tool

    async def _list_tools(self) -> Sequence[Tool]:
        return [self._tool]

    async def _get_tool(self, name: str, version: VersionSpec | None = None) -> Tool | None:
        return self._tool if name == self._tool.name else None


async def test_a_durable_tool_of_a_provider_of_ones_own_is_a_tool(
    server: FastMCP[Any], tasks: Tasks, nap: Nap
) -> None:
    server.add_provider(OwnProvider(Tool.from_function(tasks.durable(nap))))
    await work(server, "nap")


async def test_the_check_does_not_connect_to_servers_behind_a_proxy(
    server: FastMCP[Any], tasks: Tasks, nap: Nap
) -> None:
    connections: list[int] = []

    def connect() -> Any:
        connections.append(1)
        raise ConnectionError("not at the start")

    server.tool(tasks.durable(nap))
    server.add_provider(ProxyProvider(connect))
    app = server.http_app()
    async with app.router.lifespan_context(app):
        assert connections == []


async def test_a_catalog_hides_no_durable_tool_from_the_check(
    server: FastMCP[Any], tasks: Tasks, nap: Nap
) -> None:
    server.tool(tasks.durable(nap))
    server.add_transform(RegexSearchTransform())
    await work(server, "nap")


async def test_a_tool_that_is_transformed_from_a_durable_one_is_an_error_at_start(
    server: FastMCP[Any], tasks: Tasks, nap: Nap
) -> None:
    server.tool(tasks.durable(nap))
    server.add_transform(ToolTransform({"nap": ToolTransformConfig(name="siesta")}))
    assert "'siesta' is transformed from a durable tool and would not be durable" in await refused(server)


# Mounted servers


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "nap"),
        ({"namespace": "sub"}, "sub_nap"),
        ({"tool_names": {"nap": "siesta"}}, "siesta"),
        ({"namespace": "sub", "tool_names": {"nap": "siesta"}}, "sub_siesta"),
    ],
)
async def test_a_durable_tool_of_a_mounted_server_is_an_error_at_start_and_the_advice_works(
    server: FastMCP[Any], sub: FastMCP[Any], tasks: Tasks, options: dict[str, Any], name: str, nap: Nap
) -> None:
    durable = sub.tool(tasks.durable(nap))
    server.mount(sub, **options)
    assert await refused(server) == (
        f"tool: '{name}' is a tool of a mounted server and would not be durable; register its function on "
        f"the server that you run: server.tool(nap, name='{name}')"
    )
    server.tool(durable, name=name)
    await work(server, name)


async def test_the_tool_of_a_mounted_server_can_be_added_as_it_is(
    server: FastMCP[Any], sub: FastMCP[Any], tasks: Tasks, nap: Nap
) -> None:
    sub.tool(tasks.durable(nap))
    server.mount(sub)
    mounted = await sub.get_tool("nap")
    assert mounted is not None
    server.add_tool(mounted)
    await work(server, "nap")


async def test_a_durable_tool_of_a_server_within_a_mounted_one_is_an_error_at_start(
    server: FastMCP[Any], sub: FastMCP[Any], tasks: Tasks, nap: Nap
) -> None:
    innermost: FastMCP[Any] = FastMCP("innermost")
    innermost.tool(tasks.durable(nap))
    sub.mount(innermost, namespace="in")
    server.mount(sub, namespace="sub")
    assert "'sub_in_nap' is a tool of a mounted server" in await refused(server)


async def test_a_server_that_is_mounted_later_answers_with_an_error_and_runs_nothing(
    server: FastMCP[Any], sub: FastMCP[Any], tasks: Tasks
) -> None:
    ran: list[int] = []

    @server.tool
    @tasks.durable
    async def first() -> None: ...

    async with serving(server.http_app(path="/mcp")) as url, Client2026(url) as modern:

        @sub.tool
        @tasks.durable
        async def late(number: int) -> None:
            ran.append(number)

        server.mount(sub)
        answer = await modern.call("late", {"number": 1})
        assert "has no tasks for 'late'" in str(answer.message)
        assert ran == []


# The option task=True of FastMCP's own engine


async def test_a_tool_with_the_task_option_that_is_not_durable_is_an_error_at_start(
    server: FastMCP[Any], sub: FastMCP[Any], nap: Nap
) -> None:
    server.tool(nap, task=True)
    sub.tool(nap, name="siesta", task=True)
    server.mount(sub, namespace="sub")
    assert await refused(server) == (
        "task: the calls of 'nap', 'sub_siesta' would not become tasks; write @tasks.durable below "
        "@server.tool(), or remove task=True from the tool and tasks=True from its server"
    )


async def test_a_durable_tool_may_have_the_task_option(server: FastMCP[Any], tasks: Tasks, nap: Nap) -> None:
    server.tool(tasks.durable(nap), task=True)
    await work(server, "nap")


# attach forgotten


@pytest.mark.parametrize("registered_by", ["tool", "add_tool"])
async def test_a_durable_tool_of_a_server_without_tasks_fails_with_the_advice_for_fastmcp(
    sub: FastMCP[Any], tasks: Tasks, registered_by: str, nap: Nap
) -> None:
    getattr(sub, registered_by)(tasks.durable(nap))
    async with fastmcp.Client(sub) as client:
        with pytest.raises(ToolError) as raised:
            await client.call_tool("nap", {"number": 1})
    assert "tasks are not set up: the server has no tasks for 'nap'" in str(raised.value)
    assert "call attach(tasks, server), from perdure.mcp.fastmcp" in str(raised.value)
    assert "**tasks.attach()" not in str(raised.value)


async def test_tasks_that_are_attached_to_a_mounted_server_alone_fail_with_the_advice_for_fastmcp(
    sub: FastMCP[Any], tasks: Tasks, nap: Nap
) -> None:
    root: FastMCP[Any] = FastMCP("root")
    attach(tasks, sub)
    sub.tool(tasks.durable(nap))
    root.mount(sub)
    async with fastmcp.Client(root) as client:
        with pytest.raises(ToolError, match="with the server that you run"):
            await client.call_tool("nap", {"number": 1})


async def test_before_the_start_the_error_does_not_speak_of_another_framework(
    server: FastMCP[Any], tasks: Tasks
) -> None:
    with pytest.raises(Exception, match="tasks are not running: the server has not started") as raised:
        _ = tasks.runtime
    assert "attach" not in str(raised.value)
