"""The same server, whose tasks run on perdure."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from fastmcp import Context, FastMCP
from fastmcp.dependencies import CallArgument, CurrentFastMCP, Depends, Progress
from fastmcp.exceptions import ToolError
from fastmcp.utilities.tasks import TaskConfig
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

from perdure.fastmcp import TasksExtension

mcp: FastMCP[Any] = FastMCP("kitchen", mask_error_details=True)
mcp.add_extension(TasksExtension(url="memory://", concurrency=4))
cellar: FastMCP[Any] = FastMCP("cellar")
mcp.mount(cellar, namespace="cellar")
CHOICE: Any = {"type": "object", "properties": {"beans": {"type": "string"}}, "required": ["beans"]}


async def recipe(cups: int = CallArgument("cups"), progress: Progress = Progress()) -> str:
    await progress.set_message(f"looking up a recipe for {cups}")
    return f"recipe for {cups}"


@mcp.tool(task=True)
async def brew(cups: int, ctx: Context, how: str = Depends(recipe)) -> list[Any]:
    if cups > 12:
        raise ToolError("the pot is too small")
    if cups < 1:
        raise ValueError("nothing to brew")
    return [how, ctx.is_background_task, ctx.task_id is not None]


@mcp.tool(task=TaskConfig(mode="required", poll_interval=timedelta(seconds=1)))
async def grind(ctx: Context) -> str | InputRequiredResult:
    answers: Any = ctx.input_responses
    if answers is None:
        asked: Any = ElicitRequest(
            params=ElicitRequestFormParams(message="Which beans?", requested_schema=CHOICE)
        )
        return InputRequiredResult(input_requests={"beans": asked}, request_state="asked once")
    return f"{answers['beans'].content['beans']}, {ctx.request_state}"


@cellar.tool(task=True)
async def fetch(bottle: str, server: FastMCP[Any] = CurrentFastMCP()) -> str:
    return f"{bottle} of {server.name}"
