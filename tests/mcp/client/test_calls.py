"""A call of a durable tool waits by itself, ends as a plain one does, and ends its task when given up."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from mcp.client.session import ClientRequestContext
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError
from mcp_types import REQUEST_TIMEOUT, ElicitRequestParams, ElicitResult

from perdure.mcp.errors import TaskWasCancelled

from ...conditions import wait_until
from ..raw_clients import Client2026, Json
from ..tool_helpers import text_of
from .tool_server import (
    BOTH,
    AnsweringUser,
    Mode,
    Target,
    ToolServer,
    cancelled,
    raised_by,
    told_by,
    visiting,
)

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]


# Calls that wait by themselves


@BOTH
async def test_a_call_of_a_durable_tool_returns_what_a_plain_one_returns(target: Target, mode: Mode) -> None:
    async with visiting(target, mode) as visitor:
        durable = await visitor.client.call_tool("add", {"left": 2, "right": 3})
        plain = await visitor.client.call_tool("plain_add", {"left": 2, "right": 3})

    assert durable.structured_content == plain.structured_content == {"total": 5}
    assert (durable.content, durable.is_error) == (plain.content, plain.is_error)


async def test_a_call_that_declares_tasks_becomes_one(shop: ToolServer, target: Target) -> None:
    async with visiting(target) as visitor:
        await visitor.client.call_tool("add", {"left": 2, "right": 3})

    assert [seen.answer.get("resultType") for seen in shop.watch.of("tools/call")] == ["task"]


@BOTH
async def test_a_tool_that_reports_an_error_is_a_result_as_with_a_plain_call(
    target: Target, mode: Mode
) -> None:
    async with visiting(target, mode) as visitor:
        durable = await visitor.client.call_tool("fail")
        plain = await visitor.client.call_tool("plain_fail")

    assert durable.is_error
    assert plain.is_error
    assert text_of(durable) == text_of(plain).replace("plain_fail", "fail")


@BOTH
async def test_a_protocol_error_is_raised_as_with_a_plain_call(target: Target, mode: Mode) -> None:
    async with visiting(target, mode) as visitor:
        durable = await raised_by(visitor.client.call_tool("break_off"))
        plain = await raised_by(visitor.client.call_tool("plain_break_off"))

    assert type(durable) is type(plain) is MCPError
    assert told_by(durable) == told_by(plain) == (-32042, "it broke off", {"at": [1, None, "page"]})


@BOTH
async def test_arguments_that_do_not_fit_are_told_as_with_a_plain_call(target: Target, mode: Mode) -> None:
    async with visiting(target, mode) as visitor:
        durable = await visitor.client.call_tool("add", {"left": "two"})
        plain = await visitor.client.call_tool("plain_add", {"left": "two"})

    assert durable.is_error
    assert plain.is_error
    assert text_of(durable) == text_of(plain).replace("plain_add", "add")


@BOTH
async def test_a_server_over_stdin_and_stdout_is_served_too(mode: Mode) -> None:
    start = "from tests.mcp.conformance_server import make_server; make_server('memory:')[0].run('stdio')"
    server = StdioServerParameters(command=sys.executable, args=["-c", start], cwd=ROOT)
    person = Answering({"confirm": True})
    async with visiting(server, mode, person=person) as visitor:
        assert text_of(await visitor.client.call_tool("confirm_delete", {"filename": "a"})) == "deleted a"
        task = await visitor.start("slow_compute", {"seconds": 0.1, "label": "it"})
        assert text_of(await task.wait(30)) == "computed it in 0.1 seconds"


class Answering(AnsweringUser):
    """Fills in a form with this."""

    def __init__(self, content: Json) -> None:
        super().__init__()
        self._content = content

    async def elicit(self, _: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params.message)
        return ElicitResult(action="accept", content=self._content)


# The output schema


def spoiled(task: Json) -> Json:
    """What a server answers whose result does not fit the schema of its tool."""
    if "content" in task:
        return {**task, "structuredContent": {"total": "five"}}
    if "result" in task:
        return {**task, "result": {**task["result"], "structuredContent": {"total": "five"}}}
    return task


async def test_a_result_of_a_call_must_fit_the_schema_of_its_tool(shop: ToolServer, target: Target) -> None:
    shop.answers.changing["tasks/get"] = spoiled
    async with visiting(target) as visitor:
        with pytest.raises(RuntimeError, match="Invalid structured content"):
            await visitor.client.call_tool("add", {"left": 2, "right": 3})


@BOTH
async def test_a_result_of_a_handle_must_fit_the_schema_of_its_tool(
    shop: ToolServer, target: Target, mode: Mode
) -> None:
    shop.answers.changing["tasks/get" if mode == "auto" else "tasks/result"] = spoiled
    async with visiting(target, mode) as visitor:
        task = await visitor.start("add", {"left": 2, "right": 3})
        with pytest.raises(RuntimeError, match="Invalid structured content"):
            await task.wait(10)


@BOTH
async def test_a_result_that_is_returned_at_once_must_fit_the_schema_of_its_tool(
    shop: ToolServer, target: Target, mode: Mode
) -> None:
    result: Json = {"content": [], "structuredContent": {"total": "five"}}
    stamp: Json = {"resultType": "complete"} if mode == "auto" else {}
    shop.answers.changing["tools/call"] = lambda _: {**stamp, **result}
    async with visiting(target, mode) as visitor:
        for start in (visitor.start, visitor.call):
            with pytest.raises(RuntimeError, match="Invalid structured content"):
                await start("add", {"left": 2, "right": 3})


# Giving up

GIVEN = 2.0
"""Seconds. In these the task must be made, on a busy machine too: of one that is made later nobody knows."""


@BOTH
async def test_the_time_that_a_caller_gives_bounds_the_call_and_ends_the_task(
    shop: ToolServer, target: Target, mode: Mode
) -> None:
    async with visiting(target, mode) as visitor:
        async with asyncio.timeout(30):
            error = await raised_by(visitor.client.call_tool("hold", read_timeout_seconds=GIVEN))
        await shop.until_statuses("cancelled")

    assert error.code == REQUEST_TIMEOUT


@pytest.mark.parametrize("push", [False, True])
async def test_the_time_that_a_caller_gives_bounds_the_answering_of_questions_too(
    shop: ToolServer, url: str, *, push: bool
) -> None:
    class Slow(AnsweringUser):
        async def elicit(self, _: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
            await asyncio.sleep(600)
            return ElicitResult(action="decline")

    async with visiting(url, person=Slow(), push=push) as visitor:
        async with asyncio.timeout(30):
            error = await raised_by(visitor.client.call_tool("ask_two", read_timeout_seconds=GIVEN))
        await shop.until_statuses("cancelled")

    assert error.code == REQUEST_TIMEOUT


@BOTH
@pytest.mark.parametrize("push", [False, True])
async def test_a_call_that_is_cancelled_ends_the_task(
    shop: ToolServer, target: Target, mode: Mode, *, push: bool
) -> None:
    async with visiting(target, mode, push=push) as visitor:
        calling = asyncio.create_task(visitor.client.call_tool("hold"))
        await wait_until(lambda: shop.held == 1)
        if mode == "auto":
            await wait_until(lambda: len(shop.watch.of("tasks/get")) > 0)

        await cancelled(calling)

        await shop.until_statuses("cancelled")


async def test_a_call_whose_task_another_cancels_is_told_so(shop: ToolServer, url: str) -> None:
    async with visiting(url) as visitor, Client2026(url) as other:
        calling = asyncio.create_task(visitor.client.call_tool("hold"))
        await wait_until(lambda: len(shop.watch.of("tasks/get")) > 0)
        await other.cancel(shop.watch.of("tasks/get")[0].params["taskId"])
        with pytest.raises(TaskWasCancelled):
            await calling
