"""Two servers in processes of their own on one storage serve the same tasks."""

from __future__ import annotations

import asyncio

import pytest

from ..markers import row
from .replicas import Replicas, asking, ended, in_work, named, naming
from .tool_helpers import text_of

pytestmark = pytest.mark.anyio


@row(81)
async def test_a_task_of_one_server_is_seen_answered_and_ended_through_the_other(replicas: Replicas) -> None:
    one, other = await replicas.start(), await replicas.start()
    task_id = await (await one.modern()).start("asks_twice")
    client = await other.modern()

    await asking(client, task_id, "first")
    await client.update(task_id, {"first": named("Ada")})
    asked = await asking(client, task_id, "second")
    await client.update(task_id, {"second": named("Bob")})

    assert list(asked["inputRequests"]) == ["second"]
    assert text_of((await ended(client, task_id))["result"]) == f"Ada and Bob in {one.pid}"


@row(71)
async def test_a_cancel_at_the_other_server_ends_the_task(replicas: Replicas) -> None:
    one, other = await replicas.start(), await replicas.start()
    task_id = await (await one.modern()).start("once")
    client = await other.modern()
    await in_work(client, task_id)

    await client.cancel(task_id)

    assert (await ended(client, task_id))["status"] == "cancelled"
    assert (await ended(await one.modern(), task_id))["status"] == "cancelled"


@row(71)
async def test_a_cancel_of_2025_at_the_other_server_answers_with_the_cancelled_task(
    replicas: Replicas,
) -> None:
    one, other = await replicas.start(), await replicas.start()
    task_id = await (await one.core()).start("once")
    client = await other.core()
    await in_work(client, task_id)

    answer = await client.send("tasks/cancel", {"taskId": task_id})

    assert (answer.result["taskId"], answer.result["status"]) == (task_id, "cancelled")
    assert (await (await one.core()).get(task_id))["status"] == "cancelled"


@row(81)
async def test_a_result_of_2025_waits_at_the_other_server_and_asks_the_client_there(
    replicas: Replicas,
) -> None:
    one, other = await replicas.start(), await replicas.start()
    task_id = await (await one.core()).start("asks_twice")
    client = await other.core(naming("Ada", "Bob"))

    answer = await client.send("tasks/result", {"taskId": task_id})

    assert text_of(answer.result) == f"Ada and Bob in {one.pid}"
    assert [each["params"]["message"] for each in client.asked] == ["Whose?", "And whose?"]


async def test_a_result_of_2025_that_waits_at_the_other_server_hears_of_a_cancel_at_the_first(
    replicas: Replicas,
) -> None:
    one, other = await replicas.start(), await replicas.start()
    first, second = await one.core(), await other.core()
    task_id = await first.start("once")
    await in_work(second, task_id)

    waiting = asyncio.create_task(second.send("tasks/result", {"taskId": task_id}))
    await first.send("tasks/cancel", {"taskId": task_id})

    assert (await waiting).error["message"]
    assert (await second.get(task_id))["status"] == "cancelled"


async def test_a_task_of_either_generation_is_the_same_in_the_other_through_the_other_server(
    replicas: Replicas,
) -> None:
    one, other = await replicas.start(), await replicas.start()
    task_id = await (await one.core()).start("add", {"parts": [1, 2]})

    seen = await ended(await other.modern(), task_id)
    answer = await (await other.core()).send("tasks/result", {"taskId": task_id})

    assert seen["result"]["structuredContent"] == {"total": 3, "parts": [1, 2]}
    assert answer.result["structuredContent"] == seen["result"]["structuredContent"]
    assert answer.result["content"] == seen["result"]["content"]


async def test_what_happens_at_one_server_is_pushed_to_who_listens_at_the_other(replicas: Replicas) -> None:
    one, other = await replicas.start(), await replicas.start()
    client = await one.modern()
    task_id = await client.start("asks_twice")
    seen: list[str] = []
    async with asyncio.timeout(30), (await other.modern()).listen({"taskIds": [task_id]}) as frames:
        async for frame in frames:
            if frame.get("method") != "notifications/tasks":
                continue
            seen.append(frame["params"]["status"])
            for key in frame["params"].get("inputRequests", {}):
                await client.update(task_id, {key: named(key)})
            if seen[-1] == "completed":
                assert text_of(frame["params"]["result"]) == f"first and second in {one.pid}"
                break
    assert "input_required" in seen
