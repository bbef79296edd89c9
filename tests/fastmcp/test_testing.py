"""`perdure.testing.run_task` runs tools of a FastMCP server as it runs those of the official SDK."""

from __future__ import annotations

from datetime import timedelta

import anyio
import pytest
from fastmcp import Context, FastMCP
from fastmcp.dependencies import Depends, Progress
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from perdure.fastmcp import TaskOptions
from perdure.tasks.errors import InvalidValue
from perdure.testing import FakeClient, NoAnswerLeft, SimulatedTime, run_task

from .served import Served

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:The .* capability is deprecated")]


class Name(BaseModel):
    name: str


async def greeting() -> str:
    return "Dear"


def add_tools(server: Served) -> None:
    @server.tool(task=True)
    async def write_letter(
        days: int, ctx: Context, opening: str = Depends(greeting), progress: Progress = Progress()
    ) -> str:
        await progress.set_total(2)
        await progress.increment()
        await anyio.sleep(days * 86_400)
        answer = await ctx.elicit("Who signs it?", response_type=Name)
        await progress.increment()
        await ctx.info("written")
        name = answer.data.name if answer.action == "accept" else "nobody"
        return f"{opening}: signed by {name} in {ctx.fastmcp.name}"

    @server.tool(task=TaskOptions(retries=2, retry_on=(OSError,), backoff=600))
    async def always_busy() -> None:
        raise OSError("busy")

    @server.tool(task=True)
    async def break_off() -> None:
        raise MCPError(-32042, "it broke off")

    @server.tool
    async def add(left: int, right: int) -> int:
        return left + right


@pytest.fixture
def server(mcp: Served) -> Served:
    add_tools(mcp)
    mounted: Served = FastMCP("mounted")
    add_tools(mounted)
    mcp.mount(mounted, namespace="sub")
    return mcp


@pytest.mark.parametrize(("tool", "owner"), [("write_letter", "root"), ("sub_write_letter", "mounted")])
def test_a_tool_runs_with_its_question_progress_and_dependencies(
    server: Served, tool: str, owner: str
) -> None:
    simulated, client = SimulatedTime(), FakeClient({"name": "Ada"})
    result = simulated.run(run_task, server, tool, {"days": 3}, client=client)
    assert result.structured_content == {"result": f"Dear: signed by Ada in {owner}"}
    assert [question.message for question in client.questions] == ["Who signs it?"]
    assert (client.progress[-1].done, client.progress[-1].total) == (2, 2)
    assert [entry.message for entry in client.log] == [{"msg": "written", "extra": None}]
    assert timedelta(days=3) <= simulated.elapsed < timedelta(days=3, hours=1)


def test_retries_wait_for_their_backoff(server: Served) -> None:
    simulated = SimulatedTime()
    result = simulated.run(run_task, server, "always_busy")
    assert result.is_error
    assert timedelta(minutes=15) <= simulated.elapsed < timedelta(hours=1)


async def test_time_is_real_in_an_asynchronous_test(server: Served) -> None:
    for answer in ("decline", "cancel"):
        result = await run_task(server, "write_letter", {"days": 0}, client=FakeClient(answer))
        assert result.structured_content == {"result": "Dear: signed by nobody in root"}


async def test_errors_are_those_of_a_real_call(server: Served) -> None:
    assert (await run_task(server, "write_letter", {"days": "soon"})).is_error
    with pytest.raises(MCPError, match="it broke off"):
        await run_task(server, "break_off")
    with pytest.raises(MCPError, match="elicitation"):
        await run_task(server, "write_letter", {"days": 0}, client=FakeClient(capabilities=()))
    with pytest.raises(NoAnswerLeft, match=r"Who signs it\?"):
        await run_task(server, "write_letter", {"days": 0})


async def test_a_tool_that_is_no_task_returns_its_result(server: Served) -> None:
    result = await run_task(server, "add", {"left": 2, "right": 3})
    assert result.structured_content == {"result": 5}


async def test_a_server_without_the_extension_is_refused_with_what_to_write() -> None:
    server: Served = FastMCP("root")
    with pytest.raises(
        InvalidValue,
        match=r"has no TasksExtension; import it from perdure.fastmcp, and call server.add_extension\(Tasks",
    ) as error:
        await run_task(server, "add", {"left": 2, "right": 3})
    assert "attach" not in str(error.value)
