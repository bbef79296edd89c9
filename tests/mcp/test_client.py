"""Clients of the official SDK with `ClientTasks`: calls that wait by themselves, handles that are kept."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import pytest
from mcp.client import Client
from mcp.client.extension import advertise
from mcp.client.session import ClientRequestContext
from mcp.client.stdio import StdioServerParameters
from mcp.server import MCPServer
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    REQUEST_TIMEOUT,
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
from pydantic import BaseModel, FileUrl, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure import Task, Tasks
from perdure.mcp.client import ClientTasks, Handle, TaskState
from perdure.mcp.client.errors import (
    CannotAnswer,
    ClientTaskError,
    MalformedTask,
    NoTasks,
    NotDeclared,
    WasCancelled,
)
from perdure.runtime import RuntimeConfig
from perdure.storage.errors import PerdureError
from perdure.tasks import InputKind, InputRequest

from ..runtime.replicas import until
from .fixture import make_server
from .wire import EXTENSION, Json, Modern, serving

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
NAMED: Json = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
SAMPLED: Json = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "Well?"}}],
    "maxTokens": 10,
}
Request: TypeAlias = ServerRequestContext[Any, Any]
Mode: TypeAlias = Literal["auto", "legacy"]
Target: TypeAlias = str | MCPServer[Any]
BRISK = RuntimeConfig(drain=0.2, cancel_grace=0.2, report_interval=0.05)
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
        seen = Seen(ctx.method, ctx.params or {}, headers, time.monotonic())
        self.seen.append(seen)
        result = await call_next(ctx)
        seen.left = time.monotonic()
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


class Shop:
    """A server with tools that wait for a test, that ask, that fail."""

    def __init__(self, url: str) -> None:
        self.tasks = Tasks(url, runtime=BRISK)
        self.watch, self.answers = Watch(), Answers()
        self.gate = asyncio.Event()
        """What `hold` waits for."""
        self.held = 0
        """How often it came to wait."""
        given: dict[str, Any] = {
            **self.tasks.attach(),
            "middleware": [self.watch, self.answers, self.tasks.middleware],
        }
        self.server: MCPServer[Any] = MCPServer("shop", version="1", log_level="ERROR", **given)
        add_tools(self)
        add_asking_tools(self)

    async def statuses(self) -> list[str]:
        """Of all tasks that there are, in the order in which they were made."""
        page = await self.tasks.runtime.store.list_all()
        return [snapshot.task.status.value for snapshot in page.tasks]

    async def until_statuses(self, *statuses: str) -> None:
        async def met() -> bool:
            return await self.statuses() == list(statuses)

        await until(met)


class Sum(BaseModel):
    total: int


def add_tools(shop: Shop) -> None:
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


def add_asking_tools(shop: Shop) -> None:
    tool, durable = shop.server.tool, shop.tasks.durable

    @tool()
    @durable(retries=2, poll_interval=50)
    async def ask_all(task: Task) -> str:
        """Asks a person, a model, and where it may look; one after the other."""
        person = await task.elicit("Who?", NAMED, key="person")
        model = await task.sample(SAMPLED, key="model")
        roots = await task.roots(key="roots")
        return f"{person.values['name']}, {model.model}, {len(roots.roots)}"

    @tool()
    @durable()
    async def hold_then_ask(task: Task) -> str:
        await shop.gate.wait()
        return (await task.elicit("Who?", NAMED)).action

    @tool()
    @durable(retries=2, poll_interval=50)
    async def ask_two(task: Task) -> str:
        """Asks two persons at once."""
        params = {"mode": "form", "message": "Who?", "requestedSchema": NAMED}
        each = InputRequest(kind=InputKind.ELICITATION, params=cast("Any", params))
        asked = await task.ask({"first": each, "second": each})
        return ", ".join(f"{key}: {cast('Any', asked[key].answer).values['name']}" for key in sorted(asked))


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[tuple[Shop, str]]:
    """A shop, and where it is."""
    shop = Shop(url)
    async with serving(shop.server.streamable_http_app()) as endpoint:
        yield shop, endpoint


@pytest.fixture
async def open_shop(anyio_backend: str) -> AsyncGenerator[tuple[Shop, str]]:
    async with opened("memory:") as both:
        yield both


@pytest.fixture
def shop(open_shop: tuple[Shop, str]) -> Shop:
    return open_shop[0]


@pytest.fixture
def url(open_shop: tuple[Shop, str]) -> str:
    return open_shop[1]


@pytest.fixture(params=["http", "in-process"])
def target(request: pytest.FixtureRequest, shop: Shop, url: str) -> Target:
    """Where a client finds the shop."""
    return url if request.param == "http" else shop.server


# Clients


class Person:
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


class Shy(Person):
    """Answers that it will not."""

    async def elicit(self, _: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        self.asked.append(params.message)
        return ErrorData(code=-32077, message="I would rather not", data={"because": "shy"})


@dataclass
class Visitor:
    """A client, with the extension that it was built with."""

    client: Client
    tasks: ClientTasks

    async def start(self, tool: str, arguments: Mapping[str, Any] = {}, **options: Any) -> Handle:
        handle = await self.tasks.start(self.client, tool, arguments, **options)
        assert isinstance(handle, Handle), handle
        return handle

    def resume(self, saved: str) -> Handle:
        return self.tasks.resume(self.client, saved)


@asynccontextmanager
async def visiting(
    target: Target, mode: Mode = "auto", *, person: Person | None = None, push: bool = False, **options: Any
) -> AsyncGenerator[Visitor]:
    tasks, person = ClientTasks(push=push), person or Person()
    callbacks: dict[str, Any] = {
        "elicitation_callback": person.elicit,
        "sampling_callback": person.sample,
        "list_roots_callback": person.roots,
    }
    async with Client(target, mode=mode, extensions=[tasks], **callbacks, **options) as client:
        yield Visitor(client, tasks)


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


async def raised_by(awaitable: Awaitable[object]) -> MCPError:
    with pytest.raises(MCPError) as raised:
        await awaitable
    return raised.value


def told_by(error: MCPError) -> tuple[int, str, Any]:
    return error.code, error.message, error.data


async def asking(handle: Handle, *keys: str) -> TaskState:
    """The task once it asks these things."""

    async def met() -> bool:
        return set((await handle.status()).input_requests) == set(keys)

    await until(met)
    return await handle.status()


async def cancelled(doing: asyncio.Task[Any]) -> None:
    doing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing


# Calls that wait by themselves


@BOTH
async def test_a_call_of_a_durable_tool_returns_what_a_plain_one_returns(target: Target, mode: Mode) -> None:
    async with visiting(target, mode) as visitor:
        durable = await visitor.client.call_tool("add", {"left": 2, "right": 3})
        plain = await visitor.client.call_tool("plain_add", {"left": 2, "right": 3})

    assert durable.structured_content == plain.structured_content == {"total": 5}
    assert (durable.content, durable.is_error) == (plain.content, plain.is_error)


async def test_a_call_that_declares_tasks_becomes_one(shop: Shop, target: Target) -> None:
    async with visiting(target) as visitor:
        await visitor.client.call_tool("add", {"left": 2, "right": 3})

    assert [seen.answer.get("resultType") for seen in shop.watch.of("tools/call")] == ["task"]


@BOTH
async def test_a_tool_that_reports_an_error_is_a_result_as_with_a_plain_call(
    target: Target, mode: Mode
) -> None:
    async with visiting(target, mode) as visitor:
        durable = await visitor.client.call_tool("fail")
        plain = await visitor.client.call_tool("plain_fail")

    assert durable.is_error
    assert plain.is_error
    assert text_of(durable) == text_of(plain).replace("plain_fail", "fail")


@BOTH
async def test_a_protocol_error_is_raised_as_with_a_plain_call(target: Target, mode: Mode) -> None:
    async with visiting(target, mode) as visitor:
        durable = await raised_by(visitor.client.call_tool("break_off"))
        plain = await raised_by(visitor.client.call_tool("plain_break_off"))

    assert type(durable) is type(plain) is MCPError
    assert told_by(durable) == told_by(plain) == (-32042, "it broke off", {"at": [1, None, "page"]})


@BOTH
async def test_arguments_that_do_not_fit_are_told_as_with_a_plain_call(target: Target, mode: Mode) -> None:
    async with visiting(target, mode) as visitor:
        durable = await visitor.client.call_tool("add", {"left": "two"})
        plain = await visitor.client.call_tool("plain_add", {"left": "two"})

    assert durable.is_error
    assert plain.is_error
    assert text_of(durable) == text_of(plain).replace("plain_add", "add")


@BOTH
async def test_a_server_over_stdin_and_stdout_is_served_too(mode: Mode) -> None:
    start = "from tests.mcp.fixture import make_server; make_server('memory:')[0].run('stdio')"
    server = StdioServerParameters(command=sys.executable, args=["-c", start], cwd=ROOT)
    person = Answering({"confirm": True})
    async with visiting(cast("Any", server), mode, person=person) as visitor:
        assert text_of(await visitor.client.call_tool("confirm_delete", {"filename": "a"})) == "deleted a"
        handle = await visitor.start("slow_compute", {"seconds": 0.1, "label": "it"})
        assert text_of(await handle.wait(30)) == "computed it in 0.1 seconds"


class Answering(Person):
    """Fills in a form with this."""

    def __init__(self, content: Json) -> None:
        super().__init__()
        self._content = content

    async def elicit(self, _: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params.message)
        return ElicitResult(action="accept", content=self._content)


# The output schema


def spoiled(task: Json) -> Json:
    """What a server answers whose result does not fit the schema of its tool."""
    if "content" in task:
        return {**task, "structuredContent": {"total": "five"}}
    if "result" in task:
        return {**task, "result": {**task["result"], "structuredContent": {"total": "five"}}}
    return task


async def test_a_result_of_a_call_must_fit_the_schema_of_its_tool(shop: Shop, target: Target) -> None:
    shop.answers.changing["tasks/get"] = spoiled
    async with visiting(target) as visitor:
        with pytest.raises(RuntimeError, match="Invalid structured content"):
            await visitor.client.call_tool("add", {"left": 2, "right": 3})


@BOTH
async def test_a_result_of_a_handle_must_fit_the_schema_of_its_tool(
    shop: Shop, target: Target, mode: Mode
) -> None:
    shop.answers.changing["tasks/get" if mode == "auto" else "tasks/result"] = spoiled
    async with visiting(target, mode) as visitor:
        handle = await visitor.start("add", {"left": 2, "right": 3})
        with pytest.raises(RuntimeError, match="Invalid structured content"):
            await handle.wait(10)


# Questions


@BOTH
@pytest.mark.parametrize("by_handle", [False, True])
async def test_questions_are_answered_by_the_clients_own_callbacks_each_once(
    target: Target, mode: Mode, *, by_handle: bool
) -> None:
    person = Person()
    async with visiting(target, mode, person=person) as visitor:
        if by_handle:
            result = await (await visitor.start("ask_all")).wait(20)
        else:
            result = await visitor.client.call_tool("ask_all")

    assert text_of(result) == "Ada, wit, 1"
    assert person.asked == ["Who?", "sampling", "roots"]


async def test_several_questions_at_once_are_answered_each_once(shop: Shop, target: Target) -> None:
    person = Person()
    async with visiting(target, person=person) as visitor:
        result = await visitor.client.call_tool("ask_two")

    assert text_of(result) == "first: Ada, second: Ada"
    assert person.asked == ["Who?", "Who?"]
    assert [set(seen.params["inputResponses"]) for seen in shop.watch.of("tasks/update")] == [
        {"first", "second"}
    ]


async def test_a_question_that_is_still_shown_after_its_answer_is_not_asked_again(
    shop: Shop, url: str
) -> None:
    shown: list[Json] = []

    def lagging(task: Json) -> Json:
        """A replica that sees the answer late."""
        if task["status"] == "input_required":
            shown.append(task)
        return shown[0] if shown and len(shop.watch.of("tasks/get")) < 8 else task

    shop.answers.changing["tasks/get"] = lagging
    person = Person()
    async with visiting(url, person=person) as visitor:
        assert text_of(await visitor.client.call_tool("ask_two")) == "first: Ada, second: Ada"

    assert person.asked == ["Who?", "Who?"]


@pytest.mark.parametrize("push", [False, True])
async def test_what_a_callback_refuses_is_raised_as_it_refused(
    shop: Shop, target: Target, *, push: bool
) -> None:
    async with visiting(target, person=Shy(), push=push) as visitor:
        error = await raised_by(visitor.client.call_tool("ask_two"))

    assert told_by(error) == (-32077, "I would rather not", {"because": "shy"})


async def test_a_call_that_ends_because_a_callback_refuses_leaves_no_task_that_waits_for_ever(
    shop: Shop, url: str
) -> None:
    async with visiting(url, person=Shy()) as visitor:
        await raised_by(visitor.client.call_tool("ask_two"))
        await shop.until_statuses("cancelled")


@BOTH
async def test_a_handle_whose_callback_refuses_is_told_so_and_can_still_be_cancelled(
    shop: Shop, target: Target, mode: Mode
) -> None:
    async with visiting(target, mode, person=Shy()) as visitor:
        handle = await visitor.start("ask_two")
        error = await raised_by(handle.wait(20))
        assert "I would rather not" in error.message
        assert (await handle.status()).status == "input_required"
        await handle.cancel()
        await shop.until_statuses("cancelled")
        with pytest.raises(WasCancelled):
            await handle.wait(10)


# Giving up


GIVEN = 2.0
"""Seconds. In these the task must be made, on a busy machine too: of one that is made later nobody knows."""


@BOTH
async def test_the_time_that_a_caller_gives_bounds_the_call_and_ends_the_task(
    shop: Shop, target: Target, mode: Mode
) -> None:
    async with visiting(target, mode) as visitor:
        async with asyncio.timeout(30):
            error = await raised_by(visitor.client.call_tool("hold", read_timeout_seconds=GIVEN))
        await shop.until_statuses("cancelled")

    assert error.code == REQUEST_TIMEOUT


@pytest.mark.parametrize("push", [False, True])
async def test_the_time_that_a_caller_gives_bounds_the_answering_of_questions_too(
    shop: Shop, url: str, *, push: bool
) -> None:
    class Slow(Person):
        async def elicit(self, _: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
            await asyncio.sleep(600)
            return ElicitResult(action="decline")

    async with visiting(url, person=Slow(), push=push) as visitor:
        async with asyncio.timeout(30):
            error = await raised_by(visitor.client.call_tool("ask_two", read_timeout_seconds=GIVEN))
        await shop.until_statuses("cancelled")

    assert error.code == REQUEST_TIMEOUT


@BOTH
@pytest.mark.parametrize("push", [False, True])
async def test_a_call_that_is_cancelled_ends_the_task(
    shop: Shop, target: Target, mode: Mode, *, push: bool
) -> None:
    async with visiting(target, mode, push=push) as visitor:
        calling = asyncio.create_task(visitor.client.call_tool("hold"))
        await until(lambda: shop.held == 1)
        if mode == "auto":
            await until(lambda: len(shop.watch.of("tasks/get")) > 0)

        await cancelled(calling)

        await shop.until_statuses("cancelled")


# How often it asks


async def test_a_client_waits_as_long_as_the_server_says_before_it_asks_again(shop: Shop, url: str) -> None:
    async with visiting(url) as visitor:
        calling = asyncio.create_task(visitor.client.call_tool("hold"))
        await until(lambda: len(shop.watch.of("tasks/get")) >= 12, seconds=30)
        shop.gate.set()
        await calling

    asked = shop.watch.of("tasks/get")
    hints = [seen.answer["pollIntervalMs"] for seen in asked[:-1]]
    waits = [(after.came - before.left) * 1000 for before, after in itertools.pairwise(asked)]
    assert [wait for wait, hint in zip(waits, hints, strict=True) if wait < hint - 1] == []
    assert hints[-1] > hints[0]


async def test_a_server_that_gives_no_hint_is_not_asked_without_pause(shop: Shop, url: str) -> None:
    def without_hint(task: Json) -> Json:
        return {name: value for name, value in task.items() if name != "pollIntervalMs"}

    shop.answers.changing["tasks/get"] = without_hint
    async with visiting(url) as visitor:
        calling = asyncio.create_task(visitor.client.call_tool("hold"))
        await until(lambda: len(shop.watch.of("tasks/get")) >= 3, seconds=30)
        shop.gate.set()
        await calling

    first, second, *_ = shop.watch.of("tasks/get")
    assert second.came - first.left > 0.5


# What goes over the wire


async def test_every_request_about_a_task_names_it_in_the_header(shop: Shop, url: str) -> None:
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


async def test_a_task_in_answer_to_anything_but_a_call_is_not_taken_for_one(shop: Shop, url: str) -> None:
    for method in ("prompts/get", "resources/read"):
        shop.answers.instead[method] = lambda: dict(CREATED)
    async with visiting(url) as visitor:
        with pytest.raises(ValidationError):
            await visitor.client.get_prompt("any")
        with pytest.raises(ValidationError):
            await visitor.client.read_resource("file:///any")

    assert shop.watch.of("tasks/get") == []


async def test_a_client_that_does_not_follow_tasks_gets_a_result_all_the_same(shop: Shop, url: str) -> None:
    async with Client(url) as client:
        result = await client.call_tool("add", {"left": 2, "right": 3})

    assert result.structured_content == {"total": 5}
    assert shop.watch.of("tasks/get") == []


# Handles


@BOTH
async def test_a_handle_shows_its_task_and_waits_for_its_result(
    shop: Shop, target: Target, mode: Mode
) -> None:
    async with visiting(target, mode) as visitor:
        handle = await visitor.start("hold", {"label": "it"})
        assert handle.tool == "hold"
        assert (await handle.status()).status == "working"
        assert (await handle.status()).task_id == handle.task_id
        shop.gate.set()
        assert text_of(await handle.wait(20)) == "held it"
        assert (await handle.status()).status == "completed"


@BOTH
async def test_a_wait_that_times_out_leaves_the_task_as_it_is(shop: Shop, target: Target, mode: Mode) -> None:
    async with visiting(target, mode) as visitor:
        handle = await visitor.start("hold")
        with pytest.raises(TimeoutError):
            await handle.wait(0.3)
        assert (await handle.status()).status == "working"
        shop.gate.set()
        assert text_of(await handle.wait(20)) == "held "


@BOTH
async def test_a_wait_that_is_cancelled_leaves_the_task_as_it_is(
    shop: Shop, target: Target, mode: Mode
) -> None:
    async with visiting(target, mode) as visitor:
        handle = await visitor.start("hold")
        waiting = asyncio.create_task(handle.wait())
        await until(lambda: len(shop.watch.of("tasks/get")) > 0)
        await cancelled(waiting)
        shop.gate.set()
        assert text_of(await handle.wait(20)) == "held "


@BOTH
async def test_a_cancelled_task_is_told_apart_from_one_that_failed(target: Target, mode: Mode) -> None:
    async with visiting(target, mode) as visitor:
        handle = await visitor.start("hold")
        await handle.cancel()
        with pytest.raises(WasCancelled) as raised:
            await handle.wait(10)
        assert raised.value.task_id == handle.task_id
        broken = await visitor.start("break_off")
        assert told_by(await raised_by(broken.wait(10)))[0] == -32042


@BOTH
async def test_a_task_that_is_cancelled_by_another_while_it_is_waited_for_is_told_so(
    shop: Shop, url: str, mode: Mode
) -> None:
    async with visiting(url, mode) as one, visiting(url, mode) as other:
        handle = await one.start("hold")
        waiting = asyncio.create_task(handle.wait(20))
        await until(lambda: len(shop.watch.of("tasks/get", handle.task_id)) > 0)
        await other.resume(handle.save()).cancel()
        with pytest.raises(WasCancelled):
            await waiting


async def test_a_call_whose_task_another_cancels_is_told_so(shop: Shop, url: str) -> None:
    async with visiting(url) as visitor, Modern(url) as other:
        calling = asyncio.create_task(visitor.client.call_tool("hold"))
        await until(lambda: len(shop.watch.of("tasks/get")) > 0)
        await other.cancel(shop.watch.of("tasks/get")[0].params["taskId"])
        with pytest.raises(WasCancelled):
            await calling


@BOTH
async def test_every_state_in_which_a_task_is_seen_is_shown(shop: Shop, target: Target, mode: Mode) -> None:
    states: list[TaskState] = []
    async with visiting(target, mode) as visitor:
        handle = await visitor.start("hold")
        waiting = asyncio.create_task(handle.wait(20, on_state=states.append))
        await until(lambda: len(states) > 0)
        shop.gate.set()
        await waiting

    assert (states[0].status, states[-1].status) == ("working", "completed")
    assert {state.task_id for state in states} == {handle.task_id}


async def test_questions_can_be_answered_by_hand_and_one_by_one(target: Target) -> None:
    person = Person()
    async with visiting(target, person=person) as visitor:
        handle = await visitor.start("ask_two")
        state = await asking(handle, "first", "second")
        assert {key: cast("Any", asked.params).message for key, asked in state.questions.items()} == {
            "first": "Who?",
            "second": "Who?",
        }
        await handle.answer({"first": {"action": "accept", "content": {"name": "Bob"}}})
        assert set((await handle.status()).input_requests) == {"second"}
        assert text_of(await handle.wait(20)) == "first: Bob, second: Ada"

    assert person.asked == ["Who?"]


async def test_at_2025_11_25_questions_cannot_be_answered_by_hand(target: Target) -> None:
    async with visiting(target, "legacy") as visitor:
        handle = await visitor.start("ask_two")
        with pytest.raises(CannotAnswer, match="callbacks"):
            await handle.answer({"first": {"action": "decline"}})
        assert text_of(await handle.wait(20)) == "first: Ada, second: Ada"


@BOTH
async def test_a_tool_that_is_not_durable_gives_its_result_at_once(target: Target, mode: Mode) -> None:
    async with visiting(target, mode) as visitor:
        result = await visitor.tasks.start(visitor.client, "greet", {"name": "Ada"})

    assert isinstance(result, CallToolResult)
    assert text_of(result) == "Hello, Ada!"


async def test_a_call_that_is_refused_starts_nothing(shop: Shop, target: Target) -> None:
    async with visiting(target) as visitor:
        result = await visitor.tasks.start(visitor.client, "add", {"left": "two"})
        assert isinstance(result, CallToolResult)
        assert result.is_error
        assert await shop.statuses() == []


async def test_at_2025_11_25_a_call_that_is_refused_starts_nothing(shop: Shop, target: Target) -> None:
    """A client that asks for a task cannot be given a result in its place."""
    async with visiting(target, "legacy") as visitor:
        error = await raised_by(visitor.tasks.start(visitor.client, "add", {"left": "two"}))
        assert error.code == INVALID_PARAMS
        assert await shop.statuses() == []


@BOTH
async def test_a_call_that_is_started_twice_with_one_key_is_one_task(
    shop: Shop, tmp_path: Path, mode: Mode
) -> None:
    async with visiting(shop.server, mode) as visitor:
        first = await visitor.start("hold", {"label": "it"}, idempotency_key="once")
        again = await visitor.start("hold", {"label": "it"}, idempotency_key="once")
        other = await visitor.start("hold", {"label": "it"}, idempotency_key="twice")

    assert first.task_id == again.task_id != other.task_id


async def test_what_a_caller_says_in_meta_reaches_the_server_beside_the_key(shop: Shop) -> None:
    async with visiting(shop.server) as visitor:
        await visitor.start("hold", idempotency_key="once", meta={"test/why": "because"})

    meta = shop.watch.of("tools/call")[0].params["_meta"]
    assert (meta["test/why"], meta["perdure/idempotencyKey"]) == ("because", "once")


async def test_at_2025_11_25_a_caller_says_how_long_its_task_is_kept(target: Target) -> None:
    async with visiting(target, "legacy") as visitor:
        handle = await visitor.start("hold", ttl=123_000)
        assert (await handle.status()).ttl_ms == 123_000


async def test_a_tool_that_asks_before_there_is_a_task_is_answered_and_then_started(
    anyio_backend: str,
) -> None:
    server, _ = make_server("memory:")
    async with serving(server.streamable_http_app()) as url, visiting(url) as visitor:
        handle = await visitor.start("test_tool_with_task")
        assert text_of(await handle.wait(20)) == "done for Ada"


# Handles that are kept


@BOTH
async def test_a_handle_is_resumed_by_another_client_when_the_first_is_gone(
    shop: Shop, url: str, mode: Mode
) -> None:
    async with visiting(url, mode) as first:
        kept = (await first.start("hold", {"label": "it"})).save()
    async with visiting(url, mode) as second:
        handle = second.resume(kept)
        assert (handle.tool, (await handle.status()).status) == ("hold", "working")
        shop.gate.set()
        assert text_of(await handle.wait(20)) == "held it"


async def test_a_handle_is_resumed_at_another_version_of_the_protocol(shop: Shop, url: str) -> None:
    async with visiting(url, "legacy") as first:
        kept = (await first.start("hold", {"label": "it"})).save()
    shop.gate.set()
    async with visiting(url, "auto") as second:
        assert text_of(await second.resume(kept).wait(20)) == "held it"


@BOTH
async def test_a_handle_is_resumed_when_the_server_was_restarted(tmp_path: Path, mode: Mode) -> None:
    storage = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with opened(storage) as (_, url), visiting(url, mode) as visitor:
        handle = await visitor.start("ask_two")
        await until(lambda: _is_asking(handle))
        kept = handle.save()
    person = Person("Bob")
    async with opened(storage) as (_, url), visiting(url, mode, person=person) as visitor:
        assert text_of(await visitor.resume(kept).wait(30)) == "first: Bob, second: Bob"

    assert person.asked == ["Who?", "Who?"]


async def _is_asking(handle: Handle) -> bool:
    return (await handle.status()).status == "input_required"


@pytest.mark.parametrize(
    "kept", ["", "null", "[]", "{}", '{"task_id": 5, "tool": "hold"}', "not json", "\ud800"]
)
async def test_what_is_no_kept_handle_is_refused_by_name(url: str, kept: str) -> None:
    async with visiting(url) as visitor:
        with pytest.raises(MalformedTask, match="no saved handle"):
            visitor.resume(kept)


@BOTH
async def test_a_handle_of_a_task_that_there_is_not_raises_what_the_server_says(url: str, mode: Mode) -> None:
    async with visiting(url, mode) as visitor:
        handle = visitor.resume(f'{{"task_id": "{"0" * 32}", "tool": "hold"}}')
        for awaitable in (handle.status(), handle.wait(10), handle.cancel()):
            assert (await raised_by(awaitable)).code == -32602


# What goes wrong


async def test_a_client_without_the_extension_is_told_how_to_build_it(shop: Shop, url: str) -> None:
    tasks = ClientTasks()
    for extensions in (None, [ClientTasks()], [advertise(EXTENSION)]):
        async with Client(url, extensions=extensions) as client:
            with pytest.raises(NotDeclared, match=r"extensions=\[tasks\]"):
                await tasks.start(client, "hold")
            with pytest.raises(NotDeclared):
                tasks.resume(client, '{"task_id": "1", "tool": "hold"}')

    assert shop.watch.of("tools/call") == []


@pytest.mark.parametrize(
    "broken",
    [
        {"status": "done"},
        {"status": None},
        {"taskId": 7},
        {"createdAt": None},
        {"status": "completed", "result": None},
        {"status": "input_required", "inputRequests": ["first"]},
    ],
)
async def test_an_answer_that_is_no_task_is_called_so(shop: Shop, url: str, broken: Json) -> None:
    shop.answers.changing["tasks/get"] = lambda task: {**task, **broken}
    async with visiting(url) as visitor:
        handle = await visitor.start("hold")
        with pytest.raises(MalformedTask):
            await handle.wait(10)


async def test_a_question_that_is_none_is_no_question(shop: Shop, url: str) -> None:
    asked = {"status": "input_required", "inputRequests": {"first": {"method": "no/such"}}}
    shop.answers.changing["tasks/get"] = lambda task: {**task, **asked}
    async with visiting(url) as visitor:
        handle = await visitor.start("hold")
        with pytest.raises(MalformedTask):
            await handle.wait(10)


async def test_every_error_of_a_client_is_one_of_ours() -> None:
    errors = (WasCancelled("1"), MalformedTask("it is none"), NotDeclared(), CannotAnswer())

    assert all(isinstance(error, ClientTaskError) for error in errors)
    assert issubclass(ClientTaskError, PerdureError)


@pytest.mark.parametrize("version", ["2025-06-18", "2025-03-26"])
async def test_a_server_of_a_protocol_without_tasks_is_called_as_any(shop: Shop, version: str) -> None:
    shop.answers.changing["initialize"] = lambda answer: {**answer, "protocolVersion": version}
    async with visiting(shop.server, "legacy") as visitor:
        result = await visitor.tasks.start(visitor.client, "greet", {"name": "Ada"})

    assert isinstance(result, CallToolResult)
    assert text_of(result) == "Hello, Ada!"


async def test_a_handle_says_where_there_are_no_tasks(shop: Shop) -> None:
    shop.answers.changing["initialize"] = lambda answer: {**answer, "protocolVersion": "2025-06-18"}
    async with visiting(shop.server, "legacy") as visitor:
        handle = visitor.tasks.resume(visitor.client, '{"task_id": "abc", "tool": "greet"}')
        for asking in (handle.status, handle.cancel, handle.wait):
            with pytest.raises(NoTasks, match="2025-06-18 has no tasks"):
                await asking()
        with pytest.raises(NoTasks):
            await handle.answer({"key": {"action": "decline"}})


# Being told instead of asking


async def test_a_client_that_is_told_hardly_asks(shop: Shop, target: Target, url: str) -> None:
    async with visiting(url) as asks, visiting(target, push=True) as is_told:
        asked, told = await asks.start("hold"), await is_told.start("hold")
        waiting = [asyncio.create_task(handle.wait(90)) for handle in (asked, told)]

        def looks(handle: Handle) -> int:
            return len(shop.watch.of("tasks/get", handle.task_id))

        async def rests() -> bool:
            """Whether the one who is told does not ask while the other asks four times."""
            before, seen = looks(told), looks(asked)
            await until(lambda: looks(asked) >= seen + 4, seconds=60)
            return before == looks(told)

        await until(lambda: looks(told) >= 2)  # it is told at once of what there is
        await until(rests, seconds=60)
        before = looks(told)
        shop.gate.set()
        await asyncio.gather(*waiting)

    assert looks(told) <= before + 2


async def test_a_client_that_is_told_answers_questions_too(shop: Shop, target: Target) -> None:
    person = Person()
    async with visiting(target, push=True, person=person) as visitor:
        assert text_of(await visitor.client.call_tool("ask_all")) == "Ada, wit, 1"

    assert person.asked == ["Who?", "sampling", "roots"]
    assert len(shop.watch.of("subscriptions/listen")) == 1


async def test_a_client_that_is_told_hears_of_a_question_that_comes_later(shop: Shop, target: Target) -> None:
    """It would ask by itself only after half a minute."""
    async with visiting(target, push=True) as visitor:
        waiting = asyncio.create_task((await visitor.start("hold_then_ask")).wait(15))
        await until(lambda: len(shop.watch.of("subscriptions/listen")) == 1)
        await until(lambda: len(shop.watch.of("tasks/get")) > 0)
        shop.gate.set()
        assert text_of(await waiting) == "accept"


async def test_several_tasks_are_heard_of_at_once(shop: Shop, target: Target) -> None:
    async with visiting(target, push=True) as visitor:
        handles = [await visitor.start("hold", {"label": f"{number}"}) for number in range(5)]
        waiting = [asyncio.create_task(handle.wait(30)) for handle in handles]
        await until(lambda: len(shop.watch.of("subscriptions/listen")) == 5)
        shop.gate.set()
        results = await asyncio.gather(*waiting)

    assert [text_of(result) for result in results] == [f"held {number}" for number in range(5)]


async def test_two_may_wait_for_one_task_at_once(shop: Shop, target: Target) -> None:
    async with visiting(target, push=True) as visitor:
        handle = await visitor.start("hold", {"label": "it"})
        short = asyncio.create_task(handle.wait(0.3))
        long = asyncio.create_task(visitor.resume(handle.save()).wait(30))
        with pytest.raises(TimeoutError):
            await short
        shop.gate.set()
        assert text_of(await long) == "held it"


def method_not_found() -> HandlerResult:
    raise MCPError(METHOD_NOT_FOUND, "Method not found")


async def test_a_server_that_tells_nobody_is_asked(shop: Shop, target: Target) -> None:
    shop.answers.instead["subscriptions/listen"] = method_not_found
    async with visiting(target, push=True) as visitor:
        waiting = asyncio.create_task((await visitor.start("hold")).wait(20))
        await until(lambda: len(shop.watch.of("tasks/get")) >= 4)
        shop.gate.set()
        assert text_of(await waiting) == "held "


async def test_a_server_that_listens_but_tells_of_no_tasks_is_asked(shop: Shop, target: Target) -> None:
    """As one does that leaves listening to the SDK, which knows of no tasks."""
    shop.answers.is_deaf_to_tasks = True
    async with visiting(target, push=True) as visitor:
        waiting = asyncio.create_task((await visitor.start("hold")).wait(20))
        await until(lambda: len(shop.watch.of("tasks/get")) >= 4)
        shop.gate.set()
        assert text_of(await waiting) == "held "


class Cut:
    """An application whose streams of notifications break when a test says so."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.breaks = asyncio.Event()
        self.broken = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        if headers.get(b"mcp-method") != b"subscriptions/listen":
            await self._app(scope, receive, send)
            return
        await self._until_it_breaks(scope, receive, send)

    async def _until_it_breaks(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def passing(message: Message) -> None:
            await send(message)

        serving = asyncio.create_task(cast("Any", self._app(scope, receive, passing)))
        await self.breaks.wait()
        serving.cancel()
        await asyncio.wait([serving])
        self.broken += 1
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def test_a_stream_that_breaks_is_made_up_for_by_asking(anyio_backend: str) -> None:
    shop = Shop("memory:")
    cut = Cut(shop.server.streamable_http_app())
    async with serving(cut) as url, visiting(url, push=True) as visitor:
        handle = await visitor.start("hold")
        waiting = asyncio.create_task(handle.wait(25))
        await until(lambda: len(shop.watch.of("subscriptions/listen")) == 1)
        await until(lambda: len(shop.watch.of("tasks/get")) > 0)
        cut.breaks.set()
        await until(lambda: cut.broken == 1)
        before = len(shop.watch.of("tasks/get"))
        await until(lambda: len(shop.watch.of("tasks/get")) >= before + 3)
        shop.gate.set()
        assert text_of(await waiting) == "held "


async def test_a_client_that_leaves_ends_the_stream(shop: Shop, url: str) -> None:
    async with visiting(url, push=True) as visitor:
        handle = await visitor.start("hold")
        waiting = asyncio.create_task(handle.wait())
        await until(lambda: len(shop.watch.of("subscriptions/listen")) > 0)
        await cancelled(waiting)
        (listening,) = shop.watch.of("subscriptions/listen")
        assert listening.params["notifications"] == {"taskIds": [handle.task_id]}
        shop.gate.set()
        assert text_of(await handle.wait(20)) == "held "


async def test_at_2025_11_25_a_client_that_would_be_told_asks(shop: Shop, url: str) -> None:
    async with visiting(url, "legacy", push=True) as visitor:
        handle = await visitor.start("hold")
        shop.gate.set()
        assert text_of(await handle.wait(20)) == "held "

    assert shop.watch.of("subscriptions/listen") == []
