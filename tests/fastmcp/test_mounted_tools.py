"""A tool over a tool of a mounted server has the same server and the same errors with and without a task."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import fastmcp
import mcp_types
import pytest
from fastmcp import Context, FastMCP
from fastmcp.dependencies import CurrentFastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.dependencies import get_server
from fastmcp.server.middleware import Middleware
from fastmcp.tools import Tool, forward
from fastmcp.tools.base import ToolResult
from mcp.shared.exceptions import MCPError

from perdure import Retry, current_task
from perdure.fastmcp import TaskOptions, TasksExtension

from ..mcp.raw_clients import Json
from ..mcp.tool_helpers import FAST_CONFIG, text_of
from .served import Served, done, modern_of

pytestmark = pytest.mark.anyio

REASON = "the secret reason"
Make = Callable[..., Awaitable[Served]]
"""Makes a server whose tools are tasks, or are not: `make(task=True)`."""


def named(name: str, *, masks: bool = False) -> Served:
    """Return a server whose lifespan yields its name."""

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncGenerator[Json]:
        yield {"name": name}

    return FastMCP(name, lifespan=lifespan, mask_error_details=masks)


def root_of(*, masks: bool = False) -> Served:
    root = named("root", masks=masks)
    root.add_extension(TasksExtension("memory:", runtime=FAST_CONFIG))
    return root


async def add(server: Served, parent: str, function: Callable[..., Any]) -> None:
    """Add a tool with the name of the function, which is over another tool of the server."""
    tool = await server.get_tool(parent)
    assert tool is not None
    server.add_tool(Tool.from_tool(tool, name=function.__name__, transform_fn=function))


async def answers(make: Make, tool: str) -> list[str]:
    """Call a tool within the request, and as a task. Return both texts."""
    texts: list[str] = []
    for is_task in (False, True):
        async with fastmcp.Client(await make(task=is_task)) as client:
            result = await client.call_tool(tool, raise_on_error=False)
        texts.append(getattr(result.content[0], "text", ""))
    return texts


# Middleware of a mounted server


class Quota(Middleware):
    async def on_call_tool(self, context: Any, call_next: Any) -> Any:
        raise MCPError(-32603, REASON)


@pytest.mark.parametrize("masks", [True, False])
async def test_a_json_rpc_error_of_middleware_is_the_same_and_masked_too(
    anyio_backend: str, *, masks: bool
) -> None:
    async def make(*, task: bool) -> Served:
        root, sub = root_of(masks=masks), named("sub", masks=masks)
        sub.add_middleware(Quota())

        @sub.tool(task=task)
        async def nap() -> None: ...

        root.mount(sub, namespace="sub")
        return root

    plain, durable = await answers(make, "sub_nap")
    assert plain == durable
    assert (REASON in durable) is not masks


class Naming(Middleware):
    async def on_call_tool(self, context: Any, call_next: Any) -> Any:
        await context.fastmcp_context.set_state("user", "ada")
        return await call_next(context)


async def test_a_tool_reads_the_state_that_middleware_of_its_server_sets(anyio_backend: str) -> None:
    async def make(*, task: bool) -> Served:
        root, sub = root_of(), named("sub")
        sub.add_middleware(Naming())

        @sub.tool(task=task)
        async def who(ctx: Context) -> str:
            return str(await ctx.get_state("user"))

        root.mount(sub, namespace="sub")
        return root

    assert await answers(make, "sub_who") == ["ada", "ada"]


class Failing(Middleware):
    async def on_call_tool(self, context: Any, call_next: Any) -> Any:
        raise PermissionError(REASON)


@pytest.mark.parametrize(("root_masks", "sub_masks"), [(True, False), (True, True), (False, False)])
async def test_an_error_of_middleware_is_masked_if_the_server_around_it_masks(
    anyio_backend: str, *, root_masks: bool, sub_masks: bool
) -> None:
    async def make(*, task: bool) -> Served:
        root, sub = root_of(masks=root_masks), named("sub", masks=sub_masks)
        sub.add_middleware(Failing())

        @sub.tool(task=task)
        async def nap() -> None: ...

        root.mount(sub, namespace="sub")
        return root

    inline, as_task = await answers(make, "sub_nap")
    assert inline == as_task
    assert (REASON not in as_task) == root_masks


@pytest.mark.parametrize("masking", ["root", "middle", "inner"])
async def test_an_error_of_middleware_is_masked_if_any_server_on_the_way_masks(
    anyio_backend: str, masking: str
) -> None:
    root = root_of(masks=masking == "root")
    middle, inner = (named(each, masks=masking == each) for each in ("middle", "inner"))
    inner.add_middleware(Failing())

    @inner.tool(task=True)
    async def nap() -> None: ...

    middle.mount(inner, namespace="in")
    root.mount(middle, namespace="mid")
    async with modern_of(root) as client:
        refused = await client.call("mid_in_nap")
    assert refused.result["isError"]
    assert REASON not in text_of(refused.result)


# A function of its own over a tool of a mounted server


async def test_the_function_belongs_to_the_server_that_transforms_and_the_tool_to_its_own(
    anyio_backend: str,
) -> None:
    seen: list[tuple[str, ...]] = []
    in_task: list[bool] = []

    def note(function: str, ctx: Context, mine: Served) -> None:
        in_task.append(ctx.is_background_task)
        seen.append((function, ctx.fastmcp.name, mine.name, get_server().name, ctx.lifespan_context["name"]))

    async def make(*, task: bool) -> Served:
        root, middle, inner = root_of(), named("middle"), named("inner")

        @inner.tool(task=task)
        async def look(ctx: Context, mine: FastMCP = CurrentFastMCP()) -> str:
            note("look", ctx, mine)
            return "looked"

        async def around(ctx: Context, mine: FastMCP = CurrentFastMCP()) -> ToolResult:
            found = await forward()
            note("around", ctx, mine)
            return found

        async def outermost(ctx: Context, mine: FastMCP = CurrentFastMCP()) -> ToolResult:
            found = await forward()
            note("outermost", ctx, mine)
            return found

        middle.mount(inner, namespace="in")
        await add(middle, "in_look", around)
        root.mount(middle, namespace="mid")
        await add(root, "mid_around", outermost)
        return root

    assert await answers(make, "outermost") == ["looked"] * 2
    expected = [("look", *["inner"] * 4), ("around", *["middle"] * 4), ("outermost", *["root"] * 4)]
    assert seen == expected * 2
    assert in_task == [False] * 3 + [True] * 3


@pytest.mark.parametrize(("root_masks", "sub_masks"), [(True, False), (False, True)])
async def test_an_error_of_the_function_is_masked_if_its_server_masks(
    anyio_backend: str, *, root_masks: bool, sub_masks: bool
) -> None:
    async def make(*, task: bool) -> Served:
        root, sub = root_of(masks=root_masks), named("sub", masks=sub_masks)

        @sub.tool(task=task)
        async def look() -> None: ...

        async def stumble() -> None:
            raise ValueError(REASON)

        root.mount(sub, namespace="sub")
        await add(root, "sub_look", stumble)
        return root

    inline, as_task = await answers(make, "stumble")
    assert inline == as_task == "Error calling tool 'stumble'" + ("" if root_masks else f": {REASON}")


MISSING = mcp_types.MISSING_REQUIRED_CLIENT_CAPABILITY


def server_with(error: Exception, *, sub_masks: bool) -> Make:
    """Return what makes a server with two tools over one of a mounted server, which raises an error."""

    async def make(*, task: bool) -> Served:
        root, sub = root_of(), named("sub", masks=sub_masks)

        @sub.tool(task=task)
        async def look() -> None:
            raise error

        async def passing() -> ToolResult:
            return await forward()

        async def catching() -> ToolResult:
            try:
                return await forward()
            except ToolError as caught:
                return ToolResult(content=f"caught {caught}")

        root.mount(sub, namespace="sub")
        await add(root, "sub_look", passing)
        await add(root, "sub_look", catching)
        return root

    return make


@pytest.mark.parametrize("sub_masks", [False, True])
@pytest.mark.parametrize(
    "error", [ValueError(REASON), ToolError(REASON), TimeoutError(), MCPError(-32050, REASON)]
)
async def test_the_function_catches_the_errors_that_it_catches_without_a_task(
    anyio_backend: str, error: Exception, *, sub_masks: bool
) -> None:
    make = server_with(error, sub_masks=sub_masks)
    for tool in ("passing", "catching"):
        inline, as_task = await answers(make, tool)
        assert inline == as_task
        assert as_task.startswith("caught ") == (tool == "catching")


async def test_an_error_about_a_missing_capability_is_not_caught(anyio_backend: str) -> None:
    for is_task in (False, True):
        refused = MCPError(MISSING, REASON, {"requiredCapabilities": {}})
        server = await server_with(refused, sub_masks=True)(task=is_task)
        async with modern_of(server) as client:
            for tool in ("passing", "catching"):
                failed = (await done(client, tool)) if is_task else (await client.call(tool)).message
                assert failed["error"]["code"] == MISSING


async def test_an_error_of_middleware_reaches_the_function_unchanged(anyio_backend: str) -> None:
    async def make(*, task: bool) -> Served:
        root, sub = root_of(masks=True), named("sub")
        sub.add_middleware(Failing())

        @sub.tool(task=task)
        async def look() -> None: ...

        async def passing() -> ToolResult:
            return await forward()

        async def catching() -> ToolResult:
            try:
                return await forward()
            except PermissionError as caught:
                return ToolResult(content=f"caught {caught}")

        root.mount(sub, namespace="sub")
        await add(root, "sub_look", passing)
        await add(root, "sub_look", catching)
        return root

    assert await answers(make, "passing") == ["Error calling tool 'passing'"] * 2
    assert await answers(make, "catching") == [f"caught {REASON}"] * 2


# What only a task has


@pytest.mark.parametrize("error", [Retry, OSError])
async def test_the_function_is_retried_for_an_error_of_the_tool_that_it_calls(
    anyio_backend: str, error: type[Exception]
) -> None:
    """`Retry` is not an error of the tool, so a function that catches those does not catch it."""
    root, sub = root_of(), named("sub", masks=True)

    @sub.tool(task=TaskOptions(retries=1, retry_on=(OSError,), backoff=0.01))
    async def look(label: str) -> str:
        if current_task().attempt == 1:
            raise error(REASON)
        return f"attempt {current_task().attempt}"

    async def passing(label: str) -> ToolResult:
        try:
            return await forward(label=label)
        except ToolError:
            if error is OSError:
                raise
            return ToolResult(content="caught")

    root.mount(sub, namespace="sub")
    await add(root, "sub_look", passing)
    async with modern_of(root) as client:
        assert text_of((await done(client, "passing", {"label": "it"}))["result"]) == "attempt 2"


async def test_operators_read_the_error_that_the_result_masks(
    anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = await server_with(ValueError(REASON), sub_masks=True)(task=True)
    async with modern_of(server) as client:
        failed = await done(client, "passing")
    assert REASON not in str(failed)
    assert f"ValueError: {REASON}" in caplog.text
