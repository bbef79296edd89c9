"""The same `Tasks` on a server of FastMCP do in both generations what they do on one of the official SDK."""

from __future__ import annotations

import asyncio

import fastmcp
import pytest
from fastmcp import FastMCP

from perdure.tasks import StoreConfig

from ..conditions import wait_until
from ..mcp.raw_clients import EXTENSION, Client2025, Client2026, Json
from ..mcp.tool_helpers import text_of
from .tool_server import NAMING_ADA, ToolServer, opened, result_of

pytestmark = pytest.mark.anyio

PAIRS: dict[str, Json] = {
    "add": {"left": 2, "right": 3},
    "count": {"upto": 3},
    "nothing": {},
    "rich": {},
    "fail": {},
    "stumble": {},
}


def bare(result: Json) -> Json:
    """What a tool said: without what a protocol adds to it."""
    meta = {name: value for name, value in result.get("_meta", {}).items() if name.startswith("test/")}
    kept = {name: value for name, value in result.items() if name not in ("_meta", "resultType")}
    return {"isError": False, **kept, "_meta": meta}


async def test_tasks_are_advertised_in_each_generations_way(modern: Client2026, core: Client2025) -> None:
    discovered = (await modern.send("server/discover")).result["capabilities"]

    assert discovered["extensions"][EXTENSION] == {}
    assert core.initialized["capabilities"]["tasks"] == {"cancel": {}, "requests": {"tools": {"call": {}}}}


async def test_a_call_becomes_a_task_in_2026(shop: ToolServer, modern: Client2026) -> None:
    task_id = await modern.start("hold", {"label": "it"})
    working = await modern.until(task_id, "working")
    shop.gate.set()
    done = await modern.until(task_id, "completed")

    assert working["ttlMs"] == 2 * 86_400_000  # at least a day ahead
    assert text_of(done["result"]) == "held it"
    assert done["result"]["structuredContent"] == {"result": "held it"}


async def test_a_call_becomes_a_task_in_2025(shop: ToolServer, core: Client2025) -> None:
    task_id = await core.start("hold", {"label": "it"}, task={"ttl": 60_000})
    shop.gate.set()
    result = await result_of(core, task_id)

    assert text_of(result) == "held it"
    assert result["_meta"]["io.modelcontextprotocol/related-task"] == {"taskId": task_id}
    assert (await core.get(task_id))["ttl"] >= 60_000  # the result is readable for that long


async def test_a_client_that_knows_of_no_tasks_waits_in_both(
    shop: ToolServer, modern: Client2026, core: Client2025
) -> None:
    shop.gate.set()

    assert text_of((await modern.call("hold", {"label": "it"}, declared=False)).result) == "held it"
    assert text_of((await core.call("hold", {"label": "it"})).result) == "held it"


async def test_tools_say_in_2025_whether_they_can_be_tasks(core: Client2025, modern: Client2026) -> None:
    tools = {tool["name"]: tool for tool in (await core.send("tools/list")).result["tools"]}
    now = (await modern.send("tools/list")).result["tools"]

    assert tools["hold"]["execution"] == {"taskSupport": "optional"}
    assert tools["only_as_task"]["execution"] == {"taskSupport": "required"}
    assert tools["greet"].get("execution", {"taskSupport": "forbidden"}) == {"taskSupport": "forbidden"}
    assert [tool["name"] for tool in now if "execution" in tool] == []


async def test_the_task_is_no_argument_of_the_tool(core: Client2025) -> None:
    (hold,) = [tool for tool in (await core.send("tools/list")).result["tools"] if tool["name"] == "hold"]

    assert set(hold["inputSchema"]["properties"]) == {"label"}
    assert hold["description"] == "Holds."


async def test_a_tool_that_requires_tasks_refuses_those_who_know_none(
    modern: Client2026, core: Client2025
) -> None:
    assert (await modern.call("only_as_task", declared=False)).code == -32021
    assert (await core.call("only_as_task")).code == -32601
    assert text_of(await result_of(core, await core.start("only_as_task"))) == "done"


async def test_a_plain_tool_is_never_a_task(shop: ToolServer, modern: Client2026, core: Client2025) -> None:
    assert text_of((await modern.call("greet", {"name": "Ada"})).result) == "Hello, Ada!"
    assert (await core.call("greet", {"name": "Ada"}, task={})).code == -32601
    assert await shop.count() == 0


async def test_arguments_that_do_not_fit_become_no_task(
    shop: ToolServer, modern: Client2026, core: Client2025
) -> None:
    durable = (await modern.call("add", {"left": "two"})).result
    plain = (await modern.call("plain_add", {"left": "two"})).result
    refused = (await core.call("add", {"left": "two"}, task={})).error

    assert _said(durable) == _said(plain)
    assert (refused["code"], refused["message"]) == (-32602, text_of(durable))
    assert await shop.count() == 0


@pytest.mark.parametrize("tool", PAIRS)
async def test_a_task_ends_with_what_the_plain_tool_answers(
    modern: Client2026, core: Client2025, tool: str
) -> None:
    plain = (await modern.call(f"plain_{tool}", PAIRS[tool])).result
    done = await modern.until(await modern.start(tool, PAIRS[tool]), "completed")
    waited = await result_of(core, await core.start(tool, PAIRS[tool]))

    told = {**bare(plain), "content": _renamed(bare(plain)["content"], tool)}
    assert bare(done["result"]) == bare(waited) == told


def _renamed(content: list[Json], tool: str) -> list[Json]:
    return [{**block, "text": block["text"].replace(f"plain_{tool}", tool)} for block in content]


async def test_a_server_that_masks_what_its_tools_raise_masks_it_in_tasks_too(anyio_backend: str) -> None:
    shop = ToolServer(server=FastMCP("fast", mask_error_details=True))
    async with opened(shop) as url, Client2026(url) as modern:
        plain = (await modern.call("plain_stumble")).result
        done = await modern.until(await modern.start("stumble"), "completed")

    assert "paper" not in text_of(plain)
    assert _said(done["result"]) == _said(plain)


async def test_a_task_runs_the_version_of_the_tool_that_was_called(shop: ToolServer) -> None:
    async def first() -> str:
        return "the first"

    async def second() -> str:
        return "the second"

    for version, function in (("1.0", first), ("2.0", second)):
        shop.server.tool(name="versioned", version=version, task=True)(function)
        shop.server.tool(name="plain_versioned", version=version)(function)
    async with opened(shop) as url, fastmcp.Client(url) as client:
        plain = await client.call_tool("plain_versioned", version="1.0")
        durable = await client.call_tool("versioned", version="1.0")

    assert durable.data == plain.data == "the first"


async def test_a_protocol_error_fails_the_task_with_its_code_and_data(
    modern: Client2026, core: Client2025
) -> None:
    failed = await modern.until(await modern.start("break_off"), "completed", "failed")
    answer = await core.send("tasks/result", {"taskId": await core.start("break_off")})

    assert failed["error"] == answer.error == {"code": -32042, "message": "it broke off", "data": {"at": 1}}


def _said(result: Json) -> tuple[bool, str]:
    return result["isError"], text_of(result).replace("plain_", "")


async def test_a_plain_function_runs_beside_the_event_loop(modern: Client2026) -> None:
    done = await modern.until(await modern.start("thread_name"), "completed")

    assert text_of(done["result"]) == "False 1"


async def test_a_task_asks_in_2026_and_is_answered_one_by_one(modern: Client2026) -> None:
    task_id = await modern.start("ask_two")
    asked = await modern.until(task_id, "input_required")
    await modern.update(task_id, {"first": NAMING_ADA})
    left = (await modern.get(task_id))["inputRequests"]
    await modern.update(task_id, {"second": NAMING_ADA})

    assert (set(asked["inputRequests"]), set(left)) == ({"first", "second"}, {"second"})
    assert text_of((await modern.until(task_id, "completed"))["result"]) == "first: Ada, second: Ada"


async def test_a_task_asks_in_2025_on_the_stream_of_its_result(url: str) -> None:
    async def answering(_: Json) -> Json:
        return NAMING_ADA

    async with Client2025(url, answering=answering) as core:
        assert text_of(await result_of(core, await core.start("ask_two"))) == "first: Ada, second: Ada"
        assert [request["method"] for request in core.asked] == ["elicitation/create"] * 2


async def test_cancelling_ends_the_task_in_both(
    shop: ToolServer, modern: Client2026, core: Client2025
) -> None:
    task_id, other = await modern.start("hold"), await core.start("hold")
    await wait_until(lambda: len(shop.ran) == 2)
    await modern.cancel(task_id)
    answered = (await core.send("tasks/cancel", {"taskId": other})).result

    assert (await modern.until(task_id, "completed", "failed", "cancelled"))["status"] == "cancelled"
    assert answered["status"] == "cancelled"


async def test_a_listener_is_told_of_each_change_to_the_end(shop: ToolServer, modern: Client2026) -> None:
    task_id = await modern.start("hold")
    seen: list[Json] = []
    async with asyncio.timeout(20), modern.listen({"taskIds": [task_id]}) as frames:
        async for frame in frames:
            if frame.get("method") == "notifications/subscriptions/acknowledged":
                shop.gate.set()
            elif frame.get("method") == "notifications/tasks":
                seen.append(frame["params"])
                if seen[-1]["status"] == "completed":
                    break

    assert text_of(seen[-1]["result"]) == "held "


async def test_a_session_lists_its_own_tasks_where_the_server_binds_them_to_it(anyio_backend: str) -> None:
    shop = ToolServer(anonymous="session")
    async with opened(shop) as url, Client2025(url) as one, Client2025(url) as other:
        assert "list" in one.initialized["capabilities"]["tasks"]
        task_id = await one.start("hold")
        mine, theirs = [(await each.send("tasks/list")).result["tasks"] for each in (one, other)]
        assert ([task["taskId"] for task in mine], theirs) == ([task_id], [])
        assert (await other.send("tasks/get", {"taskId": task_id})).code == -32602


async def test_a_quota_refuses_a_call_and_makes_no_task(anyio_backend: str) -> None:
    shop = ToolServer(anonymous="session", store=StoreConfig(max_tasks_per_owner=2))
    async with opened(shop) as url, Client2025(url) as core:
        await core.start("hold")
        await core.start("hold")
        refused = (await core.call("hold", task={})).error
        assert (refused["code"], refused["data"]) == (-32603, {"retryable": True})
        assert await shop.count() == 2


async def test_a_durable_tool_may_have_another_name_than_its_function(anyio_backend: str) -> None:
    shop = ToolServer()

    @shop.server.tool(name="twice", task=True)
    async def double(number: int) -> int:
        return 2 * number

    async with opened(shop) as url, Client2026(url) as modern:
        done = await modern.until(await modern.start("twice", {"number": 21}), "completed")
        assert done["result"]["structuredContent"] == {"result": 42}
