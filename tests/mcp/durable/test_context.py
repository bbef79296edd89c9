"""`Context` of the official SDK in durable tools: the same annotation, and the same methods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any

import pytest
from mcp.server.context import CallNext, HandlerResult
from mcp.server.elicitation import AcceptedElicitation
from mcp.server.mcpserver import Context
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp_types import SamplingMessage, TextContent
from pydantic import BaseModel

from perdure import Task, Tasks, current_task
from perdure.mcp.adapters import MCPServerAdapter, connection_of, request_key, transport_of
from perdure.mcp.wire import RequestContext
from perdure.operating import Operator
from perdure.runtime import Retry
from perdure.tasks import Owner

from ...conditions import wait_until
from ...markers import row
from ..raw_clients import Client2025, Json
from .tool_server import ToolServer, text_of

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:The .* capability is deprecated"),  # by 2026-07-28, and still served
]


class Name(BaseModel):
    name: str
    title: str | None = None


@asynccontextmanager
async def pool(_: object) -> AsyncGenerator[str]:
    yield "the pool"


def with_pool() -> ToolServer:
    return ToolServer(attach={"lifespan": pool})


VERSIONS = ["2026-07-28", "2025-11-25"]


async def start(bench: ToolServer, version: str, tool: str) -> str:
    client = bench.modern if version == "2026-07-28" else bench.core
    return await client.start(tool)


@row(119)
@pytest.mark.parametrize("version", VERSIONS)
async def test_progress_of_the_context_is_that_of_the_task(bench: ToolServer, version: str) -> None:
    go_on = asyncio.Event()

    @bench.tool()
    async def work(ctx: Context) -> str:
        await ctx.report_progress(3, 12, "collecting")
        await go_on.wait()
        return "done"

    async def is_reported() -> bool:
        return (await bench.modern.get(task_id)).get("statusMessage") == "collecting"

    async with bench.running():
        task_id = await start(bench, version, "work")
        await wait_until(is_reported)
        assert (await bench.modern.get(task_id))["_meta"]["perdure/progress"] == {"done": 3, "total": 12}
        go_on.set()
        assert text_of(await bench.end_of(task_id)) == "done"


@row(119)
@pytest.mark.parametrize("version", VERSIONS)
async def test_the_log_of_the_context_is_kept_with_the_task(bench: ToolServer, version: str) -> None:
    @bench.tool()
    async def work(ctx: Context) -> str:
        await ctx.debug("a detail")  # pyright: ignore[reportDeprecated]
        await ctx.info({"page": 3})  # pyright: ignore[reportDeprecated]
        await ctx.warning("slow")  # pyright: ignore[reportDeprecated]
        await ctx.error("broken", logger_name="printer")  # pyright: ignore[reportDeprecated]
        return "done"

    async with bench.running():
        task_id = await start(bench, version, "work")
        await bench.end_of(task_id)
        log = (await bench.tasks.runtime.get(Owner.anonymous(), task_id)).task.log
        summary = (await Operator(bench.tasks.runtime.store.storage).tasks()).tasks
    assert [(entry.level, entry.message, entry.logger) for entry in log.entries] == [
        ("debug", "a detail", None),
        ("info", {"page": 3}, None),
        ("warning", "slow", None),
        ("error", "broken", "printer"),
    ]
    assert len(summary) == 1


@row(119)
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_typed_question_is_durable_and_is_not_asked_again_by_the_next_attempt(
    bench: ToolServer, version: str
) -> None:
    attempts: list[int] = []

    @bench.tool(retries=1, backoff=0.0)
    async def work(ctx: Context, task: Task) -> str:
        answer = await ctx.elicit("Whose name?", Name)
        assert isinstance(answer, AcceptedElicitation)
        attempts.append(task.attempt)
        if task.attempt == 1:
            raise Retry("once more")
        again = await task.elicit("And whose?", Name)
        assert again.action == "accept"
        return f"{answer.data.name} and {again.data.name}, {again.data.title}"

    asked: list[Json] = []
    async with bench.running():
        task_id = await start(bench, version, "work")
        for name in ("Ada", "Bob"):
            task = await bench.modern.until(task_id, "input_required")
            ((key, question),) = task["inputRequests"].items()
            asked.append(question)
            answer = {"action": "accept", "content": {"name": name}}
            await bench.modern.update(task_id, {key: answer})
        assert text_of(await bench.end_of(task_id)) == "Ada and Bob, None"
    assert attempts == [1, 2]
    assert [question["params"]["message"] for question in asked] == ["Whose name?", "And whose?"]
    forms = [question["params"]["requestedSchema"] for question in asked]
    assert forms[0] == forms[1]
    assert forms[0]["properties"]["title"] == {"title": "Title", "type": "string"}


@row(119)
async def test_a_client_of_2025_is_asked_by_the_context_on_its_own_streams(bench: ToolServer) -> None:
    @bench.tool()
    async def work(ctx: Context) -> str:
        answer = await ctx.elicit("Whose name?", Name)
        return answer.data.name if isinstance(answer, AcceptedElicitation) else answer.action

    async def ada(_: Json) -> Json:
        return {"action": "accept", "content": {"name": "Ada"}}

    async with bench.running(), Client2025(bench.url, answering=ada) as core:
        task_id = await core.start("work")
        result = (await core.send("tasks/result", {"taskId": task_id})).result
        waited = (await core.call("work")).result
    assert [each["content"][0]["text"] for each in (result, waited)] == ["Ada", "Ada"]


@row(119)
@pytest.mark.parametrize("version", VERSIONS)
async def test_everything_else_of_the_context_works_in_a_task(version: str) -> None:
    bench = with_pool()

    @bench.server.resource("notes://today")
    def notes() -> str:
        return "water the plants"

    @bench.tool()
    async def work(ctx: Context[str, Any]) -> list[Any]:
        (note,) = await ctx.read_resource("notes://today")
        url = await ctx.elicit_url("Sign in", "https://example.org/sign-in", "sign-in")
        message = SamplingMessage(role="user", content=TextContent(text="A title?"))
        sampled = await ctx.session.create_message([message], max_tokens=10)  # pyright: ignore[reportDeprecated]
        roots = await ctx.session.list_roots()  # pyright: ignore[reportDeprecated]
        assert ctx.client_capabilities is not None
        assert current_task().id
        await ctx.notify_tools_changed()
        return [
            note.content,
            url.action,
            sampled.model,
            [str(root.uri) for root in roots.roots],
            ctx.request_context.lifespan_context,
            ctx.protocol_version,
            ctx.client_capabilities.sampling is not None,
            ctx.request_id,
            ctx.headers,
            None if ctx.session.client_params is None else ctx.session.client_params.client_info.name,
        ]

    answers: dict[str, Json] = {
        "elicitation/create": {"action": "accept"},
        "sampling/createMessage": {
            "role": "assistant",
            "content": {"type": "text", "text": "Dawn"},
            "model": "m-1",
        },
        "roots/list": {"roots": [{"uri": "file:///home"}]},
    }
    everything: Json = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
    async with bench.running():
        client = bench.modern
        if version == "2026-07-28":
            tasks: Json = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
            task_id = await client.start("work", capabilities={**everything, **tasks})
            request_id = client.last_id
        else:
            async with Client2025(bench.url, capabilities=everything) as core:
                task_id = await core.start("work")
                request_id = core.last_id
        for method, answer in answers.items():
            task = await client.until(task_id, "input_required")
            ((key, question),) = task["inputRequests"].items()
            assert question["method"] == method
            await client.update(task_id, {key: answer})
            await wait_until(lambda key=key: is_answered(bench, task_id, key))
        done = await bench.end_of(task_id)
    assert done["result"]["structuredContent"]["result"] == [
        "water the plants",
        "accept",
        "m-1",
        ["file:///home"],
        "the pool",
        version,
        True,
        str(request_id),
        None,
        "tests" if version == "2025-11-25" else None,  # this client of 2026-07-28 has no name
    ]


async def is_answered(bench: ToolServer, task_id: str, key: str) -> bool:
    return key not in (await bench.modern.get(task_id)).get("inputRequests", {})


@row(119)
async def test_what_needs_a_connection_names_the_alternative(bench: ToolServer) -> None:
    said: list[str] = []

    @bench.tool()
    async def work(ctx: Context) -> None:
        session = ctx.session
        for send in (
            session.send_tool_list_changed,
            session.send_ping,
            partial(session.send_elicit_complete, "e-1"),
        ):
            try:
                await send()
            except RuntimeError as error:
                said.append(str(error))

    async with bench.running():
        await bench.ended("work")
    assert "use ctx.notify_tools_changed()" in said[0]
    assert "has no connection" in said[1]
    assert "an answer completes the question of ctx.elicit_url()" in said[2]


@row(119)
async def test_a_plain_function_takes_a_context_too(bench: ToolServer) -> None:
    @bench.tool()
    def work(ctx: Context, task: Task | None = None) -> str:
        assert task is not None
        return f"{task.attempt} {ctx.protocol_version}"

    async with bench.running():
        assert await bench.said("work") == "1 2026-07-28"


async def test_a_client_that_cannot_be_asked_fails_the_task_as_with_the_protocol(bench: ToolServer) -> None:
    @bench.tool()
    async def work(ctx: Context) -> str:
        return (await ctx.elicit("Whose name?", Name)).action

    async with bench.running():
        tasks: Json = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
        failed = await bench.end_of(await bench.modern.start("work", capabilities=tasks))
    assert failed["error"]["code"] == -32021
    assert failed["error"]["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}


# Retries


@pytest.mark.parametrize("kind", [OSError, ConnectionError])
async def test_a_tool_runs_again_after_an_exception_of_retry_on(
    bench: ToolServer, kind: type[Exception]
) -> None:
    attempts: list[int] = []

    @bench.tool(retries=2, retry_on=(OSError,), backoff=0.0)
    async def work(task: Task) -> str:
        attempts.append(task.attempt)
        if task.attempt < 3:
            raise kind("the host is away")
        return str(task.last_error)

    async with bench.running():
        assert await bench.said("work") == f"{kind.__name__}: the host is away"
    assert attempts == [1, 2, 3]


async def test_after_its_last_retry_a_tool_fails_as_it_would_without_retries(
    bench: ToolServer, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[int] = []

    @bench.tool(retries=1, retry_on=(OSError,), backoff=0.0)
    async def work(task: Task) -> str:
        attempts.append(task.attempt)
        raise OSError("secret")

    @bench.tool(retries=1, retry_on=(OSError,))
    async def other() -> str:
        raise ValueError

    async with bench.running():
        ended = [await bench.ended("work"), await bench.ended("other")]
    assert [each["result"]["isError"] for each in ended] == [True, True]
    assert "secret" not in str(ended)
    assert attempts == [1, 2]
    errors = [each for each in caplog.records if each.name == "perdure.mcp" and each.levelname == "ERROR"]
    assert [each.getMessage().partition(": ")[2] for each in errors] == [
        "tool 'work' failed in its last attempt (2)",
        "tool 'other' raised an unexpected exception; it is not retried, because ValueError is not in "
        "retry_on",
    ]
    assert errors[0].exc_info is not None
    assert isinstance(errors[0].exc_info[1], OSError)


# What is private


async def test_the_private_names_of_the_sdk_exist(bench: ToolServer) -> None:
    """Each is used in `adapters` alone. If one is gone, so is the way to the functions of tools."""
    bench.tool()(plain)
    adapter = MCPServerAdapter(bench.server)
    assert {name for name, tool in (await adapter.tools()).items() if tool is not None} == {"plain"}
    assert bench.server._tool_manager.get_tool("plain") is not None  # pyright: ignore[reportPrivateUsage]
    assert bench.server._subscriptions is not None  # pyright: ignore[reportPrivateUsage]


async def test_the_connection_of_a_request_is_reached(bench: ToolServer) -> None:
    """What it keeps for extensions is public, the way from a request to it is not."""

    @bench.tool()
    async def work(ctx: Context[Any, Any]) -> str:
        connection = connection_of(ctx.request_context)
        connection.exit_stack.pop_all()
        return f"{type(connection).__name__} {connection.state}"

    async with bench.running():
        assert text_of(await bench.ended("work")) == "Connection {}"


async def test_two_requests_of_a_session_are_not_mistaken_for_each_other() -> None:
    keys: list[tuple[str, int]] = []
    both_are_called = asyncio.Event()

    async def note(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        if ctx.method == "tools/call":
            keys.append(("outside", request_key(ctx)))
        return await call_next(ctx)

    bench = ToolServer(attach={"middleware": [note]})

    @bench.server.tool()
    async def work(ctx: Context[Any, Any]) -> None:
        keys.append(("inside", request_key(ctx.request_context)))
        if len(keys) == 4:
            both_are_called.set()
        await both_are_called.wait()

    async with bench.running(), asyncio.timeout(15):
        await asyncio.gather(bench.core.call("work"), bench.core.call("work"))
    outside, inside = ({key for where, key in keys if where == each} for each in ("outside", "inside"))
    assert outside == inside
    assert len(outside) == 2


async def test_the_transport_of_a_request_is_reached_up_to_2025(bench: ToolServer) -> None:
    found: list[StreamableHTTPServerTransport | None] = []

    @bench.server.tool()
    async def work(ctx: Context[Any, Any]) -> None:
        found.append(transport_of(ctx.request_context))

    async with bench.running():
        await bench.core.call("work")
        await bench.modern.call("work")
    transport, of_2026 = found
    assert transport is not None
    assert transport._event_store is None  # pyright: ignore[reportPrivateUsage]
    assert of_2026 is None


async def plain() -> None: ...


# For type checkers


async def takes_context(year: Annotated[int, "of the report"], ctx: Context) -> str:
    return f"{year} {ctx.request_id}"


def test_type_checkers_see_the_signature_in_both_forms() -> None:
    """Pyright checks this function: both forms have the type of the original."""
    tasks = Tasks("memory:")
    bare, with_options = takes_context, takes_context
    bare = tasks.durable(takes_context)
    with_options = tasks.durable(name="other", retries=1, retry_on=(OSError,))(takes_context)
    assert bare is not with_options
