"""A server whose tools wait for a test, ask and fail, and clients with `ClientTasks` that visit it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast

import pytest
from mcp.client import Client, Transport
from mcp.client.session import ClientRequestContext
from mcp.client.stdio import StdioServerParameters
from mcp.server import MCPServer
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolResult,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    ListRootsResult,
    Root,
    TextContent,
)
from pydantic import BaseModel, FileUrl

from perdure import Task, Tasks
from perdure.mcp.client import ClientTask, ClientTasks
from perdure.tasks import InputKind, InputRequest
from perdure.testing import OWNER, SIMULATED_INTERVALS, SimulatedTime

from ... import task_edits
from ...conditions import wait_until
from ..raw_clients import Json, serving
from ..tool_helpers import FAST_CONFIG, NAME_FORM

SAMPLED: Json = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "Well?"}}],
    "maxTokens": 10,
}
Request: TypeAlias = ServerRequestContext[Any, Any]
Mode: TypeAlias = Literal["auto", "legacy"]
Target: TypeAlias = str | MCPServer[Any] | StdioServerParameters | Transport

BOTH = pytest.mark.parametrize("mode", ["auto", "legacy"])


# A server, and what it sees


@dataclass
class Seen:
    """A request that reached the server, and what it was answered."""

    method: str
    params: Mapping[str, Any]
    headers: Mapping[str, str]
    came: float
    left: float = 0.0
    answer: Json = field(default_factory=dict[str, Any])


class Watch:
    """A middleware that writes down what passes."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    async def __call__(self, ctx: Request, call_next: CallNext) -> HandlerResult:
        headers = getattr(cast("Any", ctx.request), "headers", {})
        clock = asyncio.get_running_loop().time
        seen = Seen(ctx.method, ctx.params or {}, headers, clock())
        self.seen.append(seen)
        result = await call_next(ctx)
        seen.left = clock()
        seen.answer = dict(result) if isinstance(result, Mapping) else {}
        return result

    def of(self, method: str, task_id: str | None = None) -> list[Seen]:
        return [
            seen
            for seen in self.seen
            if seen.method == method and task_id in (None, seen.params.get("taskId"))
        ]


class Answers:
    """A middleware that answers in place of the server, or spoils what the server answers."""

    def __init__(self) -> None:
        self.instead: dict[str, Callable[[], HandlerResult]] = {}
        self.changing: dict[str, Callable[[Json], Json]] = {}
        self.is_deaf_to_tasks = False

    async def __call__(self, ctx: Request, call_next: CallNext) -> HandlerResult:
        if ctx.method in self.instead:
            return self.instead[ctx.method]()
        if ctx.method == "subscriptions/listen" and self.is_deaf_to_tasks:
            ctx = replace(ctx, params={**(ctx.params or {}), "notifications": {}})
        result = await call_next(ctx)
        if ctx.method in self.changing:
            return self.changing[ctx.method](dict(cast("Json", result)))
        return result


class ToolServer:
    """A server with tools that wait for a test, that ask, that fail."""

    def __init__(self, url: str, **options: Any) -> None:
        self.tasks = Tasks(url, runtime=FAST_CONFIG, **options)
        self.watch, self.answers = Watch(), Answers()
        self.gate = asyncio.Event()
        """What `hold` waits for."""
        self.held = 0
        """How often it came to wait."""
        given: dict[str, Any] = {**self.tasks.attach()}
        given["middleware"] = [self.watch, self.answers, *given["middleware"]]
        self.server: MCPServer[Any] = MCPServer("shop", version="1", log_level="ERROR", **given)
        add_tools(self)
        add_asking_tools(self)

    async def statuses(self) -> list[str]:
        """Of all tasks that there are, in the order in which they were made."""
        snapshots = await task_edits.all_tasks(self.tasks.runtime.store)
        return [snapshot.task.status.value for snapshot in snapshots]

    async def until_statuses(self, *statuses: str) -> None:
        async def met() -> bool:
            return await self.statuses() == list(statuses)

        await wait_until(met)


class Sum(BaseModel):
    total: int


def add_tools(shop: ToolServer) -> None:
    tool, durable = shop.server.tool, shop.tasks.durable

    async def add(left: int, right: int) -> Sum:
        return Sum(total=left + right)

    async def fail() -> str:
        raise ToolError("there is no paper")

    async def break_off() -> str:
        raise MCPError(-32042, "it broke off", {"at": [1, None, "page"]})

    for function in (add, fail, break_off):
        tool()(cast("Any", durable())(function))
        tool(name=f"plain_{function.__name__}")(function)

    @tool()
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    @tool()
    @durable(retries=2)
    async def hold(label: str = "") -> str:
        shop.held += 1
        await shop.gate.wait()
        return f"held {label}"


def add_asking_tools(shop: ToolServer) -> None:
    tool, durable = shop.server.tool, shop.tasks.durable

    @tool()
    @durable(retries=2, poll_interval=0.05)
    async def ask_all(task: Task) -> str:
        """Asks a person, a model, and where it may look; one after the other."""
        person = await task.elicit("Who?", NAME_FORM, key="person")
        model = await task.sample(SAMPLED["messages"], max_tokens=SAMPLED["maxTokens"], key="model")
        roots = await task.list_roots(key="roots")
        return f"{(person.data or {})['name']}, {model['model']}, {len(roots)}"

    @tool()
    @durable()
    async def hold_then_ask(task: Task) -> str:
        await shop.gate.wait()
        return (await task.elicit("Who?", NAME_FORM)).action

    @tool()
    @durable(retries=2, poll_interval=0.05)
    async def ask_two(task: Task) -> str:
        """Asks two persons at once."""
        params = {"mode": "form", "message": "Who?", "requestedSchema": NAME_FORM}
        each = InputRequest(kind=InputKind.ELICITATION, params=cast("Any", params))
        asked = await task.ask({"first": each, "second": each})
        return ", ".join(f"{key}: {cast('Any', asked[key].answer).values['name']}" for key in sorted(asked))


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[tuple[ToolServer, str]]:
    """A shop, and where it is."""
    shop = ToolServer(url)
    async with serving(shop.server.streamable_http_app()) as endpoint:
        yield shop, endpoint


# Clients


class AnsweringUser:
    """Answers what a server asks and remembers what it was asked."""

    def __init__(self, name: str = "Ada") -> None:
        self.name = name
        self.asked: list[str] = []

    async def elicit(self, _: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        self.asked.append(params.message)
        return ElicitResult(action="accept", content={"name": self.name})

    async def sample(
        self, _: ClientRequestContext, params: CreateMessageRequestParams
    ) -> CreateMessageResult:
        self.asked.append("sampling")
        return CreateMessageResult(role="assistant", content=TextContent(text="Well."), model="wit")

    async def roots(self, _: ClientRequestContext) -> ListRootsResult:
        self.asked.append("roots")
        return ListRootsResult(roots=[Root(uri=FileUrl("file:///srv"))])


@dataclass
class TaskClient:
    """A client, with the extension that it was built with."""

    client: Client
    tasks: ClientTasks

    async def start(self, tool: str, arguments: Mapping[str, Any] = {}, **options: Any) -> ClientTask:
        return await self.tasks.start(self.client, tool, arguments, **options)

    async def call(self, tool: str, arguments: Mapping[str, Any] = {}, **options: Any) -> CallToolResult:
        return await self.tasks.call(self.client, tool, arguments, **options)

    def resume(self, saved: str) -> ClientTask:
        return self.tasks.resume(self.client, saved)


@asynccontextmanager
async def visiting(
    target: Target,
    mode: Mode = "auto",
    *,
    person: AnsweringUser | None = None,
    push: bool = False,
    **options: Any,
) -> AsyncGenerator[TaskClient]:
    tasks, person = ClientTasks(push=push), person or AnsweringUser()
    callbacks: dict[str, Any] = {
        "elicitation_callback": person.elicit,
        "sampling_callback": person.sample,
        "list_roots_callback": person.roots,
    }
    async with Client(target, mode=mode, extensions=[tasks], **callbacks, **options) as client:
        yield TaskClient(client, tasks)


def run_simulated(test: Callable[[ToolServer], Coroutine[Any, Any, None]]) -> ToolServer:
    """Run a test in simulated time with a server in the same process, and return what the server has seen."""
    shop, time = ToolServer("memory:"), SimulatedTime()

    async def run() -> None:
        with shop.tasks.overridden("memory:", owner=OWNER, clock=time.clock, **SIMULATED_INTERVALS):
            await test(shop)

    time.run(run)
    return shop


async def raised_by(awaitable: Awaitable[object]) -> MCPError:
    with pytest.raises(MCPError) as raised:
        await awaitable
    return raised.value


def told_by(error: MCPError) -> tuple[int, str, Any]:
    return error.code, error.message, error.data


async def cancelled(doing: asyncio.Task[Any]) -> None:
    doing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing
