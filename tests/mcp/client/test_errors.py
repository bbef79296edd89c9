"""A client says by name what is wrong: with how it was built, with an answer, with a server without tasks."""

from __future__ import annotations

from typing import NoReturn

import pytest
from mcp.client import Client
from mcp.client.extension import advertise
from mcp.shared.exceptions import MCPError

from perdure.mcp.client import ClientTasks
from perdure.mcp.errors import (
    AnswersNotSupported,
    ClientTaskError,
    ConnectionLost,
    ExtensionNotInstalled,
    InvalidTaskResponse,
    TasksNotSupported,
    TaskWasCancelled,
    WaitTimeout,
)
from perdure.storage.errors import PerdureError

from ..raw_clients import EXTENSION, Json
from ..tool_helpers import text_of
from .tool_server import ToolServer, raised_by, visiting

pytestmark = pytest.mark.anyio


async def test_a_client_without_the_extension_is_told_how_to_build_it(shop: ToolServer, url: str) -> None:
    tasks = ClientTasks()
    for extensions in (None, [ClientTasks()], [advertise(EXTENSION)]):
        async with Client(url, extensions=extensions) as client:
            with pytest.raises(ExtensionNotInstalled, match=r"extensions=\[tasks\]"):
                await tasks.start(client, "hold")
            with pytest.raises(ExtensionNotInstalled):
                tasks.resume(client, '{"task_id": "1", "tool": "hold"}')

    assert shop.watch.of("tools/call") == []


@pytest.mark.parametrize(
    "broken",
    [
        {"status": "done"},
        {"status": None},
        {"taskId": 7},
        {"createdAt": None},
        {"status": "completed", "result": None},
        {"status": "input_required", "inputRequests": ["first"]},
    ],
)
async def test_an_answer_that_is_no_task_is_called_so(shop: ToolServer, url: str, broken: Json) -> None:
    shop.answers.changing["tasks/get"] = lambda task: {**task, **broken}
    async with visiting(url) as visitor:
        task = await visitor.start("hold")
        with pytest.raises(InvalidTaskResponse):
            await task.wait(10)


async def test_a_question_that_is_none_is_no_question(shop: ToolServer, url: str) -> None:
    asked = {"status": "input_required", "inputRequests": {"first": {"method": "no/such"}}}
    shop.answers.changing["tasks/get"] = lambda task: {**task, **asked}
    async with visiting(url) as visitor:
        task = await visitor.start("hold")
        with pytest.raises(InvalidTaskResponse):
            await task.wait(10)


async def test_every_error_of_a_client_is_one_of_ours() -> None:
    errors = (
        TaskWasCancelled("1"),
        WaitTimeout(1, "1"),
        ConnectionLost("it is closed"),
        InvalidTaskResponse("it is none"),
        ExtensionNotInstalled(),
        AnswersNotSupported("1"),
    )

    assert all(isinstance(error, ClientTaskError) for error in errors)
    assert issubclass(ClientTaskError, PerdureError)


@pytest.mark.parametrize("version", ["2025-06-18", "2025-03-26"])
async def test_a_server_of_a_protocol_without_tasks_is_called_as_any(shop: ToolServer, version: str) -> None:
    shop.answers.changing["initialize"] = lambda answer: {**answer, "protocolVersion": version}
    async with visiting(shop.server, "legacy") as visitor:
        task = await visitor.start("greet", {"name": "Ada"})
        assert text_of(await task.wait(10)) == "Hello, Ada!"


async def test_a_handle_says_where_there_are_no_tasks(shop: ToolServer) -> None:
    shop.answers.changing["initialize"] = lambda answer: {**answer, "protocolVersion": "2025-06-18"}
    async with visiting(shop.server, "legacy") as visitor:
        task = visitor.tasks.resume(visitor.client, '{"task_id": "abc", "tool": "greet"}')
        for asking in (task.status, task.cancel, task.wait):
            with pytest.raises(TasksNotSupported, match="2025-06-18, which does not support tasks"):
                await asking()
        with pytest.raises(TasksNotSupported):
            await task.answer({"key": {"action": "decline"}})


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (-32050, "Connection closed by the database"),
        (-32603, "Connection closed"),
        (-32000, "Connection closed by the database"),
        (-32050, "SSE stream of the vendor failed"),
        (-32603, "SSE stream failed: vendor"),
        (-32601, "Unexpected content type: pdf"),
        (-32001, "the vendor timed out"),
        (-32603, "Session not found"),
    ],
)
async def test_an_error_of_the_server_is_not_taken_for_a_lost_connection(
    shop: ToolServer, url: str, code: int, message: str
) -> None:
    """Else a call with an idempotency key would be repeated until its timeout."""

    def refuse() -> NoReturn:
        raise MCPError(code, message)

    shop.answers.instead["tools/call"] = refuse
    async with visiting(url) as visitor:
        error = await raised_by(visitor.call("hold", timeout=20, idempotency_key="key"))
    assert (error.code, error.message) == (code, message)
    assert len(shop.watch.of("tools/call")) == 1
