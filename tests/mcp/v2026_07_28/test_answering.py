"""In 2026-07-28 clients answer what a task asks, and set the variables that it shares with them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ...conditions import poll_until
from ...markers import once, row
from ..raw_clients import Answer, Json
from ..schema_check import Recorded
from ..tool_helpers import text_of
from .tool_server import NO, YES, asking, bare

pytestmark = pytest.mark.anyio

VARIABLES = "perdure/variables"


# Answering what a task asks


@row(84)
async def test_an_update_is_acknowledged_with_an_empty_result_and_its_answer_reaches_the_tool(
    modern: Recorded,
) -> None:
    task_id, keys = await asking(modern, "confirm_delete", {"filename": "a.txt"})

    answer = await modern.update(task_id, {keys[0]: YES})

    assert bare(answer.result) == {"resultType": "complete"}
    assert text_of((await modern.until(task_id, "completed"))["result"]) == "deleted a.txt"


async def second_question(client: Recorded, task_id: str, first: str) -> Json:
    """What is asked after the first question was answered."""
    await client.update(task_id, {first: YES})
    task = await poll_until(lambda: client.get(task_id), lambda task: "inputRequests" in task)
    return task["inputRequests"]


async def test_a_tool_that_asks_the_same_twice_asks_under_two_keys(modern: Recorded) -> None:
    task_id, (first,) = await asking(modern, "ask_twice")
    before = (await modern.get(task_id))["inputRequests"][first]

    asked = await second_question(modern, task_id, first)

    assert asked.keys().isdisjoint({first})
    assert list(asked.values()) == [before]


async def test_an_answer_to_what_is_answered_already_is_not_taken_for_the_next_one(modern: Recorded) -> None:
    task_id, (first,) = await asking(modern, "ask_twice")
    (second,) = await second_question(modern, task_id, first)

    assert bare((await modern.update(task_id, {first: NO})).result) == {"resultType": "complete"}
    assert set((await modern.get(task_id))["inputRequests"]) == {second}

    await modern.update(task_id, {second: NO})
    assert text_of((await modern.until(task_id, "completed"))["result"]) == "accept, decline"


async def test_a_key_is_never_asked_again_though_the_tool_does(modern: Recorded) -> None:
    task_id, (key,) = await asking(modern, "ask_under_one_key")

    await modern.update(task_id, {key: YES})

    ended = await modern.until(task_id, "completed", "input_required")
    assert text_of(ended["result"]) == "accept, accept"


@row(84)
@pytest.mark.parametrize("ignored", [{"never": YES}, {"never": 5}, {"never": {"action": "?"}}, {}])
@once
async def test_what_nobody_asked_is_passed_over(modern: Recorded, ignored: Json) -> None:
    task_id, _ = await asking(modern, "multi_input")
    before = await modern.get(task_id)

    assert bare((await modern.update(task_id, ignored)).result) == {"resultType": "complete"}
    after = await modern.get(task_id)
    assert (after["inputRequests"], after["status"]) == (before["inputRequests"], "input_required")

    await modern.update(task_id, {**ignored, "first": YES, "second": NO})
    ended = await modern.until(task_id, "completed")
    assert text_of(ended["result"]) == "first: accept, second: decline"


async def test_a_malformed_answer_to_what_is_answered_already_is_passed_over(modern: Recorded) -> None:
    task_id, _ = await asking(modern, "multi_input")
    await modern.update(task_id, {"first": YES})

    assert bare((await modern.update(task_id, {"first": 5})).result) == {"resultType": "complete"}


@row(84)
@pytest.mark.parametrize(
    "malformed",
    [
        5,
        None,
        [],
        {},
        {"action": "maybe"},
        {"action": "accept", "content": 5},
        {"action": "accept", "content": {"confirm": "perhaps"}},
        {"action": "accept", "content": {}},
        {"action": "accept"},
        {"roots": []},
    ],
)
@once
async def test_an_answer_that_is_not_what_was_asked_for_is_refused_by_its_key_and_nothing_is_stored(
    modern: Recorded, malformed: Any
) -> None:
    task_id, _ = await asking(modern, "multi_input")
    before = await modern.get(task_id)

    error = (await modern.update(task_id, {"first": YES, "second": malformed})).error

    assert error["code"] == -32602
    assert "'second'" in error["message"]
    after = await modern.get(task_id)
    assert {**after, "pollIntervalMs": 0} == {**before, "pollIntervalMs": 0}


@row(84)
async def test_answers_to_a_part_leave_the_others_outstanding_on_the_very_next_look(modern: Recorded) -> None:
    task_id, _ = await asking(modern, "multi_input")

    await modern.update(task_id, {"second": YES})

    task = await modern.get(task_id)
    assert (task["status"], set(task["inputRequests"])) == ("input_required", {"first"})


async def test_an_update_of_a_task_that_has_ended_is_acknowledged_and_changes_nothing(
    modern: Recorded,
) -> None:
    task_id = await modern.start("slow_compute", {"seconds": 0})
    before = await modern.until(task_id, "completed")

    assert bare((await modern.update(task_id, {"late": YES})).result) == {"resultType": "complete"}
    assert await modern.get(task_id) == before | {"pollIntervalMs": pytest.approx(50, abs=5000)}


async def test_an_update_without_answers_at_all_is_refused_by_name(modern: Recorded) -> None:
    task_id, _ = await asking(modern, "multi_input")

    wrong: list[Json] = [{"taskId": task_id}, {"taskId": task_id, "inputResponses": []}]
    for params in wrong:
        error = (await modern.send("tasks/update", params)).error
        assert error["code"] == -32602
        assert "inputResponses" in error["message"]


# Variables, which task and client share

SHADOWS: Json = {
    "io.modelcontextprotocol/related-task": {"taskId": "other"},
    "io.modelcontextprotocol/serverInfo": {"name": "other", "version": "0"},
    "io.modelcontextprotocol/subscriptionId": 99,
    "perdure/progress": {"done": 9},
    "progressToken": "other",
    "status": "failed",
    "taskId": "other",
    "ttlMs": 1,
    "_meta": {"other": True},
}


@row(51)
async def test_variables_stand_under_one_name_and_shadow_nothing(modern: Recorded) -> None:
    task_id, _ = await asking(modern, "remember", {"variables": SHADOWS})

    task = await modern.get(task_id)

    assert task["_meta"][VARIABLES] == SHADOWS
    assert (task["taskId"], task["status"]) == (task_id, "input_required")
    others = {name: value for name, value in task["_meta"].items() if name in SHADOWS}
    assert not [name for name, value in others.items() if value == SHADOWS[name]]
    assert task.keys().isdisjoint(SHADOWS.keys() - {"taskId", "status", "ttlMs", "_meta"})

    await modern.update(task_id, {"go": YES})
    ended = await modern.until(task_id, "completed")
    assert ended["result"].get("_meta", {}).keys().isdisjoint(SHADOWS)


async def set_variables(client: Recorded, task_id: str, changes: Any, answers: Json | None = None) -> Answer:
    params: Json = {"taskId": task_id, "inputResponses": answers or {}, "_meta": {VARIABLES: changes}}
    return await client.send("tasks/update", params)


@row(51)
async def test_a_client_sets_variables_that_the_tool_finds_when_it_is_answered(modern: Recorded) -> None:
    task_id, _ = await asking(modern, "remember", {"variables": {"a": 1, "b": {"x": 1}, "c": 3}})

    changed = await set_variables(modern, task_id, {"a": 2, "b": {"y": 2}, "c": None})
    assert bare(changed.result) == {"resultType": "complete"}
    assert (await modern.get(task_id))["_meta"][VARIABLES] == {"a": 2, "b": {"y": 2}}

    await set_variables(modern, task_id, {"with": "the answer"}, {"go": YES})
    said = text_of((await modern.until(task_id, "completed"))["result"])
    assert json.loads(said) == {"a": 2, "b": {"y": 2}, "with": "the answer"}


def deep(levels: int) -> Json:
    return {} if levels == 0 else {"deeper": deep(levels - 1)}


@row(51)
@pytest.mark.parametrize("changes", [5, [], "text", {"deep": deep(20)}, {"long": "x" * 70_000}])
@once
async def test_an_update_whose_variables_are_refused_changes_nothing_at_all(
    modern: Recorded, changes: Any
) -> None:
    task_id, _ = await asking(modern, "remember", {"variables": {"a": 1}})

    assert (await set_variables(modern, task_id, changes, {"go": YES})).code == -32602

    task = await modern.get(task_id)
    assert set(task.get("inputRequests", {})) == {"go"}
    assert task["_meta"][VARIABLES] == {"a": 1}
