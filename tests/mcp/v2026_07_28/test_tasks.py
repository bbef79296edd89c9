"""In 2026-07-28 a call becomes a task, which is looked at and cancelled by its id and by no other."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from jsonschema import Draft202012Validator, validate

from perdure.tasks import Owner, StoreConfig

from ...conditions import poll_until
from ...markers import once, row
from ..raw_clients import Json
from ..schema_check import Published, Recorded
from ..tool_helpers import text_of
from .tool_server import ONE_TASK, UNKNOWN_TASK_ID, YES, about, asking, bare, open_tool_server, tasks_at

pytestmark = pytest.mark.anyio

IDEMPOTENCY_KEY = "perdure/idempotencyKey"


# A call becomes a task


@row(84)
async def test_a_task_is_found_as_soon_as_its_id_is_known_and_ends_with_the_result_of_the_call(
    modern: Recorded,
) -> None:
    task_id = await modern.start("slow_compute", {"seconds": 0.1, "label": "x"})
    assert (await modern.get(task_id))["status"] in ("working", "completed")

    ended = await modern.until(task_id, "completed")

    assert text_of(ended["result"]) == "computed x in 0.1 seconds"
    assert ended["result"]["resultType"] == ended["resultType"] == "complete"


async def test_a_created_task_is_flat_and_carries_nothing_else(modern: Recorded) -> None:
    created = (await modern.call("confirm_delete", {"filename": "a.txt"})).result

    always = {"resultType", "taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"}
    assert bare(created).keys() - {"statusMessage"} == always
    assert created["status"] in ("working", "input_required")


async def test_no_other_answer_says_that_it_is_a_task(modern: Recorded) -> None:
    task_id, _ = await asking(modern, "multi_input")
    said = [
        (await modern.call("greet", {"name": "Ada"})).result,
        (await modern.send("tools/list")).result,
        (await modern.send("server/discover")).result,
        await modern.get(task_id),
        (await modern.update(task_id, {"first": YES})).result,
        (await modern.cancel(task_id)).result,
        await modern.until(task_id, "cancelled"),
    ]

    assert {answer.get("resultType", "complete") for answer in said} == {"complete"}


async def test_a_task_that_is_kept_for_ever_says_so(where: str, published: Published) -> None:
    for_ever = StoreConfig(ttl=None, max_ttl=None)
    async with open_tool_server(tasks_at(where, store=for_ever)) as url, Recorded(url, published) as client:
        created = (await client.call("ask_twice")).result
        assert created["ttlMs"] is None

        assert (await client.until(created["taskId"], "input_required"))["ttlMs"] is None
        await client.cancel(created["taskId"])
        assert (await client.until(created["taskId"], "cancelled"))["ttlMs"] is None


async def test_what_a_tool_asks_first_is_asked_in_the_call_before_there_is_a_task(modern: Recorded) -> None:
    asked = (await modern.call("test_tool_with_task")).result
    assert asked["resultType"] == "input_required"
    (key,) = asked["inputRequests"]

    answers: Json = {key: {"action": "accept", "content": {"name": "Ada"}}}
    more: Json = {"inputResponses": answers, "requestState": asked["requestState"]}
    params: Json = {"name": "test_tool_with_task", "arguments": {}, **more}
    created = (await modern.send("tools/call", params)).result
    assert created["resultType"] == "task"

    ended = await modern.until(created["taskId"], "completed")
    assert text_of(ended["result"]) == "done for Ada"


@pytest.fixture
async def known(where: str, published: Published) -> AsyncGenerator[Recorded]:
    """A client of a server that can tell who is asking."""

    def ada(_: object) -> Owner:
        return Owner.user("", "ada")

    tasks = tasks_at(where, identify=ada)
    async with open_tool_server(tasks) as url, Recorded(url, published) as client:
        yield client


def keyed(length: float, key: Any) -> Json:
    return {"name": "measure", "arguments": {"length": length}, "_meta": {IDEMPOTENCY_KEY: key}}


async def test_the_same_call_with_the_same_idempotency_key_is_one_task(known: Recorded) -> None:
    first = (await known.send("tools/call", keyed(1, "k"))).result
    await known.until(first["taskId"], "completed")

    again = (await known.send("tools/call", keyed(1, "k"))).result
    other = (await known.send("tools/call", keyed(1, "another"))).result

    assert again["taskId"] == first["taskId"] != other["taskId"]
    assert "result" not in again


async def test_another_call_with_a_used_idempotency_key_is_refused(known: Recorded) -> None:
    await known.send("tools/call", keyed(1, "k"))

    error = (await known.send("tools/call", keyed(2, "k"))).error

    assert error["code"] == -32602
    assert "idempotency key" in error["message"]


async def test_what_is_no_idempotency_key_is_refused_by_name(known: Recorded) -> None:
    error = (await known.send("tools/call", keyed(1, 5))).error

    assert error["code"] == -32602
    assert IDEMPOTENCY_KEY in error["message"]


# Looking at a task


async def test_the_result_of_a_task_is_what_the_output_schema_of_its_tool_says(modern: Recorded) -> None:
    tools = {tool["name"]: tool for tool in (await modern.send("tools/list")).result["tools"]}
    task_id = await modern.start("measure", {"length": 1.5})

    result = (await modern.until(task_id, "completed"))["result"]

    assert result["structuredContent"] == {"length": 1.5, "unit": "m"}
    validate(result["structuredContent"], tools["measure"]["outputSchema"], Draft202012Validator)


@row(84)
@pytest.mark.parametrize("data", [{"why": ["on purpose", None, 1.5]}, "text", 0, [], False])
async def test_a_json_rpc_error_is_kept_to_the_letter_and_explained(modern: Recorded, data: Any) -> None:
    error = {"code": -32042, "message": "it broke: «so»", "data": data}
    task_id = await modern.start("break_with", error)

    failed = await modern.until(task_id, "failed", "completed")

    assert failed["status"] == "failed"
    assert failed["error"] == error
    assert failed["statusMessage"]
    assert "result" not in failed


async def test_an_error_without_data_is_kept_without_data(modern: Recorded) -> None:
    task_id = await modern.start("break_with", {"code": -32042, "message": "it broke", "data": None})

    assert (await modern.until(task_id, "failed"))["error"] == {"code": -32042, "message": "it broke"}


async def test_a_run_that_is_stopped_for_its_time_fails_with_an_error_that_says_so(modern: Recorded) -> None:
    failed = await modern.until(await modern.start("take_too_long"), "failed", "completed")

    assert failed["status"] == "failed"
    assert isinstance(failed["error"]["code"], int)
    assert failed["error"]["message"]
    assert failed["statusMessage"]


@row(84)
async def test_an_error_of_the_tool_is_a_result_and_no_failure(modern: Recorded) -> None:
    ended = await modern.until(await modern.start("failing_job"), "failed", "completed")

    assert ended["status"] == "completed"
    assert ended["result"]["isError"] is True
    assert "error" not in ended


@row(90)
async def test_looking_at_a_task_does_not_change_it(modern: Recorded) -> None:
    task_id, _ = await asking(modern, "confirm_delete", {"filename": "a.txt"})
    first = await modern.get(task_id)

    # time has passed when the hint has grown
    again = await poll_until(
        lambda: modern.get(task_id), lambda task: task["pollIntervalMs"] > first["pollIntervalMs"]
    )

    assert {**again, "pollIntervalMs": 0} == {**first, "pollIntervalMs": 0}


@row(90)
async def test_the_hint_when_to_look_again_grows_with_the_task_up_to_what_its_tool_says(
    modern: Recorded,
) -> None:
    began = time.monotonic()
    created = (await modern.call("ask_twice")).result
    oldest_ms = (time.monotonic() - began) * 1000
    hints = [created["pollIntervalMs"]]

    async def look() -> int:
        hints.append((await modern.get(created["taskId"]))["pollIntervalMs"])
        return hints[-1]

    await poll_until(look, lambda hint: hint >= 60)

    assert hints[0] == 50 or hints[0] <= oldest_ms / 6  # it may be older when it is told
    assert hints == sorted(hints)
    assert hints[-1] == 60


# Cancelling


@row(84)
async def test_a_cancel_is_acknowledged_with_an_empty_result_and_the_task_ends_cancelled(
    modern: Recorded,
) -> None:
    task_id = await modern.start("slow_compute", {"seconds": 60})

    assert bare((await modern.cancel(task_id)).result) == {"resultType": "complete"}

    task = await modern.until(task_id, "cancelled")
    assert task["resultType"] == "complete"
    assert task.keys().isdisjoint({"result", "error", "inputRequests"})


async def test_a_cancelled_task_asks_nothing_any_more(modern: Recorded) -> None:
    task_id, _ = await asking(modern, "confirm_delete", {"filename": "a.txt"})

    await modern.cancel(task_id)

    assert "inputRequests" not in await modern.until(task_id, "cancelled")


@row(84)
async def test_cancelling_what_has_ended_is_acknowledged_and_changes_nothing(modern: Recorded) -> None:
    task_id = await modern.start("slow_compute", {"seconds": 0})
    before = await modern.until(task_id, "completed")

    assert bare((await modern.cancel(task_id)).result) == {"resultType": "complete"}
    after = await modern.get(task_id)
    assert {**after, "pollIntervalMs": 0} == {**before, "pollIntervalMs": 0}


async def test_the_notification_that_cancels_a_request_does_not_cancel_its_task(modern: Recorded) -> None:
    task_id = await modern.start("slow_compute", {"seconds": 0.5})

    for request_id in (modern.last_id, task_id):
        status = await modern.notify("notifications/cancelled", {"requestId": request_id})
        assert status < 500

    assert (await modern.until(task_id, "completed", "cancelled", "failed"))["status"] == "completed"


# Ids of no task


@row(86)
@pytest.mark.parametrize("method", ONE_TASK)
@pytest.mark.parametrize(
    "task_id",
    [UNKNOWN_TASK_ID, "", "no-such-task", "../tasks", "786512e2-9e0d-44bd-8f29-789f320fe840", "a" * 5000],
)
@once
async def test_the_id_of_no_task_is_answered_with_one_text_whatever_it_looks_like(
    modern: Recorded, method: str, task_id: str
) -> None:
    error = (await about(modern, method, task_id)).error

    assert error == {"code": -32602, "message": "Task not found"}


@row(86)
@pytest.mark.parametrize("method", ONE_TASK)
async def test_a_task_that_has_expired_is_as_if_it_had_never_been(
    where: str, published: Published, method: str
) -> None:
    brief = StoreConfig(ttl=0.001, retention=0.001)
    async with open_tool_server(tasks_at(where, store=brief)) as url, Recorded(url, published) as client:
        task_id = await client.start("measure", {"length": 1})
        answer = await poll_until(
            lambda: about(client, method, task_id), lambda answer: "error" in answer.message
        )

        assert answer.error == (await about(client, method, UNKNOWN_TASK_ID)).error


@row(86)
@pytest.mark.parametrize("method", ONE_TASK)
@pytest.mark.parametrize("task_id", [5, None, ["a"], {}])
@once
async def test_what_is_no_id_at_all_is_refused_by_name(modern: Recorded, method: str, task_id: Any) -> None:
    error = (await about(modern, method, task_id)).error

    assert error["code"] == -32602
    assert "taskId" in error["message"]


@pytest.mark.parametrize("method", ONE_TASK)
@once
async def test_a_header_that_names_another_task_is_refused_and_nothing_is_done(
    modern: Recorded, method: str
) -> None:
    task_id, _ = await asking(modern, "multi_input")
    params: Json = {"taskId": task_id, "inputResponses": {"first": YES}}

    assert (await modern.send(method, params, headers={"mcp-name": UNKNOWN_TASK_ID})).code == -32020
    assert set((await modern.get(task_id))["inputRequests"]) == {"first", "second"}


class Unnamed(Recorded):
    """A client that does not repeat the id of a task in a header."""

    def headers(self, method: str, name: str | None) -> dict[str, str]:
        return super().headers(method, None if method.startswith("tasks/") else name)


async def test_a_client_need_not_repeat_the_id_in_a_header(url: str, published: Published) -> None:
    async with Unnamed(url, published) as client:
        task_id, _ = await asking(client, "multi_input")

        assert bare((await client.update(task_id, {"first": YES})).result) == {"resultType": "complete"}
        assert bare((await client.cancel(task_id)).result) == {"resultType": "complete"}
        await client.until(task_id, "cancelled")
