"""A client asks after its task no more often than it is told, names it, and takes nothing else for a task."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from mcp.client import Client
from pydantic import ValidationError

from ...conditions import wait_until
from ..raw_clients import Json
from .tool_server import ToolServer, visiting

pytestmark = pytest.mark.anyio


# How often it asks


async def test_a_client_waits_as_long_as_the_server_says_before_it_asks_again(
    shop: ToolServer, url: str
) -> None:
    async with visiting(url) as visitor:
        calling = asyncio.create_task(visitor.client.call_tool("hold"))
        await wait_until(lambda: len(shop.watch.of("tasks/get")) >= 12, seconds=30)
        shop.gate.set()
        await calling

    asked = shop.watch.of("tasks/get")
    hints = [seen.answer["pollIntervalMs"] for seen in asked[:-1]]
    waits = [(after.came - before.left) * 1000 for before, after in itertools.pairwise(asked)]
    assert [wait for wait, hint in zip(waits, hints, strict=True) if wait < hint - 1] == []
    assert hints[-1] > hints[0]


async def test_a_server_that_gives_no_hint_is_not_asked_without_pause(shop: ToolServer, url: str) -> None:
    def without_hint(task: Json) -> Json:
        return {name: value for name, value in task.items() if name != "pollIntervalMs"}

    shop.answers.changing["tasks/get"] = without_hint
    async with visiting(url) as visitor:
        calling = asyncio.create_task(visitor.client.call_tool("hold"))
        await wait_until(lambda: len(shop.watch.of("tasks/get")) >= 3, seconds=30)
        shop.gate.set()
        await calling

    first, second, *_ = shop.watch.of("tasks/get")
    assert second.came - first.left > 0.5


# What goes over the wire


async def test_every_request_about_a_task_names_it_in_the_header(shop: ToolServer, url: str) -> None:
    async with visiting(url) as visitor:
        asked = await visitor.start("ask_two")
        await asked.wait(20)
        held = await visitor.start("hold")
        await held.cancel()

    about = [seen for seen in shop.watch.seen if seen.method.startswith("tasks/")]
    assert {seen.method for seen in about} == {"tasks/get", "tasks/update", "tasks/cancel"}
    assert all(seen.headers["mcp-name"] == seen.params["taskId"] for seen in about)


CREATED: Json = {
    "resultType": "task",
    "taskId": "4" * 32,
    "status": "working",
    "createdAt": "2026-11-16T00:00:00Z",
    "lastUpdatedAt": "2026-11-16T00:00:00Z",
    "ttlMs": None,
    "pollIntervalMs": 50,
}


async def test_a_task_in_answer_to_anything_but_a_call_is_not_taken_for_one(
    shop: ToolServer, url: str
) -> None:
    for method in ("prompts/get", "resources/read"):
        shop.answers.instead[method] = lambda: dict(CREATED)
    async with visiting(url) as visitor:
        with pytest.raises(ValidationError):
            await visitor.client.get_prompt("any")
        with pytest.raises(ValidationError):
            await visitor.client.read_resource("file:///any")

    assert shop.watch.of("tasks/get") == []


async def test_a_client_that_does_not_follow_tasks_gets_a_result_all_the_same(
    shop: ToolServer, url: str
) -> None:
    async with Client(url) as client:
        result = await client.call_tool("add", {"left": 2, "right": 3})

    assert result.structured_content == {"total": 5}
    assert shop.watch.of("tasks/get") == []
