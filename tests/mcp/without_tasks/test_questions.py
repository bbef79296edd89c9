"""What a task asks reaches the client of its call: on its stream, as up to 2025-11-25."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from perdure.runtime import Runtime
from perdure.storage.errors import StorageBusy
from perdure.tasks import Owner, Snapshot, Status

from ...conditions import wait_until
from ...markers import row
from ..raw_clients import Client2025, Json
from .tool_server import ANYBODY, HANDSHAKES, RELATED, YES, calling, hosting, texts_of, yes

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
async def test_what_the_task_asks_is_asked_on_the_stream_of_the_call_and_names_no_task(version: str) -> None:
    asked: list[Json] = []

    async def answering(request: Json) -> Json:
        asked.append(request)
        return YES

    async with hosting() as site, calling(site.url, version, answering=answering) as client:
        answer = await client.call("confirming", {"what": "this"})

    assert texts_of(answer) == ["accept: True"]
    assert [each["params"]["message"] for each in asked] == ["Do this?"]
    assert RELATED not in asked[0]["params"].get("_meta", {})


@pytest.mark.parametrize("version", HANDSHAKES)
async def test_a_client_that_cannot_be_asked_is_refused_and_the_task_fails(version: str) -> None:
    async with (
        hosting() as site,
        calling(site.url, version, answering=yes, capabilities={}) as client,
    ):
        answer = await client.call("confirming")
        task = (await site.ended(await site.begins())).task

    assert "elicitation" in answer.error["message"].lower()
    assert task.status is Status.FAILED


@row(131)
async def test_an_answer_that_is_being_stored_when_the_call_is_handed_over_is_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The write of the answer takes longer than the call may take."""
    answer, asked = Runtime.answer, list[Json]()
    hand_over_after = 2.0

    async def answer_slowly(runtime: Runtime, *args: Any, **options: Any) -> Snapshot:
        await asyncio.sleep(hand_over_after)
        return await answer(runtime, *args, **options)

    async def answering(request: Json) -> Json:
        asked.append(request)
        return YES

    monkeypatch.setattr(Runtime, "answer", answer_slowly)
    async with (
        hosting(hand_over_after=hand_over_after) as site,
        calling(site.url, "2025-11-25", answering=answering) as client,
    ):
        handed_over = await client.call("confirming_then_endless")
        task_id = site.begun[0]
        assert task_id in texts_of(handed_over)[0]
        stored = (await site.look(task_id)).task

    assert stored.inputs["go"].raw_answer == YES
    assert len(asked) == 1


@pytest.mark.parametrize("version", HANDSHAKES)
async def test_an_answer_that_comes_after_the_end_does_not_spoil_the_result(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else has answered, which ended the task, and the call has not heard of it yet."""
    watched, is_over, hears = Runtime.watch, asyncio.Event(), asyncio.Event()

    async def watch_hard_of_hearing(runtime: Runtime, owner: Owner, task_id: str) -> AsyncGenerator[Snapshot]:
        async for snapshot in watched(runtime, owner, task_id):
            if snapshot.task.is_terminal:
                await hears.wait()
            yield snapshot

    async def late(_: Json) -> Json:
        await is_over.wait()
        return YES

    monkeypatch.setattr(Runtime, "watch", watch_hard_of_hearing)
    async with hosting() as site, Client2025(site.url, version=version, answering=late) as client:
        call = asyncio.create_task(client.call("confirming"))
        task_id = await site.begins()
        await wait_until(lambda: bool(client.asked))
        await site.tasks.runtime.answer(ANYBODY, task_id, {"go": YES})
        await site.ended(task_id)
        is_over.set()
        await asyncio.wait([call], timeout=0.3)
        hears.set()

        assert texts_of(await call) == ["accept: True"]


@pytest.mark.parametrize("method", ["get", "answer", "fail_question"])
@pytest.mark.parametrize("waits", ["call", "tasks/result"])
async def test_a_storage_that_is_busy_for_a_moment_costs_neither_the_task_nor_the_answer(
    method: str, waits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call of the storage fails once, when the client is asked and when its answer is stored."""
    called, failed = getattr(Runtime, method), set[str]()

    async def busy_once(runtime: Runtime, *args: Any) -> Snapshot:
        name = current.get_name() if (current := asyncio.current_task()) else ""
        if name not in failed:
            failed.add(name)
            raise StorageBusy("one moment")
        return await called(runtime, *args)

    async def answering(request: Json) -> Json:
        return YES if method != "fail_question" else {"action": "accept", "content": {"confirm": "perhaps"}}

    async with hosting() as site, Client2025(site.url, answering=answering) as client:
        task_id = await client.start("confirming") if waits == "tasks/result" else ""
        monkeypatch.setattr(Runtime, method, busy_once)
        if task_id:
            answer = await client.send("tasks/result", {"taskId": task_id})
        else:
            answer = await client.call("confirming")
        monkeypatch.undo()

    assert failed
    if method == "fail_question":
        assert "the answer to 'go' is malformed" in answer.error["message"]
    else:
        assert texts_of(answer) == ["accept: True"]
