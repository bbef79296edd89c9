"""Tools are tasks wherever they come from, and their errors are those of FastMCP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from fastmcp import Context, FastMCP
from fastmcp.dependencies import Depends, Progress
from fastmcp.exceptions import ToolError
from fastmcp.experimental.transforms.code_mode import CodeMode
from fastmcp.server.dependencies import get_context
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.server.providers import Provider
from fastmcp.server.transforms import ToolTransform, Transform
from fastmcp.server.transforms.search import RegexSearchTransform
from fastmcp.tools import Tool
from fastmcp.tools.base import ToolResult
from fastmcp.tools.tool_transform import ArgTransform, ArgTransformConfig, ToolTransformConfig, forward
from fastmcp.utilities.tasks import TaskConfig
from fastmcp.utilities.versions import VersionSpec
from mcp.shared.exceptions import MCPError

from perdure import current_task
from perdure.fastmcp import TaskOptions, TasksExtension
from perdure.tasks import Success

from .. import task_edits
from ..conditions import wait_until
from ..markers import row
from ..mcp.raw_clients import Client2025, Client2026, Json, serving
from ..mcp.tool_helpers import FAST_CONFIG, text_of
from .features import feature
from .served import Served, done, modern_of, said

pytestmark = pytest.mark.anyio


@row(121)
@feature(
    "tools of mounted servers, nested and with prefixes",
    peer="become tasks of the server that you run",
)
@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "nap"),
        ({"namespace": "sub"}, "sub_nap"),
        ({"tool_names": {"nap": "siesta"}}, "siesta"),
        ({"namespace": "sub", "tool_names": {"nap": "siesta"}}, "sub_siesta"),
    ],
)
async def test_a_tool_of_a_mounted_server_is_a_task_by_the_name_that_clients_use(
    mcp: Served, extension: TasksExtension, options: Json, name: str
) -> None:
    sub: Served = FastMCP("sub")

    @sub.tool(task=True)
    async def nap(ctx: Context, number: int) -> str:
        return f"{number} {ctx.is_background_task} {ctx.fastmcp.name}"

    mcp.mount(sub, **options)
    outer: Served = FastMCP("outer")
    outer.mount(sub, **options)
    mcp.mount(outer, namespace="out")
    async with (
        serving(mcp.http_app(path="/mcp")) as url,
        Client2026(url) as client,
        Client2025(url) as core,
    ):
        for known in (name, f"out_{name}"):
            assert text_of((await done(client, known, {"number": 1}))["result"]) == "1 True sub"
            task_id = await core.start(known, {"number": 2})
            answer = await core.send("tasks/result", {"taskId": task_id})
            assert text_of(answer.result) == "2 True sub"
            assert (await client.call(known, {"number": "one"})).result["isError"]
        assert sum((await task_edits.counts(extension.tasks.runtime.store)).values()) == 4


@row(121)
@feature(
    "transformed tools, `mount(tool_names=...)`",
    peer="run within the request, because the transformation loses the declaration",
    here="become tasks if the original tool is declared as one",
)
async def test_a_transformed_tool_is_a_task_like_its_parent(mcp: Served, extension: TasksExtension) -> None:
    @mcp.tool(task=TaskOptions(concurrency=2))
    async def nap(ctx: Context, minutes: int, progress: Progress = Progress()) -> str:
        await progress.set_total(minutes)
        await progress.increment(minutes)
        return f"slept {minutes}, {ctx.is_background_task}"

    minutes = ArgTransformConfig(name="duration")
    mcp.add_transform(
        ToolTransform({"nap": ToolTransformConfig(name="siesta", arguments={"minutes": minutes})})
    )
    async with modern_of(mcp) as client:
        task = await done(client, "siesta", {"duration": 5})
        for arguments in ({"duration": "long"}, {}, {"minutes": 5}):
            assert (await client.call("siesta", arguments)).result["isError"]
        assert sum((await task_edits.counts(extension.tasks.runtime.store)).values()) == 1
    assert text_of(task["result"]) == "slept 5, True"
    assert task["_meta"]["perdure/progress"] == {"done": 5, "total": 5}


async def test_a_transformed_tool_with_a_function_of_its_own_is_a_task(mcp: Served) -> None:
    @Tool.from_function
    async def add(left: int, right: int) -> int:
        return left + right

    async def next_to(left: int, ctx: Context) -> ToolResult:
        total = await forward(left=left)
        return ToolResult(content=f"{total.structured_content}, {ctx.is_background_task}")

    one = {"right": ArgTransform(hide=True, default=1)}
    made = Tool.from_tool(add, name="next_to", transform_fn=next_to, transform_args=one)
    mcp.add_tool(made.model_copy(update={"task_config": TaskConfig()}))
    assert await said(mcp, "next_to", {"left": 2}) == "{'result': 3}, True"


async def test_a_tool_that_a_mounted_server_transforms_is_a_task(
    mcp: Served, extension: TasksExtension
) -> None:
    """The mount has the configuration of the transformed tool, which FastMCP has lost."""
    middle: Served = FastMCP("middle")
    inner: Served = FastMCP("inner", mask_error_details=True)
    inner.add_transform(ToolTransform({"nap": ToolTransformConfig(name="siesta")}))
    inner.add_transform(ToolTransform({"stumble": ToolTransformConfig(name="trip")}))
    middle.mount(inner, namespace="in")
    mcp.mount(middle, namespace="mid")

    async def nap(ctx: Context) -> str:
        return f"{ctx.fastmcp.name} {ctx.is_background_task}"

    inner.tool(nap, task=TaskOptions(retries=1))
    inner.tool(stumble, task=True)
    inner.tool(nap, name="plain")
    async with modern_of(mcp) as client:
        assert text_of((await client.call("mid_in_plain")).result) == "inner False"
        assert sum((await task_edits.counts(extension.tasks.runtime.store)).values()) == 0
        assert text_of((await done(client, "mid_in_siesta"))["result"]) == "inner True"
        assert text_of((await done(client, "mid_in_trip"))["result"]) == "Error calling tool 'trip'"
        inner.tool(nap, name="late", task=True)
        inner.add_transform(ToolTransform({"late": ToolTransformConfig(name="latest")}))
        assert text_of((await done(client, "mid_in_latest"))["result"]) == "inner True"


async def test_a_task_whose_tool_was_removed_fails_with_the_reason(mcp: Served) -> None:
    sub: Served = FastMCP("sub")

    @sub.tool(task=TaskOptions(retries=1, retry_on=(OSError,), backoff=0.01))
    async def nap() -> None:
        sub.local_provider.remove_tool("nap")
        raise OSError

    mcp.mount(sub, namespace="sub")
    async with modern_of(mcp) as client:
        task = await done(client, "sub_nap")
        assert (await client.call("sub_nap")).result["isError"]
    assert "The server has removed the tool" in str(task)


class OwnProvider(Provider):
    """A provider of the user's own, with one tool, which it has when it is open."""

    def __init__(self, tool: Tool) -> None:
        super().__init__()
        self._tool = tool
        self._is_open = False

    async def _list_tools(self) -> Sequence[Tool]:
        return [self._tool] if self._is_open else []

    async def _get_tool(self, name: str, version: VersionSpec | None = None) -> Tool | None:
        return self._tool if self._is_open and name == self._tool.name else None

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        self._is_open = True
        yield
        self._is_open = False


class Doubler(Tool):
    """A subclass of `Tool`."""

    async def run(self, arguments: Json) -> ToolResult:
        if arguments["number"] < 0:
            raise ValueError("below zero")
        return ToolResult(content=f"{2 * arguments['number']} {get_context().is_background_task}")


@row(121)
@feature(
    "`Tool.from_function(task=...)`, providers, subclasses of `Tool`, versions",
    peer="become tasks",
)
async def test_tools_from_everywhere_are_tasks(mcp: Served) -> None:
    async def first(ctx: Context) -> str:
        return f"first {ctx.is_background_task}"

    async def second(ctx: Context) -> str:
        return f"second {ctx.is_background_task}"

    mcp.add_tool(Tool.from_function(first, name="made", task=True))
    mcp.add_provider(OwnProvider(Tool.from_function(second, name="provided", task=True)))
    schema = {"type": "object", "properties": {"number": {"type": "integer"}}}
    mcp.add_tool(Doubler(name="doubled", parameters=schema, task_config=TaskConfig()))
    mcp.tool(first, name="versioned", version="1", task=True)
    mcp.tool(second, name="versioned", version="2", task=True)
    async with modern_of(mcp) as client:
        for tool, arguments, text in (
            ("made", {}, "first True"),
            ("provided", {}, "second True"),
            ("doubled", {"number": 2}, "4 True"),
            ("doubled", {"number": -2}, "Error calling tool 'doubled': below zero"),
            ("versioned", {}, "second True"),
        ):
            assert text_of((await done(client, tool, arguments))["result"]) == text
        older = {"name": "versioned", "_meta": {"fastmcp": {"version": "1"}}}
        asked = (await client.send("tools/call", older)).result
        task = await client.until(asked["taskId"], "completed")
    assert text_of(task["result"]) == "first True"


class OneCall:
    """A sandbox whose program is the name of a tool, which it calls."""

    async def run(
        self,
        code: str,
        *,
        inputs: Json | None = None,
        external_functions: dict[str, Callable[..., Any]] | None = None,
    ) -> str:
        assert external_functions is not None
        return str(await external_functions["call_tool"](code, {}))


@row(121)
@feature(
    "catalogs: search transforms, `CodeMode`",
    peer="direct calls of tools in a catalog become tasks; calls through `call_tool` or `execute` of "
    "the catalog run within the request",
)
@pytest.mark.parametrize(
    ("catalog", "tools", "search", "call"),
    [
        (
            RegexSearchTransform(),
            {"search_tools", "call_tool"},
            ("search_tools", Json(pattern="nap")),
            ("call_tool", Json(name="nap", arguments=Json())),
        ),
        (
            CodeMode(sandbox_provider=OneCall()),
            {"search", "get_schema", "execute"},
            ("search", Json(query="nap")),
            ("execute", Json(code="nap")),
        ),
    ],
    ids=["search", "CodeMode"],
)
async def test_the_tools_behind_a_catalog_are_tasks(
    mcp: Served,
    extension: TasksExtension,
    catalog: Transform,
    tools: set[str],
    search: tuple[str, Json],
    call: tuple[str, Json],
) -> None:
    @mcp.tool(task=True)
    async def nap(ctx: Context) -> str:
        return f"slept, {ctx.is_background_task}"

    mcp.add_transform(catalog)
    async with modern_of(mcp) as client:
        assert {tool["name"] for tool in (await client.send("tools/list")).result["tools"]} == tools
        assert "nap" in text_of((await client.call(*search)).result)
        assert "slept, False" in text_of((await client.call(*call)).result)
        assert sum((await task_edits.counts(extension.tasks.runtime.store)).values()) == 0
        assert text_of((await done(client, "nap"))["result"]) == "slept, True"


async def test_a_version_of_a_tool_is_submitted_by_the_name_of_its_function(
    mcp: Served, extension: TasksExtension
) -> None:
    """Also if the tool is one of a mounted server, and no client has called it."""
    sub: Served = FastMCP("sub")
    for version in ("1", "2"):

        @sub.tool(name="versioned", version=version, task=True)
        async def versioned(ctx: Context, name: str, version: str = version) -> str:
            return f"{name} {version} {ctx.is_background_task}"

    mcp.mount(sub, namespace="sub")
    async with modern_of(mcp):
        runtime = extension.tasks.runtime
        for version in ("1", "2"):
            made = await runtime.submit(f"sub_versioned@{version}", {"name": "Ada"})
            outcome = (await runtime.wait(made.task.owner, made.task.task_id, 20)).task.outcome
            assert isinstance(outcome, Success)
            assert text_of(cast("Json", outcome.value)) == f"Ada {version} True"


@row(121)
@feature(
    "tools that are added after the server has started",
    peer="a call by a client that supports tasks gets an error; other calls run within the request",
    here="become tasks",
)
async def test_a_tool_that_is_added_while_the_server_runs_is_a_task(mcp: Served) -> None:
    sub: Served = FastMCP("sub")
    async with modern_of(mcp) as client:

        @mcp.tool(task=True)
        async def late(ctx: Context) -> bool:
            return ctx.is_background_task

        sub.add_tool(late)
        mcp.mount(sub, namespace="sub")
        for tool in ("late", "sub_late"):
            assert text_of((await done(client, tool))["result"]) == "true"


async def test_a_tool_that_cannot_be_a_task_does_not_hide_the_others(mcp: Served) -> None:
    """It is added while the server runs, so that it cannot be refused at the start."""

    @mcp.tool(task=True)
    async def nap() -> str:
        return "slept"

    async with serving(mcp.http_app(path="/mcp")) as url, Client2025(url) as core:
        mcp.tool(nap, name="bad", task=TaskOptions(ttl=-5))
        listed = (await core.send("tools/list")).result["tools"]
        refused = await core.call("bad", task={})
        result = await core.send("tasks/result", {"taskId": await core.start("nap")})
    assert {tool["name"] for tool in listed} == {"nap", "bad"}
    assert "ttl" in refused.error["message"]
    assert text_of(result.result) == "slept"


@feature(
    "middleware",
    peer="middleware of the server that you run sees the call once, with the task as its result; middleware "
    "of mounted servers does not run for tasks, so its checks are skipped",
    here="the same for the server that you run; middleware of mounted servers runs too, before the task is "
    "created: it can refuse, answer or change the call, but does not see the tool's result",
)
async def test_middleware_of_the_root_and_of_mounted_servers_sees_the_task(mcp: Served) -> None:
    seen: list[str] = []

    class Watching(Middleware):
        def __init__(self, name: str) -> None:
            self._name = name

        async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
            result = await call_next(context)
            seen.append(f"{self._name}: {type(result).__name__}")
            return result

    sub: Served = FastMCP("sub")

    @sub.tool(task=True)
    async def nap() -> str:
        return "slept"

    mcp.add_middleware(Watching("root"))
    sub.add_middleware(Watching("sub"))
    mcp.mount(sub)
    async with modern_of(mcp) as client:
        await done(client, "nap")
        await client.call("nap", declared=False)
    assert seen == ["sub: TaskState", "root: TaskState", "sub: TaskState", "root: ToolResult"]


@row(121)
@feature(
    "calls by tools and middleware (`ctx.fastmcp.call_tool`)",
    peer="run within the calling tool or middleware; an error if the called tool is `required`",
)
async def test_a_call_by_a_tool_is_not_a_task(mcp: Served, extension: TasksExtension) -> None:
    @mcp.tool(task=TaskConfig(mode="required"))
    async def required() -> None: ...

    @mcp.tool(task=True)
    async def inner(ctx: Context) -> str:
        await ctx.report_progress(1, 2)
        return f"{ctx.is_background_task}"

    for name, task in (("outer", True), ("plain", False)):

        @mcp.tool(name=name, task=task)
        async def call(ctx: Context, tool: str) -> str:
            result = await ctx.fastmcp.call_tool(tool)
            return str(result.content)

    async with modern_of(mcp) as client:
        inside = text_of((await done(client, "outer", {"tool": "inner"}))["result"])
        refused = text_of((await done(client, "outer", {"tool": "required"}))["result"])
        plain = text_of((await client.call("plain", {"tool": "required"})).result)
        assert sum((await task_edits.counts(extension.tasks.runtime.store)).values()) == 2
    assert "False" in inside
    assert "can only run as a task; call it from a client" in refused
    assert "can only run as a task; call it from a client" in plain


# Errors


async def stumble() -> None:
    raise ValueError("secret")


async def fail() -> None:
    raise ToolError("there is no paper")


async def break_off() -> None:
    raise MCPError(-32042, "it broke off", {"at": 1})


def broken() -> str:
    raise OSError("no database")


async def needs(value: str = Depends(broken)) -> str:
    return value


@row(121)
@feature(
    "errors",
    peer="`ToolError` is passed on; other errors are masked if the server masks errors; a task fails if its "
    "tool raises `MCPError`, whose code and data are kept, or if a dependency cannot be resolved",
)
async def test_errors_are_those_of_fastmcp(mcp: Served) -> None:
    sub: Served = FastMCP("sub", mask_error_details=True)
    for function in (stumble, fail, break_off, needs):
        mcp.tool(function, task=True)
        sub.tool(function, task=True)
    mcp.mount(sub, namespace="sub")
    async with modern_of(mcp) as client:
        for name, text in (
            ("stumble", "Error calling tool 'stumble': secret"),
            ("sub_stumble", "Error calling tool 'stumble'"),
            ("fail", "there is no paper"),
            ("sub_fail", "there is no paper"),
        ):
            task = await done(client, name)
            assert (task["status"], task["result"]["isError"]) == ("completed", True)
            assert text_of(task["result"]) == text
        thrown = [(await done(client, name))["error"] for name in ("break_off", "sub_break_off")]
        open_, masked = await done(client, "needs"), await done(client, "sub_needs")
    assert thrown == [{"code": -32042, "message": "it broke off", "data": {"at": 1}}] * 2
    assert (open_["status"], open_["error"]["code"]) == ("failed", -32603)
    assert "Failed to resolve dependency 'value'" in open_["error"]["message"]
    assert masked["error"] == {"code": -32603, "message": "Error calling tool 'needs'"}


async def test_a_dependency_that_cannot_be_resolved_may_be_retried(mcp: Served) -> None:
    def sometimes() -> str:
        if current_task().attempt == 1:
            raise OSError("no database")
        return "there"

    @mcp.tool(task=TaskOptions(retries=1, retry_on=(OSError,), backoff=0.01))
    async def needs(value: str = Depends(sometimes)) -> str:
        return value

    assert await said(mcp, "needs") == "there"


# Lifespans


async def test_a_task_runs_only_while_the_lifespan_of_its_mounted_server_is_open(tmp_path: Path) -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncGenerator[Json]:
        events.append("open")
        yield {"database": "there"}
        events.append("closed")

    async def hold(ctx: Context) -> str:
        events.append(f"run {current_task().attempt}")
        try:
            await asyncio.sleep(0 if current_task().attempt == 2 else 600)
        finally:
            events.append("stop")
        return ctx.lifespan_context["database"]

    def make() -> Served:
        mcp: Served = FastMCP("root")
        sub: Served = FastMCP("sub", lifespan=lifespan)
        mcp.add_extension(TasksExtension(f"sqlite:///{tmp_path / 'tasks.db'}", runtime=FAST_CONFIG))
        mcp.mount(sub, namespace="sub")
        sub.tool(hold, task=True)
        return mcp

    async with modern_of(make()) as client:
        task_id = await client.start("sub_hold")
        await wait_until(lambda: "run 1" in events)
    async with modern_of(make()) as client:
        ended = await client.until(task_id, "completed", "failed")
    assert text_of(ended["result"]) == "there"
    assert events == ["open", "run 1", "stop", "closed", "open", "run 2", "stop", "closed"]
