"""Servers in processes of their own on one storage: two at once, killed, told to stop, started anew."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ..forging import PIPE, Forged, forged
from ..rows import row
from ..storage.subjects import FIVE, new_url
from .wire import Answering, Core, Json, Modern, until_task

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
VARIABLES = "perdure/variables"
LOST = "the worker was lost while it ran the task"


class Replica:
    """A server process, and clients of it."""

    def __init__(self, process: Forged, port: int, clients: AsyncExitStack) -> None:
        self._process = process
        self._clients = clients
        self.port = port
        self.url = f"http://127.0.0.1:{port}/mcp"

    @property
    def pid(self) -> int:
        return self._process.pid

    async def modern(self) -> Modern:
        return await self._clients.enter_async_context(Modern(self.url))

    async def core(self, answering: Answering | None = None) -> Core:
        return await self._clients.enter_async_context(Core(self.url, answering=answering))

    async def end(self, number: signal.Signals) -> int:
        """Send it a signal; how it ended."""
        self._process.send_signal(number)
        return await asyncio.wait_for(self._process.wait(), 30)


class Replicas:
    """Starts server processes on one storage, and ends what a test leaves running."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self._url = url
        self._stack = stack

    async def start(self, *options: str) -> Replica:
        return await self._stack.enter_async_context(_running(self._url, *options))

    async def start_doomed(self) -> Replica:
        """One that is to be killed in the middle of its work."""
        return await self.start("--doomed")


@asynccontextmanager
async def _running(url: str, *options: str) -> AsyncGenerator[Replica]:
    process = await forged("-m", "tests.mcp.replica", url, *options, cwd=ROOT, stdout=PIPE)
    try:
        assert process.stdout is not None
        said = await asyncio.wait_for(process.stdout.readline(), 60)
        async with AsyncExitStack() as clients:
            yield Replica(process, int(said), clients)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.fixture(params=[engine for engine in FIVE if engine != "memory"])
async def replicas(
    request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: str
) -> AsyncGenerator[Replicas]:
    async with AsyncExitStack() as stack:
        yield Replicas(await new_url(request.param, tmp_path), stack)


# What the tests say


def text_of(result: Json) -> str:
    return str(result["content"][0]["text"])


def naming(*names: str) -> Answering:
    """Answers what is asked with one name after the other."""
    left = iter(names)

    async def answer(request: Json) -> Json:
        return named(next(left))

    return answer


def named(name: str) -> Json:
    return {"action": "accept", "content": {"name": name}}


async def in_work(client: Modern | Core, task_id: str) -> Json:
    """The task, once its tool has said that it is at work."""
    async with asyncio.timeout(30):
        while True:
            task = await client.get(task_id)
            if "pid" in task.get("_meta", {}).get(VARIABLES, {}):
                return task
            assert task["status"] == "working", task
            await asyncio.sleep(0.02)


async def asking(client: Modern, task_id: str, key: str) -> Json:
    """The task, once this is what it asks."""

    async def look() -> Json:
        task = await client.get(task_id)
        is_asked = key in task.get("inputRequests", {})
        return {**task, "status": "asking"} if is_asked else task

    return await until_task(look, "asking", seconds=30)


async def ended(client: Modern | Core, task_id: str) -> Json:
    return await until_task(lambda: client.get(task_id), "completed", "failed", "cancelled", seconds=30)


# Two servers at once


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
    assert failed["error"] == answer.error == {"code": -32603, "message": LOST}
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
async def test_what_2025_answered_before_there_was_a_task_is_not_asked_again_after_a_kill(
    replicas: Replicas,
) -> None:
    killed = await replicas.start_doomed()
    client = await killed.core(naming("Ada"))
    task_id = await client.start("welcome")
    await in_work(client, task_id)
    await killed.end(signal.SIGKILL)
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
        "the worker was shut down before the task ended",
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

    assert '"structuredContent": {"parts": [3, 4], "total": 7}' in before["modern"]
    assert '{"code": -32042, "message": "it broke off", "data": {"at": [1, 2.5, null]}}' in before["failed"]
    for options in AS_IT_WAS, RENAMED, UNLISTED, REMOVED:
        replica = await replicas.start(*options)
        assert await seen(replica, task_ids) == before
        await replica.end(signal.SIGKILL)


AS_IT_WAS = ()
RENAMED = ("--renamed", "add=sum_up", "--renamed", "break_off=snap")
UNLISTED = ("--unlisted", "add", "--unlisted", "break_off")
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


async def test_a_task_whose_tool_is_not_registered_any_more_ends_and_says_so(replicas: Replicas) -> None:
    killed = await replicas.start_doomed()
    task_id = await (await killed.modern()).start("careful")
    await in_work(await killed.modern(), task_id)
    await killed.end(signal.SIGKILL)
    client = await (await replicas.start("--unlisted", "careful")).modern()

    done = await ended(client, task_id)

    assert "careful" in json.dumps(done.get("result") or done["error"])
    assert done["status"] == "failed" or done["result"]["isError"] is True
    assert (await ended(client, await client.start("add", {"parts": [1]})))["status"] == "completed"
