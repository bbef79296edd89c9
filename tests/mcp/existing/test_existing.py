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
META: Json = {"progressToken": "mine", "io.modelcontextprotocol/logLevel": "debug"}
CALL: Json = {"name": "build_report", "arguments": {"year": 2026}, "_meta": META}
WRONG: Json = {"name": "build_report", "arguments": {"year": "x"}}


async def ada(_: Json) -> Json:
    return {"action": "accept", "content": {"name": "Ada"}}


async def seen_by_a_client(module: ModuleType) -> Json:
    """Return everything that a client sees of a call."""
    module.calls.clear()
    async with (
        serving(module.server.streamable_http_app()) as url,
        Client2025(url, token=TOKEN, answering=ada) as client,
    ):
        answer = await client.send("tools/call", CALL)
        wrong = await client.send("tools/call", WRONG)
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


async def seen_by_a_client_of_2026(module: ModuleType, call: Json = CALL) -> tuple[Json, Json]:
    """Return what a client without tasks sees, and how its call is answered in the end."""
    async with (
        serving(module.server.streamable_http_app()) as url,
        Client2026(url, token=TOKEN) as client,
    ):
        answer = await client.send("tools/call", call, declared=False)
        wrong = await client.send("tools/call", WRONG, declared=False)
        tools = await client.send("tools/list", declared=False)
        seen = {"frames": answer.frames, "wrong arguments": wrong.result, "tools": tools.result}
        if "result" in answer.message and (asked := answer.result.get("inputRequests")):
            answers = {key: await ada(each) for key, each in asked.items()}
            round_ = {"inputResponses": answers, "requestState": answer.result["requestState"]}
            answer = await client.send("tools/call", {**call, **round_}, declared=False)
    return seen, answer.message


@row(119, 125)
async def test_a_client_of_2026_without_tasks_sees_the_same_and_can_be_asked_after_it() -> None:
    (was, refused), (is_, signed) = [await seen_by_a_client_of_2026(module) for module in (before, after)]
    assert is_ == was
    assert [frame["method"] for frame in was["frames"]] == [
        *["notifications/progress"] * 3,
        "notifications/message",
    ]
    assert "no back-channel" in refused["error"]["message"]
    assert signed["result"]["content"][0]["text"] == "2026, signed by Ada, in /var/archive"


@row(119, 125)
@pytest.mark.parametrize("level", ["error", "loud", None])
async def test_a_client_of_2026_gets_the_log_that_it_wants_and_no_more(level: str | None) -> None:
    wanted = {} if level is None else {"io.modelcontextprotocol/logLevel": level}
    call = {**CALL, "_meta": {"progressToken": "mine", **wanted}}
    (was, _), (is_, _) = [await seen_by_a_client_of_2026(module, call) for module in (before, after)]
    assert is_ == was
    assert len(was["frames"]) == (0 if level == "loud" else 3)


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
