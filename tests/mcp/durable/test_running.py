"""Where a durable function runs: in a thread or as a coroutine, outside of any request, within another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import anyio.from_thread
import pytest
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from pydantic import AnyHttpUrl

from perdure import Task
from perdure.runtime import Retry, TaskFailed
from perdure.runtime.errors import CredentialsNotStored
from perdure.tasks import NewTask, Owner, Success

from ...conditions import wait_until
from .tool_server import ToolServer, text_of

pytestmark = pytest.mark.anyio

Request = ServerRequestContext[Any, Any]


# Where it runs


async def test_a_plain_function_runs_in_a_thread_and_the_server_goes_on(bench: ToolServer) -> None:
    go_on, threads = threading.Event(), list[threading.Thread]()

    @bench.tool()
    def block(task: Task) -> str:
        threads.append(threading.current_thread())
        anyio.from_thread.run(task.set_variables, {"is": "blocked"})
        assert go_on.wait(10)
        return f"attempt {task.attempt}"

    async with bench.running():
        task_id = await bench.modern.start("block")
        await wait_until(lambda: bool(threads))
        assert (await bench.modern.get(task_id))["status"] == "working"
        go_on.set()
        done = await bench.end_of(task_id)
    assert text_of(done) == "attempt 1"
    assert done["_meta"]["perdure/variables"] == {"is": "blocked"}
    assert threads != [threading.main_thread()]


async def test_a_plain_function_can_look_whether_it_was_cancelled(bench: ToolServer) -> None:
    looked = threading.Event()

    @bench.tool()
    def work(task: Task) -> None:
        for _ in range(1000):
            task.check_cancelled()
            looked.set()
            threading.Event().wait(0.01)

    async with bench.running():
        task_id = await bench.modern.start("work")
        await wait_until(looked.is_set)
        await bench.modern.cancel(task_id)
        assert (await bench.end_of(task_id))["status"] == "cancelled"


async def test_a_coroutine_that_is_cancelled_may_clean_up(bench: ToolServer) -> None:
    events: list[str] = []

    @bench.tool()
    async def work(task: Task) -> None:
        try:
            events.append("began")
            await asyncio.Event().wait()
        finally:
            await task.set_variables({"cleaned": True})

    async with bench.running():
        task_id = await bench.modern.start("work")
        await wait_until(lambda: bool(events))
        await bench.modern.cancel(task_id)
        done = await bench.end_of(task_id)
    assert done["status"] == "cancelled"
    assert done["_meta"]["perdure/variables"] == {"cleaned": True}


IN_REQUEST: ContextVar[str] = ContextVar("in_request", default="nothing")


class Verifier:
    """Every token is that of one user."""

    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken(token=token, client_id="tests", scopes=[], subject="ada")


def behind_authentication() -> ToolServer:
    """A server whose requests have an environment: a token, and a variable that middleware sets."""
    here = AnyHttpUrl("http://127.0.0.1:1")
    auth = AuthSettings(issuer_url=here, resource_server_url=here, validate_token_resource=False)
    bench = ToolServer(auth=auth, token_verifier=Verifier())

    async def setting(ctx: Request, call_next: CallNext) -> HandlerResult:
        IN_REQUEST.set("the request's")
        return await call_next(ctx)

    bench.server.middleware.insert(0, setting)
    return bench


def environment() -> list[object]:
    try:
        token = get_access_token()
    except CredentialsNotStored:  # without a key, nothing of the token outlives the request
        return [IN_REQUEST.get(), "not stored"]
    return [IN_REQUEST.get(), token and token.subject]


async def test_a_run_sees_nothing_of_the_request_the_first_time_as_later() -> None:
    bench, seen = behind_authentication(), list[list[object]]()

    @bench.tool(retries=1, backoff=0.0)
    async def work(task: Task) -> int:
        seen.append(environment())
        if task.attempt == 1:
            raise Retry("once more")
        return task.attempt

    @bench.tool()
    def in_thread() -> None:
        seen.append(environment())

    @bench.server.tool()
    async def plain() -> None:
        seen.append(environment())

    async with bench.running(token="secret"):  # noqa: S106
        await bench.modern.call("plain")
        assert await bench.said("work") == "2"
        await bench.ended("in_thread")
        await bench.core.call("work")
    assert seen == [["the request's", "ada"], *[["nothing", "not stored"]] * 5]


async def test_a_task_knows_its_id_its_owner_and_its_arguments() -> None:
    bench = behind_authentication()

    @bench.tool()
    async def work(year: int, task: Task) -> list[Any]:
        return [task.id, task.owner.subject, task.params]

    async with bench.running(token="secret"):  # noqa: S106
        done = await bench.ended("work", year=2026)
    call = {"name": "work", "arguments": {"year": 2026}}
    assert done["result"]["structuredContent"]["result"] == [done["taskId"], "ada", call]


async def test_no_more_runs_of_a_tool_than_it_allows_are_under_way_at_once(bench: ToolServer) -> None:
    gates = [asyncio.Event() for _ in range(3)]
    begun: list[int] = []

    @bench.tool(concurrency=1)
    async def work(number: int) -> int:
        begun.append(number)
        await gates[number].wait()
        return number

    async with bench.running():
        task_ids = [await bench.modern.start("work", {"number": number}) for number in range(3)]
        for count in (1, 2, 3):
            await wait_until(lambda count=count: len(begun) == count)
            assert (await bench.modern.get(task_ids[begun[-1]]))["status"] == "working"
            assert len(begun) == count
            gates[begun[-1]].set()
        ends = [text_of(await bench.end_of(task_id)) for task_id in task_ids]
    assert ends == ["0", "1", "2"]


# One durable function within another


def nested(bench: ToolServer, *, fails: Exception | None = None) -> Callable[..., Any]:
    @bench.tool(name="inner", retries=1, backoff=0.0)
    async def inner(number: int, task: Task) -> str:
        await task.set_variables({"inner": number})
        if fails is not None:
            raise fails
        return f"{number} of {task.id}"

    return inner


@pytest.mark.parametrize("how", ["by name", "by position"])
async def test_a_durable_function_within_another_is_part_of_its_task(bench: ToolServer, how: str) -> None:
    inner = nested(bench)

    @bench.tool()
    async def outer() -> str:
        return await (inner(number=2) if how == "by name" else inner(2))

    async with bench.running():
        done = await bench.ended("outer")
    assert text_of(done) == f"2 of {done['taskId']}"
    assert done["_meta"]["perdure/variables"] == {"inner": 2}


@pytest.mark.parametrize(
    "error", [ValueError("no"), Retry("no"), TaskFailed(-32050, "no"), MCPError(-32050, "no")], ids=repr
)
async def test_what_a_durable_function_raises_within_another_can_be_caught_there(
    bench: ToolServer, error: Exception
) -> None:
    inner = nested(bench, fails=error)

    @bench.tool()
    async def outer(task: Task) -> str:
        try:
            await inner(number=2)
        except Exception as caught:
            return f"{type(caught).__name__} in attempt {task.attempt}"
        return "nothing was raised"

    async with bench.running():
        assert await bench.said("outer") == f"{type(error).__name__} in attempt 1"


async def test_what_a_durable_function_raises_within_another_is_raised_by_both(bench: ToolServer) -> None:
    inner = nested(bench, fails=Retry("not yet"))

    @bench.tool(retries=1, backoff=0.0)
    async def outer() -> str:
        return await inner(number=2)

    async with bench.running():
        failed = await bench.ended("outer")
    assert (failed["status"], failed["statusMessage"]) == ("failed", "not yet (attempt 2 of 2)")


# By which name it is found


async def test_a_tool_that_is_registered_under_another_name_can_be_submitted(bench: ToolServer) -> None:
    @bench.server.tool(name="build-report")
    @bench.tasks.durable
    async def build_report(year: int) -> str:
        return f"report {year}"

    async with bench.running():
        runtime = bench.tasks.runtime
        submitted = (await runtime.submit("build_report", {"year": 2026})).task
        ended = (await runtime.wait(submitted.owner, submitted.task_id, timeout=10)).task
    assert isinstance(ended.outcome, Success)
    assert not ended.is_error
    assert "report 2026" in str(ended.outcome.value)


async def test_a_queued_task_of_a_tool_that_was_renamed_runs(bench: ToolServer) -> None:
    """The server was deployed with another name for the tool, and the name may be another tool's now."""

    @bench.server.tool(name="new-name")
    @bench.tasks.durable
    async def build_report(year: int) -> str:
        return f"report {year}"

    @bench.server.tool(name="old-name")
    async def other(year: int) -> str:
        return f"other {year}"

    new = NewTask(
        method="tools/call",
        params={"name": "old-name", "arguments": {"year": 2026}},
        function="build_report",
    )
    async with bench.running():
        runtime = bench.tasks.runtime
        queued = (await runtime.create(Owner.local(), new)).task
        ended = (await runtime.wait(queued.owner, queued.task_id, timeout=10)).task
    assert isinstance(ended.outcome, Success)
    assert "report 2026" in str(ended.outcome.value)
