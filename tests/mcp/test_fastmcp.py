"""The same `Tasks` on a server of FastMCP, for raw clients, for FastMCP's own and for ours."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import fastmcp
import mcp_types
import pytest
from fastmcp import FastMCP
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StdioTransport
from fastmcp.exceptions import ToolError
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.server.middleware.caching import ResponseCachingMiddleware
from fastmcp.tools.base import ToolResult
from fastmcp_tasks import (
    TasksExtension,
    ToolTask,
    call_tool_task,  # pyright: ignore[reportUnknownVariableType]
)
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from perdure import Task, Tasks
from perdure.mcp.client import ClientTasks, Handle
from perdure.mcp.fastmcp import attach
from perdure.runtime import RuntimeConfig
from perdure.storage.kit.servers.process import free_port
from perdure.tasks import InputKind, InputRequest, StoreConfig
from perdure.tasks.errors import InvalidValue

from ..forging import Forged, forged
from ..rows import row
from ..runtime.replicas import until
from .fixture import make_server
from .wire import EXTENSION, Core, Json, Modern, is_open, serving, until_task

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
BRISK = RuntimeConfig(drain=0.2, cancel_grace=0.2, report_interval=0.05)
NAMED: Json = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
NAMING_ADA: Json = {"action": "accept", "content": {"name": "Ada"}}
ADA, BOB = "ada", "bob"
"""Their tokens, and their names."""


class Sum(BaseModel):
    total: int


# A server of FastMCP


class Shop:
    """A server of FastMCP with durable tools, and plain ones that do the same."""

    def __init__(self, url: str = "memory:", *, server: FastMCP[Any] | None = None, **options: Any) -> None:
        self.tasks = Tasks(url, runtime=BRISK, **options)
        self.server: FastMCP[Any] = FastMCP("fast", version="1.2") if server is None else server
        self.gate = asyncio.Event()
        """What `hold` waits for."""
        self.ran: list[str] = []
        attach(self.tasks, self.server)
        add_tools(self)
        add_pairs(self)
        add_failing_pairs(self)

    async def count(self) -> int:
        return sum((await self.tasks.runtime.store.counts()).values())


def add_tools(shop: Shop) -> None:
    @shop.server.tool()
    @shop.tasks.durable(retries=2)
    async def hold(task: Task, label: str = "") -> str:
        """Holds."""
        shop.ran.append(label)
        await task.report(f"holding {label}", done=1, total=2)
        await shop.gate.wait()
        return f"held {label}"

    @shop.server.tool()
    @shop.tasks.durable()
    async def ask_two(task: Task) -> str:
        params = {"mode": "form", "message": "Who?", "requestedSchema": NAMED}
        each = InputRequest(kind=InputKind.ELICITATION, params=cast("Any", params))
        asked = await task.ask({"first": each, "second": each})
        return ", ".join(f"{key}: {cast('Any', asked[key].answer).values['name']}" for key in sorted(asked))

    @shop.server.tool()
    @shop.tasks.durable(mode="required")
    async def only_as_task() -> str:
        return "done"

    @shop.server.tool()
    @shop.tasks.durable()
    def thread_name(task: Task) -> str:
        """A plain function, which blocks."""
        return f"{threading.current_thread() is threading.main_thread()} {task.attempt}"

    @shop.server.tool()
    async def greet(name: str) -> str:
        return f"Hello, {name}!"


def add_pairs(shop: Shop) -> None:
    """Each of these twice: as it is, and as a task."""

    async def add(left: int, right: int) -> Sum:
        return Sum(total=left + right)

    async def count(upto: int) -> list[int]:
        return list(range(upto))

    async def nothing() -> None:
        return None

    async def rich() -> ToolResult:
        return ToolResult(content="shown", structured_content={"kept": [1, 2]}, meta={"test/why": "because"})

    _register_twice(shop, add, count, nothing, rich)


def add_failing_pairs(shop: Shop) -> None:
    async def fail() -> str:
        raise ToolError("there is no paper")

    async def stumble() -> str:
        raise ValueError("out of paper")

    async def break_off() -> str:
        raise MCPError(-32042, "it broke off", {"at": 1})

    _register_twice(shop, fail, stumble, break_off)


def _register_twice(shop: Shop, *functions: Any) -> None:
    for function in functions:
        shop.server.tool(name=f"plain_{function.__name__}")(function)
        shop.server.tool(shop.tasks.durable()(function))


PAIRS: dict[str, Json] = {
    "add": {"left": 2, "right": 3},
    "count": {"upto": 3},
    "nothing": {},
    "rich": {},
    "fail": {},
    "stumble": {},
}


@asynccontextmanager
async def opened(shop: Shop) -> AsyncGenerator[str]:
    async with serving(shop.server.http_app(path="/mcp")) as url:
        yield url


@pytest.fixture
def shop(anyio_backend: str) -> Shop:
    return Shop()


@pytest.fixture
async def url(shop: Shop) -> AsyncGenerator[str]:
    async with opened(shop) as endpoint:
        yield endpoint


@pytest.fixture
async def modern(url: str) -> AsyncGenerator[Modern]:
    async with Modern(url) as client:
        yield client


@pytest.fixture
async def core(url: str) -> AsyncGenerator[Core]:
    async with Core(url) as client:
        yield client


async def result_of(core: Core, task_id: str) -> Json:
    return (await core.send("tasks/result", {"taskId": task_id})).result


def text_of(result: Mapping[str, Any]) -> str:
    return str(result["content"][0]["text"])


def bare(result: Json) -> Json:
    """What a tool said: without what a protocol adds to it."""
    meta = {name: value for name, value in result.get("_meta", {}).items() if name.startswith("test/")}
    kept = {name: value for name, value in result.items() if name not in ("_meta", "resultType")}
    return {"isError": False, **kept, "_meta": meta}


# Both generations


async def test_tasks_are_advertised_in_each_generations_way(modern: Modern, core: Core) -> None:
    discovered = (await modern.send("server/discover")).result["capabilities"]

    assert discovered["extensions"][EXTENSION] == {}
    assert core.initialized["capabilities"]["tasks"] == {"cancel": {}, "requests": {"tools": {"call": {}}}}


async def test_a_call_becomes_a_task_in_2026(shop: Shop, modern: Modern) -> None:
    task_id = await modern.start("hold", {"label": "it"})
    working = await modern.until(task_id, "working")
    shop.gate.set()
    done = await modern.until(task_id, "completed")

    assert working["ttlMs"] == 3_600_000
    assert text_of(done["result"]) == "held it"
    assert done["result"]["structuredContent"] == {"result": "held it"}


async def test_a_call_becomes_a_task_in_2025(shop: Shop, core: Core) -> None:
    task_id = await core.start("hold", {"label": "it"}, task={"ttl": 60_000})
    shop.gate.set()
    result = await result_of(core, task_id)

    assert text_of(result) == "held it"
    assert result["_meta"]["io.modelcontextprotocol/related-task"] == {"taskId": task_id}
    assert (await core.get(task_id))["ttl"] == 60_000


async def test_a_client_that_knows_of_no_tasks_waits_in_both(shop: Shop, modern: Modern, core: Core) -> None:
    shop.gate.set()

    assert text_of((await modern.call("hold", {"label": "it"}, declared=False)).result) == "held it"
    assert text_of((await core.call("hold", {"label": "it"})).result) == "held it"


async def test_tools_say_in_2025_whether_they_can_be_tasks(core: Core, modern: Modern) -> None:
    tools = {tool["name"]: tool for tool in (await core.send("tools/list")).result["tools"]}
    now = (await modern.send("tools/list")).result["tools"]

    assert tools["hold"]["execution"] == {"taskSupport": "optional"}
    assert tools["only_as_task"]["execution"] == {"taskSupport": "required"}
    assert tools["greet"].get("execution", {"taskSupport": "forbidden"}) == {"taskSupport": "forbidden"}
    assert [tool["name"] for tool in now if "execution" in tool] == []


async def test_the_task_is_no_argument_of_the_tool(core: Core) -> None:
    (hold,) = [tool for tool in (await core.send("tools/list")).result["tools"] if tool["name"] == "hold"]

    assert set(hold["inputSchema"]["properties"]) == {"label"}
    assert hold["description"] == "Holds."


async def test_a_tool_that_requires_tasks_refuses_those_who_know_none(modern: Modern, core: Core) -> None:
    assert (await modern.call("only_as_task", declared=False)).code == -32021
    assert (await core.call("only_as_task")).code == -32601
    assert text_of(await result_of(core, await core.start("only_as_task"))) == "done"


async def test_a_plain_tool_is_never_a_task(shop: Shop, modern: Modern, core: Core) -> None:
    assert text_of((await modern.call("greet", {"name": "Ada"})).result) == "Hello, Ada!"
    assert (await core.call("greet", {"name": "Ada"}, task={})).code == -32601
    assert await shop.count() == 0


async def test_arguments_that_do_not_fit_become_no_task(shop: Shop, modern: Modern, core: Core) -> None:
    durable = (await modern.call("add", {"left": "two"})).result
    plain = (await modern.call("plain_add", {"left": "two"})).result
    refused = (await core.call("add", {"left": "two"}, task={})).error

    assert _said(durable) == _said(plain)
    assert (refused["code"], refused["message"]) == (-32602, text_of(durable))
    assert await shop.count() == 0


@pytest.mark.parametrize("tool", PAIRS)
async def test_a_task_ends_with_what_the_plain_tool_answers(modern: Modern, core: Core, tool: str) -> None:
    plain = (await modern.call(f"plain_{tool}", PAIRS[tool])).result
    done = await modern.until(await modern.start(tool, PAIRS[tool]), "completed")
    waited = await result_of(core, await core.start(tool, PAIRS[tool]))

    told = {**bare(plain), "content": _renamed(bare(plain)["content"], tool)}
    assert bare(done["result"]) == bare(waited) == told


def _renamed(content: list[Json], tool: str) -> list[Json]:
    return [{**block, "text": block["text"].replace(f"plain_{tool}", tool)} for block in content]


async def test_a_server_that_masks_what_its_tools_raise_masks_it_in_tasks_too(anyio_backend: str) -> None:
    shop = Shop(server=FastMCP("fast", mask_error_details=True))
    async with opened(shop) as url, Modern(url) as modern:
        plain = (await modern.call("plain_stumble")).result
        done = await modern.until(await modern.start("stumble"), "completed")

    assert "paper" not in text_of(plain)
    assert _said(done["result"]) == _said(plain)


async def test_a_task_runs_the_version_of_the_tool_that_was_called(shop: Shop) -> None:
    async def first() -> str:
        return "the first"

    async def second() -> str:
        return "the second"

    for version, function in (("1.0", first), ("2.0", second)):
        shop.server.tool(name="versioned", version=version)(shop.tasks.durable()(function))
        shop.server.tool(name="plain_versioned", version=version)(function)
    async with opened(shop) as url, fastmcp.Client(url) as client:
        plain = await client.call_tool("plain_versioned", version="1.0")
        durable = await client.call_tool("versioned", version="1.0")

    assert durable.data == plain.data == "the first"


async def test_a_protocol_error_fails_the_task_as_the_plain_tool_answers_it(
    modern: Modern, core: Core
) -> None:
    plain = (await modern.call("plain_break_off")).message
    failed = await modern.until(await modern.start("break_off"), "completed", "failed")
    answer = await core.send("tasks/result", {"taskId": await core.start("break_off")})

    if "error" in plain:
        assert failed["error"] == plain["error"] == answer.error
    else:
        assert _said(failed["result"]) == _said(plain["result"]) == _said(answer.result)


def _said(result: Json) -> tuple[bool, str]:
    return result["isError"], text_of(result).replace("plain_", "")


async def test_a_plain_function_runs_beside_the_event_loop(modern: Modern) -> None:
    done = await modern.until(await modern.start("thread_name"), "completed")

    assert text_of(done["result"]) == "False 1"


async def test_a_task_asks_in_2026_and_is_answered_one_by_one(modern: Modern) -> None:
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

    async with Core(url, answering=answering) as core:
        assert text_of(await result_of(core, await core.start("ask_two"))) == "first: Ada, second: Ada"
        assert [request["method"] for request in core.asked] == ["elicitation/create"] * 2


async def test_cancelling_ends_the_task_in_both(shop: Shop, modern: Modern, core: Core) -> None:
    task_id, other = await modern.start("hold"), await core.start("hold")
    await until(lambda: len(shop.ran) == 2)
    await modern.cancel(task_id)
    answered = (await core.send("tasks/cancel", {"taskId": other})).result

    assert (await modern.until(task_id, "completed", "failed", "cancelled"))["status"] == "cancelled"
    assert answered["status"] == "cancelled"


async def test_a_listener_is_told_of_each_change_to_the_end(shop: Shop, modern: Modern) -> None:
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
    shop = Shop(anonymous="session")
    async with opened(shop) as url, Core(url) as one, Core(url) as other:
        assert "list" in one.initialized["capabilities"]["tasks"]
        task_id = await one.start("hold")
        mine, theirs = [(await each.send("tasks/list")).result["tasks"] for each in (one, other)]
        assert ([task["taskId"] for task in mine], theirs) == ([task_id], [])
        assert (await other.send("tasks/get", {"taskId": task_id})).code == -32602


async def test_a_quota_refuses_a_call_and_makes_no_task(anyio_backend: str) -> None:
    shop = Shop(anonymous="session", store=StoreConfig(max_tasks_per_owner=2))
    async with opened(shop) as url, Core(url) as core:
        await core.start("hold")
        await core.start("hold")
        refused = (await core.call("hold", task={})).error
        assert (refused["code"], refused["data"]) == (-32603, {"retryable": True})
        assert await shop.count() == 2


async def test_a_durable_tool_may_have_another_name_than_its_function(anyio_backend: str) -> None:
    shop = Shop()

    @shop.server.tool(name="twice")
    @shop.tasks.durable()
    async def double(number: int) -> int:
        return 2 * number

    async with opened(shop) as url, Modern(url) as modern:
        done = await modern.until(await modern.start("twice", {"number": 21}), "completed")
        assert done["result"]["structuredContent"] == {"result": 42}


async def test_a_durable_tool_takes_no_context_of_a_request(shop: Shop) -> None:
    async def reads(context: fastmcp.Context) -> str:
        return context.request_id

    async def may_read(context: fastmcp.Context | None = None) -> str:
        return "" if context is None else context.request_id

    for function in (reads, may_read):
        with pytest.raises(InvalidValue, match="take a Task instead"):
            shop.tasks.durable()(cast("Any", function))


# Who else has a say in a call


class Porter(Middleware):
    """Lets nobody in who does not say why."""

    def __init__(self) -> None:
        self.saw: list[str] = []

    async def on_call_tool(
        self,
        context: MiddlewareContext[mcp_types.CallToolRequestParams],
        call_next: CallNext[mcp_types.CallToolRequestParams, ToolResult],
    ) -> ToolResult:
        self.saw.append(context.message.name)
        if (context.message.arguments or {}).get("label") == "thief":
            raise ToolError("not you")
        return await call_next(context)


async def test_what_a_middleware_of_fastmcp_refuses_becomes_no_task(shop: Shop) -> None:
    porter = Porter()
    shop.server.add_middleware(porter)
    async with opened(shop) as url, Modern(url) as modern, Core(url) as core:
        first = await modern.call("hold", {"label": "thief"})
        second = await core.call("hold", {"label": "thief"}, task={})
        assert (first.result["isError"], text_of(first.result)) == (True, "not you")
        assert (second.code, second.error["message"]) == (-32602, "not you")
        assert await shop.count() == 0


async def test_a_middleware_of_fastmcp_sees_a_call_once_however_often_its_tool_runs(shop: Shop) -> None:
    porter = Porter()
    shop.server.add_middleware(porter)
    shop.gate.set()
    async with opened(shop) as url, Modern(url) as modern:
        await modern.until(await modern.start("hold", {"label": "guest"}), "completed")

    assert (porter.saw, shop.ran) == (["hold"], ["guest"])


class Doorkeeper(Middleware):
    """Writes on each call who brought it."""

    async def on_call_tool(
        self,
        context: MiddlewareContext[mcp_types.CallToolRequestParams],
        call_next: CallNext[mcp_types.CallToolRequestParams, ToolResult],
    ) -> ToolResult:
        arguments = {**(context.message.arguments or {}), "label": "by the doorkeeper"}
        message = context.message.model_copy(update={"arguments": arguments})
        return await call_next(context.copy(message=message))


async def test_what_a_middleware_of_fastmcp_makes_of_the_arguments_is_what_the_tool_gets(shop: Shop) -> None:
    shop.server.add_middleware(Doorkeeper())
    shop.gate.set()
    async with opened(shop) as url, Modern(url) as modern:
        done = await modern.until(await modern.start("hold", {"label": "by nobody"}), "completed")

    assert text_of(done["result"]) == "held by the doorkeeper"


async def test_a_cache_of_answers_does_not_make_one_task_of_two_calls(shop: Shop) -> None:
    shop.server.add_middleware(ResponseCachingMiddleware())
    shop.gate.set()
    async with opened(shop) as url, Modern(url) as modern:
        tasks = [await modern.start("hold", {"label": "it"}) for _ in range(3)]
        results = [(await modern.until(task_id, "completed"))["result"] for task_id in tasks]

    assert len(set(tasks)) == 3
    assert [text_of(result) for result in results] == ["held it"] * 3
    assert shop.ran == ["it"] * 3


async def test_a_tool_that_is_not_for_this_caller_becomes_no_task(anyio_backend: str) -> None:
    shop = Shop(server=authenticated())

    @shop.server.tool(auth=lambda context: context.token is not None and context.token.subject == ADA)
    @shop.tasks.durable()
    async def for_ada() -> str:
        return "for Ada"

    async with opened(shop) as url, Modern(url, token=ADA) as ada, Modern(url, token=BOB) as bob:
        refused = await bob.call("for_ada")
        assert "error" in refused.message or refused.result["isError"]
        assert await shop.count() == 0
        done = await ada.until(await ada.start("for_ada"), "completed")
        assert text_of(done["result"]) == "for Ada"


# Owners


def authenticated() -> FastMCP[Any]:
    people: dict[str, dict[str, Any]] = {
        name: {"client_id": "some-client", "scopes": [], "sub": name, "iss": "https://issuer.test"}
        for name in (ADA, BOB)
    }
    return FastMCP("fast", auth=StaticTokenVerifier(people))


@row(26)
async def test_a_task_belongs_to_whom_the_token_names(anyio_backend: str) -> None:
    shop = Shop(server=authenticated())
    async with opened(shop) as url, Modern(url, token=ADA) as ada, Modern(url, token=BOB) as bob:
        task_id = await ada.start("hold")
        for answer in (
            await bob.send("tasks/get", {"taskId": task_id}),
            await bob.cancel(task_id),
            await bob.update(task_id, {"first": NAMING_ADA}),
        ):
            assert answer.code == -32602
        assert (await ada.get(task_id))["status"] == "working"
        (found,) = (await shop.tasks.runtime.store.list_all()).tasks
        assert (found.task.owner.kind, found.task.owner.subject) == ("user", ADA)
        assert found.task.owner.issuer == "https://issuer.test"


async def test_each_user_lists_their_own_tasks(anyio_backend: str) -> None:
    shop = Shop(server=authenticated())
    async with opened(shop) as url, Core(url, token=ADA) as ada, Core(url, token=BOB) as bob:
        mine = [await ada.start("hold") for _ in range(2)]
        theirs = await bob.start("hold")
        assert {task["taskId"] for task in (await ada.send("tasks/list")).result["tasks"]} == set(mine)
        assert [task["taskId"] for task in (await bob.send("tasks/list")).result["tasks"]] == [theirs]


async def test_a_caller_without_a_token_is_not_let_in(anyio_backend: str) -> None:
    shop = Shop(server=authenticated())
    async with opened(shop) as url, Modern(url) as nobody:
        assert (await nobody.call("hold")).status == 401
        assert await shop.count() == 0


# FastMCP's own client, and ours


class Elicited:
    """What a client of FastMCP was asked, and answers."""

    def __init__(self, **answer: Any) -> None:
        self.asked: list[str] = []
        self._answer = answer

    async def __call__(self, message: str, *_: object) -> ElicitResult[dict[str, Any]]:
        self.asked.append(message)
        return ElicitResult(action="accept", content=self._answer)


async def test_fastmcps_client_waits_for_our_tasks_by_itself(shop: Shop, url: str) -> None:
    shop.gate.set()
    elicited = Elicited(name="Ada")
    async with fastmcp.Client(url, elicitation_handler=elicited) as client:
        assert (await client.call_tool("hold", {"label": "it"})).data == "held it"
        assert (await client.call_tool("ask_two")).data == "first: Ada, second: Ada"
        with pytest.raises(ToolError, match="no paper"):
            await client.call_tool("fail")
        assert await shop.count() == 3

    assert elicited.asked == ["Who?", "Who?"]


async def test_fastmcps_client_follows_one_of_our_tasks_by_its_handle(shop: Shop, url: str) -> None:
    async with fastmcp.Client(url) as client:
        task = await call_tool_task(client, "hold", {"label": "it"})
        assert isinstance(task, ToolTask)
        assert (await task.status()).status == "working"
        shop.gate.set()
        assert (await task.result()).data == "held it"
        shop.gate.clear()
        other = await call_tool_task(client, "hold")
        await other.cancel()
        assert (await other.wait(timeout=20)).status == "cancelled"


async def test_fastmcps_client_connects_to_our_server_in_the_same_process(shop: Shop) -> None:
    shop.gate.set()
    async with fastmcp.Client(shop.server) as client:
        assert (await client.call_tool("hold", {"label": "it"})).data == "held it"
        assert await shop.count() == 1


async def test_fastmcps_client_uses_a_server_of_the_official_sdk_too(anyio_backend: str) -> None:
    server, _ = make_server("memory:")
    elicited = Elicited(confirm=True)
    async with (
        serving(server.streamable_http_app()) as url,
        fastmcp.Client(url, elicitation_handler=elicited) as client,
    ):
        task = await call_tool_task(client, "slow_compute", {"seconds": 0.1, "label": "it"})
        assert (await task.result()).structured_content == {"result": "computed it in 0.1 seconds"}
        deleted = await client.call_tool("confirm_delete", {"filename": "a"})
        assert deleted.structured_content == {"result": "deleted a"}
        with pytest.raises(ToolError, match="failing_job"):
            await client.call_tool("failing_job")
        with pytest.raises(ToolError, match="the job broke the protocol"):
            await client.call_tool("protocol_error_job")

    assert elicited.asked == ["Delete a?"]


@pytest.mark.parametrize("push", [False, True])
async def test_our_client_uses_our_tasks_on_fastmcp(shop: Shop, url: str, *, push: bool) -> None:
    shop.gate.set()
    tasks = ClientTasks(push=push)
    async with Client(url, extensions=[tasks]) as client:
        result = await client.call_tool("hold", {"label": "it"})
        handle = await tasks.start(client, "add", {"left": 2, "right": 3})
        assert isinstance(handle, Handle)
        assert (await handle.wait(20)).structured_content == {"total": 5}

    assert result.structured_content == {"result": "held it"}


@pytest.mark.parametrize("push", [False, True])
async def test_our_client_uses_the_tasks_of_fastmcp(anyio_backend: str, *, push: bool) -> None:
    theirs = FastMCP("theirs")
    theirs.add_extension(TasksExtension())

    @theirs.tool(task=True)
    async def triple(number: int) -> int:
        return 3 * number

    tasks = ClientTasks(push=push)
    async with serving(theirs.http_app(path="/mcp")) as url, Client(url, extensions=[tasks]) as client:
        async with asyncio.timeout(20):
            result = await client.call_tool("triple", {"number": 14})
        handle = await tasks.start(client, "triple", {"number": 2})
        assert isinstance(handle, Handle)
        assert (await handle.wait(20)).structured_content == {"result": 6}

    assert result.structured_content == {"result": 42}


# Joining


async def test_a_server_is_joined_once(shop: Shop) -> None:
    with pytest.raises(ValueError, match="already"):
        attach(Tasks("memory:"), shop.server)
    with pytest.raises(ValueError, match="already"):
        attach(shop.tasks, shop.server)


async def test_what_is_refused_leaves_the_server_as_it_was(shop: Shop) -> None:
    with pytest.raises(ValueError, match="already"):
        attach(Tasks("memory:"), shop.server)
    shop.gate.set()
    async with opened(shop) as url, Modern(url) as modern:
        await modern.until(await modern.start("hold"), "completed")
        assert await shop.count() == 1


async def test_a_server_does_not_have_our_tasks_and_those_of_fastmcp() -> None:
    theirs, ours = FastMCP("theirs"), FastMCP("ours")
    theirs.add_extension(TasksExtension())
    attach(Tasks("memory:"), ours)

    with pytest.raises(ValueError, match=EXTENSION):
        attach(Tasks("memory:"), theirs)
    with pytest.raises(ValueError, match=EXTENSION):
        ours.add_extension(TasksExtension())


async def test_two_servers_do_not_share_their_tasks(shop: Shop) -> None:
    with pytest.raises(InvalidValue, match="another server"):
        attach(shop.tasks, FastMCP("other"))
    shop.gate.set()
    async with opened(shop) as url, Modern(url) as modern:
        await modern.until(await modern.start("hold"), "completed")


async def test_a_durable_tool_of_a_mounted_server_is_refused_by_name_and_does_not_run(shop: Shop) -> None:
    inner = FastMCP[Any]("inner")
    ran: list[int] = []

    @inner.tool()
    @shop.tasks.durable()
    async def deep(number: int) -> int:
        ran.append(number)
        return number

    shop.server.mount(inner)
    async with opened(shop) as url, Modern(url) as modern:
        assert "'deep'" in (await modern.call("deep", {"number": 1})).error["message"]
        assert (ran, await shop.count()) == ([], 0)


# Processes


PROGRAM = '''
import asyncio, os, sys
from fastmcp import FastMCP
from perdure import Task, Tasks
from perdure.mcp.fastmcp import attach
from tests.runtime.replicas import QUICK, UNHURRIED

tasks = Tasks(sys.argv[1], runtime=QUICK if "doomed" in sys.argv else UNHURRIED)
server = FastMCP("program")
attach(tasks, server)

@server.tool(name="steady")
@tasks.durable(retries=3, backoff=0.01)
async def careful(task: Task) -> str:
    """Ends only when it was begun again, from where it was."""
    reached = task.variables.get_int("reached", 0)
    if not reached:
        await task.set_variables({"reached": 3})
        await asyncio.sleep(600)
    return f"from {reached}, attempt {task.attempt}"

@server.tool()
@tasks.durable()
async def once(task: Task) -> str:
    await task.set_variables({"reached": 1})
    await asyncio.sleep(600)
    return "never"

if sys.argv[2] == "stdio":
    server.run("stdio", show_banner=False)
else:
    server.run("http", port=int(sys.argv[2]), show_banner=False, log_level="ERROR")
'''


class Program:
    """A server of FastMCP in a process of its own."""

    def __init__(self, process: Forged, port: int) -> None:
        self._process = process
        self.url = f"http://127.0.0.1:{port}/mcp"

    async def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()


@asynccontextmanager
async def program(storage: str, *options: str) -> AsyncGenerator[Program]:
    port = free_port()
    process = await forged("-c", PROGRAM, storage, str(port), *options, cwd=ROOT)
    try:
        await until(lambda: is_open(port), seconds=60)
        yield Program(process, port)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def reached(client: Modern, task_id: str) -> None:
    async def look() -> Json:
        task = await client.get(task_id)
        there = "reached" in task.get("_meta", {}).get("perdure/variables", {})
        return {**task, "status": "there"} if there else task

    await until_task(look, "there", seconds=30)


@row(62)
async def test_a_killed_server_runs_its_tools_again_by_name(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with program(storage, "doomed") as first, Modern(first.url) as client:
        again, never = await client.start("steady"), await client.start("once")
        await reached(client, again)
        await reached(client, never)
        await first.kill()
    async with program(storage) as second, Modern(second.url) as client:
        done = await until_task(lambda: client.get(again), "completed", "failed", seconds=30)
        lost = await until_task(lambda: client.get(never), "completed", "failed", seconds=30)

    assert text_of(done["result"]) == "from 3, attempt 2"
    assert "lost" in lost["error"]["message"]


async def test_a_server_over_stdin_and_stdout_makes_tasks(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'tasks.db'}"
    transport = StdioTransport(sys.executable, ["-c", PROGRAM, storage, "stdio"], cwd=str(ROOT))
    async with fastmcp.Client(transport) as client:
        task = await call_tool_task(client, "once")
        assert (await task.status()).status == "working"
        await task.cancel()
        assert (await task.wait(timeout=20)).status == "cancelled"
