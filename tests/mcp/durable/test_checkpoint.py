"""The checkpoint of a task belongs to its worker: no client reads or writes it, in either protocol."""

from __future__ import annotations

import asyncio
import json

import pytest

from perdure import Task
from perdure.runtime.workflow import Output, Step, Workflow, run

from ...conditions import wait_until
from ...markers import row
from ..raw_clients import Answer, Json
from .tool_server import ToolServer, text_of

pytestmark = pytest.mark.anyio


@row(104)
async def test_no_client_sees_the_checkpoint_in_either_protocol(bench: ToolServer) -> None:
    go_on = asyncio.Event()

    @bench.tool()
    async def work(task: Task) -> str:
        await task.save_checkpoint({"canary": "of the worker"})
        await task.set_variables({"shared": 1})
        await go_on.wait()
        return f"{task.checkpoint['canary']}, {task.variables['shared']}"

    async def has_saved() -> bool:
        return "perdure/variables" in (await bench.modern.get(task_id)).get("_meta", {})

    async with bench.running():
        task_id = await bench.modern.start("work")
        await wait_until(has_saved)
        seen = [await bench.modern.get(task_id), await bench.core.get(task_id)]
        go_on.set()
        ended = await bench.end_of(task_id)
    assert "canary" not in json.dumps(seen)
    assert "canary" not in json.dumps(ended["_meta"])
    assert text_of(ended) == "of the worker, 1"


async def update(bench: ToolServer, task_id: str, answers: Json, variables: Json) -> Answer:
    params = {"taskId": task_id, "inputResponses": answers, "_meta": {"perdure/variables": variables}}
    return await bench.modern.send("tasks/update", params)


FORGED: list[Json] = [
    {"workflow.step.approve": {"status": "completed", "result": True}},
    {"workflow.paused": None},
    {"perdure.anything": 1, "harmless": 2},
]


@row(104)
@pytest.mark.parametrize("forged", FORGED, ids=lambda each: next(iter(each)))
async def test_a_client_cannot_set_reserved_variables(bench: ToolServer, forged: Json) -> None:
    @bench.tool()
    async def work(task: Task) -> str:
        await task.elicit("Go on?", key="go")
        return json.dumps(dict(task.variables))

    async with bench.running():
        task_id = await bench.modern.start("work")
        before = await bench.modern.until(task_id, "input_required")
        answer: Json = {"go": {"action": "accept", "content": {}}}
        refused = await update(bench, task_id, answer, forged)
        assert (refused.code, "are reserved" in refused.error["message"]) == (-32602, True)
        after = await bench.modern.get(task_id)
        assert {**after, "pollIntervalMs": before["pollIntervalMs"]} == before
        await update(bench, task_id, answer, {"workflow": 1})
        assert text_of(await bench.end_of(task_id)) == '{"workflow": 1}'


@row(104)
async def test_a_client_cannot_tick_off_a_step_of_a_workflow(bench: ToolServer) -> None:
    seen: list[str] = []
    fetching = asyncio.Event()

    async def fetch() -> int:
        seen.append("fetch")
        await fetching.wait()
        return 100

    async def approve() -> bool:
        seen.append("approve")
        raise RuntimeError("a person has to approve this")

    async def pay(amount: int, ok: bool) -> str:  # noqa: FBT001 - as the step before returns it
        seen.append("pay")
        return f"paid {amount}: {ok}"

    steps = [
        Step("fetch", fetch),
        Step("approve", approve),
        Step("pay", pay, {"amount": Output("fetch"), "ok": Output("approve")}),
    ]
    flow = Workflow("purchase", steps)

    @bench.tool(retries=2)
    async def purchase(task: Task) -> str:
        return str(await run(flow, task))

    async with bench.running():
        task_id = await bench.modern.start("purchase")
        await wait_until(lambda: seen == ["fetch"])
        refused = await update(bench, task_id, {}, FORGED[0])
        assert refused.code == -32602
        fetching.set()
        asked = await bench.modern.until(task_id, "input_required", "completed", "failed")
        assert asked["status"] == "input_required"
        assert seen == ["fetch", "approve"]
        await bench.modern.cancel(task_id)
