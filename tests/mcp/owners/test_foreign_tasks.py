"""To whom a task does not belong it is absent, to the byte, whatever a client says and in what is pushed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest

from perdure.tasks import Owner

from ...markers import row
from ..raw_clients import Json
from ..tokens import ISSUER, Caller, Generation, TokenClient2025, TokenClient2026, about, people
from .helpers import NO_SUCH_TASK, assert_absent, both, owners, served

pytestmark = pytest.mark.anyio


# Foreign is absent


@row(26, 28)
@both
async def test_foreign_ended_and_expired_tasks_are_absent_to_the_byte(generation: Generation) -> None:
    async with (
        served(people("alice", "bob"), retention=0.05) as (url, _),
        generation(url, "alice") as alice,
        generation(url, "bob") as bob,
    ):
        waiting, ended, expired = [await alice.start(tool) for tool in ("hold", "quick", "brief")]
        await alice.until(waiting, "input_required")
        await alice.until(ended, "completed")
        await until_gone(alice, expired)

        for task_id in (waiting, ended, expired):
            await assert_absent(bob, task_id)
        await assert_absent(alice, expired)
        assert (await alice.get(waiting))["status"] == "input_required"


async def until_gone(caller: Caller, task_id: str) -> None:
    async with asyncio.timeout(15):
        while True:
            if "error" in (await caller.send("tasks/get", {"taskId": task_id})).message:
                return
            await asyncio.sleep(0.02)


@row(26)
async def test_the_state_of_a_waiting_call_is_of_no_use_to_another_owner() -> None:
    async with (
        served(people("alice", "bob")) as (url, _),
        TokenClient2026(url, "alice") as alice,
        TokenClient2026(url, "bob") as bob,
    ):
        asked = (await alice.call("hold", declared=False)).result
        answer: Json = {"go": {"action": "accept", "content": {"ok": True}}}
        params = {
            "name": "hold",
            "arguments": {},
            "requestState": asked["requestState"],
            "inputResponses": answer,
        }

        assert (await bob.send("tools/call", params, declared=False)).code == -32602
        done = await alice.send("tools/call", params, declared=False)
        assert done.result["content"][0]["text"] == "held "


@row(26)
async def test_a_forged_state_of_a_waiting_call_reaches_no_foreign_task() -> None:
    async with (
        served(people("alice", "bob")) as (url, _),
        TokenClient2026(url, "alice") as alice,
        TokenClient2026(url, "bob") as bob,
    ):
        task_id = await alice.start("hold")
        await alice.until(task_id, "input_required")
        foreign, absent = [
            await bob.post("tools/call", {"name": "hold", "requestState": f"perdure/task:{each}"})
            for each in (task_id, NO_SUCH_TASK)
        ]

        assert foreign == absent
        assert (await alice.get(task_id))["status"] == "input_required"


# What a client says does not count


@row(29)
@both
async def test_nothing_that_a_client_says_makes_it_another_owner(generation: Generation) -> None:
    async with served(people("alice", "bob")) as (url, tasks):
        async with generation(url, "alice") as alice:
            task_id = await alice.start("hold")
        async with generation(url, "bob", headers=forged_headers()) as bob:
            for method, params in about(bob, task_id).items():
                answer = await bob.send(method, {**params, **forged_params(), "_meta": forged_params()})
                assert (answer.code, answer.error["message"]) == (-32602, "Task not found")
            made = await start_forged(bob)

        assert await owners(tasks) == {task_id: Owner.user(ISSUER, "alice"), made: Owner.user(ISSUER, "bob")}


def forged_params() -> Json:
    """Whatever a client might call it, if it could say who it is."""
    owner = {"kind": "user", "issuer": ISSUER, "subject": "alice"}
    names = ("subject", "sub", "user", "userId", "clientId", "client_id", "principal", "partition")
    return {
        **dict.fromkeys(names, "alice"),
        "owner": owner,
        "issuer": ISSUER,
        "authInfo": {"subject": "alice"},
    }


def forged_headers() -> dict[str, str]:
    names = ("x-user", "x-forwarded-user", "x-owner", "x-subject", "x-client-id", "mcp-user", "from")
    return {**dict.fromkeys(names, "alice"), "cookie": "user=alice", "proxy-authorization": "Bearer alice"}


async def start_forged(caller: Caller) -> str:
    params: Json = {
        "name": "hold",
        "arguments": {"owner": "alice", "subject": "alice"},
        "task": {"owner": "alice"},
        "_meta": forged_params(),
        **forged_params(),
    }
    result = (await caller.send("tools/call", params)).result
    return result["taskId"] if isinstance(caller, TokenClient2026) else result["task"]["taskId"]


@row(29, 31)
async def test_the_session_of_another_opens_nothing_with_a_token_of_ones_own() -> None:
    async with (
        served(people("alice", "bob")) as (url, _),
        TokenClient2025(url, "alice") as alice,
        TokenClient2025(url, "bob") as bob,
    ):
        task_id = await alice.start("hold")
        hijacked = {"mcp-session-id": alice.session_id or ""}
        async with TokenClient2026(url, "bob", headers=hijacked) as modern:
            await assert_absent(modern, task_id)
        bob.carry(hijacked)

        status, body = await bob.post("tasks/get", {"taskId": task_id})
        assert (status, b"Session not found" in body) == (404, True)


# What is pushed


@row(33)
async def test_a_stream_carries_ones_own_tasks_and_acknowledges_no_others() -> None:
    async with (
        served(people("alice", "bob")) as (url, _),
        TokenClient2026(url, "alice") as alice,
        TokenClient2026(url, "bob") as bob,
    ):
        own, foreign = await alice.start("hold"), await bob.start("hold")
        await bob.until(foreign, "input_required")
        async with alice.listen({"taskIds": [foreign, own, NO_SUCH_TASK]}) as frames:
            first = await anext(frames)
            await bob.cancel(foreign)
            await bob.until(foreign, "cancelled")
            await alice.cancel(own)
            rest = [frame async for frame in frames]

    assert first["params"]["notifications"] == {"taskIds": [own]}
    told = [frame["params"] for frame in rest if frame.get("method") == "notifications/tasks"]
    assert {each["taskId"] for each in told} == {own}
    assert told[-1]["status"] == "cancelled"


@row(33)
@pytest.mark.parametrize("others", [{}, {"toolsListChanged": True}])
async def test_a_stream_says_nothing_more_once_the_token_that_opened_it_ran_out(
    set_ahead: Callable[[float], None], others: Json
) -> None:
    tokens = people("alice")
    tokens.add("short", subject="alice", expires_at=int(time.time()) + 60)
    async with (
        served(tokens) as (url, _),
        TokenClient2026(url, "alice") as alice,
        TokenClient2026(url, "short") as short,
        short.listen({"taskIds": [task_id := await alice.start("hold")], **others}) as frames,
    ):
        await alice.until(task_id, "input_required")
        heard = await heard_until(frames, "input_required")
        set_ahead(61)
        await alice.cancel(task_id)
        await alice.until(task_id, "cancelled")
        # A stream of tasks alone ends now; one that carries other kinds too stays open, and silent.
        heard += await rest_of(frames, seconds=1)

    statuses = [each["params"]["status"] for each in heard if each.get("method") == "notifications/tasks"]
    assert "cancelled" not in statuses
    assert statuses[-1] == "input_required"


async def heard_until(frames: AsyncIterator[Json], status: str) -> list[Json]:
    heard: list[Json] = []
    async with asyncio.timeout(10):
        async for frame in frames:
            heard.append(frame)
            if frame.get("params", {}).get("status") == status:
                return heard
    raise AssertionError(f"the stream ended before {status}: {heard}")


async def rest_of(frames: AsyncIterator[Json], seconds: float) -> list[Json]:
    heard: list[Json] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            heard.extend([frame async for frame in frames])
    return heard


@row(33)
async def test_the_stream_of_a_session_tells_of_its_own_tasks_only() -> None:
    async with (
        served(people("alice", "bob")) as (url, _),
        TokenClient2025(url, "alice") as alice,
        TokenClient2025(url, "bob") as bob,
        bob.listen() as frames,
    ):
        foreign = await alice.start("hold")
        await alice.until(foreign, "input_required")
        await alice.send("tasks/cancel", {"taskId": foreign})
        own = await bob.start("quick")
        heard = await heard_until(frames, "completed")

    told = [frame["params"] for frame in heard if frame["method"] == "notifications/tasks/status"]
    assert {each["taskId"] for each in told} == {own}
