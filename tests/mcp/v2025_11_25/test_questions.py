"""At 2025-11-25 what a task asks is asked of the client that waits for its result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from mcp.server import MCPServer

from perdure import Task, Tasks

from ..raw_clients import Client2025, Json
from .server import RELATED, hosting, simple_tools, yes

pytestmark = pytest.mark.anyio


async def no(request: Json) -> Json:
    return {"action": "decline"}


class Failing(Client2025):
    """A client that answers whatever it is asked with a JSON-RPC error."""

    code = -1

    async def _answer(self, request: Json) -> None:
        self.asked.append(request)
        error = {"code": self.code, "message": "nobody is at home"}
        await self._post({"jsonrpc": "2.0", "id": request["id"], "error": error})


async def test_what_a_task_asks_reaches_the_client_on_the_stream_of_its_result(url: str) -> None:
    async with Client2025(url, answering=yes) as core:
        task_id = await core.start("confirm_delete", {"filename": "a.txt"})
        answer = await core.send("tasks/result", {"taskId": task_id})

    assert answer.result["content"][0]["text"] == "deleted a.txt"
    assert core.asked[0]["params"]["_meta"][RELATED] == {"taskId": task_id}


async def test_a_task_requires_input_until_somebody_asks_for_its_result_and_answers(url: str) -> None:
    async with Client2025(url, answering=yes) as core:
        task_id = await core.start("confirm_delete", {"filename": "a.txt"})
        await core.until(task_id, "input_required")
        assert core.asked == []

        answer = await core.send("tasks/result", {"taskId": task_id})

        assert [each["method"] for each in core.asked] == ["elicitation/create"]
        assert core.asked[0]["params"]["message"] == "Delete a.txt?"
        assert answer.result["content"][0]["text"] == "deleted a.txt"
        assert (await core.get(task_id))["status"] == "completed"


async def test_a_person_who_declines_is_an_answer(url: str) -> None:
    async with Client2025(url, answering=no) as core:
        task_id = await core.start("confirm_delete", {"filename": "a.txt"})
        answer = await core.send("tasks/result", {"taskId": task_id})

    assert answer.result["content"][0]["text"] == "kept a.txt"


async def test_two_questions_at_once_are_each_asked_once_and_answered_for_themselves(url: str) -> None:
    async def first_only(request: Json) -> Json:
        return await (yes if request["params"]["message"] == "First?" else no)(request)

    async with Client2025(url, answering=first_only) as core:
        task_id = await core.start("multi_input")
        answer = await core.send("tasks/result", {"taskId": task_id})

    assert sorted(each["params"]["message"] for each in core.asked) == ["First?", "Second?"]
    assert all(each["params"]["_meta"][RELATED] == {"taskId": task_id} for each in core.asked)
    assert answer.result["content"][0]["text"] == "first: accept, second: decline"


@pytest.mark.parametrize("code", [-1, -32000])  # which is also the SDK's own code for a closed connection
async def test_a_client_that_answers_with_an_error_does_not_leave_the_task_waiting(
    url: str, code: int
) -> None:
    client = Failing(url)
    client.code = code
    async with client as failing:
        task_id = await failing.start("confirm_delete", {"filename": "a.txt"})
        failed = await failing.send("tasks/result", {"taskId": task_id})

        assert failed.code == -32603
        assert "nobody is at home" in failed.error["message"]  # the tool did not catch it
        assert (await failing.get(task_id))["status"] == "failed"


async def test_with_json_responses_questions_and_progress_reach_the_session_on_its_own_stream() -> None:
    """The answer to `tasks/result` is no stream on which anything could be sent before."""

    def define(server: MCPServer[object], tasks: Tasks) -> None:
        @server.tool()
        @tasks.durable()
        async def asking(task: Task) -> str:
            await task.report_progress(1, 2, "half")
            return (await task.elicit("Go on?")).action

    async with (
        hosting(define, json_response=True) as url,
        Client2025(url, answering=yes) as core,
        core.listen() as notifications,
    ):

        async def received() -> list[str]:
            return [each["method"] async for each in _until_completed(notifications)]

        reading = asyncio.create_task(received())
        params = {"name": "asking", "arguments": {}, "task": {}, "_meta": {"progressToken": "p"}}
        task_id = (await core.send("tools/call", params)).result["task"]["taskId"]
        answer = await core.send("tasks/result", {"taskId": task_id})

        assert answer.result["content"][0]["text"] == "accept"
        assert len(core.asked) == 1
        assert "notifications/progress" in await reading


async def test_without_sessions_a_tool_that_asks_fails_because_no_client_has_declared_anything() -> None:
    async with hosting(simple_tools, stateless=True) as url, Client2025(url, answering=yes) as core:
        assert core.session_id is None
        task_id = await core.start("asking")
        result = await core.send("tasks/result", {"taskId": task_id})
        waited = await core.call("asking")
        ended = await core.get(task_id)

    for answer in (result, waited):
        assert answer.code == -32021
        assert answer.error["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}
    assert (ended["status"], ended["statusMessage"]) == ("failed", result.error["message"])
    assert core.asked == []


async def _until_completed(notifications: AsyncIterator[Json]) -> AsyncIterator[Json]:
    async for each in notifications:
        yield each
        if each["params"].get("status") == "completed":
            return


async def test_a_question_that_two_sessions_were_asked_is_answered_by_the_first_of_them(url: str) -> None:
    answered = asyncio.Event()

    async def late(request: Json) -> Json:
        await answered.wait()
        return await no(request)

    async with Client2025(url, answering=late) as slow, Client2025(url, answering=yes) as core:
        task_id = await slow.start("confirm_delete", {"filename": "a.txt"})
        waiting = asyncio.create_task(slow.send("tasks/result", {"taskId": task_id}))
        await until_asked(slow)
        first = (await core.send("tasks/result", {"taskId": task_id})).result
        answered.set()

        assert first["content"][0]["text"] == "deleted a.txt"
        assert (await waiting).result == first


async def until_asked(core: Client2025) -> None:
    async with asyncio.timeout(15):
        while True:
            if core.asked:
                return
            await asyncio.sleep(0.02)


async def test_an_answer_that_does_not_fit_the_form_is_reported_and_may_be_repeated(url: str) -> None:
    answers = [{"confirm": "perhaps"}, {"confirm": True}]

    async def second_thoughts(request: Json) -> Json:
        return {"action": "accept", "content": answers.pop(0)}

    async with Client2025(url, answering=second_thoughts) as core:
        task_id = await core.start("confirm_delete", {"filename": "a.txt"})
        answer = await core.send("tasks/result", {"taskId": task_id})

    assert "malformed" in core.asked[1]["params"]["message"]
    assert answer.result["content"][0]["text"] == "deleted a.txt"


async def test_answers_that_never_fit_the_form_are_an_error_for_the_tool_and_the_result_waits_for_its_end(
    url: str,
) -> None:
    async def nonsense(request: Json) -> Json:
        return {"action": "accept", "content": {"confirm": "perhaps"}}

    async with Client2025(url, answering=nonsense) as wrong:
        task_id = await wrong.start("confirm_delete", {"filename": "a.txt"})
        failed = await wrong.send("tasks/result", {"taskId": task_id})

        assert len(wrong.asked) == 3
        assert failed.code == -32603
        assert "confirm" in failed.error["message"]  # the tool did not catch it
        assert (await wrong.get(task_id))["status"] == "failed"


async def test_a_client_that_cannot_be_asked_is_not_asked_and_the_task_ends() -> None:
    async with hosting(simple_tools) as url, Client2025(url, capabilities={}, answering=no) as mute:
        task_id = await mute.start("asking")
        refused = await mute.send("tasks/result", {"taskId": task_id})

        assert mute.asked == []
        assert refused.code == -32021
        assert "elicitation" in refused.error["message"]
        assert refused.error["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}
        assert (await mute.get(task_id))["status"] == "failed"


async def test_a_session_that_cannot_be_asked_leaves_the_question_to_one_that_can() -> None:
    async with (
        hosting(simple_tools) as url,
        Client2025(url, capabilities={}, answering=no) as mute,
        Client2025(url, answering=yes) as core,
    ):
        task_id = await core.start("asking")
        await core.until(task_id, "input_required")
        waiting = asyncio.create_task(mute.send("tasks/result", {"taskId": task_id}))
        answer = await core.send("tasks/result", {"taskId": task_id})

        assert answer.result["content"][0]["text"] == "accept"
        assert (await waiting).result == answer.result
        assert mute.asked == []


async def test_what_a_resolver_asks_is_a_question_of_the_task_and_is_asked_once(url: str) -> None:
    async def ana(request: Json) -> Json:
        return {"action": "accept", "content": {"name": "Ana"}}

    async with Client2025(url, answering=ana) as core:
        task_id = await core.start("test_tool_with_task")
        answer = await core.send("tasks/result", {"taskId": task_id})

        assert answer.result["content"][0]["text"] == "done for Ana"
        assert [each["params"]["message"] for each in core.asked] == ["Who is asking?"]
        assert core.asked[0]["params"]["_meta"][RELATED] == {"taskId": task_id}


async def test_a_task_whose_resolver_is_declined_fails(url: str) -> None:
    async with Client2025(url, answering=no) as core:
        task_id = await core.start("test_tool_with_task")
        answer = await core.send("tasks/result", {"taskId": task_id})

        assert answer.result["isError"] is True
        assert (await core.get(task_id))["status"] == "failed"
        assert len(core.asked) == 1
