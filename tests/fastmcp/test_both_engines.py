"""A server of perdure and one of fastmcp-tasks run in one process, and neither disturbs the other."""

from __future__ import annotations

from typing import Any

import pytest
from fastmcp import Context, FastMCP
from fastmcp.dependencies import CurrentFastMCP, Progress
from fastmcp.server import dependencies
from fastmcp_tasks import TasksExtension as TheirExtension

from perdure.fastmcp import TasksExtension

from ..markers import row
from ..mcp.raw_clients import Client2026, serving
from ..mcp.tool_helpers import FAST_CONFIG, text_of
from .served import Served, done

pytestmark = pytest.mark.anyio

HOOKS = ("_background_context_factory", "_worker_server_resolver")
"""What FastMCP has for one engine in a process."""


def make(name: str, extension: Any) -> Served:
    mcp: Served = FastMCP(name)
    mcp.add_extension(extension)

    @mcp.tool(task=True)
    async def where(
        ctx: Context, mine: FastMCP = CurrentFastMCP(), progress: Progress = Progress()
    ) -> list[str | bool]:
        await progress.set_message("there")
        return [ctx.is_background_task, ctx.fastmcp.name, mine.name]

    return mcp


@row(121)
async def test_tasks_of_both_run_at_the_same_time() -> None:
    ours = make("ours", TasksExtension("memory:", runtime=FAST_CONFIG))
    theirs = make("theirs", TheirExtension(url="memory://both"))
    async with (
        serving(ours.http_app(path="/mcp")) as our_url,
        serving(theirs.http_app(path="/mcp")) as their_url,
        Client2026(our_url) as our_client,
        Client2026(their_url) as their_client,
    ):
        for name, client in (("ours", our_client), ("theirs", their_client)) * 2:
            task = await done(client, "where")
            assert text_of(task["result"]) == f'[true,"{name}","{name}"]'


async def test_perdure_uses_no_hook_of_the_process() -> None:
    before = [getattr(dependencies, name) for name in HOOKS]
    app = make("ours", TasksExtension("memory:")).http_app()
    async with app.router.lifespan_context(app):
        assert [getattr(dependencies, name) for name in HOOKS] == before == [None, None]
