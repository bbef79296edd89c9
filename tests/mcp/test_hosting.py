"""Where tasks live: each way to run a server, what it must be built with, who else has a say in a call."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, cast

import anyio
import pytest
from fastapi import FastAPI
from mcp.client import Client
from mcp.server import MCPServer
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, Resolve
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)
from starlette.applications import Starlette
from starlette.routing import Mount

from perdure import Task, Tasks
from perdure.runtime import RuntimeConfig
from perdure.storage import Storage, open_storage
from perdure.storage.errors import PerdureError, StorageClosed
from perdure.tasks import NewTask, Owner, StoreConfig, TaskStore
from perdure.tasks.errors import InvalidValue
from perdure.tasks.snapshot import TASKS

from ..rows import row
from ..runtime.replicas import until
from .wire import EXTENSION, Answer, Core, Json, Modern, serving

pytestmark = pytest.mark.anyio

Request = ServerRequestContext[Any, Any]
BRISK = RuntimeConfig(drain=0.2, cancel_grace=0.2, report_interval=0.05)


@pytest.fixture
def url(tmp_path: Path, anyio_backend: str) -> str:
    return f"sqlite:///{tmp_path / 'tasks.db'}"


def make(url: str | Storage, **arguments: Any) -> tuple[MCPServer[Any], Tasks]:
    """A server with one durable tool and a plain one; with these arguments instead of those attached."""
    tasks = Tasks(url, runtime=BRISK)
    given: dict[str, Any] = {**tasks.attach(), **arguments}
    server: MCPServer[Any] = MCPServer("host", log_level="ERROR", **given)
    add_tools(server, tasks)
    return server, tasks


def add_tools(server: MCPServer[Any], tasks: Tasks) -> None:
    @server.tool()
    @tasks.durable()
    async def double(number: int) -> int:
        return 2 * number

    @server.tool()
    async def half(number: int) -> float:
        return number / 2


def value_of(result: Json) -> Any:
    return result["structuredContent"]["result"]


async def called(client: Client, tool: str = "double", **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments or {"number": 21})
    assert not result.is_error, result
    return cast("Json", result.structured_content)["result"]


async def work_in_both(url: str) -> None:
    """A task in each generation, from the call to its result."""
    async with Modern(url) as modern, Core(url) as core:
        done = await modern.until(await modern.start("double", {"number": 21}), "completed")
        task_id = await core.start("double", {"number": 4})
        answer = await core.send("tasks/result", {"taskId": task_id})
    assert (value_of(done["result"]), value_of(answer.result)) == (42, 8)


@asynccontextmanager
async def clients_of(server: MCPServer[Any]) -> AsyncGenerator[tuple[Modern, Core]]:
    """A client of each generation, of a server that runs meanwhile."""
    async with (
        serving(server.streamable_http_app()) as endpoint,
        Modern(endpoint) as modern,
        Core(endpoint) as core,
    ):
        yield modern, core


async def count_of(tasks: Tasks) -> int:
    """How many tasks there are, whosever."""
    store = tasks.runtime.store
    return sum((await store.storage.counts(TASKS, now=store.clock())).values())


async def is_open(storage: Storage) -> bool:
    try:
        await storage.counts(TASKS, now=0)
    except StorageClosed:
        return False
    return True


# The lifespan


class Visit:
    """A client in the same process, in a task of its own: clients come and leave in any order."""

    client: Client

    def __init__(self, server: MCPServer[Any] | Server[Any], mode: str = "auto") -> None:
        self._server = server
        self._mode = mode
        self._came, self._leaves = asyncio.Event(), asyncio.Event()
        self._visiting: asyncio.Task[None] | None = None

    async def begin(self) -> Client:
        self._visiting = asyncio.create_task(self._visit())
        await self._came.wait()
        return self.client

    async def end(self) -> None:
        self._leaves.set()
        assert self._visiting is not None
        await self._visiting

    async def _visit(self) -> None:
        async with Client(self._server, mode=self._mode) as self.client:
            self._came.set()
            await self._leaves.wait()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_storage_is_opened_once_for_all_clients_and_closed_with_the_last(
    url: str, mode: str
) -> None:
    server, tasks = make(url)
    first, second = Visit(server, mode), Visit(server, mode)
    await first.begin()
    runtime = tasks.runtime
    await second.begin()
    assert [await called(first.client), await called(second.client)] == [42, 42]
    await first.end()
    assert tasks.runtime is runtime
    assert await called(second.client) == 42
    await second.end()
    assert not await is_open(runtime.store.storage)
    with pytest.raises(MCPError, match=r"lifespan=tasks\.lifespan"):
        _ = tasks.runtime


async def test_clients_that_come_at_the_same_moment_share_one_runtime(url: str) -> None:
    server, tasks = make(url)
    opened: list[object] = []
    together = asyncio.Barrier(5)

    async def come() -> None:
        async with Client(server) as client:
            opened.append(tasks.runtime)
            await together.wait()
            assert await called(client) == 42

    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(come())
    assert len(opened) == 5
    assert len(set(opened)) == 1


async def test_a_server_that_was_closed_can_be_run_again_and_finds_its_tasks(url: str) -> None:
    server, tasks = make(url)
    for count in (1, 2, 3):
        async with Client(server) as client:
            assert await called(client) == 42
            assert await count_of(tasks) == count


def test_a_server_can_be_run_again_in_another_event_loop(url: str) -> None:
    server, _ = make(url)
    together = 3

    async def run() -> list[int]:
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(call()) for _ in range(together)]
        return [call.result() for call in calls]

    async def call() -> int:
        async with Client(server) as client:
            return await called(client)

    assert anyio.run(run) == anyio.run(run) == [42] * together


async def test_a_storage_that_cannot_be_opened_is_told_at_start_up_and_may_be_mended(tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    server, _ = make(f"sqlite:///{folder / 'tasks.db'}")
    for _ in range(2):
        with pytest.raises(PerdureError, match="missing"):
            async with Client(server):
                pass
    folder.mkdir()
    async with Client(server) as client:
        assert await called(client) == 42


async def test_an_http_server_whose_storage_cannot_be_opened_does_not_start(tmp_path: Path) -> None:
    server, _ = make(f"sqlite:///{tmp_path / 'missing' / 'tasks.db'}")
    app = server.streamable_http_app()
    with pytest.raises(PerdureError, match="missing"):
        async with app.router.lifespan_context(app):
            pass


async def test_who_gives_up_while_the_storage_opens_leaves_nothing_behind(url: str) -> None:
    server, tasks = make(url)

    async def come() -> None:
        async with Client(server):
            await asyncio.Event().wait()

    for moment in range(1, 12):
        coming = asyncio.create_task(come())
        for _ in range(moment):
            await asyncio.sleep(0)
        coming.cancel()
        await asyncio.wait((coming,))
        async with Client(server) as client:
            assert await called(client) == 42
            storage = tasks.runtime.store.storage
        assert not await is_open(storage)
    gc.collect()  # an exception that nobody took would be reported now, and fail the test


async def test_a_storage_that_was_given_ready_is_used_and_not_closed(url: str) -> None:
    async with await open_storage(url) as storage:
        server, tasks = make(storage)
        async with Client(server) as client:
            assert tasks.runtime.store.storage is storage
            assert await called(client) == 42
        assert await is_open(storage)
        assert sum((await storage.counts(TASKS, now=TaskStore(storage).clock())).values()) == 1


async def test_limits_of_the_store_are_those_that_were_given(url: str) -> None:
    tasks = Tasks(url, store=StoreConfig(max_ttl_ms=1000, default_ttl_ms=1000))
    server: MCPServer[Any] = MCPServer("host", **tasks.attach())
    add_tools(server, tasks)
    async with serving(server.streamable_http_app()) as endpoint, Core(endpoint) as core:
        answer = await core.call("double", {"number": 1}, task={"ttl": 1001})
        assert answer.code == -32602


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
        async with Modern(f"{root}/one/mcp") as one, Modern(f"{root}/other/mcp") as other:
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


# A lifespan of the user's own


class Pool:
    """Something that a server opens, and that tools need open."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self.is_open = True
        self._events = events

    def use(self) -> str:
        assert self.is_open, f"{self.name} is closed"
        return self.name

    def close(self) -> None:
        self.is_open = False
        self._events.append(f"{self.name} closed")


def pooled(events: list[str]) -> Callable[[Any], AbstractAsyncContextManager[Pool]]:
    """A lifespan that opens a pool, numbered by how often it was entered."""
    numbers = iter(range(1, 99))

    @asynccontextmanager
    async def mine(_: object) -> AsyncGenerator[Pool]:
        pool = Pool(f"pool {next(numbers)}", events)
        try:
            yield pool
        finally:
            pool.close()

    return mine


def pool_in_use(ctx: Context[Pool, Any]) -> str:
    return ctx.request_context.lifespan_context.use()


def make_pooled(url: str, events: list[str]) -> tuple[MCPServer[Pool], Tasks]:
    tasks = Tasks(url, runtime=BRISK)
    server = MCPServer(
        "host",
        log_level="ERROR",
        extensions=[tasks],
        middleware=[tasks.middleware],
        lifespan=tasks.around(pooled(events)),
    )

    @server.tool()
    async def plain(ctx: Context[Pool, Any]) -> str:
        return pool_in_use(ctx)

    @server.tool()
    @tasks.durable()
    async def durable(pool: Annotated[str, Resolve(pool_in_use)]) -> str:
        return pool

    @server.tool()
    @tasks.durable()
    async def lasting() -> str:
        try:
            events.append("the task began")
            await asyncio.Event().wait()
        finally:
            events.append("the task ended")
        return ""

    return server, tasks


@pytest.mark.parametrize("tool", ["plain", "durable"])
async def test_what_a_lifespan_of_ones_own_yields_reaches_tools_and_resolvers(url: str, tool: str) -> None:
    server, _ = make_pooled(url, events := list[str]())
    async with Client(server) as client:
        assert await called(client, tool, nothing=None) == "pool 1"
        assert events == []
    assert events == ["pool 1 closed"]


async def test_tasks_end_before_the_lifespan_that_they_run_in(url: str) -> None:
    server, tasks = make_pooled(url, events := list[str]())
    async with serving(server.streamable_http_app()) as endpoint, Modern(endpoint) as modern:
        await modern.start("lasting")
        await until(lambda: bool(events))
        storage = tasks.runtime.store.storage
    assert events == ["the task began", "the task ended", "pool 1 closed"]
    assert not await is_open(storage)


async def test_a_lifespan_of_ones_own_that_fails_leaves_no_runtime_open(url: str) -> None:
    @asynccontextmanager
    async def broken(_: object) -> AsyncGenerator[None]:
        if url:
            raise ValueError("no pool today")
        yield

    tasks = Tasks(url)
    server = MCPServer("host", log_level="ERROR", extensions=[tasks], lifespan=tasks.around(broken))
    with pytest.raises(ValueError, match="no pool today"):
        async with Client(server):
            pass
    with pytest.raises(MCPError):
        _ = tasks.runtime


@pytest.mark.parametrize("leaves_first", ["older", "newer"])
async def test_a_task_runs_in_a_lifespan_that_is_open_whichever_client_left(
    url: str, leaves_first: str
) -> None:
    tasks = Tasks(url, runtime=BRISK)
    server = low_level(tasks, lifespan=pooled(list[str]()))
    older, newer = Visit(server), Visit(server)
    for each in (older, newer):
        await each.begin()
    leaving, staying = (older, newer) if leaves_first == "older" else (newer, older)
    await leaving.end()
    assert text_of(await staying.client.call_tool("pool_in_use")) in ("pool 1", "pool 2")
    await staying.end()


def text_of(result: CallToolResult) -> str:
    content = result.content[0]
    assert isinstance(content, TextContent)
    assert not result.is_error, content.text
    return content.text


# The low-level server


def low_level(tasks: Tasks, **options: Any) -> Server[Any]:
    """A server whose handlers are its own."""

    @tasks.durable(retries=1)
    async def sign(what: str, task: Task) -> str:
        answer = await task.elicit("Whose name?", NAMED, key="name")
        return f"{what} by {answer.values['name']}"

    @tasks.durable(mode="required")
    async def double(number: int) -> int:
        return 2 * number

    @tasks.durable()
    async def pool_in_use(pool: Any) -> str:
        return pool.use()

    async def list_tools(_: Request, __: PaginatedRequestParams | None) -> ListToolsResult:
        names = ("sign", "double", "pool_in_use", "plain")
        return ListToolsResult(tools=[Tool(name=name, input_schema={"type": "object"}) for name in names])

    async def call_tool(ctx: Request, params: CallToolRequestParams) -> CallToolResult:
        given: dict[str, Any] = params.arguments or {}
        if params.name == "pool_in_use":
            given = {"pool": ctx.lifespan_context}
        functions: dict[str, Any] = {"sign": sign, "double": double, "pool_in_use": pool_in_use}
        said = "plain" if params.name == "plain" else str(await functions[params.name](**given))
        return CallToolResult(content=[TextContent(text=said)])

    server: Server[Any] = Server("low", on_list_tools=list_tools, on_call_tool=call_tool, **options)
    tasks.install(server)
    return server


NAMED = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ADA: Json = {"action": "accept", "content": {"name": "Ada"}}


@pytest.fixture
async def low(url: str) -> AsyncGenerator[str]:
    async with serving(low_level(Tasks(url, runtime=BRISK)).streamable_http_app()) as endpoint:
        yield endpoint


def text(result: Json) -> str:
    return str(result["content"][0]["text"])


async def test_a_low_level_server_makes_tasks_and_asks_in_2026(low: str) -> None:
    async with Modern(low) as modern:
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

    async with Core(low, answering=answering) as core:
        task_id = await core.start("sign", {"what": "a letter"})
        answer = await core.send("tasks/result", {"taskId": task_id})
        waited = await core.call("sign", {"what": "another"})
    assert "tasks" in core.initialized["capabilities"]
    assert (text(answer.result), text(waited.result)) == ("a letter by Ada", "another by Ada")


@row(89)
async def test_a_low_level_server_says_which_of_its_tools_are_durable_where_that_can_be_said(
    low: str,
) -> None:
    async with Modern(low) as modern, Core(low) as core, Core(low, version="2025-06-18") as older:
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
    async with Modern(low) as modern, Core(low) as core:
        assert (await modern.call("double", {"number": 1}, declared=False)).code == -32021
        assert (await core.call("double", {"number": 1})).code == -32601
        assert (await core.call("plain", task={})).code == -32601
        assert (await modern.send("tasks/list")).code == -32601
        assert (await core.send("tasks/update", {"taskId": "x", "inputResponses": {}})).code == -32601


# Built without something


async def answers_of(server: MCPServer[Any], tool: str = "double") -> list[Answer]:
    """A durable call in each generation, as a task and not."""
    async with clients_of(server) as (modern, core):
        arguments = {"number": 1}
        return [
            await modern.call(tool, arguments),
            await modern.call(tool, arguments, declared=False),
            await core.call(tool, arguments, task={}),
            await core.call(tool, arguments),
        ]


def without(url: str, part: str) -> tuple[MCPServer[Any], Tasks]:
    nothing: dict[str, Any] = {"extensions": [], "middleware": [], "lifespan": None}
    return make(url, **{part: nothing[part]})


@row(88)
@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("extensions", "extensions=[tasks]"),
        ("middleware", "middleware=[tasks.middleware]"),
        ("lifespan", "lifespan=tasks.lifespan"),
    ],
)
async def test_a_durable_call_fails_with_the_name_of_what_the_server_lacks(
    url: str, part: str, said: str
) -> None:
    server, _ = without(url, part)
    for answer in await answers_of(server):
        assert answer.code == -32603
        assert said in answer.error["message"]
        assert "**tasks.attach()" in answer.error["message"]


@row(88)
@pytest.mark.parametrize("part", ["extensions", "middleware"])
async def test_what_a_server_without_some_argument_refuses_leaves_no_task(url: str, part: str) -> None:
    server, tasks = without(url, part)
    async with clients_of(server) as (modern, core):
        await modern.call("double", {"number": 1})
        await core.call("double", {"number": 1}, task={})
        assert await count_of(tasks) == 0


@pytest.mark.parametrize("part", ["extensions", "middleware", "lifespan"])
async def test_plain_tools_of_a_server_without_some_argument_work(url: str, part: str) -> None:
    server, _ = without(url, part)
    async with clients_of(server) as (modern, core):
        assert value_of((await modern.call("half", {"number": 1})).result) == 0.5
        assert value_of((await core.call("half", {"number": 1})).result) == 0.5


async def test_two_servers_may_not_share_their_tasks(url: str) -> None:
    first, tasks = make(url)
    second: MCPServer[Any] = MCPServer("other", log_level="ERROR", **tasks.attach())
    async with Client(first) as client:
        with pytest.raises(InvalidValue, match="belong to another server"):
            async with Client(second):
                pass
        assert await called(client) == 42


async def test_two_low_level_servers_may_not_share_their_tasks(url: str) -> None:
    tasks = Tasks(url)
    first: Server[Any] = low_level(tasks)
    second: Server[Any] = Server("other")
    with pytest.raises(InvalidValue, match="belong to another server"):
        tasks.install(second)
    async with Client(first) as client:
        assert text_of(await client.call_tool("plain")) == "plain"


# Who else has a say in a call


TOO_MUCH = 1000


class Guard(Extension):
    """An extension of somebody else's, which refuses what is negative, and too late what is too much."""

    identifier = "example.org/guard"

    def __init__(self) -> None:
        self.seen: list[int] = []

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Request, call_next: CallNext
    ) -> HandlerResult:
        number = (params.arguments or {}).get("number", 0)
        self.seen.append(number)
        if number < 0:
            raise MCPError(-32099, "not below zero", {"number": number})
        if number == 0:
            return CallToolResult(content=[TextContent(text="nothing to do")])
        result = await call_next(ctx)
        if number == TOO_MUCH:
            raise MCPError(-32098, "too much")
        return result


class Gate:
    """Middleware of somebody else's, which does the same."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    async def __call__(self, ctx: Request, call_next: CallNext) -> HandlerResult:
        if ctx.method != "tools/call":
            return await call_next(ctx)
        number = cast("Json", ctx.params)["arguments"]["number"]
        self.seen.append(number)
        if number < 0:
            raise MCPError(-32099, "not below zero", {"number": number})
        result = await call_next(ctx)
        if number == TOO_MUCH:
            raise MCPError(-32098, "too much")
        return result


def guarded(url: str, where: str) -> tuple[MCPServer[Any], Tasks, Guard | Gate]:
    """A server with somebody else's guard before or behind the tasks."""
    tasks = Tasks(url, runtime=BRISK)
    attached: dict[str, Any] = dict(tasks.attach())
    guard = Guard() if where.startswith("extension") else Gate()
    kind = "extensions" if isinstance(guard, Guard) else "middleware"
    attached[kind] = [guard, *attached[kind]] if where.endswith("before") else [*attached[kind], guard]
    server: MCPServer[Any] = MCPServer("host", log_level="ERROR", **attached)
    add_tools(server, tasks)
    return server, tasks, guard


PLACES = ["extension before", "extension behind", "middleware before", "middleware behind"]


@pytest.mark.parametrize("where", PLACES)
async def test_what_others_refuse_becomes_no_task_in_either_generation(url: str, where: str) -> None:
    server, tasks, guard = guarded(url, where)
    async with clients_of(server) as (modern, core):
        arguments = {"number": -1}
        answers = [
            await modern.call("double", arguments),
            await modern.call("double", arguments, declared=False),
            await core.call("double", arguments, task={}),
            await core.call("double", arguments),
        ]
        assert await count_of(tasks) == 0
    refusal = {"code": -32099, "message": "not below zero", "data": {"number": -1}}
    assert [answer.error for answer in answers] == [refusal] * 4
    assert guard.seen == [-1] * 4


@pytest.mark.parametrize("where", ["extension before", "extension behind", "middleware behind"])
async def test_what_others_refuse_when_they_have_seen_the_answer_becomes_no_task_either(
    url: str, where: str
) -> None:
    server, tasks, _ = guarded(url, where)
    async with clients_of(server) as (modern, core):
        answers = [
            await modern.call("double", {"number": TOO_MUCH}),
            await core.call("double", {"number": TOO_MUCH}, task={}),
        ]
        assert await count_of(tasks) == 0
    assert [answer.error["message"] for answer in answers] == ["too much"] * 2


@pytest.mark.parametrize("where", PLACES)
async def test_others_see_each_durable_call_once_and_let_it_pass(url: str, where: str) -> None:
    server, tasks, guard = guarded(url, where)
    async with serving(server.streamable_http_app()) as endpoint:
        await work_in_both(endpoint)
        assert await count_of(tasks) == 2
    assert guard.seen == [21, 4]


@pytest.mark.parametrize("where", ["extension before", "extension behind"])
async def test_what_others_answer_themselves_becomes_no_task(url: str, where: str) -> None:
    server, tasks, _ = guarded(url, where)
    async with clients_of(server) as (modern, core):
        answers = [
            await modern.call("double", {"number": 0}),
            await core.call("double", {"number": 0}),
        ]
        assert await count_of(tasks) == 0
    assert [text(answer.result) for answer in answers] == ["nothing to do"] * 2


async def test_others_see_a_call_of_2025_as_one_of_2025(url: str) -> None:
    versions: list[str] = []

    async def note(ctx: Request, call_next: CallNext) -> HandlerResult:
        if ctx.method == "tools/call":
            versions.append(ctx.session.protocol_version)
        return await call_next(ctx)

    server, _ = make(url)
    server.middleware.append(note)
    async with serving(server.streamable_http_app()) as endpoint:
        await work_in_both(endpoint)
    assert versions == ["2026-07-28", "2025-11-25"]


async def test_a_call_that_became_a_task_is_no_error_to_others(url: str) -> None:
    """Whoever counts or logs errors would otherwise do so for each durable call."""
    errors: list[Exception] = []

    async def note(ctx: Request, call_next: CallNext) -> HandlerResult:
        try:
            return await call_next(ctx)
        except Exception as error:
            errors.append(error)
            raise

    server, _ = make(url)
    server.middleware.append(note)
    async with serving(server.streamable_http_app()) as endpoint:
        await work_in_both(endpoint)
    assert errors == []


async def test_arguments_that_do_not_fit_become_no_task(url: str) -> None:
    server, tasks = make(url)
    async with clients_of(server) as (modern, core):
        results = [
            (await modern.call("double", {"number": "x"})).result,
            (await core.call("double", {"number": "x"})).result,
        ]
        assert await count_of(tasks) == 0
    for result in results:
        assert result["isError"] is True
        assert "Error executing tool double" in text(result)


# Servers without subscriptions


async def test_a_server_without_subscriptions_of_its_own_still_tells_of_tasks(url: str) -> None:
    server, _ = make(url, subscriptions=False)
    async with serving(server.streamable_http_app()) as endpoint, Modern(endpoint) as modern:
        task_id = await modern.start("double", {"number": 21})
        async with asyncio.timeout(10), modern.listen({"taskIds": [task_id]}) as frames:
            async for frame in frames:
                if frame.get("params", {}).get("status") == "completed":
                    assert value_of(frame["params"]["result"]) == 42
                    break
        refused = await modern.send("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    assert refused.code == -32601


# Tools that come and go


async def test_a_durable_tool_that_is_added_while_the_server_runs_makes_tasks(url: str) -> None:
    server, tasks = make(url)

    async def triple(number: int) -> int:
        return 3 * number

    async with clients_of(server) as (modern, core):
        before = (await modern.call("triple", {"number": 1})).message
        server.add_tool(tasks.durable()(triple))
        done = await modern.until(await modern.start("triple", {"number": 2}), "completed")
        task_id = await core.start("triple", {"number": 3})
        answer = await core.send("tasks/result", {"taskId": task_id})
    assert "taskId" not in str(before)
    assert (value_of(done["result"]), value_of(answer.result)) == (6, 9)


async def test_a_durable_tool_that_is_removed_is_as_unknown_as_any(url: str) -> None:
    server, tasks = make(url)
    async with clients_of(server) as (modern, core):
        await modern.until(await modern.start("double", {"number": 2}), "completed")
        unknown = [(await each.call("nothing")).message for each in (modern, core)]
        server.remove_tool("double")
        removed = [(await each.call("double", {"number": 2})).message for each in (modern, core)]
        listed = (await core.send("tools/list")).result["tools"]
        assert await count_of(tasks) == 1
    for was, is_ in zip(unknown, removed, strict=True):
        assert {**is_, "id": 0} == {**_renamed(was, "nothing", "double"), "id": 0}
    assert [tool["name"] for tool in listed] == ["half"]


def _renamed(message: Any, old: str, new: str) -> Any:
    if isinstance(message, dict):
        return {key: _renamed(value, old, new) for key, value in cast("Json", message).items()}
    if isinstance(message, list):
        return [_renamed(value, old, new) for value in cast("list[Any]", message)]
    return message.replace(old, new) if isinstance(message, str) else message


async def test_a_plain_tool_in_place_of_a_durable_one_makes_no_tasks(url: str) -> None:
    server, _ = make(url)

    async def twice(number: int) -> int:
        return 2 * number

    async with clients_of(server) as (modern, core):
        await modern.until(await modern.start("double", {"number": 2}), "completed")
        server.remove_tool("double")
        server.add_tool(twice, name="double")
        assert value_of((await modern.call("double", {"number": 2})).result) == 4
        assert (await core.call("double", {"number": 2}, task={})).code == -32601
        tools = (await core.send("tools/list")).result["tools"]
    assert not any("execution" in tool for tool in tools)


async def test_a_durable_tool_may_be_registered_under_several_names(url: str) -> None:
    tasks = Tasks(url, runtime=BRISK)
    server: MCPServer[Any] = MCPServer("host", log_level="ERROR", **tasks.attach())

    @tasks.durable()
    async def double(number: int) -> int:
        return 2 * number

    server.add_tool(double, name="twofold")
    server.add_tool(double, name="twice")
    async with serving(server.streamable_http_app()) as endpoint, Modern(endpoint) as modern:
        for name in ("twofold", "twice"):
            done = await modern.until(await modern.start(name, {"number": 2}), "completed")
            assert value_of(done["result"]) == 4


async def test_a_plain_tool_of_the_same_function_name_as_a_durable_one_stays_plain(url: str) -> None:
    server, _ = make(url)

    def other() -> Callable[..., Any]:
        async def double(number: int) -> int:
            return -2 * number

        return double

    server.add_tool(other(), name="minus")
    async with clients_of(server) as (modern, core):
        assert value_of((await modern.call("minus", {"number": 2})).result) == -4
        assert (await core.call("minus", {"number": 2}, task={})).code == -32601
        tools = (await core.send("tools/list")).result["tools"]
    assert {tool["name"] for tool in tools if "execution" in tool} == {"double"}


async def test_a_task_of_a_tool_that_others_made_is_run_all_the_same(url: str) -> None:
    """What is in the storage is run, also where no request of this server brought it."""
    server, tasks = make(url)
    async with Client(server):
        new = NewTask(
            method="tools/call", params={"name": "double", "arguments": {"number": 2}}, function="double"
        )
        made = await tasks.runtime.create(Owner.local(), new)
        done = await tasks.runtime.wait(Owner.local(), made.task.task_id, 10)
    outcome = cast("Any", done.task.outcome)
    assert outcome.value["structuredContent"] == {"result": 4}
