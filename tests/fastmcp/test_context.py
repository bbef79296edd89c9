"""A tool that runs in a task has FastMCP's own context, progress and dependencies."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import fastmcp
import pytest
from fastmcp import Context, FastMCP
from fastmcp.dependencies import (
    CallArgument,
    CurrentContext,
    CurrentFastMCP,
    CurrentRequest,
    Depends,
    Progress,
    Shared,
)
from fastmcp.exceptions import ToolError
from fastmcp.server.auth import StaticTokenVerifier
from fastmcp.server.dependencies import get_context, get_http_request, get_server
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from mcp.shared.exceptions import MCPError
from mcp_types import Implementation, ResourceUpdatedNotification, ResourceUpdatedNotificationParams
from starlette.requests import Request

from perdure import current_task
from perdure.fastmcp import TaskOptions, TasksExtension
from perdure.tasks import Snapshot
from perdure.tasks.encryption import new_key
from perdure.tasks.task_snapshot import TASKS

from .. import task_edits
from ..conditions import wait_until
from ..markers import row
from ..mcp.raw_clients import Client2025, Client2026, Json, serving
from ..mcp.tool_helpers import FAST_CONFIG, text_of
from .features import feature
from .served import Served, done, modern_of, said

pytestmark = pytest.mark.anyio

ADA = "ada"


@row(120)
@feature(
    "`ctx: Context`, `CurrentContext()`, `get_context()`",
    peer="a context without a session, so `ctx.info` raises an error; `get_context()` raises an error unless "
    "the tool also takes a context",
    here="the same complete context in all three ways",
)
async def test_the_context_is_one_in_every_way_to_it(mcp: Served) -> None:
    @mcp.tool(task=True)
    async def three(ctx: Context, other: Context = CurrentContext()) -> bool:
        return ctx is other is get_context()

    @mcp.tool(task=True)
    async def only_called() -> str | None:
        return get_context().task_id

    async with modern_of(mcp) as client:
        assert text_of((await done(client, "three"))["result"]) == "true"
        task = await done(client, "only_called")
    assert text_of(task["result"]) == task["taskId"]


@row(120)
@feature(
    "`ctx.is_background_task`, `ctx.task_id`, `ctx.origin_request_id`",
    peer="`True`, the id of the task, and the id of the request that made the call",
)
async def test_the_context_knows_its_task_and_its_request(mcp: Served) -> None:
    requests: list[str | None] = []

    class Noting(Middleware):
        async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
            assert context.fastmcp_context is not None
            requests.append(context.fastmcp_context.request_id)
            return await call_next(context)

    mcp.add_middleware(Noting())

    @mcp.tool(task=True)
    async def about(ctx: Context) -> list[str | bool | None]:
        return [ctx.is_background_task, ctx.task_id, ctx.origin_request_id, ctx.request_id]

    async with modern_of(mcp) as client:
        for _ in range(2):
            task = await done(client, "about")
            expected = [True, task["taskId"], requests[-1], requests[-1]]
            assert task["result"]["structuredContent"] == {"result": expected}
    assert len(set(requests)) == 2


async def reporter(progress: Progress = Progress()) -> Progress:
    await progress.set_total(4)
    return progress


@asynccontextmanager
async def step(progress: Progress = Depends(reporter)) -> AsyncGenerator[Progress]:
    yield progress
    await progress.set_message("closed")


@row(120)
@feature(
    "`ctx.report_progress`, `Progress()`, also in `Depends`",
    peer="stored with the task; the message becomes its `statusMessage`",
)
@pytest.mark.parametrize("tool", ["by_context", "by_parameter", "by_dependency", "by_annotation"])
async def test_progress_is_that_of_the_task_in_every_way_to_it(mcp: Served, tool: str) -> None:
    gate = asyncio.Event()

    @mcp.tool(task=True)
    async def by_context(ctx: Context) -> None:
        await ctx.report_progress(3, 4, "nearly")
        await gate.wait()

    @mcp.tool(task=True)
    async def by_parameter(progress: Progress = Progress()) -> None:
        await progress.set_total(4)
        await _reach_three(progress)
        await gate.wait()

    @mcp.tool(task=True)
    async def by_dependency(progress: Progress = Depends(step)) -> None:
        await _reach_three(progress)
        await gate.wait()

    @mcp.tool(task=True)
    async def by_annotation(number: int, progress: Annotated[Progress, Depends(step)]) -> None:
        await _reach_three(progress)
        await gate.wait()

    async with modern_of(mcp) as client:
        task_id = await client.start(tool, {"number": 1} if tool == "by_annotation" else {})
        task: Json = {}

        async def is_near() -> bool:
            task.update(await client.get(task_id))
            return task.get("statusMessage") == "nearly"

        await wait_until(is_near)
        gate.set()
        await client.until(task_id, "completed")
    assert task["_meta"]["perdure/progress"] == {"done": 3, "total": 4}


async def _reach_three(progress: Progress) -> None:
    await progress.increment()
    await progress.increment(2)
    await progress.set_message("nearly")
    assert (progress.current, progress.total, progress.message) == (3, 4, "nearly")


class OwnProgress(Progress):
    """A subclass, which FastMCP treats like `Progress` itself."""


@pytest.mark.parametrize("tool", ["shared", "own"])
async def test_progress_is_that_of_the_task_in_shared_and_in_a_subclass_too(mcp: Served, tool: str) -> None:
    gate = asyncio.Event()

    @mcp.tool(task=True)
    async def shared(progress: Progress = Shared(reporter)) -> None:
        await _reach_three(progress)
        await gate.wait()

    @mcp.tool(task=True)
    async def own(progress: Progress = OwnProgress()) -> None:
        await progress.set_total(4)
        await _reach_three(progress)
        await gate.wait()

    async with modern_of(mcp) as client:
        task_id = await client.start(tool)
        await wait_until(lambda: _has_message(client, task_id))
        gate.set()
        task = await client.until(task_id, "completed")
    assert task["_meta"]["perdure/progress"] == {"done": 3, "total": 4}


async def _has_message(client: Client2026, task_id: str) -> bool:
    return (await client.get(task_id)).get("statusMessage") == "nearly"


@row(120)
@feature(
    "`ctx.info`, `ctx.log` and the others",
    peer="raise an error",
    here="stored with the task for operators, and sent to clients of 2025-11-25",
)
@pytest.mark.filterwarnings("ignore:The .* capability is deprecated")
async def test_log_messages_are_kept_with_the_task(mcp: Served, extension: TasksExtension) -> None:
    @mcp.tool(task=True)
    async def talk(ctx: Context) -> None:
        await ctx.info("halfway", extra={"page": 6})

    async with serving(mcp.http_app(path="/mcp")) as url, Client2025(url) as core, Client2026(url) as client:
        await done(client, "talk")
        frames = (await core.call("talk")).frames
        found = await task_edits.all_tasks(extension.tasks.runtime.store)
    expected = {"msg": "halfway", "extra": {"page": 6}}
    kept = [(entry.level, entry.message) for each in found for entry in each.task.log.entries]
    assert kept == [("info", expected)] * 2
    sent = [each["params"] for each in frames if each["method"] == "notifications/message"]
    assert [(each["level"], each["data"]) for each in sent] == [("info", expected)]


@row(120)
@feature(
    "`Depends`, `Shared`, `CallArgument`, context managers",
    peer="resolved in the worker, and closed when the tool has returned",
)
async def test_dependencies_are_resolved_when_the_tool_runs_and_closed_after_it(mcp: Served) -> None:
    made: list[str] = []

    @asynccontextmanager
    async def opened(name: str = CallArgument("who"), ctx: Context = CurrentContext()) -> AsyncGenerator[str]:
        made.append(f"open for {name}, {ctx.is_background_task}")
        yield f"file of {name}"
        made.append(f"closed, {get_context() is ctx}")

    async def pool() -> str:
        made.append("pool")
        return "pool"

    @mcp.tool(task=True)
    async def use(who: str, file: str = Depends(opened), shared: str = Shared(pool)) -> str:
        made.append("body")
        return f"{file}, {shared}"

    async with modern_of(mcp) as client:
        assert (await client.call("use", {"who": 1})).result["isError"]
        assert made == []
        assert text_of((await done(client, "use", {"who": "Ada"}))["result"]) == "file of Ada, pool"
        await done(client, "use", {"who": "Bob"})
    assert made == [
        "open for Ada, True",
        "pool",
        "body",
        "closed, True",
        "open for Bob, True",
        "body",
        "closed, True",
    ]


@row(120)
@feature(
    "`CurrentFastMCP()`, `get_server()`, `ctx.fastmcp`, `ctx.lifespan_context`",
    peer="refer to the outermost mounted server",
    here="refer to the innermost server, to which the tool belongs",
)
async def test_a_tool_of_a_mounted_server_sees_its_own_server_and_lifespan(mcp: Served) -> None:
    states: list[str] = []

    def server(name: str) -> Served:
        @asynccontextmanager
        async def lifespan(_: object) -> AsyncGenerator[Json]:
            states.append(f"{name} opens")
            yield {"name": name}
            states.append(f"{name} closes")

        return FastMCP(name, lifespan=lifespan)

    outer, inner = server("outer"), server("inner")

    @inner.tool(task=True)
    async def where(ctx: Context, mine: FastMCP = CurrentFastMCP()) -> list[str]:
        return [ctx.fastmcp.name, mine.name, get_server().name, ctx.lifespan_context["name"]]

    outer.mount(inner, namespace="in")
    mcp.mount(outer, namespace="out")
    async with modern_of(mcp) as client:
        task = await done(client, "out_in_where")
    assert task["result"]["structuredContent"] == {"result": ["inner"] * 4}
    assert states == ["outer opens", "inner opens", "inner closes", "outer closes"]


@row(120)
@feature(
    "`ctx.session_id`, `ctx.get_state`, `ctx.set_state`",
    peer="belong to the session that made the call",
)
async def test_the_state_of_the_call_is_that_of_its_task(mcp: Served) -> None:
    class Tenant(Middleware):
        async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
            assert context.fastmcp_context is not None
            await context.fastmcp_context.set_state("tenant", "acme")
            return await call_next(context)

    mcp.add_middleware(Tenant())

    @mcp.tool(task=TaskOptions(retries=1, retry_on=(OSError,), backoff=0.01))
    async def tenant(ctx: Context) -> str:
        if current_task().attempt == 1:
            await ctx.set_state("attempt", "the first")
            raise OSError
        return f"{await ctx.get_state('tenant')}, {await ctx.get_state('attempt')}"

    assert await said(mcp, "tenant") == "acme, the first"


async def test_the_session_of_the_call_is_that_of_its_task(mcp: Served) -> None:
    sessions: list[str] = []

    class Noting(Middleware):
        async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
            assert context.fastmcp_context is not None
            sessions.append(context.fastmcp_context.session_id)
            return await call_next(context)

    mcp.add_middleware(Noting())

    @mcp.tool(task=True)
    async def session(ctx: Context) -> str:
        return ctx.session_id

    async with serving(mcp.http_app(path="/mcp")) as url, Client2025(url) as core, Client2026(url) as client:
        answer = await core.send("tasks/result", {"taskId": await core.start("session")})
        found = [text_of(answer.result), text_of((await done(client, "session"))["result"])]
    assert found == sessions


@feature(
    "`get_http_request()`, `CurrentRequest()`",
    peer="raise an error, because there is no request",
)
async def test_there_is_no_http_request_in_a_task(mcp: Served) -> None:
    @mcp.tool(task=True)
    async def host() -> str:
        return get_http_request().url.path

    @mcp.tool(task=True)
    async def path(request: Request = CurrentRequest()) -> str:
        return request.url.path

    assert await said(mcp, "host") == "Error calling tool 'host': No active HTTP request found."
    async with modern_of(mcp) as client:
        failed = await done(client, "path")
    assert "Failed to resolve dependency 'request'" in failed["error"]["message"]


@feature(
    "`ctx.send_notification`, `ctx.enable_components`, `ctx.disable_components`",
    peer="raise an error",
    here="components are enabled or disabled for the session; notifications about changed lists and "
    "resources are not sent, because a task has no connection",
)
async def test_a_task_changes_what_its_session_sees_without_a_notification(
    mcp: Served, caplog: pytest.LogCaptureFixture
) -> None:
    @mcp.tool(task=True)
    async def hide(ctx: Context) -> None:
        await ctx.disable_components(names={"hidden"}, components={"tool"})
        updated = ResourceUpdatedNotificationParams(uri="file:///a")
        await ctx.send_notification(ResourceUpdatedNotification(params=updated))

    @mcp.tool
    async def hidden() -> None: ...

    async with serving(mcp.http_app(path="/mcp")) as url, Client2025(url) as core:
        assert len((await core.send("tools/list")).result["tools"]) == 2
        with caplog.at_level(logging.INFO, "perdure.fastmcp"):
            hiding = await core.start("hide")
            await core.until(hiding, "completed")
        assert len((await core.send("tools/list")).result["tools"]) == 1
    assert [each for each in caplog.messages if "is not sent" in each] == [
        f"notifications/{what} is not sent, because task {hiding} has no connection"
        for what in ("tools/list_changed", "resources/updated")
    ]


# Logs and encryption


@pytest.mark.parametrize("minimum", [None, "warning"])
async def test_the_log_of_an_encrypted_task_is_not_in_that_of_the_server(
    minimum: Any, caplog: pytest.LogCaptureFixture
) -> None:
    mcp: Served = FastMCP("root", client_log_level=minimum)
    extension = TasksExtension(
        "memory:", runtime=FAST_CONFIG, encrypt="everything", encryption_keys=[new_key()]
    )
    mcp.add_extension(extension)

    @mcp.tool(task=True)
    async def talk(ctx: Context) -> None:
        await ctx.info("a secret", extra={"page": "another secret"})
        await ctx.log("a third secret", level="error", logger_name="own")

    with caplog.at_level(logging.DEBUG):
        async with modern_of(mcp) as client:
            await done(client, "talk")
            store = extension.tasks.runtime.store
            (record,) = await store.storage.page(TASKS, limit=2, now=store.clock())
    entries = Snapshot.from_record(record, store.keys).task.log.entries
    stored = [(entry.level, entry.message, entry.logger) for entry in entries]
    expected = [
        ("info", {"msg": "a secret", "extra": {"page": "another secret"}}, None),
        ("error", {"msg": "a third secret", "extra": None}, "own"),
    ]
    assert stored == (expected if minimum is None else expected[1:])
    assert "secret" not in str([vars(record) for record in caplog.records])


@row(120)
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_request_of_a_task_has_the_lifespan_state_the_client_and_the_transport(mode: Any) -> None:
    @asynccontextmanager
    async def lifespan(_: object) -> AsyncGenerator[Json]:
        yield {"pool": "the pool"}

    async def about(ctx: Context) -> list[str | None]:
        assert ctx.request_context is not None
        client = ctx.session.client_params
        assert client is not None
        return [ctx.request_context.lifespan_context["pool"], client.client_info.name, ctx.transport]

    answers: list[Any] = []
    for is_task in (False, True):
        server: Served = FastMCP("root", lifespan=lifespan)
        if is_task:
            server.add_extension(TasksExtension("memory:", runtime=FAST_CONFIG))
        server.tool(about, task=is_task)
        async with (
            serving(server.http_app(path="/mcp")) as url,
            fastmcp.Client(
                url, mode=mode, client_info=Implementation(name="the client", version="1")
            ) as client,
        ):
            answers.append((await client.call_tool("about")).data)
    assert answers == [["the pool", "the client", "streamable-http"]] * 2


async def test_a_task_of_an_anonymous_caller_sets_no_rules_for_others() -> None:
    server: Served = FastMCP("root")
    server.add_extension(TasksExtension("memory:", runtime=FAST_CONFIG))

    @server.tool(task=True)
    async def hide(ctx: Context) -> None:
        await ctx.disable_components(names={"helper"})

    @server.tool
    async def helper() -> str:
        return "help"

    @server.tool(task=True)
    async def use(ctx: Context) -> str:
        return (await ctx.fastmcp.call_tool("helper", {})).structured_content["result"]  # type: ignore[index]

    async with serving(server.http_app(path="/mcp")) as url:
        async with Client2026(url) as first:
            hidden = (await done(first, "hide"))["result"]
        async with Client2026(url) as second:
            used = await done(second, "use")
    assert hidden["isError"]
    assert "no client identity" in text_of(hidden)
    assert text_of(used["result"]) == "help"


async def test_without_a_key_a_lookup_that_needs_the_token_names_the_reason() -> None:
    server: Served = FastMCP("root", auth=StaticTokenVerifier({ADA: {"client_id": "ada", "scopes": []}}))
    server.add_extension(TasksExtension("memory:", runtime=FAST_CONFIG, encryption_keys=[]))

    @server.tool
    async def helper() -> str:
        return "help"

    @server.tool(task=True)
    async def use(ctx: Context) -> str:
        return str((await ctx.fastmcp.call_tool("helper", {})).structured_content)

    async with serving(server.http_app(path="/mcp")) as url, Client2026(url, token=ADA) as client:
        refused = (await done(client, "use"))["result"]
    assert refused["isError"]
    assert "set PERDURE_ENCRYPTION_KEY to a key from `perdure key`" in text_of(refused)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_arguments_and_results_keep_the_order_of_their_keys(mcp: Served, mode: Any) -> None:
    @mcp.tool(task=True)
    async def columns(row: dict[str, Any]) -> dict[str, str]:
        return {name: ",".join(each) for name, each in row.items()}

    async with fastmcp.Client(mcp, mode=mode) as client:
        sent = {"zeta": {"b": 1, "a": 2}, "alpha": {"d": 3, "c": 4}}
        result = await client.call_tool("columns", {"row": sent})
    assert json.dumps(result.structured_content) == '{"zeta": "b,a", "alpha": "d,c"}'


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_argument_of_middleware_that_cannot_be_stored_is_refused_by_its_tool(
    mcp: Served, mode: Any
) -> None:
    class Injecting(Middleware):
        async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
            arguments = {**context.message.arguments, "folder": Path("folder")}
            message = context.message.model_copy(update={"arguments": arguments})
            return await call_next(context.copy(message=message))

    mcp.add_middleware(Injecting())

    @mcp.tool(task=True)
    async def size(name: str, folder: Path) -> str:
        return f"{folder / name}"

    async with fastmcp.Client(mcp, mode=mode) as client:
        with pytest.raises(
            (MCPError, ToolError), match="an argument of 'size' cannot be stored with the task"
        ):
            await client.call_tool("size", {"name": "a"})
