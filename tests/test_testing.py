"""`perdure.testing`: a durable tool in a unit test, with a client that answers, in simulated time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import CreateMessageResult, ElicitResult, ListRootsResult, ListToolsResult, Root, TextContent
from pydantic import BaseModel

from perdure import Owner, Retry, Task, Tasks
from perdure.mcp import Identify
from perdure.mcp.server import tasks_of
from perdure.storage.time_types import system_clock
from perdure.tasks.errors import InvalidValue
from perdure.testing import FakeAnswer, FakeClient, NoAnswerLeft, Question, SimulatedTime, run_task

from .markers import server as starts_process

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:The .* capability is deprecated")]


class Name(BaseModel):
    name: str


@asynccontextmanager
async def lifespan(_: object) -> AsyncGenerator[dict[str, str]]:
    yield {"printer": "the printer"}


def make_server(url: str = "memory:", identify: Identify | None = None) -> MCPServer[Any]:
    tasks = Tasks(url, identify=identify)
    server: MCPServer[Any] = MCPServer("tests", **tasks.attach(lifespan=lifespan))

    @server.tool()
    @tasks.durable
    async def build_report(year: int, ctx: Context[Any, Any]) -> str:
        await ctx.report_progress(1, 2)
        await ctx.info(f"building {year}")  # pyright: ignore[reportDeprecated]
        answer = await ctx.elicit("Who signs it?", schema=Name)
        await ctx.report_progress(2, 2)
        name = answer.data.name if answer.action == "accept" else "unsigned"
        return f"Report {year} by {name}, for {ctx.request_context.lifespan_context['printer']}"

    @server.tool()
    @tasks.durable(retries=2, retry_on=(ConnectionError,), backoff=600)
    async def wait_for_approval(days: float, task: Task) -> str:
        await anyio.sleep(days * 86_400)
        if task.attempt < 3:
            raise ConnectionError("not yet")
        return f"approved at attempt {task.attempt}"

    @server.tool()
    @tasks.durable
    async def ask_the_client(task: Task) -> str:
        reply = await task.sample([{"role": "user", "content": {"type": "text", "text": "Hi"}}], max_tokens=5)
        roots = await task.list_roots()
        return f"{reply['content']['text']} {len(roots)}"

    @server.tool()
    @tasks.durable(retries=1, retry_on=(ConnectionError,), backoff=0)
    async def sign_in(ctx: Context[Any, Any], task: Task) -> str:
        answer = await ctx.elicit_url("Sign in", "https://example.org", elicitation_id=uuid4().hex)
        if task.attempt == 1:
            raise ConnectionError("lost")
        return f"{answer.action} at attempt {task.attempt}"

    @server.tool()
    @tasks.durable
    async def always_again() -> str:
        raise Retry("never works")

    add_plain_functions(server, tasks)
    return server


def add_plain_functions(server: MCPServer[Any], tasks: Tasks) -> None:
    @server.tool()
    @tasks.durable(timeout=3600)
    def compress(seconds: float) -> str:
        time.sleep(seconds)
        return "compressed"

    @server.tool()
    @tasks.durable
    def wait_in_a_thread(days: float) -> str:
        anyio.from_thread.run(anyio.sleep, days * 86_400)
        return "waited"


async def test_a_tool_runs_with_its_questions_progress_log_and_lifespan() -> None:
    client = FakeClient({"name": "Ada"})
    result = await run_task(make_server(), "build_report", {"year": 2026}, client=client)
    assert result.structured_content == {"result": "Report 2026 by Ada, for the printer"}
    assert [question.message for question in client.questions] == ["Who signs it?"]
    assert (client.progress[-1].done, client.progress[-1].total) == (2, 2)
    assert [entry.message for entry in client.log] == ["building 2026"]


def name_of_kind(question: Question) -> dict[str, str]:
    return {"name": question.kind.name}


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (Name(name="Eve"), "Eve"),
        ("decline", "unsigned"),
        (name_of_kind, "ELICITATION"),
    ],
)
async def test_an_answer_is_a_model_a_refusal_or_a_function(answer: FakeAnswer, name: str) -> None:
    result = await run_task(make_server(), "build_report", {"year": 1}, client=FakeClient(answer))
    assert result.structured_content == {"result": f"Report 1 by {name}, for the printer"}


async def test_sampling_and_roots_are_answered_too() -> None:
    client = FakeClient(
        CreateMessageResult(role="assistant", content=TextContent(text="Hello"), model="m"),
        ListRootsResult(roots=[Root(uri="file:///srv")]),  # pyright: ignore[reportArgumentType]
    )
    result = await run_task(make_server(), "ask_the_client", client=client)
    assert result.structured_content == {"result": "Hello 1"}


async def test_a_question_without_an_answer_fails_the_test() -> None:
    with pytest.raises(NoAnswerLeft, match="asked 'Who signs it\\?', but FakeClient has no answer left"):
        await run_task(make_server(), "build_report", {"year": 2026})


async def test_a_client_that_cannot_be_asked_is_like_a_real_one() -> None:
    with pytest.raises(MCPError, match="elicitation"):
        await run_task(make_server(), "build_report", {"year": 1}, client=FakeClient(capabilities=()))


async def test_wrong_arguments_and_errors_are_those_of_a_real_call() -> None:
    refused = await run_task(make_server(), "build_report", {"year": "soon"})
    assert refused.is_error
    with pytest.raises(MCPError, match="never works"):
        await run_task(make_server(), "always_again")


async def test_neither_the_storage_nor_the_callers_of_the_server_are_used(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    server = make_server(f"sqlite:///{path}", identify=lambda _: Owner.user("issuer", "another"))
    result = await run_task(server, "build_report", {"year": 1}, client=FakeClient({"name": "Ada"}))
    assert not result.is_error
    assert not path.exists()


@pytest.mark.parametrize(
    ("server", "because"),
    [
        (MCPServer[Any]("plain"), r"has no Tasks object attached; build it with MCPServer\("),
        (Server[Any]("plain"), r"has no Tasks object attached; call tasks.install\(server\)"),
        ("reports:server", "must be a server of the MCP SDK or of FastMCP, not a str"),
    ],
)
async def test_a_server_without_tasks_is_refused(server: object, because: str) -> None:
    with pytest.raises(InvalidValue, match=because):
        await run_task(cast("Any", server), "anything")


@starts_process
def test_fastmcp_is_not_needed() -> None:
    program = "import sys, perdure.testing; sys.exit('fastmcp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_low_level_server_runs_its_tools_too() -> None:
    async def list_tools(*_: object) -> ListToolsResult:
        return ListToolsResult(tools=[])

    tasks, server = Tasks("memory:"), Server[Any]("tests", on_list_tools=list_tools)

    @tasks.durable
    async def sign(days: float, ctx: Context[Any, Any]) -> str:
        await anyio.sleep(days * 86_400)
        answer = await ctx.elicit("Who signs it?", schema=Name)
        return f"signed by {answer.data.name}" if answer.action == "accept" else "not signed"

    tasks.install(server)
    simulated, client = SimulatedTime(), FakeClient({"name": "Ada"})
    result = simulated.run(run_task, server, "sign", {"days": 3}, client=client)
    assert result.structured_content == {"result": "signed by Ada"}
    assert simulated.elapsed >= timedelta(days=3)


def test_days_take_a_moment_and_retries_wait_for_their_backoff() -> None:
    simulated = SimulatedTime()
    result = simulated.run(run_task, make_server(), "wait_for_approval", {"days": 3})
    assert result.structured_content == {"result": "approved at attempt 3"}
    assert timedelta(days=9, minutes=15) <= simulated.elapsed < timedelta(days=9, hours=1)


def test_time_stands_still_while_a_plain_function_runs() -> None:
    """Else its timeout, or the next timer of anything, would come at once."""
    simulated = SimulatedTime()
    result = simulated.run(run_task, make_server(), "compress", {"seconds": 0.3})
    assert result.structured_content == {"result": "compressed"}
    assert simulated.elapsed < timedelta(minutes=1)


@pytest.mark.parametrize("call_in_thread", [anyio.to_thread.run_sync, asyncio.to_thread])
def test_time_stands_still_while_a_coroutine_waits_for_a_thread(
    call_in_thread: Callable[..., Coroutine[Any, Any, None]],
) -> None:
    async def work() -> None:
        with anyio.fail_after(600):
            await call_in_thread(time.sleep, 0.2)
        await anyio.sleep(3600)

    simulated = SimulatedTime()
    simulated.run(work)
    assert timedelta(hours=1) <= simulated.elapsed < timedelta(hours=1, minutes=1)


def test_time_jumps_while_a_plain_function_waits_for_the_event_loop() -> None:
    simulated = SimulatedTime()
    result = simulated.run(run_task, make_server(), "wait_in_a_thread", {"days": 3})
    assert result.structured_content == {"result": "waited"}
    assert timedelta(days=3) <= simulated.elapsed < timedelta(days=4)


def test_the_answer_can_come_a_week_later() -> None:
    simulated, asked_at = SimulatedTime(), list[timedelta]()

    def note(question: Question) -> dict[str, str]:
        asked_at.append(simulated.elapsed)
        return {"name": question.kind.value}

    async def scenario() -> str:
        await anyio.sleep(7 * 86_400)
        result = await run_task(make_server(), "build_report", {"year": 1}, client=FakeClient(note))
        return str(result.structured_content)

    assert "elicitation/create" in simulated.run(scenario)
    assert asked_at[0] >= timedelta(days=7)
    assert simulated.now().isoformat() >= "2026-01-08"


async def test_one_task_runs_after_another() -> None:
    server = make_server()
    tasks = tasks_of(server)
    assert tasks is not None
    other = tasks.overridden("memory:", owner=Owner.local(), clock=system_clock)
    with other, pytest.raises(InvalidValue, match="already running"):
        await run_task(server, "always_again")
    with pytest.raises(MCPError, match="never works"):
        await run_task(server, "always_again")


async def test_a_url_is_opened_once_though_its_id_is_new_in_each_attempt() -> None:
    client = FakeClient(ElicitResult(action="accept"))
    result = await run_task(make_server(), "sign_in", client=client)
    assert result.structured_content == {"result": "accept at attempt 2"}
    assert len(client.questions) == 1


async def test_an_answer_that_asserts_fails_with_its_own_error() -> None:
    def check(question: Question) -> dict[str, str]:
        assert question.message == "something else"
        return {}

    with pytest.raises(AssertionError, match="something else"):
        await run_task(make_server(), "build_report", {"year": 1}, client=FakeClient(check))


def test_a_year_is_no_problem() -> None:
    simulated = SimulatedTime()
    simulated.run(anyio.sleep, 365 * 86_400)
    assert simulated.elapsed >= timedelta(days=365)


def test_a_simulation_in_which_nothing_can_happen_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.testing.MAX_REAL_WAIT", 0.01)
    with pytest.raises(RuntimeError, match="no thread or socket became ready"):
        SimulatedTime().run(anyio.Event().wait)
