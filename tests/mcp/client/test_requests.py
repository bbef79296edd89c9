"""A client asks after its task no more often than it is told, names it, and takes nothing else for a task."""

from __future__ import annotations

import asyncio
import itertools
from typing import NoReturn

import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from ..raw_clients import Json
from .tool_server import Mode, Seen, ToolServer, run_simulated, visiting

# How often it asks, in simulated time


async def call_for_a_minute(shop: ToolServer) -> None:
    async with visiting(shop.server) as visitor:
        calling = asyncio.create_task(visitor.client.call_tool("hold"))
        await asyncio.sleep(60)
        shop.gate.set()
        await calling


def test_a_client_waits_as_long_as_the_server_says_before_it_asks_again() -> None:
    asked = run_simulated(call_for_a_minute).watch.of("tasks/get")

    hints = [seen.answer["pollIntervalMs"] for seen in asked[:-1]]
    assert delays_between(asked) == [pytest.approx(hint / 1000) for hint in hints]
    assert hints[-1] > hints[0]


def test_a_server_that_gives_no_hint_is_asked_every_second() -> None:
    async def without_hints(shop: ToolServer) -> None:
        shop.answers.changing["tasks/get"] = lambda task: {**task, "pollIntervalMs": None}
        await call_for_a_minute(shop)

    asked = run_simulated(without_hints).watch.of("tasks/get")

    assert delays_between(asked) == [pytest.approx(1)] * (len(asked) - 1)


@pytest.mark.parametrize(("mode", "method"), [("auto", "tasks/get"), ("legacy", "tasks/result")])
def test_a_busy_server_is_asked_with_growing_pauses(mode: Mode, method: str) -> None:
    def busy() -> NoReturn:
        raise MCPError(-32603, "the server is busy; try again", {"retryable": True})

    async def busy_for_a_minute(shop: ToolServer) -> None:
        shop.answers.instead[method] = busy
        async with visiting(shop.server, mode) as visitor:
            calling = asyncio.create_task(visitor.call("add", {"left": 2, "right": 3}))
            await asyncio.sleep(60)
            del shop.answers.instead[method]
            assert (await calling).structured_content == {"total": 5}

    refused = run_simulated(busy_for_a_minute).watch.of(method)

    pauses = [after.came - before.came for before, after in itertools.pairwise(refused)]
    assert 0.25 <= pauses[0] <= 1
    assert all(after >= before for before, after in itertools.pairwise(pauses[:4]))
    assert all(5 <= pause <= 11 for pause in pauses[6:])
    assert len(pauses) > 8


def delays_between(asked: list[Seen]) -> list[float]:
    return [after.came - before.left for before, after in itertools.pairwise(asked)]


# What goes over the wire


@pytest.mark.anyio
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


@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_a_client_that_does_not_follow_tasks_gets_a_result_all_the_same(
    shop: ToolServer, url: str
) -> None:
    async with Client(url) as client:
        result = await client.call_tool("add", {"left": 2, "right": 3})

    assert result.structured_content == {"total": 5}
    assert shop.watch.of("tasks/get") == []
