"""A server has one extension of tasks, once, and what is refused leaves it as it was."""

from __future__ import annotations

import pytest
from fastmcp import FastMCP
from fastmcp_tasks import TasksExtension as TheirExtension

from perdure.fastmcp import TasksExtension

from ..mcp.raw_clients import EXTENSION, Client2026
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
