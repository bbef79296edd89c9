"""What a tool declares with `task=` decides what becomes of its calls."""

from __future__ import annotations

import asyncio
import re
import threading
from datetime import timedelta
from typing import Any

import pytest
from fastmcp import Context, FastMCP
from fastmcp.decorators import get_fastmcp_meta
from fastmcp.utilities.tasks import TaskConfig

from perdure import current_task
from perdure.fastmcp import TaskOptions, TasksExtension
from perdure.tasks import Owner, Status

from .. import task_edits
from ..conditions import wait_until
from ..markers import row
from ..mcp.raw_clients import CORE, MODERN, serving
from ..mcp.tool_helpers import text_of
from ..mcp.without_tasks.tool_server import calling
from .features import feature
from .served import Served, ShiftedClock, done, modern_of

pytestmark = pytest.mark.anyio


@row(121)
@feature(
    "`task=True`, `TaskConfig(mode=...)`",
    peer="`optional`: a task if the client supports tasks, otherwise the tool runs within the request; "
    "`required`: error -32021 if the client does not support tasks; `forbidden`: never a task",
    here="the same, but with `optional`, a call by a client without task support becomes a task too; if the "
    "client gives up, the task is cancelled, unless it was handed over (`hand_over_after`)",
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


@row(115)
@pytest.mark.parametrize("version", [MODERN, CORE])
async def test_the_task_of_a_client_that_declares_no_tasks_ends_with_its_connection(
    version: str, mcp: Served, extension: TasksExtension
) -> None:
    started = asyncio.Event()

    @mcp.tool(task=True)
    async def hold() -> None:
        started.set()
        await asyncio.sleep(600)

    async with serving(mcp.http_app(path="/mcp")) as url, calling(url, version) as client:
        call = asyncio.create_task(client.call("hold"))
        await started.wait()
        call.cancel()

        async def is_cancelled() -> bool:
            return Status.CANCELLED in await task_edits.counts(extension.tasks.runtime.store)

        await wait_until(is_cancelled, seconds=30)


@row(121)
@feature(
    "`TaskConfig(poll_interval=...)`",
    peer="sent as `pollIntervalMs`, from the first answer on",
    here="the maximum of `pollIntervalMs`; clients are asked to poll a new task more often",
)
async def test_the_poll_interval_of_a_tool_is_the_longest_that_is_advised(
    mcp: Served, extension: TasksExtension
) -> None:
    gate, clock = asyncio.Event(), ShiftedClock()

    @mcp.tool(task=TaskConfig(poll_interval=timedelta(seconds=20)))
    async def hold() -> None:
        await gate.wait()

    with extension.tasks.overridden("memory:", owner=Owner.local(), clock=clock):
        async with modern_of(mcp) as client:
            answer = (await client.call("hold")).result
            clock.ahead = 3600 * 1_000_000
            later = await client.get(answer["taskId"])
            gate.set()
    assert answer["pollIntervalMs"] < 1000
    assert later["pollIntervalMs"] == 20_000


@row(121)
@feature(
    "`FastMCP(tasks=True)`, `task=False`",
    peer="`tasks=True` is the default of the server's tools; `task=False` exempts a tool",
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


async def test_a_tool_with_task_false_cannot_be_told_from_one_without() -> None:
    """If this fails, an option of the extension can declare all tools as tasks: see decision 0028."""
    mcp: Served = FastMCP("root")

    async def nap() -> None: ...
    async def stay() -> None: ...

    mcp.tool(nap)
    mcp.tool(stay, task=False)
    undeclared, declared = await mcp.get_tool("nap"), await mcp.get_tool("stay")
    assert undeclared is not None
    assert declared is not None
    assert undeclared.model_copy(update={"name": "stay", "fn": stay}) == declared
    metas: list[Any] = [get_fastmcp_meta(nap), get_fastmcp_meta(stay)]
    assert [meta.task for meta in metas] == [False, False]


@feature(
    "`task=True` without an extension",
    peer="an error at startup that names the tools",
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
    peer="instead, a tool has docket's `Retry` and `Timeout` as parameters",
    here="set the options of a tool, also in mounted servers",
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

    @sub.tool(task=TaskOptions(ttl=timedelta(minutes=5)))
    async def short_lived() -> None: ...

    mcp.mount(sub, namespace="sub")
    async with modern_of(mcp) as client:
        assert (await client.call("sub_short_lived")).result["ttlMs"] == 300_000
        assert text_of((await done(client, "sub_flaky"))["result"]) == "attempt 3 of sub"
        failed = await done(client, "sub_slow")
    assert failed["status"] == "failed"
    assert "took longer than" in failed["error"]["message"]


async def test_an_exception_of_retry_on_is_no_surprise_in_the_last_attempt(
    mcp: Served, caplog: pytest.LogCaptureFixture
) -> None:
    @mcp.tool(task=TaskOptions(retries=1, retry_on=(OSError,), backoff=0.01))
    async def busy() -> None:
        raise OSError("busy")

    async with modern_of(mcp) as client:
        assert (await done(client, "busy"))["result"]["isError"]
    assert "tool 'busy' failed in its last attempt (2)" in caplog.text
    assert "unexpected" not in caplog.text


@row(121)
@feature(
    "plain `def` tools",
    peer="FastMCP refuses `task=True` when they are registered",
    here="the same for `task=True`; with `task=TaskOptions()` they run in a thread",
)
async def test_a_plain_function_is_a_task_by_the_options_of_perdure_only(mcp: Served) -> None:
    def blocking() -> str:
        assert threading.current_thread() is not threading.main_thread()
        return current_task().id

    advice = "uses a sync function but has task execution enabled. Background tasks require async functions."
    refused = re.escape(f"'blocking' {advice}")
    with pytest.raises(ValueError, match=refused):
        mcp.tool(blocking, task=True)
    with pytest.raises(ValueError, match=refused):
        FastMCP("all", tasks=True).tool(blocking)
    FastMCP("all", tasks=True).tool(blocking, task=False)
    mcp.tool(blocking, task=TaskOptions())
    async with modern_of(mcp) as client:
        task = await done(client, "blocking")
    assert text_of(task["result"]) == task["taskId"]
