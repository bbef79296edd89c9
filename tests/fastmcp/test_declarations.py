"""What a tool declares with `task=` decides what becomes of its calls."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from fastmcp import Context, FastMCP
from fastmcp.utilities.tasks import TaskConfig

from perdure import current_task
from perdure.fastmcp import TaskOptions, TasksExtension

from .. import task_edits
from ..markers import row
from ..mcp.tool_helpers import text_of
from .features import feature
from .served import Served, done, modern_of

pytestmark = pytest.mark.anyio


@row(121)
@feature(
    "`task=True`, `TaskConfig(mode=...)`",
    peer="`optional`: a task if the client declares tasks, else the tool runs within the request; "
    "`required`: -32021 without the declaration; `forbidden`: never a task",
    here="the same, but a client that declares no tasks waits for one, so its call is durable too",
)
async def test_the_mode_of_a_tool_decides_whether_its_call_is_a_task(
    mcp: Served, extension: TasksExtension
) -> None:
    async def is_task(ctx: Context) -> bool:
        return ctx.is_background_task

    for mode in ("optional", "required", "forbidden"):
        mcp.tool(is_task, name=mode, task=TaskConfig(mode=mode))
    async with modern_of(mcp) as client:
        assert text_of((await done(client, "optional"))["result"]) == "true"
        assert text_of((await client.call("optional", declared=False)).result) == "true"
        assert text_of((await done(client, "required"))["result"]) == "true"
        refused = await client.call("required", declared=False)
        assert text_of((await client.call("forbidden")).result) == "false"
        assert sum((await task_edits.counts(extension.tasks.runtime.store)).values()) == 3
    assert (refused.code, refused.error["data"]) == (
        -32021,
        {"requiredCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}},
    )


@row(121)
@feature(
    "`TaskConfig(poll_interval=...)`",
    peer="sent as `pollIntervalMs`, from the first answer on",
    here="the longest that is sent; a young task is polled more often",
)
async def test_the_poll_interval_of_a_tool_is_the_longest_that_is_advised(mcp: Served) -> None:
    gate = asyncio.Event()

    @mcp.tool(task=TaskConfig(poll_interval=timedelta(milliseconds=600)))
    async def hold() -> None:
        await gate.wait()

    async with modern_of(mcp) as client:
        answer = (await client.call("hold")).result
        await asyncio.sleep(3.7)
        later = await client.get(answer["taskId"])
        gate.set()
    assert answer["pollIntervalMs"] < 600
    assert later["pollIntervalMs"] == 600


@row(121)
@feature(
    "`FastMCP(tasks=True)`, `task=False`",
    peer="a default for the tools of the server",
)
async def test_a_server_may_declare_all_its_tools_as_tasks(extension: TasksExtension) -> None:
    mcp: Served = FastMCP("root", tasks=True)
    mcp.add_extension(extension)

    @mcp.tool
    async def long(ctx: Context) -> bool:
        return ctx.is_background_task

    @mcp.tool(task=False)
    async def short(ctx: Context) -> bool:
        return ctx.is_background_task

    async with modern_of(mcp) as client:
        assert text_of((await done(client, "long"))["result"]) == "true"
        assert text_of((await client.call("short")).result) == "false"


@feature(
    "`task=True` without an extension",
    peer="an error at the start that names the tools",
)
async def test_a_server_with_tasks_and_without_an_extension_does_not_start() -> None:
    mcp: Served = FastMCP("root")

    @mcp.tool(task=True)
    async def long() -> None: ...

    with pytest.raises(RuntimeError, match=r"Task-enabled tools \(long\) require the tasks extension"):
        await mcp.http_app().router.lifespan_context(mcp.http_app()).__aenter__()


@row(121)
@feature(
    "`task=TaskOptions(retries=..., retry_on=..., timeout=..., ttl=...)`",
    peer="docket's `Retry` and `Timeout` as parameters",
    here="options of the declaration, also for tools of mounted servers",
)
async def test_options_of_perdure_are_part_of_the_declaration_and_survive_mounts(mcp: Served) -> None:
    sub: Served = FastMCP("sub")

    @sub.tool(task=TaskOptions(retries=4, retry_on=(OSError,), backoff=0.01))
    async def flaky(ctx: Context) -> str:
        attempt = current_task().attempt
        if attempt < 3:
            raise OSError("not yet")
        return f"attempt {attempt} of {ctx.fastmcp.name}"

    @sub.tool(task=TaskOptions(timeout=0.1))
    async def slow() -> None:
        await asyncio.sleep(600)

    mcp.mount(sub, namespace="sub")
    async with modern_of(mcp) as client:
        assert text_of((await done(client, "sub_flaky"))["result"]) == "attempt 3 of sub"
        failed = await done(client, "sub_slow")
    assert failed["status"] == "failed"
    assert "took longer than" in failed["error"]["message"]


@row(121)
@feature(
    "plain `def` tools",
    peer="FastMCP refuses `task=True` when they are registered",
    here="the same for `task=True`; with `task=TaskOptions()` they run in a thread",
)
async def test_a_plain_function_is_a_task_by_the_options_of_perdure_only(mcp: Served) -> None:
    def blocking() -> str:
        return current_task().id

    with pytest.raises(ValueError, match="Background tasks require async functions"):
        mcp.tool(blocking, task=True)
    mcp.tool(blocking, task=TaskOptions())
    async with modern_of(mcp) as client:
        task = await done(client, "blocking")
    assert text_of(task["result"]) == task["taskId"]
