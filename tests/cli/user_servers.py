"""Servers of one's own, as texts: each stands in a file of the folder in which it is served."""

from __future__ import annotations

BREW = '''

@server.tool()
@tasks.durable
async def brew(cups: int, task: Task) -> str:
    """Brew."""
    return f"{cups} cups of coffee"
'''

BROKEN = """

@server.custom_route("/broken", methods=["GET"])
async def broken(request):
    raise KeyError("no such cup")
"""

OWN_SERVER = f"""
import anyio
from mcp.server import MCPServer, Server
from perdure import Task, Tasks
from perdure.runtime import App

tasks = Tasks("sqlite:///own.db")
server = MCPServer("kitchen", **tasks.attach())
without = MCPServer("without tasks")
app = App("sqlite:///own.db", application="tests")
text = "hello"
unreachable = MCPServer("far", **Tasks("postgresql://user:hunter2@127.0.0.1:1/db").attach())
{BREW}{BROKEN}"""

OWN_FASTMCP = f"""
from fastmcp import FastMCP
from perdure.fastmcp import TasksExtension

server = FastMCP("kitchen")
server.add_extension(TasksExtension("memory:"))
cellar = FastMCP("cellar")
server.mount(cellar, namespace="cellar")


@server.tool(task=True)
async def brew(cups: int) -> str:
    return f"{{cups}} cups of coffee"


@cellar.tool(task=True)
async def age(years: int) -> str:
    return f"{{years}} years old"
{BROKEN}"""

OWN_LOW_LEVEL = """
from mcp.server.lowlevel import Server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool
from perdure import Task, Tasks

tasks = Tasks("memory:")


@tasks.durable
async def brew(cups: int, task: Task) -> str:
    return f"{cups} cups of coffee"


async def list_tools(context, params):
    schema = {"type": "object", "properties": {"cups": {"type": "integer"}}}
    return ListToolsResult(tools=[Tool(name="brew", input_schema=schema)])


async def call(context, params):
    return CallToolResult(content=[TextContent(text=str(await brew(**params.arguments)))])


server = Server("kitchen", on_list_tools=list_tools, on_call_tool=call)
tasks.install(server)
"""

DECLARED = OWN_LOW_LEVEL.replace("install(server)", "install(server, authenticated=True)")
"""Whose user checks callers, in a transport that is not the one that is served."""

PATIENT = '''
import anyio
from mcp.server import MCPServer
from perdure import Task, Tasks
from perdure.runtime import RuntimeConfig

config = RuntimeConfig(heartbeat_interval=0.5, clock_skew=0.5, drain_timeout=600)
tasks = Tasks("sqlite:///own.db", runtime=config)
server = MCPServer("kitchen", **tasks.attach())


@server.tool()
@tasks.durable(retries=3)
async def brew(task: Task) -> str:
    """Brew until the task is cancelled."""
    await task.set_variables({"started": True})
    while not await anyio.Path("enough").exists():
        await anyio.sleep(0.05)
    return f"coffee, in attempt {task.attempt}"
'''
"""Waits ten minutes for running tasks when it is stopped, and soon notices lost workers."""

CLEANING = """
from contextlib import asynccontextmanager

import anyio
import uvicorn


@asynccontextmanager
async def kitchen(server):
    try:
        yield {}
    finally:
        await anyio.sleep(0.1)
        await anyio.Path("cleaned").touch()


async def main_loop(self):
    while not await anyio.Path("break").exists():
        await anyio.sleep(0.05)
    raise OSError("too many open files")


uvicorn.Server.main_loop = main_loop
"""
BREAKING = CLEANING + OWN_LOW_LEVEL.replace('"kitchen"', '"kitchen", lifespan=kitchen')
"""Its own lifespan takes a while to end, and its HTTP server fails when there is a file `break`."""

PAUSING = '''
from mcp.server import MCPServer
from perdure import Task, Tasks
from perdure.runtime import Pause
from perdure.tasks import InputKind, InputRequest, StoreConfig

tasks = Tasks("sqlite:///own.db", store=StoreConfig(retention=14 * 86_400))
server = MCPServer("kitchen", **tasks.attach())


@server.tool()
@tasks.durable
async def brew(task: Task) -> str:
    """Ask, and let go of the worker meanwhile."""
    schema = {"type": "object", "properties": {"beans": {"type": "string"}}}
    params = {"message": "Which beans?", "requestedSchema": schema}
    raise Pause({"beans": InputRequest(kind=InputKind.ELICITATION, params=params)})
'''
