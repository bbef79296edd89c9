"""A server that becomes durable by one decorator per tool and one line looks the same to its clients."""

from __future__ import annotations

import difflib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ...markers import row
from ..raw_clients import Client2025, Client2026, Json, serving
from . import after, before

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:The .* capability is deprecated"),
]

TOKEN = "ada"  # noqa: S105, a name


async def ada(_: Json) -> Json:
    return {"action": "accept", "content": {"name": "Ada"}}


async def seen_by_a_client(module: ModuleType) -> Json:
    """Return everything that a client sees of a call."""
    module.calls.clear()
    async with (
        serving(module.server.streamable_http_app()) as url,
        Client2025(url, token=TOKEN, answering=ada) as client,
    ):
        call: Json = {"name": "build_report", "arguments": {"year": 2026}, "_meta": {"progressToken": "mine"}}
        answer = await client.send("tools/call", call)
        wrong = await client.send("tools/call", {"name": "build_report", "arguments": {"year": "x"}})
        tools = (await client.send("tools/list")).result["tools"]
    messages = [(frame["method"], frame["params"]) for frame in answer.frames]
    return {
        "answer": answer.result,
        "progress": [params for method, params in messages if method == "notifications/progress"],
        "log": [params for method, params in messages if method == "notifications/message"],
        "asked": [request["params"] for request in client.asked],
        "wrong arguments": wrong.result,
        "tools": [without_execution(tool) for tool in tools],
        "calls": list(module.calls),
    }


def without_execution(tool: Json) -> Json:
    return {name: value for name, value in tool.items() if name != "execution"}


@row(119, 125)
async def test_a_client_sees_the_same_before_and_after() -> None:
    was, is_ = await seen_by_a_client(before), await seen_by_a_client(after)
    assert is_ == was
    assert was["answer"]["content"][0]["text"] == "2026, signed by Ada, in /var/archive"
    assert (len(was["progress"]), len(was["log"]), len(was["asked"])) == (3, 1, 1)


@row(119)
async def test_after_it_a_client_can_have_a_task() -> None:
    async with (
        serving(after.server.streamable_http_app()) as url,
        Client2026(url, token=TOKEN) as client,
    ):
        task_id = await client.start("build_report", {"year": 2026})
        asked: dict[str, Any] = (await client.until(task_id, "input_required"))["inputRequests"]
        await client.update(task_id, {key: await ada({}) for key in asked})
        done = await client.until(task_id, "completed")
    assert done["result"]["content"][0]["text"] == "2026, signed by Ada, in /var/archive"


def test_one_decorator_and_one_line_are_the_difference() -> None:
    was, is_ = (Path(str(module.__file__)).read_text().splitlines()[2:] for module in (before, after))
    added = [line[2:] for line in difflib.ndiff(was, is_) if line.startswith("+ ") and line.strip() != "+"]
    assert added == [
        "from perdure import Tasks",
        'tasks = Tasks("memory:")',
        "    **tasks.attach(middleware=[count_calls], lifespan=lifespan),",
        "@tasks.durable",
    ]
