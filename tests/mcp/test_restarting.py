"""Tasks outlive their server process: one that is killed, told to stop, or started anew with other tools."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import pytest

from ..conditions import poll_until, wait_for_status, wait_until
from ..markers import row
from .replicas import Replica, Replicas, asking, ended, in_work, named, naming
from .tool_helpers import text_of

pytestmark = pytest.mark.anyio

LOST = "the worker was lost while it ran the task, and the function must not run twice (restart=False)"


# Killed


@row(62, 65)
@pytest.mark.parametrize("same_port", [True, False])
async def test_after_a_kill_the_next_server_goes_on_from_the_checkpoint(
    replicas: Replicas, *, same_port: bool
) -> None:
    killed = await replicas.start_doomed()
    task_id = await (await killed.modern()).start("careful")
    await in_work(await killed.modern(), task_id)
    assert await killed.end(signal.SIGKILL) == -signal.SIGKILL

    next_ = await replicas.start(*(["--port", str(killed.port)] if same_port else []))

    assert next_.port == killed.port if same_port else next_.pid != killed.pid
    done = await ended(await next_.modern(), task_id)
    assert text_of(done["result"]) == f"from 3 in {next_.pid}"


@row(62, 65)
async def test_a_server_that_runs_takes_over_from_one_that_was_killed(replicas: Replicas) -> None:
    killed, other = await replicas.start_doomed(), await replicas.start()
    task_id = await (await killed.core()).start("careful")
    client = await other.core()
    await in_work(client, task_id)
    waiting = asyncio.create_task(client.send("tasks/result", {"taskId": task_id}))

    await killed.end(signal.SIGKILL)

    assert text_of((await waiting).result) == f"from 3 in {other.pid}"


@row(62)
async def test_after_a_kill_what_is_not_to_be_run_again_is_failed_and_says_why(replicas: Replicas) -> None:
    killed = await replicas.start_doomed()
    client = await killed.modern()
    task_id, core_id = await client.start("once"), await (await killed.core()).start("once")
    for each in (task_id, core_id):
        await in_work(client, each)
    await killed.end(signal.SIGKILL)
    next_ = await replicas.start()

    failed = await ended(await next_.modern(), task_id)
    answer = await (await next_.core()).send("tasks/result", {"taskId": core_id})

    assert (failed["status"], failed["statusMessage"]) == ("failed", LOST)
    assert failed["error"] == answer.error
    assert answer.error == {"code": -32603, "message": LOST, "data": {"reason": "interrupted"}}
    assert (await (await next_.core()).get(core_id))["statusMessage"] == LOST


@row(65, 81)
async def test_a_question_outlives_its_server_and_what_was_answered_is_not_asked_again(
    replicas: Replicas,
) -> None:
    killed = await replicas.start_doomed()
    client = await killed.modern()
    task_id = await client.start("asks_twice")
    await asking(client, task_id, "first")
    await client.update(task_id, {"first": named("Ada")})
    before = await asking(client, task_id, "second")
    await killed.end(signal.SIGKILL)
    next_ = await replicas.start()
    client = await next_.modern()

    after = await asking(client, task_id, "second")
    await client.update(task_id, {"second": named("Bob")})

    assert after["inputRequests"] == before["inputRequests"]
    assert text_of((await ended(client, task_id))["result"]) == f"Ada and Bob in {next_.pid}"


@row(65, 81, 119)
async def test_what_a_context_asked_is_answered_through_another_replica_and_not_asked_again_after_a_kill(
    replicas: Replicas,
) -> None:
    killed, other = await replicas.start_doomed(), await replicas.start("--without", "asks_in_context")
    task_id = await (await killed.modern()).start("asks_in_context")
    client = await other.modern()
    [first] = (await wait_for_status(lambda: client.get(task_id), "input_required"))["inputRequests"]
    await client.update(task_id, {first: named("Ada")})

    async def second_question() -> str | None:
        return next(
            (key for key in (await client.get(task_id)).get("inputRequests", {}) if key != first), None
        )

    second = await poll_until(second_question, lambda key: key is not None, 30)
    assert second is not None
    await killed.end(signal.SIGKILL)
    next_ = await replicas.start()

    assert (await asking(client, task_id, second))["inputRequests"].keys() == {second}
    await client.update(task_id, {second: named("Bob")})
    assert text_of((await ended(client, task_id))["result"]) == f"Ada and Bob in {next_.pid}"


@row(65, 81)
async def test_a_question_that_2025_saw_before_a_kill_is_asked_again_only_where_it_was_not_answered(
    replicas: Replicas,
) -> None:
    killed = await replicas.start_doomed()
    task_id = await (await killed.core()).start("asks_twice")
    client = await killed.modern()
    await asking(client, task_id, "first")
    await client.update(task_id, {"first": named("Ada")})
    await asking(client, task_id, "second")
    await killed.end(signal.SIGKILL)
    next_ = await replicas.start()

    core = await next_.core(naming("Bob"))
    answer = await core.send("tasks/result", {"taskId": task_id})

    assert text_of(answer.result) == f"Ada and Bob in {next_.pid}"
    assert [each["params"]["message"] for each in core.asked] == ["And whose?"]


async def test_an_answer_given_while_no_server_holds_the_task_is_the_one_it_goes_on_with(
    replicas: Replicas,
) -> None:
    killed, other = await replicas.start_doomed(), await replicas.start("--without", "asks_twice")
    client = await other.modern()
    task_id = await (await killed.modern()).start("asks_twice")
    await asking(client, task_id, "first")
    await killed.end(signal.SIGKILL)

    await client.update(task_id, {"first": named("Ada")})
    next_ = await replicas.start()
    await asking(client, task_id, "second")
    await client.update(task_id, {"second": named("Bob")})

    assert text_of((await ended(client, task_id))["result"]) == f"Ada and Bob in {next_.pid}"


@row(65)
async def test_what_was_answered_before_there_was_a_task_is_not_asked_again_after_a_kill(
    replicas: Replicas,
) -> None:
    killed = await replicas.start_doomed()
    client = await killed.modern()
    asked = (await client.call("welcome")).result
    answers = {key: named("Ada") for key in asked["inputRequests"]}
    again: dict[str, Any] = {"inputResponses": answers, "requestState": asked["requestState"]}
    made = (await client.send("tools/call", {"name": "welcome", "arguments": {}, **again})).result
    await in_work(client, made["taskId"])
    await killed.end(signal.SIGKILL)
    next_ = await replicas.start()

    done = await ended(await next_.modern(), made["taskId"])

    assert asked["resultType"] == "input_required"
    assert text_of(done["result"]) == "welcome, Ada"


@row(65)
async def test_what_a_resolver_asked_a_client_of_2025_is_not_asked_again_after_a_kill(
    replicas: Replicas,
) -> None:
    killed = await replicas.start_doomed()
    client = await killed.core(naming("Ada"))
    task_id = await client.start("welcome")
    waiting = asyncio.create_task(client.send("tasks/result", {"taskId": task_id}))
    await wait_until(lambda: bool(client.asked))
    await in_work(await killed.modern(), task_id, "input_required")
    await killed.end(signal.SIGKILL)
    await asyncio.wait((waiting,))
    waiting.exception()  # its server was killed
    next_ = await replicas.start()

    core = await next_.core()
    answer = await core.send("tasks/result", {"taskId": task_id})

    assert text_of(answer.result) == "welcome, Ada"
    assert (len(client.asked), core.asked) == (1, [])


# Told to stop


@row(65)
async def test_a_server_that_is_told_to_stop_hands_its_work_to_the_other(replicas: Replicas) -> None:
    stopped, other = await replicas.start(), await replicas.start()
    client = await other.modern()
    task_id = await (await stopped.modern()).start("careful")
    await in_work(client, task_id)

    assert await stopped.end(signal.SIGTERM) in (0, -signal.SIGTERM)

    assert text_of((await ended(client, task_id))["result"]) == f"from 3 in {other.pid}"


async def test_a_server_that_is_told_to_stop_hands_over_what_waits_for_its_client(
    replicas: Replicas,
) -> None:
    stopped, other = await replicas.start(), await replicas.start()
    client = await other.modern()
    task_id = await (await stopped.modern()).start("asks_twice")
    await asking(client, task_id, "first")

    assert await stopped.end(signal.SIGTERM) in (0, -signal.SIGTERM)
    await client.update(task_id, {"first": named("Ada")})
    await asking(client, task_id, "second")
    await client.update(task_id, {"second": named("Bob")})

    assert text_of((await ended(client, task_id))["result"]) == f"Ada and Bob in {other.pid}"


async def test_a_server_that_is_told_to_stop_fails_what_is_not_to_be_run_again_and_says_why(
    replicas: Replicas,
) -> None:
    stopped, other = await replicas.start(), await replicas.start()
    client = await other.modern()
    task_id = await (await stopped.modern()).start("once")
    await in_work(client, task_id)

    await stopped.end(signal.SIGTERM)

    failed = await ended(client, task_id)
    assert (failed["status"], failed["statusMessage"]) == (
        "failed",
        "the worker was shut down before the task ended, and the function must not run twice (restart=False)",
    )


async def test_a_server_that_is_told_to_stop_does_not_wait_for_those_who_wait_for_it(
    replicas: Replicas,
) -> None:
    stopped, other = await replicas.start(), await replicas.start()
    core, client = await stopped.core(), await stopped.modern()
    task_id = await client.start("careful")
    await in_work(client, task_id)
    waiting = asyncio.create_task(core.send("tasks/result", {"taskId": task_id}))
    async with client.listen({"taskIds": [task_id]}) as frames:
        assert (await anext(frames))["method"] == "notifications/subscriptions/acknowledged"
        await stopped.end(signal.SIGTERM)
    await asyncio.wait((waiting,), timeout=30)

    assert waiting.done()
    waiting.exception()  # whether it was answered or cut off is the transport's affair
    assert text_of((await ended(await other.modern(), task_id))["result"]) == f"from 3 in {other.pid}"


# Started anew, with other tools


async def seen(replica: Replica, task_ids: dict[str, str]) -> dict[str, str]:
    """What both generations say of finished tasks, to the byte; the advised interval grows with their age."""
    modern, core = await replica.modern(), await replica.core()
    told: dict[str, str] = {}
    for name, task_id in task_ids.items():
        task, core_task = await modern.get(task_id), await core.get(task_id)
        task.pop("pollIntervalMs")
        core_task.pop("pollInterval")
        result = (await core.send("tasks/result", {"taskId": task_id})).message
        result.pop("id")
        told[name] = json.dumps([task, core_task, result])
    return told


@row(97)
async def test_finished_tasks_are_the_same_to_the_byte_whatever_became_of_their_tools(
    replicas: Replicas,
) -> None:
    killed = await replicas.start_doomed()
    client, core = await killed.modern(), await killed.core()
    task_ids = {
        "modern": await client.start("add", {"parts": [3, 4]}),
        "core": await core.start("add", {"parts": [5]}),
        "failed": await client.start("break_off"),
    }
    for task_id in task_ids.values():
        await ended(client, task_id)
    before = await seen(killed, task_ids)
    await killed.end(signal.SIGKILL)

    assert '"structuredContent": {"total": 7, "parts": [3, 4]}' in before["modern"]
    assert '{"code": -32042, "message": "it broke off", "data": {"at": [1, 2.5, null]}}' in before["failed"]
    for options in AS_IT_WAS, RENAMED, REMOVED:
        replica = await replicas.start(*options)
        assert await seen(replica, task_ids) == before
        await replica.end(signal.SIGKILL)


AS_IT_WAS = ()
RENAMED = ("--renamed", "add=sum_up", "--renamed", "break_off=snap")
REMOVED = ("--without", "add", "--without", "break_off")


async def test_a_task_of_a_tool_that_was_removed_waits_for_a_server_that_has_it(replicas: Replicas) -> None:
    killed = await replicas.start_doomed()
    task_id = await (await killed.modern()).start("careful")
    await in_work(await killed.modern(), task_id)
    await killed.end(signal.SIGKILL)
    without = await replicas.start("--without", "careful")
    client = await without.modern()

    other = await ended(client, await client.start("add", {"parts": [1]}))
    assert other["status"] == "completed"
    assert (await client.get(task_id))["status"] == "working"
    next_ = await replicas.start()

    assert text_of((await ended(client, task_id))["result"]) == f"from 3 in {next_.pid}"


async def test_a_task_whose_tool_has_another_name_now_is_run_under_that_name(replicas: Replicas) -> None:
    killed = await replicas.start_doomed()
    task_id = await (await killed.modern()).start("careful")
    await in_work(await killed.modern(), task_id)
    await killed.end(signal.SIGKILL)
    client = await (await replicas.start("--renamed", "careful=cautious")).modern()

    done = await ended(client, task_id)

    assert done["status"] == "completed"
    assert done["result"]["isError"] is False
    assert (await ended(client, await client.start("add", {"parts": [1]})))["status"] == "completed"
