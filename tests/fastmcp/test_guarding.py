"""What FastMCP's own middleware and authentication say of a call holds for the task that it becomes."""

from __future__ import annotations

from typing import Any

import mcp_types
import pytest
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.server.middleware.caching import ResponseCachingMiddleware
from fastmcp.server.transforms import ToolTransform
from fastmcp.tools import Tool, forward
from fastmcp.tools.base import ToolResult
from fastmcp.tools.tool_transform import ArgTransformConfig, ToolTransformConfig

from perdure.tasks.encryption import new_key

from .. import task_edits
from ..markers import row
from ..mcp.raw_clients import Client2025, Client2026
from ..mcp.tool_helpers import text_of
from .tool_server import ADA, BOB, NAMING_ADA, ToolServer, authenticated, opened

pytestmark = pytest.mark.anyio


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


async def test_what_a_middleware_of_fastmcp_refuses_becomes_no_task(shop: ToolServer) -> None:
    porter = Porter()
    shop.server.add_middleware(porter)
    async with opened(shop) as url, Client2026(url) as modern, Client2025(url) as core:
        first = await modern.call("hold", {"label": "thief"})
        second = await core.call("hold", {"label": "thief"}, task={})
        assert (first.result["isError"], text_of(first.result)) == (True, "not you")
        assert (second.code, second.error["message"]) == (-32602, "not you")
        assert await shop.count() == 0


async def test_a_middleware_of_fastmcp_sees_a_call_once_however_often_its_tool_runs(shop: ToolServer) -> None:
    porter = Porter()
    shop.server.add_middleware(porter)
    shop.gate.set()
    async with opened(shop) as url, Client2026(url) as modern:
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


async def test_what_a_middleware_of_fastmcp_makes_of_the_arguments_is_what_the_tool_gets(
    shop: ToolServer,
) -> None:
    shop.server.add_middleware(Doorkeeper())
    shop.gate.set()
    async with opened(shop) as url, Client2026(url) as modern:
        done = await modern.until(await modern.start("hold", {"label": "by nobody"}), "completed")

    assert text_of(done["result"]) == "held by the doorkeeper"


async def test_a_cache_of_answers_does_not_make_one_task_of_two_calls(shop: ToolServer) -> None:
    shop.server.add_middleware(ResponseCachingMiddleware())
    shop.gate.set()
    async with opened(shop) as url, Client2026(url) as modern:
        tasks = [await modern.start("hold", {"label": "it"}) for _ in range(3)]
        results = [(await modern.until(task_id, "completed"))["result"] for task_id in tasks]

    assert len(set(tasks)) == 3
    assert [text_of(result) for result in results] == ["held it"] * 3
    assert shop.ran == ["it"] * 3


# Mounted servers


@pytest.fixture
def mounted(shop: ToolServer) -> FastMCP[Any]:
    """A server with a tool, mounted in another one that is mounted in the shop."""
    inner: FastMCP[Any] = FastMCP("inner")
    middle: FastMCP[Any] = FastMCP("middle")

    @inner.tool(task=True)
    async def fetch(label: str) -> str:
        return f"fetched {label}"

    middle.mount(inner, namespace="in")
    shop.server.mount(middle, namespace="mid")
    return inner


FETCH = "mid_in_fetch"


async def test_what_middleware_of_a_mounted_server_refuses_becomes_no_task(
    shop: ToolServer, mounted: FastMCP[Any]
) -> None:
    porter = Porter()
    mounted.add_middleware(porter)
    async with opened(shop) as url, Client2026(url) as modern, Client2025(url) as core:
        first = await modern.call(FETCH, {"label": "thief"})
        plain = await modern.call(FETCH, {"label": "thief"}, declared=False)
        second = await core.call(FETCH, {"label": "thief"}, task={})
        assert await shop.count() == 0
        done = await modern.until(await modern.start(FETCH, {"label": "guest"}), "completed")
    assert [text_of(each.result) for each in (first, plain)] == ["not you"] * 2
    assert (second.code, second.error["message"]) == (-32602, "not you")
    assert text_of(done["result"]) == "fetched guest"
    assert porter.saw == ["fetch"] * 4


async def test_an_unexpected_error_of_middleware_of_a_mounted_server_is_masked(anyio_backend: str) -> None:
    class Failing(Middleware):
        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            raise PermissionError("the secret reason")

    shop, sub = ToolServer(), FastMCP[Any]("sub", mask_error_details=True)
    sub.add_middleware(Failing())

    @sub.tool(task=True)
    async def nap() -> None: ...

    shop.server.mount(sub, namespace="sub")
    async with opened(shop) as url, Client2026(url) as modern:
        refused = await modern.call("sub_nap")
        assert (refused.result["isError"], await shop.count()) == (True, 0)
    assert text_of(refused.result) == "Error calling tool 'sub_nap'"


@row(123)
async def test_a_refusal_by_middleware_of_a_mounted_server_is_logged_without_the_contents_of_the_call(
    anyio_backend: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    class Failing(Middleware):
        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            raise PermissionError(f"refused {context.message.arguments}")

    shop = ToolServer(encryption_keys=[new_key()], encrypt="everything")
    sub: FastMCP[Any] = FastMCP("sub")
    sub.add_middleware(Failing())

    @sub.tool(task=True)
    async def nap(label: str) -> None: ...

    shop.server.mount(sub, namespace="sub")
    async with opened(shop) as url, Client2026(url) as modern:
        refused = await modern.call("sub_nap", {"label": "canary"})
        assert (refused.result["isError"], await shop.count()) == (True, 0)
    assert "a call of tool 'sub_nap' failed before a task was created" in caplog.text
    assert "PermissionError" in caplog.text
    assert "canary" not in caplog.text + "".join(capfd.readouterr())


async def test_what_middleware_of_a_mounted_server_makes_of_the_arguments_is_what_the_tool_gets(
    shop: ToolServer, mounted: FastMCP[Any]
) -> None:
    mounted.add_middleware(Doorkeeper())
    async with opened(shop) as url, Client2026(url) as modern:
        done = await modern.until(await modern.start(FETCH, {"label": "by nobody"}), "completed")
    assert text_of(done["result"]) == "fetched by the doorkeeper"


async def test_arguments_that_middleware_changes_behind_a_transformation_are_refused(
    shop: ToolServer, mounted: FastMCP[Any]
) -> None:
    """They could not be stored as arguments of the transformed tool."""
    mounted.add_middleware(Doorkeeper())
    renamed = ToolTransformConfig(name="renamed", arguments={"label": ArgTransformConfig(name="text")})
    shop.server.add_transform(ToolTransform({FETCH: renamed}))
    async with opened(shop) as url, Client2026(url) as modern:
        refused = await modern.call("renamed", {"text": "by nobody"})
        assert (refused.result["isError"], await shop.count()) == (True, 0)
    assert "Middleware changed the arguments of " in text_of(refused.result)


async def test_what_middleware_of_a_mounted_server_answers_is_the_answer(
    shop: ToolServer, mounted: FastMCP[Any]
) -> None:
    class Knowing(Middleware):
        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            await call_next(context)
            return ToolResult(content="known already")

    mounted.add_middleware(Knowing())
    async with opened(shop) as url, Client2026(url) as modern:
        answered = await modern.call(FETCH, {"label": "it"})
        assert await shop.count() == 0
    assert text_of(answered.result) == "known already"


async def test_a_cache_of_a_mounted_server_does_not_make_one_task_of_two_calls(
    shop: ToolServer, mounted: FastMCP[Any]
) -> None:
    mounted.add_middleware(ResponseCachingMiddleware())
    async with opened(shop) as url, Client2026(url) as modern:
        tasks = [await modern.start(FETCH, {"label": "it"}) for _ in range(2)]
        results = [(await modern.until(task_id, "completed"))["result"] for task_id in tasks]
    assert len(set(tasks)) == 2
    assert [text_of(result) for result in results] == ["fetched it"] * 2


async def test_a_transforming_function_calls_a_tool_of_a_mounted_server_through_its_middleware(
    shop: ToolServer, mounted: FastMCP[Any]
) -> None:
    """Only the function knows the arguments, so the middleware runs in the task."""
    porter = Porter()
    mounted.add_middleware(porter)

    @mounted.tool(task=True)
    async def look(label: str, ctx: Context) -> str:
        return f"{label} {ctx.is_background_task} {ctx.fastmcp.name}"

    async with opened(shop) as url, Client2026(url) as modern:
        parent = await shop.server.get_tool("mid_in_look")
        assert parent is not None

        async def forwarding(label: str) -> ToolResult:
            return await forward(label=label.lower())

        shop.server.add_tool(Tool.from_tool(parent, name="lower", transform_fn=forwarding))
        results = [
            (await modern.until(await modern.start("lower", {"label": label}), "completed"))["result"]
            for label in ("GUEST", "THIEF")
        ]
    assert [text_of(result) for result in results] == ["guest True inner", "not you"]
    assert porter.saw == ["look"] * 2


# Callers


async def test_a_tool_that_is_not_for_this_caller_becomes_no_task(anyio_backend: str) -> None:
    shop = ToolServer(server=authenticated())

    @shop.server.tool(
        auth=lambda context: context.token is not None and context.token.subject == ADA, task=True
    )
    async def for_ada() -> str:
        return "for Ada"

    async with opened(shop) as url, Client2026(url, token=ADA) as ada, Client2026(url, token=BOB) as bob:
        refused = await bob.call("for_ada")
        assert "error" in refused.message or refused.result["isError"]
        assert await shop.count() == 0
        done = await ada.until(await ada.start("for_ada"), "completed")
        assert text_of(done["result"]) == "for Ada"


# Owners


@row(26)
async def test_a_task_belongs_to_whom_the_token_names(anyio_backend: str) -> None:
    shop = ToolServer(server=authenticated())
    async with opened(shop) as url, Client2026(url, token=ADA) as ada, Client2026(url, token=BOB) as bob:
        task_id = await ada.start("hold")
        for answer in (
            await bob.send("tasks/get", {"taskId": task_id}),
            await bob.cancel(task_id),
            await bob.update(task_id, {"first": NAMING_ADA}),
        ):
            assert answer.code == -32602
        assert (await ada.get(task_id))["status"] == "working"
        (found,) = await task_edits.all_tasks(shop.extension.tasks.runtime.store)
        assert (found.task.owner.kind, found.task.owner.subject) == ("user", ADA)
        assert found.task.owner.issuer == "https://issuer.test"


async def test_each_user_lists_their_own_tasks(anyio_backend: str) -> None:
    shop = ToolServer(server=authenticated())
    async with opened(shop) as url, Client2025(url, token=ADA) as ada, Client2025(url, token=BOB) as bob:
        mine = [await ada.start("hold") for _ in range(2)]
        theirs = await bob.start("hold")
        assert {task["taskId"] for task in (await ada.send("tasks/list")).result["tasks"]} == set(mine)
        assert [task["taskId"] for task in (await bob.send("tasks/list")).result["tasks"]] == [theirs]


async def test_a_caller_without_a_token_is_not_let_in(anyio_backend: str) -> None:
    shop = ToolServer(server=authenticated())
    async with opened(shop) as url, Client2026(url) as nobody:
        assert (await nobody.call("hold")).status == 401
        assert await shop.count() == 0
