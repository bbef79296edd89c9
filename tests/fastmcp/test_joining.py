"""A server has one extension of tasks, once, and what is refused leaves it as it was."""

from __future__ import annotations

import pytest
from fastmcp import Context, FastMCP
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension as TheirExtension

from perdure.fastmcp import TasksExtension

from ..mcp.raw_clients import EXTENSION, Client2026, serving
from ..mcp.tool_helpers import FAST_CONFIG, text_of
from .served import Served, done
from .tool_server import ToolServer, opened

pytestmark = pytest.mark.anyio


async def test_what_is_refused_leaves_the_server_as_it_was(shop: ToolServer) -> None:
    for extension in (TasksExtension("memory:"), shop.extension):
        with pytest.raises(ValueError, match="already"):
            shop.server.add_extension(extension)
    shop.gate.set()
    async with opened(shop) as url, Client2026(url) as modern:
        await modern.until(await modern.start("hold"), "completed")
        assert await shop.count() == 1


async def test_a_server_does_not_have_our_tasks_and_those_of_fastmcp() -> None:
    theirs, ours = FastMCP("theirs"), FastMCP("ours")
    theirs.add_extension(TheirExtension())
    ours.add_extension(TasksExtension("memory:"))

    with pytest.raises(ValueError, match=EXTENSION):
        theirs.add_extension(TasksExtension("memory:"))
    with pytest.raises(ValueError, match=EXTENSION):
        ours.add_extension(TheirExtension())


async def test_two_servers_do_not_share_their_tasks(shop: ToolServer) -> None:
    with pytest.raises(ValueError, match="another server"):
        FastMCP("other").add_extension(shop.extension)
    shop.gate.set()
    async with opened(shop) as url, Client2026(url) as modern:
        await modern.until(await modern.start("hold"), "completed")


async def test_a_server_starts_again_after_it_stopped(shop: ToolServer) -> None:
    shop.gate.set()
    for _ in range(2):
        async with opened(shop) as url, Client2026(url) as modern:
            await modern.until(await modern.start("hold"), "completed")
    assert len(shop.server.providers) == 1


# A server that is mounted in another one, and served itself in the same process


@pytest.fixture
def sub(mcp: Served) -> Served:
    """A server with an extension of its own, mounted in another one."""
    server: Served = FastMCP("sub")
    server.add_extension(TasksExtension("memory:", runtime=FAST_CONFIG))

    async def where(ctx: Context) -> bool:
        return ctx.is_background_task

    server.tool(where, name="optional", task=True)
    server.tool(where, name="required", task=TaskConfig(mode="required"))
    server.tool(where, name="plain")
    mcp.mount(server, namespace="sub")
    return server


async def test_tasks_of_both_run_if_the_mounted_server_was_started_first(mcp: Served, sub: Served) -> None:
    async with (
        serving(sub.http_app(path="/mcp")) as inner,
        serving(mcp.http_app(path="/mcp")) as outer,
        Client2026(inner) as direct,
        Client2026(outer) as client,
    ):
        for name in ("optional", "required"):
            assert text_of((await done(direct, name))["result"]) == "true"
            assert text_of((await done(client, f"sub_{name}"))["result"]) == "true"


async def test_no_call_silently_loses_its_task_if_the_outer_server_was_started_first(
    mcp: Served, sub: Served
) -> None:
    """FastMCP starts the extensions of the outer server only."""
    async with (
        serving(mcp.http_app(path="/mcp")) as outer,
        serving(sub.http_app(path="/mcp")) as inner,
        Client2026(inner) as direct,
        Client2026(outer) as client,
    ):
        for name in ("optional", "required"):
            refused = await direct.call(name)
            assert refused.error["message"] == (
                "tasks cannot run: the server has not started, or has stopped; if this server runs on its "
                "own and is also mounted in another server, start this server first"
            )
            assert text_of((await done(client, f"sub_{name}"))["result"]) == "true"
        assert "error" in (await direct.call("optional", declared=False)).message
        assert text_of((await direct.call("plain")).result) == "false"
