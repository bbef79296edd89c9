"""A server of FastMCP is joined with one `Tasks`, once, and what is refused leaves it as it was."""

from __future__ import annotations

import pytest
from fastmcp import FastMCP
from fastmcp_tasks import TasksExtension

from perdure import Tasks
from perdure.mcp.fastmcp import attach
from perdure.tasks.errors import InvalidValue

from ..raw_clients import EXTENSION, Client2026
from .tool_server import ToolServer, opened

pytestmark = pytest.mark.anyio


async def test_a_server_is_joined_once(shop: ToolServer) -> None:
    with pytest.raises(ValueError, match="already"):
        attach(Tasks("memory:"), shop.server)
    with pytest.raises(ValueError, match="already"):
        attach(shop.tasks, shop.server)


async def test_what_is_refused_leaves_the_server_as_it_was(shop: ToolServer) -> None:
    with pytest.raises(ValueError, match="already"):
        attach(Tasks("memory:"), shop.server)
    shop.gate.set()
    async with opened(shop) as url, Client2026(url) as modern:
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


async def test_two_servers_do_not_share_their_tasks(shop: ToolServer) -> None:
    with pytest.raises(InvalidValue, match="another server"):
        attach(shop.tasks, FastMCP("other"))
    shop.gate.set()
    async with opened(shop) as url, Client2026(url) as modern:
        await modern.until(await modern.start("hold"), "completed")
