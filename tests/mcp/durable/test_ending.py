"""A durable tool ends as the plain one does, or says why it failed, was stopped or is run again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypedDict, cast

import anyio.from_thread
import pytest
from mcp.server.mcpserver import Image
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, EmbeddedResource, TextContent, TextResourceContents
from pydantic import BaseModel, Field

from perdure import Task
from perdure.runtime import Pause, Retry, TaskFailed
from perdure.tasks import InputKind, InputRequest

from ...markers import row
from ..raw_clients import Json
from ..tool_helpers import NAME_FORM
from .tool_server import ADA, ToolServer, first, text_of

pytestmark = pytest.mark.anyio


# What it returns


class Sum(BaseModel):
    total: int
    of: list[int] = Field(alias="parts")
    note: str | None = None


class Pair(TypedDict):
    left: int
    right: int | None


def says() -> str:
    return "grüß"


def counts() -> int:
    return 7


def divides() -> float:
    return 1.5


def agrees() -> bool:
    return True


def gives_nothing() -> None:
    return None


def gives_a_model() -> Sum:
    return Sum(total=3, parts=[1, 2])


def gives_a_pair() -> Pair:
    return {"left": 1, "right": None}


def gives_a_dict() -> dict[str, int | None]:
    return {"a": 1, "b": None}


def gives_a_list() -> list[str]:
    return ["a", "b"]


def gives_models() -> list[Sum]:
    return [Sum(total=1, parts=[1])]


def says_nothing_of_what_it_gives():  # noqa: ANN201  # pyright: ignore
    return {"a": [1, None]}


def gives_content() -> list[TextContent | EmbeddedResource]:
    resource = TextResourceContents(uri="memo://1", text="x", mime_type="text/plain")
    return [TextContent(text="a"), EmbeddedResource(resource=resource)]


def gives_an_image() -> Image:
    return Image(data=b"\x89PNG", format="png")


def gives_a_whole_result() -> CallToolResult:
    return CallToolResult(
        content=[TextContent(text="x")], structured_content={"a": None}, _meta={"my/key": 1}
    )


def gives_an_error() -> CallToolResult:
    return CallToolResult(content=[TextContent(text="no")], is_error=True)


def gives_what_it_did_not_say() -> int:
    return cast("int", "many")


def raises() -> str:
    raise ValueError("secret")


def raises_for_the_model() -> str:
    raise ToolError("try a smaller number")


RETURNING = [
    says, counts, divides, agrees, gives_nothing, gives_a_model, gives_a_pair, gives_a_dict, gives_a_list,
    gives_models, says_nothing_of_what_it_gives, gives_content, gives_an_image, gives_a_whole_result,
    gives_an_error, gives_what_it_did_not_say, raises, raises_for_the_model,
]  # fmt: skip


@row(19)
@pytest.mark.parametrize("function", RETURNING, ids=lambda function: function.__name__)
async def test_a_durable_tool_returns_what_the_plain_one_does(
    bench: ToolServer, function: Callable[..., Any]
) -> None:
    name, plain = function.__name__, ToolServer()
    plain.server.add_tool(function)
    bench.tool()(function)
    async with plain.running(), bench.running():
        expected = (await plain.modern.call(name)).result
        core_expected = (await plain.core.call(name)).result
        done = await bench.ended(name)
        waited = (await bench.modern.call(name, declared=False)).result
        core_waited = (await bench.core.call(name)).result
        task_id = await bench.core.start(name)
        result = (await bench.core.send("tasks/result", {"taskId": task_id})).result
    assert done["status"] == "completed"
    assert without_metadata(done["result"]) == without_metadata(waited) == without_metadata(expected)
    assert without_metadata(core_waited) == without_metadata(result) == without_metadata(core_expected)


def without_metadata(result: Json) -> Json:
    """Less what says of which server and of which task it is; what the tool itself says stays."""
    mine = {key: value for key, value in result.get("_meta", {}).items() if key.startswith("my/")}
    return {**{key: value for key, value in result.items() if key != "_meta"}, "mine": mine}


# How it ends otherwise


async def test_an_error_of_the_protocol_fails_the_task_to_the_letter(bench: ToolServer) -> None:
    @bench.tool()
    async def work() -> None:
        raise MCPError(-32050, "not today", {"why": [1, None]})

    @bench.tool()
    async def without_data() -> None:
        raise MCPError(-32051, "not at all")

    async with bench.running():
        failed, bare = await bench.ended("work"), await bench.ended("without_data")
        waited = await bench.core.call("work")
    error = {"code": -32050, "message": "not today", "data": {"why": [1, None]}}
    assert (failed["status"], failed["error"], failed["statusMessage"]) == ("failed", error, "not today")
    assert waited.error == error
    assert bare["error"] == {"code": -32051, "message": "not at all"}


async def test_a_tool_may_fail_its_task_with_an_error_of_its_own(bench: ToolServer) -> None:
    @bench.tool(retries=3)
    async def work() -> None:
        raise TaskFailed(-32050, "not today", {"why": None})

    async with bench.running():
        failed = await bench.ended("work")
    assert failed["error"] == {"code": -32050, "message": "not today", "data": {"why": None}}


@pytest.mark.parametrize(
    ("retries", "said"), [(0, "no luck"), (2, "no luck (attempt 3 of 3)")], ids=["none", "two"]
)
async def test_a_tool_that_wants_to_be_run_again_is_until_it_has_had_its_retries(
    bench: ToolServer, retries: int, said: str
) -> None:
    attempts: list[int] = []

    @bench.tool(retries=retries, backoff=0.0)
    async def work(task: Task) -> None:
        attempts.append(task.attempt)
        raise Retry("no luck")

    async with bench.running():
        failed = await bench.ended("work")
    assert attempts == list(range(1, retries + 2))
    assert (failed["status"], failed["statusMessage"]) == ("failed", said)
    data = {"reason": "retries_exhausted"}
    assert failed["error"] == {"code": -32603, "message": said, "data": data}


async def test_a_tool_that_is_run_again_goes_on_from_its_variables(bench: ToolServer) -> None:
    @bench.tool(retries=1)
    def work(task: Task) -> str:
        if "reached" not in task.variables:
            anyio.from_thread.run(task.set_variables, {"reached": 3})
            raise Retry("half way", after=0.0)
        return f"from {task.variables['reached']} after {task.last_error}"

    async with bench.running():
        assert await bench.said("work") == "from 3 after half way"


async def test_an_exception_of_the_tool_is_no_reason_to_run_it_again(bench: ToolServer) -> None:
    runs: list[int] = []

    @bench.tool(retries=3)
    async def work(task: Task) -> None:
        runs.append(task.attempt)
        raise ValueError

    async with bench.running():
        done = await bench.ended("work")
    assert (done["status"], done["result"]["isError"], runs) == ("completed", True, [1])


async def test_a_tool_that_pauses_is_run_again_when_it_is_answered(bench: ToolServer) -> None:
    question = InputRequest(
        kind=InputKind.ELICITATION, params={"mode": "form", "message": "Who?", "requestedSchema": NAME_FORM}
    )
    runs: list[int] = []

    @bench.tool()
    async def work(task: Task) -> str:
        runs.append(task.attempt)
        if "who" not in task.questions:
            raise Pause({"who": question}, variables={"asked": True})
        return f"{cast('Any', task.questions['who'].answer).values['name']} {task.variables['asked']}"

    async with bench.running():
        task_id = await bench.modern.start("work")
        asked = await bench.modern.until(task_id, "input_required")
        await bench.modern.update(task_id, {"who": ADA})
        assert text_of(await bench.end_of(task_id)) == "Ada True"
    assert asked["inputRequests"]["who"]["params"]["message"] == "Who?"
    assert runs == [1, 1]


@pytest.mark.parametrize("how", ["in a coroutine", "in a thread"])
async def test_a_tool_that_calls_exit_ends_its_task_and_not_the_server(bench: ToolServer, how: str) -> None:
    async def in_a_coroutine() -> None:
        raise SystemExit(3)

    def in_a_thread() -> None:
        raise SystemExit(3)

    function = in_a_coroutine if how == "in a coroutine" else in_a_thread
    bench.tool()(function)
    bench.tool()(first)
    async with bench.running():
        failed = await bench.ended(function.__name__)
        assert (failed["status"], failed["statusMessage"]) == ("failed", "the function called exit(3)")
        assert await bench.said("first", year=1) == "1 1"


async def test_a_tool_that_cancels_itself_fails_its_task(bench: ToolServer) -> None:
    @bench.tool()
    async def work() -> None:
        raise asyncio.CancelledError

    async with bench.running():
        failed = await bench.ended("work")
    assert (failed["status"], failed["statusMessage"]) == (
        "failed",
        "the function raised CancelledError, although the task was not cancelled",
    )


async def test_a_result_that_is_too_large_fails_the_task_and_says_so(bench: ToolServer) -> None:
    @bench.tool()
    async def work() -> str:
        return "x" * 3_000_000

    async with bench.running():
        failed = await bench.ended("work")
    assert failed["status"] == "failed"
    assert "result" in failed["statusMessage"]


async def test_a_tool_that_takes_too_long_is_stopped_and_its_task_says_so(bench: ToolServer) -> None:
    begun: list[bool] = []
    cleaned: list[bool] = []

    @bench.tool(timeout=0.1)
    async def work() -> None:
        begun.append(True)
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    async with bench.running():
        failed = await bench.ended("work")
    assert failed["status"] == "failed"
    assert failed["statusMessage"] == "the function took longer than 0.1 seconds"
    assert cleaned == begun  # where a busy machine takes the time away, it was stopped before it began
