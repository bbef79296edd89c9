"""What a task asks is a round of its call, as in 2026-07-28, and nobody else can play it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure.tasks import Owner, Status

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
