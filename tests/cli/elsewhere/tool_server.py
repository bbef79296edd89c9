"""The server of the crash test. Its tools take a while, page by page, with a checkpoint after each."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

from perdure import Owner, RuntimeConfig, StoreConfig, Task, Tasks

from .journal import Journal

URL, FOLDER, PROCESS = "ELSEWHERE_URL", "ELSEWHERE_FOLDER", "ELSEWHERE_PROCESS"
"""The environment variables with the storage, the folder of the journals, and the name of the process."""
TOOLS = ("light", "heavy")
CONFIG = RuntimeConfig(
    concurrency=8,
    heartbeat_interval=0.5,
    clock_skew=0.5,
    drain_timeout=1,
    cancel_grace=1,
    queue_poll_interval=0.5,
    purge_interval=5,
)
"""A lost worker is missed within about three seconds, and a lost replica in which clients wait within
`LOSS_NOTICED_WITHIN`."""
LOSS_NOTICED_WITHIN = 8 * 0.5 + 0.5
"""Seconds from the end of a replica until its tasks are cancelled: 8 heartbeats and the clock skew.

The lease of a replica lasts 2 heartbeats and the clock skew. Workers look for expired leases at each
heartbeat, or twice as often if there are some. They wait 1.5 heartbeats until they suspect the replica, and
as long again.
"""
LONG = 200
"""Pages of a task that takes about 45 seconds, so that most replicas are struck while it runs."""


def make_server(*tools: str) -> MCPServer[Any]:
    """Return a server with these tools. Each process has its own journal, in the state of the lifespan."""

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncGenerator[Journal]:
        journal = Journal(Path(os.environ[FOLDER]), os.environ[PROCESS])
        journal.opened()
        yield journal

    tasks = Tasks(
        os.environ[URL],
        identify=lambda _: Owner.user("https://issuer.example", "ana"),  # so that keys can be used
        store=StoreConfig(max_tasks_per_owner=1000),
        runtime=CONFIG,
    )
    server: MCPServer[Any] = MCPServer("elsewhere", log_level="ERROR", **tasks.attach(lifespan=lifespan))

    async def write(tool: str, number: int, pages: int, ctx: Context[Any, Any], task: Task) -> str:
        journal: Journal = ctx.request_context.lifespan_context
        chance, page = Random(number), task.checkpoint.get_int("page", 0)
        pages = pages or chance.randint(2, 8)
        journal.started(task.id, task.attempt, page + 1, tool)
        while page < pages:
            await anyio.sleep(chance.uniform(0.05, 0.4))
            page += 1
            await task.save_checkpoint({"page": page})
            journal.saved(task.id, task.attempt, page)
        return result_of(tool, number)

    async def light(number: int, ctx: Context[Any, Any], task: Task, pages: int = 0) -> str:
        return await write("light", number, pages, ctx, task)

    async def heavy(number: int, ctx: Context[Any, Any], task: Task, pages: int = 0) -> str:
        return await write("heavy", number, pages, ctx, task)

    for tool in (light, heavy):
        if tool.__name__ in tools:
            server.tool()(tasks.durable(tool))
    return server


def result_of(tool: str, number: int) -> str:
    return f"{tool} {number}"
