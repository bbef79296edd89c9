"""`perdure worker module:server`: the tools of a server run in other processes, which serve nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp.client import Client

from perdure.operating import Operator
from perdure.storage import open_storage
from perdure.storage.kit.servers.process import free_port

from ..conditions import wait_until
from ..markers import row
from ..mcp.raw_clients import Client2025
from ..mcp.tool_helpers import text_of
from ..test_examples import Program, running, sampled, started, visiting

pytestmark = pytest.mark.anyio

WORKING = ("-m", "perdure.cli", "worker")

HEAD = """
import os
from contextlib import asynccontextmanager

import anyio
from perdure import RuntimeConfig, Tasks

CONFIG = RuntimeConfig(heartbeat_interval=0.5, clock_skew=0.5, drain_timeout=30)
URL = "sqlite:///own.db"


@asynccontextmanager
async def kitchen(server):
    yield {"cook": os.getpid()}


async def cook(cups, ctx, state):
    while await anyio.Path("not yet").exists():
        await anyio.sleep(0.02)
    return f"{cups} cups by {state['cook']}"
"""

SDK = f"""{HEAD}
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

tasks = Tasks(URL, runtime=CONFIG)
server = MCPServer("kitchen", **tasks.attach(lifespan=kitchen))


@server.tool()
@tasks.durable
async def brew(cups: int, ctx: Context) -> str:
    return await cook(cups, ctx, ctx.request_context.lifespan_context)
"""

LOW_LEVEL = f"""{HEAD}
from mcp.server import Server
from mcp.server.mcpserver import Context
from mcp_types import ListToolsResult, Tool

tasks = Tasks(URL, runtime=CONFIG)


@tasks.durable
async def brew(cups: int, ctx: Context) -> str:
    return await cook(cups, ctx, ctx.request_context.lifespan_context)


async def list_tools(context, params):
    return ListToolsResult(tools=[Tool(name="brew", input_schema={{"type": "object"}})])


server = Server("kitchen", on_list_tools=list_tools, lifespan=kitchen)
tasks.install(server)
"""

FASTMCP = f"""{HEAD}
from fastmcp import Context, FastMCP
from perdure.fastmcp import TasksExtension

server = FastMCP("kitchen", lifespan=kitchen)
server.add_extension(TasksExtension(URL, runtime=CONFIG))


@server.tool(task=True)
async def brew(cups: int, ctx: Context) -> str:
    return await cook(cups, ctx, ctx.lifespan_context)
"""

KINDS = pytest.mark.parametrize("code", [SDK, LOW_LEVEL, FASTMCP], ids=["sdk", "low-level", "fastmcp"])


@asynccontextmanager
async def worker(folder: Path, *options: str) -> AsyncGenerator[Program]:
    async with running(folder, *WORKING, "own:server", *options) as program:
        await program.wait_for_output(" of kitchen on sqlite, functions: brew\n")
        yield program


async def attempts(folder: Path, task_id: str) -> int:
    async with await open_storage(f"sqlite:///{folder / 'own.db'}") as storage:
        return (await Operator(storage).find(task_id)).summary.attempts


@row(124)
@KINDS
async def test_the_tools_of_a_server_run_on_a_worker_elsewhere_and_the_server_runs_none(
    tmp_path: Path, code: str
) -> None:
    (tmp_path / "own.py").write_text(code)
    async with (
        sampled(tmp_path, "own:server", "--no-work") as server,
        visiting(server.url) as (client, tasks),
    ):
        assert "run only by workers" in server.program.output
        task = await started(client, tasks, "brew", {"cups": 2})
        await anyio.sleep(1)
        assert await attempts(tmp_path, task.id) == 0
        async with worker(tmp_path) as first:
            assert text_of(await task.wait(30)) == f"2 cups by {first.pid}"
            async with Client(server.url) as plain:  # it knows no tasks, and waits
                assert text_of(await plain.call_tool("brew", {"cups": 3})) == f"3 cups by {first.pid}"
            async with Client2025(server.url) as core:
                task_id = await core.start("brew", {"cups": 4})
                answer = await core.send("tasks/result", {"taskId": task_id})
                assert answer.result["content"][0]["text"] == f"4 cups by {first.pid}"
            assert await first.end(signal.SIGTERM) == 0
        assert first.output.endswith("Stopped.\n")
        assert "Traceback" not in first.output + server.program.output


@row(124)
async def test_a_worker_lets_its_runs_end_at_a_signal_and_reports_its_health(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SDK)
    (tmp_path / "not yet").touch()
    port = free_port()
    async with (
        sampled(tmp_path, "own:server", "--no-work") as server,
        visiting(server.url) as (client, tasks),
        worker(tmp_path, "--port", str(port)) as program,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as probe,
    ):
        assert (await probe.get("/health")).json() == {"status": "ok"}
        assert (await probe.get("/ready")).json() == {"status": "ready"}
        assert (await probe.post("/mcp", json={})).status_code == 404
        front = server.url.removesuffix("/mcp")
        assert (await probe.get(f"{front}/ready")).json() == {"status": "ready"}
        task = await started(client, tasks, "brew", {"cups": 1})

        async def is_running() -> bool:
            return await attempts(tmp_path, task.id) == 1

        await wait_until(is_running)
        os.kill(program.pid, signal.SIGTERM)
        await program.wait_for_output("SIGTERM: waiting for running tasks")

        async def is_unready() -> bool:
            return (await probe.get("/ready")).json() == {"status": "stopping"}

        await wait_until(is_unready)
        assert (await probe.get("/health")).status_code == 200
        late = await started(client, tasks, "brew", {"cups": 9})
        (tmp_path / "not yet").unlink()
        assert text_of(await task.wait(30)) == f"1 cups by {program.pid}"
        assert await program.ended() == 0
        assert await attempts(tmp_path, late.id) == 0
        async with worker(tmp_path) as second:
            assert text_of(await late.wait(30)) == f"9 cups by {second.pid}"
