"""In 2026-07-28 server and client declare tasks to each other, and clients without tasks are served too."""

from __future__ import annotations

import pytest

from ...markers import once, row
from ..raw_clients import EXTENSION, Json
from ..schema_check import Recorded
from ..tool_helpers import text_of
from .tool_server import NO, ONE_TASK, UNKNOWN_TASK_ID, YES, about, asking

pytestmark = pytest.mark.anyio

MISSING: Json = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


# What server and client tell each other that they can


async def test_the_extension_is_advertised_as_an_empty_object_and_the_old_capability_is_gone(
    modern: Recorded,
) -> None:
    capabilities = (await modern.send("server/discover")).result["capabilities"]

    assert capabilities["extensions"] == {EXTENSION: {}}
    assert "tasks" not in capabilities


@row(85)
@pytest.mark.parametrize("method", ["tasks/list", "tasks/result"])
@pytest.mark.parametrize("declared", [True, False])
@once
async def test_the_retired_methods_are_not_found(modern: Recorded, method: str, *, declared: bool) -> None:
    task_id = await modern.start("slow_compute", {"seconds": 0})

    assert (await modern.send(method, {"taskId": task_id}, declared=declared)).code == -32601


@row(85)
async def test_a_tool_that_requires_tasks_tells_an_undeclared_client_what_it_lacks(modern: Recorded) -> None:
    error = (await modern.call("failing_job", declared=False)).error

    assert (error["code"], error["data"]) == (-32021, MISSING)


@row(85)
@pytest.mark.parametrize("method", ONE_TASK)
@pytest.mark.parametrize("params", [{"taskId": UNKNOWN_TASK_ID, "inputResponses": {}}, {"taskId": 5}, {}])
@once
async def test_an_undeclared_client_is_told_so_before_anything_else_that_is_wrong(
    modern: Recorded, method: str, params: Json
) -> None:
    error = (await modern.send(method, params, declared=False)).error

    assert (error["code"], error["data"]) == (-32021, MISSING)


@pytest.mark.parametrize("method", ONE_TASK)
@once
async def test_a_client_that_declared_itself_once_must_do_so_again(modern: Recorded, method: str) -> None:
    task_id, _ = await asking(modern, "confirm_delete", {"filename": "a.txt"})

    assert (await about(modern, method, task_id, declared=False)).code == -32021
    assert (await modern.get(task_id))["status"] == "input_required"


async def test_the_capability_of_2025_11_25_declares_nothing(modern: Recorded) -> None:
    old: Json = {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}

    assert (await modern.call("failing_job", capabilities=old)).code == -32021
    assert (await about(modern, "tasks/get", UNKNOWN_TASK_ID, capabilities=old)).code == -32021
    plain = (await modern.call("slow_compute", {"seconds": 0}, capabilities=old)).result
    assert plain["resultType"] == "complete"


@pytest.mark.parametrize("tool", ["greet", "slow_compute"])
@once
async def test_the_task_parameter_of_2025_11_25_asks_for_nothing(modern: Recorded, tool: str) -> None:
    arguments = {"name": "Ada", "seconds": 0}

    answer = await modern.send(
        "tools/call", {"name": tool, "arguments": arguments, "task": {"ttl": 1000}}, declared=False
    )

    assert answer.result["resultType"] == "complete"


# Clients without tasks


async def test_an_undeclared_client_gets_the_plain_result_of_an_optional_tool(modern: Recorded) -> None:
    result = (await modern.call("slow_compute", {"seconds": 0, "label": "x"}, declared=False)).result

    assert result["resultType"] == "complete"
    assert text_of(result) == "computed x in 0.0 seconds"
    assert "taskId" not in result


async def test_an_undeclared_client_gets_the_protocol_error_of_an_optional_tool(modern: Recorded) -> None:
    error = (await modern.call("protocol_error_job", declared=False)).error

    assert error == {"code": -32603, "message": "the job broke the protocol", "data": {"why": "on purpose"}}


async def round_of(client: Recorded, call: Json, asked: Json, answers: Json) -> Json:
    """The next round of a call, by a client without tasks."""
    more: Json = {"inputResponses": answers, "requestState": asked["requestState"]}
    return (await client.send("tools/call", {**call, **more}, declared=False)).result


@pytest.mark.parametrize(("answer", "said"), [(YES, "deleted a.txt"), (NO, "kept a.txt")])
@once
async def test_an_undeclared_client_is_asked_in_rounds_of_its_call(
    modern: Recorded, answer: Json, said: str
) -> None:
    call: Json = {"name": "confirm_delete", "arguments": {"filename": "a.txt"}}
    asked = (await modern.send("tools/call", call, declared=False)).result
    assert asked["resultType"] == "input_required"
    assert asked["inputRequests"]["confirm"]["params"]["message"] == "Delete a.txt?"

    ended = await round_of(modern, call, asked, {"confirm": answer})

    assert (ended["resultType"], text_of(ended)) == ("complete", said)


async def test_a_round_asks_only_what_the_rounds_before_left_open(modern: Recorded) -> None:
    call: Json = {"name": "multi_input", "arguments": {}}
    asked = (await modern.send("tools/call", call, declared=False)).result
    assert set(asked["inputRequests"]) == {"first", "second"}

    again = await round_of(modern, call, asked, {"first": YES})
    assert set(again["inputRequests"]) == {"second"}

    ended = await round_of(modern, call, again, {"second": NO})
    assert text_of(ended) == "first: accept, second: decline"
