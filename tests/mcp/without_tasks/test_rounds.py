"""What a task asks is a round of its call, as in 2026-07-28, and nobody else can play it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from perdure.mcp import admission, wire
from perdure.mcp.admission import INPUT_ROUND_TIMEOUT
from perdure.runtime import Runtime
from perdure.storage.errors import StorageBusy
from perdure.storage.time_types import system_clock
from perdure.tasks import Owner, Snapshot, Status
from perdure.tasks.task_snapshot import TASKS

from ..raw_clients import Answer, Client2026, Json
from .tool_server import ANYBODY, CONFIRM, YES, hosting, texts_of

pytestmark = pytest.mark.anyio


async def ask_modern(client: Client2026, tool: str, **more: Any) -> Answer:
    params: Json = {"name": tool, "arguments": {}, **more}
    return await client.send("tools/call", params, declared=False)


async def test_what_the_task_asks_is_a_round_of_the_call_in_the_later_generation() -> None:
    async with hosting() as site, Client2026(site.url) as client:
        first = (await ask_modern(client, "confirming")).result
        assert first["resultType"] == "input_required"
        assert "taskId" not in str(first)
        assert first["inputRequests"]["go"]["method"] == "elicitation/create"
        assert first["inputRequests"]["go"]["params"]["requestedSchema"] == CONFIRM

        second = await ask_modern(
            client, "confirming", requestState=first["requestState"], inputResponses={"go": YES}
        )
        assert second.result["resultType"] == "complete"
        assert texts_of(second) == ["accept: True"]
        assert len(site.begun) == 1


async def test_each_log_entry_is_sent_in_one_round() -> None:
    meta = {"io.modelcontextprotocol/logLevel": "debug"}

    def logged(answer: Answer) -> list[str]:
        return [each["params"]["data"] for each in answer.frames if each["method"] == "notifications/message"]

    async with hosting() as site, Client2026(site.url) as client:
        first = await ask_modern(client, "talking", _meta=meta)
        state = {"requestState": first.result["requestState"], "inputResponses": {"go": YES}}
        second = await ask_modern(client, "talking", _meta=meta, **state)

    assert (logged(first), logged(second)) == (["before"], ["after"])


@pytest.mark.parametrize(("count", "received"), [("7", 7), ("", 0), ("x", 0), ("9" * 5000, 0)])
def test_a_state_that_a_low_level_server_does_not_seal_may_have_any_count(count: str, received: int) -> None:
    state = f"{wire.WAITING_STATE_PREFIX}a1/{count}"
    request = SimpleNamespace(params={"requestState": state})
    assert wire.received_log_entries(cast("wire.RequestContext", request)) == received


async def test_a_client_of_the_later_generation_that_cannot_be_asked_is_told_what_it_lacks() -> None:
    async with hosting() as site, Client2026(site.url) as client:
        answer = await client.call("confirming", capabilities={})
        task = (await site.ended(await site.begins())).task

    assert answer.code == -32021
    assert "elicitation" in answer.error["data"]["requiredCapabilities"]
    assert task.status is Status.FAILED


async def test_questions_answered_one_by_one_leave_the_others_for_the_next_round() -> None:
    async with hosting() as site, Client2026(site.url) as client:
        first = (await ask_modern(client, "confirming_twice")).result
        assert set(first["inputRequests"]) == {"one", "two"}

        answered = {"requestState": first["requestState"], "inputResponses": {"one": YES}}
        second = (await ask_modern(client, "confirming_twice", **answered)).result
        assert set(second["inputRequests"]) == {"two"}

        answered = {"requestState": second["requestState"], "inputResponses": {"two": {"action": "decline"}}}
        assert texts_of(await ask_modern(client, "confirming_twice", **answered)) == [
            "one accept, two decline"
        ]


async def test_a_round_without_answers_asks_the_same_again() -> None:
    async with hosting() as site, Client2026(site.url) as client:
        first = (await ask_modern(client, "confirming")).result
        again = (await ask_modern(client, "confirming", requestState=first["requestState"])).result

    assert again["inputRequests"] == first["inputRequests"]
    assert len(site.begun) == 1


async def test_an_answer_that_is_not_what_the_form_asks_for_is_refused_and_can_be_given_again() -> None:
    async with hosting() as site, Client2026(site.url) as client:
        state = (await ask_modern(client, "confirming")).result["requestState"]
        wrong = {"go": {"action": "accept", "content": {"confirm": "perhaps"}}}
        refused = await ask_modern(client, "confirming", requestState=state, inputResponses=wrong)
        given = await ask_modern(client, "confirming", requestState=state, inputResponses={"go": YES})

    assert refused.code == -32602
    assert "go" in refused.error["message"]
    assert texts_of(given) == ["accept: True"]


def with_another_end(state: str) -> str:
    return state[:-2] + ("AA" if state[-2:] != "AA" else "BB")


def with_another_start(state: str) -> str:
    return ("x" if state[0] != "x" else "y") + state[1:]


def nonsense(state: str) -> str:
    return "nonsense"


@pytest.mark.parametrize("damage", [with_another_end, with_another_start, nonsense])
async def test_a_damaged_request_state_is_refused_and_the_task_still_waits(
    damage: Callable[[str], str],
) -> None:
    async with hosting() as site, Client2026(site.url) as client:
        state = (await ask_modern(client, "confirming")).result["requestState"]
        refused = await ask_modern(
            client, "confirming", requestState=damage(state), inputResponses={"go": YES}
        )
        task = (await site.look(site.begun[0])).task

    assert refused.code == -32602
    assert (task.status, len(site.begun)) == (Status.INPUT_REQUIRED, 1)


async def test_knowing_the_id_of_a_task_does_not_make_a_request_state() -> None:
    async with hosting() as site, Client2026(site.url) as client:
        await ask_modern(client, "confirming")
        forged = f"perdure/task:{site.begun[0]}"
        refused = await ask_modern(client, "confirming", requestState=forged, inputResponses={"go": YES})
        task = (await site.look(site.begun[0])).task

    assert refused.code == -32602
    assert task.status is Status.INPUT_REQUIRED


async def test_the_request_state_of_one_tool_is_none_of_another() -> None:
    async with hosting() as site, Client2026(site.url) as client:
        state = (await ask_modern(client, "confirming")).result["requestState"]
        refused = await ask_modern(client, "confirming_twice", requestState=state, inputResponses={"go": YES})
        task = (await site.look(site.begun[0])).task

    assert refused.code == -32602
    assert task.status is Status.INPUT_REQUIRED


async def test_the_request_state_of_one_caller_is_none_of_another() -> None:
    async with (
        hosting(authenticated=True) as site,
        Client2026(site.url, token="ana") as ana,  # noqa: S106, a name
        Client2026(site.url, token="bob") as bob,  # noqa: S106, a name
    ):
        state = (await ask_modern(ana, "confirming")).result["requestState"]
        answered = {"requestState": state, "inputResponses": {"go": YES}}
        refused = await ask_modern(bob, "confirming", **answered)
        task = (await site.look(site.begun[0], Owner.user("client client", "ana"))).task
        accepted = await ask_modern(ana, "confirming", **answered)

    assert refused.code == -32602
    assert task.status is Status.INPUT_REQUIRED
    assert texts_of(accepted) == ["accept: True"]


async def test_a_round_that_comes_after_the_end_is_told_the_result() -> None:
    async with hosting() as site, Client2026(site.url) as client:
        state = (await ask_modern(client, "confirming")).result["requestState"]
        await site.tasks.runtime.answer(ANYBODY, site.begun[0], {"go": {"action": "decline"}})
        await site.ended(site.begun[0])
        told = await ask_modern(client, "confirming", requestState=state, inputResponses={"go": YES})

    assert texts_of(told) == ["decline: None"]


WRONG: Json = {"go": {"action": "accept", "content": {"confirm": "perhaps"}}}


@pytest.mark.parametrize("trouble", ["malformed", "busy", "disconnected"])
async def test_a_task_does_not_outlive_a_client_whose_round_has_failed(
    trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(*_: Any, **__: Any) -> Snapshot:
        await asyncio.sleep(1 if trouble == "disconnected" else 0)
        raise StorageBusy("later")

    monkeypatch.setattr(admission, "INPUT_ROUND_TIMEOUT", 1.5)
    async with hosting() as site, Client2026(site.url) as client:
        state = (await ask_modern(client, "confirming")).result["requestState"]
        if trouble != "malformed":
            monkeypatch.setattr(Runtime, "answer", answer)
        resumed = asyncio.create_task(
            ask_modern(client, "confirming", requestState=state, inputResponses=WRONG)
        )
        if trouble == "disconnected":
            await asyncio.sleep(0.3)
            resumed.cancel()
        else:
            assert "error" in (await resumed).message
        task = (await site.ended(site.begun[0])).task

    assert task.status is not Status.COMPLETED
    assert resumed.done()


async def test_a_client_that_disconnects_while_its_answer_is_stored_ends_its_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer, is_stored, returns = Runtime.answer, asyncio.Event(), asyncio.Event()

    async def answer_slowly(runtime: Runtime, *args: Any, **options: Any) -> Snapshot:
        stored = await answer(runtime, *args, **options)
        is_stored.set()
        await returns.wait()
        return stored

    async with hosting() as site, Client2026(site.url) as client:
        state = (await ask_modern(client, "confirming_then_endless")).result["requestState"]
        monkeypatch.setattr(Runtime, "answer", answer_slowly)
        answered = {"requestState": state, "inputResponses": {"go": YES}}
        resumed = asyncio.create_task(ask_modern(client, "confirming_then_endless", **answered))
        await is_stored.wait()
        resumed.cancel()
        await asyncio.sleep(0.2)  # until the server has noticed it
        returns.set()
        task = (await site.ended(site.begun[0])).task

    assert task.status is Status.CANCELLED


@pytest.mark.parametrize("end", ["disconnected", "handed_over"])
async def test_an_answer_is_stored_although_its_call_ends(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client disconnects before the write is answered, or the call is handed over soon after it."""
    answer, is_called, continues = Runtime.answer, asyncio.Event(), asyncio.Event()

    async def answer_late(runtime: Runtime, *args: Any, **options: Any) -> Snapshot:
        is_called.set()
        await continues.wait()
        return await answer(runtime, *args, **options)

    is_disconnected = end == "disconnected"
    hand_over_after = None if is_disconnected else 0.3
    async with hosting(hand_over_after=hand_over_after) as site, Client2026(site.url) as client:
        state = (await ask_modern(client, "confirming_then_endless")).result["requestState"]
        monkeypatch.setattr(Runtime, "answer", answer_late)
        answered = {"requestState": state, "inputResponses": {"go": YES}}
        resumed = asyncio.create_task(ask_modern(client, "confirming_then_endless", **answered))
        await is_called.wait()
        if is_disconnected:
            resumed.cancel()
            await asyncio.sleep(0.2)  # until the server has noticed it
        continues.set()
        task_id = site.begun[0]
        if is_disconnected:
            await site.ended(task_id)
        else:
            assert task_id in texts_of(await resumed)[0]
        stored = (await site.look(task_id)).task

    assert stored.inputs["go"].raw_answer == YES
    assert stored.status is (Status.CANCELLED if is_disconnected else Status.WORKING)


async def test_between_two_rounds_the_task_depends_on_no_process_and_ends_if_no_answer_comes() -> None:
    async with hosting() as site, Client2026(site.url) as client:
        state = (await ask_modern(client, "confirming_twice")).result["requestState"]
        (stored,) = await site.tasks.runtime.store.storage.page(TASKS, limit=2, now=system_clock())
        task = Snapshot.from_record(stored).task
        assert task.attended_by is None
        for each in task.inputs.values():
            assert each.deadline_at is not None
            assert 0 < each.deadline_at - task.last_updated_at <= INPUT_ROUND_TIMEOUT * 1_000_000

        answers = {"one": YES, "two": YES}
        done = await ask_modern(client, "confirming_twice", requestState=state, inputResponses=answers)
        assert texts_of(done) == ["one accept, two accept"]
        ended = (await site.look(task.task_id)).task
        assert ended.attended_by == site.tasks.runtime.name  # it was attended again
