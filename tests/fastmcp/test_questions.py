"""A tool that runs in a task asks as a guard does, or where it needs the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fastmcp
import pytest
from fastmcp import Context, FastMCP
from fastmcp.client.elicitation import ElicitResult
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

from perdure import current_task
from perdure.fastmcp import TaskOptions, TasksExtension

from ..conditions import wait_until
from ..markers import row
from ..mcp.raw_clients import Client2026, Json
from ..mcp.tool_helpers import FAST_CONFIG, NAME_FORM, text_of
from .features import feature
from .served import Served, done, modern_of

pytestmark = pytest.mark.anyio


@row(121)
@feature(
    "a tool that returns `InputRequiredResult` (guard pattern)",
    peer="the task asks; when all questions are answered, the tool runs again with `ctx.input_responses` and "
    "`ctx.request_state`; a result without questions is an error of the tool",
)
async def test_a_guard_asks_and_runs_again_with_the_answers(mcp: Served) -> None:
    def form(message: str) -> ElicitRequest:
        return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=NAME_FORM))

    @mcp.tool(task=True)
    async def sign(ctx: Context) -> str | InputRequiredResult:
        answers: Any = ctx.input_responses
        if answers is None:
            asked: Any = {"author": form("Who wrote it?"), "reader": form("Who read it?")}
            return InputRequiredResult(input_requests=asked, request_state="two")
        if ctx.request_state == "two":
            state = f"{answers['author'].content['name']} and {answers['reader'].content['name']}"
            return InputRequiredResult(input_requests={"author": form("Sure?")}, request_state=state)
        return f"{ctx.request_state}, {answers['author'].content['name']}"

    @mcp.tool(task=True)
    async def empty() -> str | InputRequiredResult:
        return InputRequiredResult(request_state="nothing to ask")

    async with modern_of(mcp) as client:
        task_id = await client.start("sign")
        asked = (await client.until(task_id, "input_required"))["inputRequests"]
        assert {key: each["params"]["message"] for key, each in asked.items()} == {
            "author": "Who wrote it?",
            "reader": "Who read it?",
        }
        await client.update(task_id, {"author": _named("Ada")})
        assert set((await client.get(task_id))["inputRequests"]) == {"reader"}
        await client.update(task_id, {"reader": _named("Bob")})
        again = "author-2"  # a key is used once in the life of a task

        async def asks_again() -> bool:
            return again in (await client.get(task_id)).get("inputRequests", {})

        await wait_until(asks_again)
        await client.update(task_id, {again: _named("yes")})
        assert text_of((await client.until(task_id, "completed"))["result"]) == "Ada and Bob, yes"
        nothing = (await done(client, "empty"))["result"]
    problem = "The tool requires input, but its result contains no input requests"
    assert (nothing["isError"], text_of(nothing)) == (True, problem)


def _named(name: str) -> Json:
    return {"action": "accept", "content": {"name": name}}


@row(121)
@feature(
    "`await ctx.elicit(...)`",
    peer="refused in a task",
    here="works; the question and its answer survive a restart. An answer that does not match the form is "
    'refused, without the conversions of FastMCP, such as `"42"` to 42',
)
async def test_an_answer_survives_the_restart_of_the_server(tmp_path: Path) -> None:
    starts: list[int] = []

    async def book(ctx: Context) -> str:
        starts.append(current_task().attempt)
        name: Any = await ctx.elicit("Who?", str)
        size: Any = await ctx.elicit("Which?", ["small", "large"])
        return f"{name.data}, {size.data}"

    def made() -> Served:
        server: Served = FastMCP("root")
        server.add_extension(TasksExtension(f"sqlite:///{tmp_path / 'tasks.db'}", runtime=FAST_CONFIG))
        server.tool(book, task=True)
        return server

    async def answer(client: Client2026, task_id: str, message: str, value: str) -> None:
        asked: Json = {}

        async def is_asked() -> bool:
            asked.update((await client.get(task_id)).get("inputRequests", {}))
            return message in [each["params"]["message"] for each in asked.values()]

        await wait_until(is_asked)
        (key,) = (key for key, each in asked.items() if each["params"]["message"] == message)
        await client.update(task_id, {key: {"action": "accept", "content": {"value": value}}})

    async with modern_of(made()) as client:
        task_id = await client.start("book")
        await answer(client, task_id, "Who?", "Ada")
        await wait_until(lambda: client_sees(client, task_id, "Which?"))
    async with modern_of(made()) as client:
        await answer(client, task_id, "Which?", "large")
        assert text_of((await client.until(task_id, "completed"))["result"]) == "Ada, large"
    assert len(starts) > 1


async def client_sees(client: Client2026, task_id: str, message: str) -> bool:
    return message in str((await client.get(task_id)).get("inputRequests"))


@row(121)
async def test_a_tool_asks_where_it_needs_the_answer(mcp: Served) -> None:
    starts: list[int] = []

    @mcp.tool(task=TaskOptions(retries=1, retry_on=(OSError,), backoff=0.01))
    async def book(ctx: Context) -> str:
        starts.append(current_task().attempt)
        name: Any = await ctx.elicit("Who?", str, response_title="Name")
        if len(starts) == 1:
            raise OSError
        size: Any = await ctx.elicit("Which?", ["small", "large"])
        sure = await ctx.elicit("Sure?", bool)
        return f"{name.data}, {size.data}, {sure.action}"

    answers = {
        "Who?": ElicitResult(action="accept", content={"value": "Ada"}),
        "Which?": ElicitResult(action="accept", content={"value": "large"}),
        "Sure?": ElicitResult(action="decline"),
    }
    asked: list[str] = []

    async def answer(message: str, *_: object) -> ElicitResult[Json]:
        asked.append(message)
        return answers[message]

    async with fastmcp.Client(mcp, elicitation_handler=answer) as client:
        assert (await client.call_tool("book")).data == "Ada, large, decline"
    assert (starts, asked) == ([1, 2], ["Who?", "Which?", "Sure?"])


@row(121)
async def test_a_client_that_cannot_answer_fails_the_task_with_the_capability(mcp: Served) -> None:
    @mcp.tool(task=True)
    async def ask(ctx: Context) -> str:
        return (await ctx.elicit("Who?", str)).action

    async with modern_of(mcp) as client:
        capabilities: Json = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
        failed = await client.until(await client.start("ask", capabilities=capabilities), "failed")
    assert failed["error"]["code"] == -32021
    assert failed["error"]["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}
