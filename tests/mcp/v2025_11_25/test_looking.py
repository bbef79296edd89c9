"""At 2025-11-25 looking at a task answers the task itself, and one of another is as one that is not there."""

from __future__ import annotations

import asyncio

import pytest

from perdure.tasks import StoreConfig

from ...markers import once, row
from ..raw_clients import Client2025, Json
from .server import NO_SUCH_TASK, RELATED, TASK_FIELDS, hosting, simple_tools, yes

pytestmark = pytest.mark.anyio


@row(82, 83)
async def test_looking_at_a_task_and_cancelling_it_answer_the_task_itself(core: Client2025) -> None:
    task_id = await core.start("slow_compute", {"seconds": 60}, {"ttl": 90_000})
    read = await core.get(task_id)
    cancelled = (await core.send("tasks/cancel", {"taskId": task_id})).result

    for task in (read, cancelled):
        assert TASK_FIELDS <= set(task) <= {*TASK_FIELDS, "statusMessage", "_meta"}
        assert task["taskId"] == task_id
        assert RELATED not in task.get("_meta", {})
    assert (read["status"], cancelled["status"]) == ("working", "cancelled")
    assert read["ttl"] == 180_000  # while it runs, at least what was asked is ahead
    assert cancelled["ttl"] == 180_000  # until it expires: never less than was shown before
    assert read["createdAt"] == cancelled["createdAt"] < cancelled["lastUpdatedAt"]


@pytest.mark.parametrize(
    ("json_response", "content_type"), [(False, "text/event-stream"), (True, "application/json")]
)
async def test_looking_at_a_task_is_answered_as_the_sdk_answers_all_requests(
    *, json_response: bool, content_type: str
) -> None:
    async with hosting(simple_tools, json_response=json_response) as url, Client2025(url) as core:
        for method in ("tools/list", "tasks/get"):
            answer = await core.send(method, {"taskId": await core.start("quick")})
            assert (answer.status, answer.content_type) == (200, content_type)


@row(82)
async def test_reading_a_task_does_not_change_when_it_was_updated(core: Client2025) -> None:
    task_id = await core.start("slow_compute", {"seconds": 0.01})
    ended = await core.until(task_id, "completed")

    assert (await core.get(task_id))["lastUpdatedAt"] == ended["lastUpdatedAt"]


@row(86)
@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
@once
async def test_a_task_that_is_not_there_is_one_answer_whatever_the_id_looks_like(
    core: Client2025, method: str
) -> None:
    for task_id in (NO_SUCH_TASK, "", "x", "é:%00/../*", "a" * 5000):
        answer = await core.send(method, {"taskId": task_id})
        assert answer.error == {"code": -32602, "message": "Task not found"}


@row(86)
@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
async def test_a_task_of_another_session_is_the_same_answer_as_none(method: str) -> None:
    async with (
        hosting(simple_tools, anonymous="session") as url,
        Client2025(url) as core,
        Client2025(url) as other,
    ):
        task_id = await core.start("asking")
        foreign = await other.send(method, {"taskId": task_id})
        absent = await other.send(method, {"taskId": NO_SUCH_TASK})

        assert foreign.error == absent.error
        assert (await core.get(task_id))["status"] in ("working", "input_required")


@row(86)
@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
async def test_a_task_that_has_expired_is_the_same_answer_as_none(method: str) -> None:
    brief = StoreConfig(retention=0.001)
    async with hosting(simple_tools, store=brief) as url, Client2025(url) as core:
        task_id = await core.start("quick", task={"ttl": 1})
        await until_gone(core, task_id)

        answer = await core.send(method, {"taskId": task_id})
        assert answer.error == {"code": -32602, "message": "Task not found"}


async def until_gone(core: Client2025, task_id: str) -> None:
    async with asyncio.timeout(15):
        while True:
            if "error" in (await core.send("tasks/get", {"taskId": task_id})).message:
                return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
@pytest.mark.parametrize("params", [{}, {"taskId": 5}, {"taskId": None}, {"taskId": ["x"]}])
@once
async def test_a_request_that_names_no_task_is_refused_by_the_name_of_the_field(
    core: Client2025, method: str, params: Json
) -> None:
    answer = await core.send(method, params)

    assert answer.code == -32602
    assert "taskId" in answer.error["message"]


async def test_the_task_that_is_meant_is_the_one_in_the_parameters_not_in_the_metadata(
    core: Client2025,
) -> None:
    task_id = await core.start("slow_compute", {"seconds": 0.01})
    params = {"taskId": task_id, "_meta": {RELATED: {"taskId": NO_SUCH_TASK}}}

    assert (await core.send("tasks/get", params)).result["taskId"] == task_id
    assert (await core.send("tasks/result", params)).result["_meta"][RELATED] == {"taskId": task_id}


@row(85)
async def test_the_method_that_only_the_later_generation_has_is_not_found(core: Client2025) -> None:
    task_id = await core.start("confirm_delete", {"filename": "a.txt"})
    await core.until(task_id, "input_required")

    params = {"taskId": task_id, "inputResponses": {"confirm": await yes({})}}

    assert (await core.send("tasks/update", params)).code == -32601
    assert (await core.get(task_id))["status"] == "input_required"
    await core.send("tasks/cancel", {"taskId": task_id})
