"""Each way to run a server serves tasks in both generations, and one that lacks an argument says which."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi import FastAPI
from mcp.client import Client
from mcp.server import MCPServer
from mcp.server.lowlevel import Server
from starlette.applications import Starlette
from starlette.routing import Mount

from perdure import Tasks
from perdure.tasks.errors import InvalidValue

from ...markers import row
from ..raw_clients import EXTENSION, Client2025, Client2026, Json, serving
from ..tool_helpers import FAST_CONFIG
from .servers import called, clients_of, low_level, make, text, text_of, value_of, work_in_both

pytestmark = pytest.mark.anyio


# Over HTTP


async def test_a_server_serves_both_generations_over_http_by_itself(url: str) -> None:
    server, _ = make(url)
    async with serving(server.streamable_http_app()) as endpoint:
        await work_in_both(endpoint)


@pytest.mark.parametrize("options", [{"json_response": True}, {"stateless_http": True}])
async def test_a_server_serves_both_generations_whatever_the_shape_of_its_http(
    url: str, options: dict[str, Any]
) -> None:
    server, _ = make(url)
    async with serving(server.streamable_http_app(**options)) as endpoint:
        await work_in_both(endpoint)


async def test_two_servers_are_mounted_in_one_application_each_with_its_own_tasks(tmp_path: Path) -> None:
    made = {name: make(f"sqlite:///{tmp_path / name}.db") for name in ("one", "other")}

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            for server, __ in made.values():
                await stack.enter_async_context(server.session_manager.run())
            yield

    routes = [Mount(f"/{name}", server.streamable_http_app()) for name, (server, _) in made.items()]
    async with serving(Starlette(routes=routes, lifespan=lifespan)) as endpoint:
        root = endpoint.removesuffix("/mcp")
        for name in made:
            await work_in_both(f"{root}/{name}/mcp")
        async with Client2026(f"{root}/one/mcp") as one, Client2026(f"{root}/other/mcp") as other:
            task_id = await one.start("double", {"number": 1})
            assert (await other.send("tasks/get", {"taskId": task_id})).code == -32602


async def test_a_server_is_mounted_in_a_fastapi_application(tmp_path: Path) -> None:
    server, _ = make(f"sqlite:///{tmp_path / 'tasks'}.db")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        async with server.session_manager.run():
            yield

    app = FastAPI(lifespan=lifespan)
    app.mount("/reports", server.streamable_http_app())
    async with serving(app) as endpoint:
        await work_in_both(f"{endpoint.removesuffix('/mcp')}/reports/mcp")


# The low-level server
ADA: Json = {"action": "accept", "content": {"name": "Ada"}}


@pytest.fixture
async def low(url: str) -> AsyncGenerator[str]:
    async with serving(low_level(Tasks(url, runtime=FAST_CONFIG)).streamable_http_app()) as endpoint:
        yield endpoint


async def test_a_low_level_server_makes_tasks_and_asks_in_2026(low: str) -> None:
    async with Client2026(low) as modern:
        task_id = await modern.start("sign", {"what": "a letter"})
        asked = await modern.until(task_id, "input_required")
        await modern.update(task_id, {"name": ADA})
        done = await modern.until(task_id, "completed")
        plain = await modern.call("plain")
    assert list(asked["inputRequests"]) == ["name"]
    assert (text(done["result"]), text(plain.result)) == ("a letter by Ada", "plain")


async def test_a_low_level_server_makes_tasks_and_asks_in_2025(low: str) -> None:
    async def answering(_: Json) -> Json:
        return ADA

    async with Client2025(low, answering=answering) as core:
        task_id = await core.start("sign", {"what": "a letter"})
        answer = await core.send("tasks/result", {"taskId": task_id})
        waited = await core.call("sign", {"what": "another"})
    assert "tasks" in core.initialized["capabilities"]
    assert (text(answer.result), text(waited.result)) == ("a letter by Ada", "another by Ada")


@row(89)
async def test_a_low_level_server_says_which_of_its_tools_are_durable_where_that_can_be_said(
    low: str,
) -> None:
    async with (
        Client2026(low) as modern,
        Client2025(low) as core,
        Client2025(low, version="2025-06-18") as older,
    ):
        listed = (await core.send("tools/list")).result["tools"]
        others = [(await each.send("tools/list")).result["tools"] for each in (modern, older)]
        discovered = (await modern.send("server/discover")).result["capabilities"]
    support = {tool["name"]: tool.get("execution") for tool in listed}
    optional, required = {"taskSupport": "optional"}, {"taskSupport": "required"}
    assert support == {"sign": optional, "double": required, "pool_in_use": optional, "plain": None}
    assert not any("execution" in tool for tools in others for tool in tools)
    assert discovered["extensions"][EXTENSION] == {}


@row(88)
async def test_a_low_level_server_holds_clients_to_what_its_tools_say(low: str) -> None:
    async with Client2026(low) as modern, Client2025(low) as core:
        assert (await modern.call("double", {"number": 1}, declared=False)).code == -32021
        assert (await core.call("double", {"number": 1})).code == -32601
        assert (await core.call("plain", task={})).code == -32601
        assert (await modern.send("tasks/list")).code == -32601
        assert (await core.send("tasks/update", {"taskId": "x", "inputResponses": {}})).code == -32601


# Built without something


@row(88)
@pytest.mark.parametrize("part", ["extensions", "middleware"])
async def test_a_server_that_was_built_without_a_part_does_not_start_and_names_it(
    url: str, part: str
) -> None:
    server, _ = make(url, **cast("dict[str, Any]", {part: []}))
    app = server.streamable_http_app()
    with pytest.raises(InvalidValue) as raised:
        async with app.router.lifespan_context(app):
            pass
    assert part.removesuffix("s") in str(raised.value)
    assert "**tasks.attach()" in str(raised.value)


@row(88)
async def test_a_durable_call_of_a_server_without_the_lifespan_fails_with_what_to_write(url: str) -> None:
    server, _ = make(url, lifespan=None)
    async with clients_of(server) as (modern, core):
        answers = [
            await modern.call("double", {"number": 1}),
            await modern.call("double", {"number": 1}, declared=False),
            await core.call("double", {"number": 1}),
        ]
        for answer in answers:
            assert answer.code == -32603
            assert "**tasks.attach()" in answer.error["message"]
        assert value_of((await modern.call("half", {"number": 1})).result) == 0.5
        assert value_of((await core.call("half", {"number": 1})).result) == 0.5


async def test_two_servers_may_not_share_their_tasks(url: str) -> None:
    first, tasks = make(url)
    second: MCPServer[Any] = MCPServer("other", log_level="ERROR", **tasks.attach())
    async with Client(first) as client:
        with pytest.raises(InvalidValue, match="belongs to another server"):
            async with Client(second):
                pass
        assert await called(client) == 42


async def test_two_low_level_servers_may_not_share_their_tasks(url: str) -> None:
    tasks = Tasks(url)
    first: Server[Any] = low_level(tasks)
    second: Server[Any] = Server("other")
    with pytest.raises(InvalidValue, match="belongs to another server"):
        tasks.install(second)
    async with Client(first) as client:
        assert text_of(await client.call_tool("plain")) == "plain"


# Servers without subscriptions


async def test_a_server_without_subscriptions_of_its_own_still_tells_of_tasks(url: str) -> None:
    server, _ = make(url, subscriptions=False)
    async with serving(server.streamable_http_app()) as endpoint, Client2026(endpoint) as modern:
        task_id = await modern.start("double", {"number": 21})
        async with asyncio.timeout(10), modern.listen({"taskIds": [task_id]}) as frames:
            async for frame in frames:
                if frame.get("params", {}).get("status") == "completed":
                    assert value_of(frame["params"]["result"]) == 42
                    break
        refused = await modern.send("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    assert refused.code == -32601
