"""A client is never asked what its call did not declare; operators may answer if the tool allows it."""

from __future__ import annotations

import pytest
from mcp.server import MCPServer

from perdure import Tasks
from perdure.runtime import ClientCannotAnswer, Pause, Task
from perdure.tasks import InputKind, InputRequest, Owner

from ..raw_clients import CORE, EXTENSION, MODERN, Client2025, Client2026, Json
from ..v2025_11_25.server import hosting

pytestmark = pytest.mark.anyio

FORM: Json = {"requiredCapabilities": {"elicitation": {"form": {}}}}
TASKS_ONLY: Json = {"extensions": {EXTENSION: {}}}
TOOL = {"name": "t", "inputSchema": {"type": "object"}}


def asking_tools(server: MCPServer[object], tasks: Tasks) -> None:
    @server.tool()
    @tasks.durable
    async def asks(task: Task) -> str:
        return (await task.elicit("Whose name?")).action

    @server.tool()
    @tasks.durable
    async def pauses() -> str:
        raise Pause({"name": InputRequest(kind=InputKind.ELICITATION, params={"message": "Whose name?"})})

    @server.tool()
    @tasks.durable
    async def asks_everything(task: Task) -> list[str]:
        refused: list[str] = []
        for ask in (
            lambda: task.elicit("Whose name?"),
            lambda: task.sample([], max_tokens=10),
            lambda: task.sample([], max_tokens=10, tools=[TOOL]),
            task.list_roots,
        ):
            try:
                await ask()
            except ClientCannotAnswer as error:
                refused.append(error.capability.value)
        return refused

    @server.tool()
    @tasks.durable(operators_answer=True)
    async def asks_operators(task: Task) -> str:
        return (await task.elicit("Whose name?", key="name")).action


async def test_a_task_of_2026_ends_at_once_if_its_client_cannot_be_asked() -> None:
    async with hosting(asking_tools) as url, Client2026(url) as client:
        failed = await client.until(await client.start("asks", capabilities=TASKS_ONLY), "failed")

    assert failed["error"]["code"] == -32021
    assert failed["error"]["data"] == FORM
    assert "elicitation" in failed["statusMessage"]
    assert "inputRequests" not in failed


async def test_a_tool_that_pauses_ends_at_once_if_its_client_cannot_be_asked() -> None:
    async with hosting(asking_tools) as url, Client2026(url) as client:
        failed = await client.until(await client.start("pauses", capabilities=TASKS_ONLY), "failed")

    assert (failed["error"]["code"], failed["error"]["data"]) == (-32021, FORM)


async def test_a_tool_can_see_what_its_client_cannot_answer() -> None:
    async with hosting(asking_tools) as url, Client2026(url) as client:
        task_id = await client.start("asks_everything", capabilities=TASKS_ONLY)
        done = await client.until(task_id, "completed")

    everything = ["elicitation.form", "sampling", "sampling.tools", "roots"]
    assert done["result"]["structuredContent"] == {"result": everything}


@pytest.mark.parametrize("version", [MODERN, CORE])
async def test_operators_answer_what_the_client_is_not_asked(version: str) -> None:
    tasks_of: list[Tasks] = []

    def define(server: MCPServer[object], tasks: Tasks) -> None:
        tasks_of.append(tasks)
        asking_tools(server, tasks)

    async with hosting(define) as url, Client2026(url) as modern, Client2025(url, capabilities={}) as core:
        client = modern if version == MODERN else core
        if version == MODERN:
            task_id = await modern.start("asks_operators", capabilities=TASKS_ONLY)
        else:
            task_id = await core.start("asks_operators")
        runtime, owner = tasks_of[0].runtime, Owner.anonymous()
        async for snapshot in runtime.watch(owner, task_id):
            if snapshot.task.outstanding:
                break
        seen = await client.get(task_id)
        assert (seen["status"], seen["statusMessage"]) == ("working", "an operator has been asked")
        assert "inputRequests" not in seen
        await runtime.answer(owner, task_id, {"name": {"action": "decline"}})
        await client.until(task_id, "completed")
