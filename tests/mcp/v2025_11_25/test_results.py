"""At 2025-11-25 the result of a task is that of the call, and can be waited for and read again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp.server import MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ImageContent, TextContent

from perdure import Tasks

from ...markers import row
from ..raw_clients import Client2025, Client2026, Json
from .server import RELATED, hosting

pytestmark = pytest.mark.anyio


# The result


@row(82)
async def test_the_result_of_a_task_is_what_the_call_would_have_returned(core: Client2025) -> None:
    task_id = await core.start("slow_compute", {"seconds": 0.1, "label": "x"})

    answer = await core.send("tasks/result", {"taskId": task_id})

    assert answer.result["content"][0]["text"] == "computed x in 0.1 seconds"


async def text() -> str:
    return "a text"


async def structured() -> dict[str, int]:
    return {"one": 1, "two": 2}


async def rich() -> CallToolResult:
    content = [TextContent(text="x"), ImageContent(data="eA==", mime_type="image/png")]
    meta = {"theirs/key": {"kept": [1, None, "é"]}, RELATED: {"taskId": "somebody else's"}}
    return CallToolResult(content=[*content], structured_content={"deep": {"er": None}}, _meta=meta)


async def nothing() -> None:
    return None


async def raising() -> str:
    raise ValueError("does not work out")


async def refusing() -> CallToolResult:
    return CallToolResult(content=[TextContent(text="no")], is_error=True)


async def breaking() -> str:
    raise MCPError(-32099, "broken", {"why": ["on", {"purpose": None}]})


async def breaking_silently() -> str:
    raise MCPError(-32042, "broken without data")


PAIRS = (text, structured, rich, nothing, raising, refusing, breaking, breaking_silently)


def pairs_of_tools(server: MCPServer[object], tasks: Tasks) -> None:
    """Each function twice: as a plain tool, and as a durable one."""
    for function in PAIRS:
        name = function.__name__
        server.tool(name=f"plain_{name}")(function)
        server.tool(name=name)(tasks.durable(name=f"durable_{name}")(function))


def without_related(result: Json) -> Json:
    """The result, less what says of which task it is."""
    meta = {key: value for key, value in result.get("_meta", {}).items() if key != RELATED}
    rest = {key: value for key, value in result.items() if key != "_meta"}
    return {**rest, "_meta": meta} if meta else rest


def renamed(message: Json) -> str:
    return json.dumps(message, sort_keys=True).replace("plain_", "")


@row(82, 83)
@pytest.mark.parametrize("tool", ["text", "structured", "rich", "nothing", "raising", "refusing"])
async def test_related_task_metadata_is_added_to_the_result_of_the_call_and_all_else_is_intact(
    tool: str,
) -> None:
    async with hosting(pairs_of_tools) as url, Client2025(url) as core:
        plain = (await core.call(f"plain_{tool}")).result
        task_id = await core.start(tool)
        result = (await core.send("tasks/result", {"taskId": task_id})).result

    assert result["_meta"][RELATED] == {"taskId": task_id}
    assert renamed(without_related(result)) == renamed(without_related(plain))


@row(82)
@pytest.mark.parametrize("tool", ["breaking", "breaking_silently"])
async def test_a_json_rpc_error_of_the_tool_is_the_result_of_the_task_to_the_letter(tool: str) -> None:
    async with hosting(pairs_of_tools) as url, Client2025(url) as core:
        plain = (await core.call(f"plain_{tool}")).error
        task_id = await core.start(tool)
        error = (await core.send("tasks/result", {"taskId": task_id})).error
        task = await core.get(task_id)

    assert error == plain
    assert task["status"] == "failed"


@row(82)
async def test_a_result_can_be_read_again_and_from_another_session_that_knows_the_id(
    core: Client2025, url: str
) -> None:
    task_id = await core.start("slow_compute", {"seconds": 0.1})
    first = (await core.send("tasks/result", {"taskId": task_id})).result

    async with Client2025(url) as other:
        assert (await core.send("tasks/result", {"taskId": task_id})).result == first
        assert (await other.send("tasks/result", {"taskId": task_id})).result == first
        assert (await other.get(task_id))["status"] == "completed"


@row(82)
async def test_waiting_for_a_result_lasts_until_the_task_ends() -> None:
    async with gated() as (url, open_gate), Client2025(url) as core:
        task_id = await core.start("gate")
        waiting = asyncio.create_task(core.send("tasks/result", {"taskId": task_id}))
        assert (await core.get(task_id))["status"] == "working"
        assert not waiting.done()

        open_gate()
        assert (await waiting).result["content"][0]["text"] == "through"


class Abandoning(Client2025):
    """A client that can take back a request."""

    async def __aenter__(self) -> Abandoning:
        await super().__aenter__()
        return self

    async def abandon(self, request_id: int) -> None:
        params = {"requestId": request_id}
        await self._post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})


async def test_a_client_that_no_longer_waits_for_a_result_leaves_the_task_running() -> None:
    async with gated() as (url, open_gate), Abandoning(url) as core, Client2025(url) as other:
        task_id = await core.start("gate")
        waiting = asyncio.create_task(core.send("tasks/result", {"taskId": task_id}))
        await other.get(task_id)
        await core.abandon(3)  # after the handshake and the call

        assert (await other.get(task_id))["status"] == "working"
        open_gate()
        result = (await other.send("tasks/result", {"taskId": task_id})).result
        assert result["content"][0]["text"] == "through"
        waiting.cancel()


async def test_everybody_who_waits_for_a_result_learns_that_the_task_was_cancelled() -> None:
    async with gated() as (url, _), Client2025(url) as core, Client2025(url) as other:
        task_id = await core.start("gate")
        waiting = [
            asyncio.create_task(each.send("tasks/result", {"taskId": task_id})) for each in (core, other)
        ]
        await core.send("tasks/cancel", {"taskId": task_id})

        assert ["cancel" in (await each).error["message"] for each in waiting] == [True, True]


@asynccontextmanager
async def gated(**options: Any) -> AsyncGenerator[tuple[str, Callable[[], None]]]:
    """A server with a tool that ends when the gate is opened."""
    gate = anyio.Event()

    def define(server: MCPServer[object], tasks: Tasks) -> None:
        @server.tool(name="gate")
        @tasks.durable()
        async def pass_through() -> str:
            await gate.wait()
            return "through"

    async with hosting(define, **options) as url:
        yield url, gate.set


# How a task ends


async def test_a_result_that_is_an_error_is_a_failure_here_and_a_completed_task_in_the_later_generation(
    core: Client2025, modern: Client2026
) -> None:
    # "failed: [...] For tool calls specifically, this includes cases where the tool call result has isError
    # set to true"
    task_id = await core.start("failing_job")
    failed = await core.until(task_id, "failed", "completed")

    assert failed["status"] == "failed"
    assert failed["statusMessage"]
    assert (await modern.get(task_id))["status"] == "completed"
    assert (await core.send("tasks/result", {"taskId": task_id})).result["isError"] is True


async def test_a_task_that_failed_says_why(core: Client2025) -> None:
    task_id = await core.start("protocol_error_job")

    assert "the job broke the protocol" in (await core.until(task_id, "failed"))["statusMessage"]
