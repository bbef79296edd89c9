"""At 2025-11-25 a task that has not ended can be cancelled, whatever it does, and stays so."""

from __future__ import annotations

import asyncio
import threading

import pytest
from mcp.server import MCPServer

from perdure import Tasks

from ...markers import row
from ..raw_clients import Client2025
from .server import hosting

pytestmark = pytest.mark.anyio


@row(82)
async def test_a_cancelled_task_stays_cancelled_and_its_result_is_an_error_that_says_so(
    core: Client2025,
) -> None:
    task_id = await core.start("slow_compute", {"seconds": 60})
    await core.send("tasks/cancel", {"taskId": task_id})

    answer = await core.send("tasks/result", {"taskId": task_id})

    assert "cancel" in answer.error["message"]
    assert (await core.get(task_id))["status"] == "cancelled"


@row(82)
async def test_a_task_that_waits_for_an_answer_is_cancelled_as_a_running_one_is(core: Client2025) -> None:
    task_id = await core.start("confirm_delete", {"filename": "a.txt"})
    await core.until(task_id, "input_required")

    assert (await core.send("tasks/cancel", {"taskId": task_id})).result["status"] == "cancelled"


@row(82, 114)
async def test_a_task_whose_tool_catches_the_cancellation_is_cancelled_all_the_same() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    def define(server: MCPServer[object], tasks: Tasks) -> None:
        @server.tool()
        @tasks.durable
        async def salvages() -> str:
            try:
                started.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.set()
            return "what there was"

        @server.tool()
        @tasks.durable
        async def breaks() -> str:
            try:
                started.set()
                await asyncio.Event().wait()
            finally:
                ended.set()
                raise LookupError("in its clean-up")

    async with hosting(define) as url, Client2025(url) as core:
        for tool in ("salvages", "breaks"):
            task_id = await core.start(tool)
            await asyncio.wait_for(started.wait(), 15)
            cancelled = (await core.send("tasks/cancel", {"taskId": task_id})).result
            assert cancelled["status"] == "cancelled"
            await asyncio.wait_for(ended.wait(), 15)
            started.clear()
            ended.clear()
            assert (await core.get(task_id))["status"] == "cancelled"


@row(82, 114)
async def test_a_task_whose_work_does_not_stop_is_cancelled_all_the_same() -> None:
    # "MUST transition the task to cancelled status before sending the response"
    begun, gate = threading.Event(), threading.Event()

    def define(server: MCPServer[object], tasks: Tasks) -> None:
        @server.tool()
        @tasks.durable
        def deaf() -> str:
            begun.set()
            gate.wait(30)
            return "too late"

    async with hosting(define) as url, Client2025(url) as core:
        task_id = await core.start("deaf")
        await asyncio.to_thread(begun.wait, 15)
        try:
            cancelled = (await core.send("tasks/cancel", {"taskId": task_id})).result
        finally:
            gate.set()
        assert cancelled["status"] == "cancelled"
        assert (await core.get(task_id))["status"] == "cancelled"


@row(82)
@pytest.mark.parametrize(
    ("tool", "ended"),
    [
        ("slow_compute", "completed"),
        ("failing_job", "failed"),
        ("protocol_error_job", "failed"),
        ("confirm_delete", "cancelled"),
    ],
)
async def test_a_task_that_has_ended_cannot_be_cancelled(core: Client2025, tool: str, ended: str) -> None:
    task_id = await core.start(tool, {"seconds": 0.01, "filename": "a.txt"})
    if ended == "cancelled":
        await core.send("tasks/cancel", {"taskId": task_id})
    await core.until(task_id, ended)

    answer = await core.send("tasks/cancel", {"taskId": task_id})

    assert answer.code == -32602
    assert ended in answer.error["message"]
    assert (await core.get(task_id))["status"] == ended
