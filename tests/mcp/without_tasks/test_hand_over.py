"""A call that takes too long is handed over: its task continues, and tools let its client come back."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import pytest
from mcp.server import MCPServer
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import ListToolsResult, PaginatedRequestParams, Tool

from perdure import Tasks
from perdure.runtime import Runtime
from perdure.storage.errors import StorageBusy
from perdure.tasks import Owner, Status
from perdure.tasks.errors import InvalidValue

from ...conditions import wait_until
from ...markers import row
from ..raw_clients import CORE, MODERN, Answer, Client2025, Client2026, Json, serving
from ..replicas import Replicas
from .tool_server import ANYBODY, EVERY_VERSION, YES, Caller, ToolServer, calling, hosting, texts_of, yes

pytestmark = pytest.mark.anyio

RELATED = "io.modelcontextprotocol/related-task"
ADDED = {"wait_for_task", "cancel_task", "answer_task"}
SOON = 0.3
"""Seconds after which calls are handed over."""
LATE = 60.0


def task_id_of(answer: Answer) -> str:
    """The id of the task of a call that was handed over, as the text has it for the model."""
    (text,) = texts_of(answer)
    task_id: str = answer.result["_meta"][RELATED]["taskId"]
    assert "has not finished yet" in text
    assert f"call the tool 'wait_for_task' with {json.dumps({'task_id': task_id})}" in text
    assert answer.result["isError"] is False
    assert "structuredContent" not in answer.result
    return task_id


async def wait(client: Caller, task_id: str) -> Answer:
    return await client.call("wait_for_task", {"task_id": task_id})


async def tools_of(client: Caller | Client2025 | Client2026, **options: Any) -> dict[str, Json]:
    listed = (await client.send("tools/list", {}, **options)).result["tools"]
    return {tool["name"]: tool for tool in listed}


# Calls


@row(131)
@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_a_call_that_takes_too_long_is_handed_over_and_its_result_is_fetched_later(
    version: str,
) -> None:
    async with hosting(hand_over_after=SOON) as site, calling(site.url, version, answering=yes) as client:
        plain = await client.call("add", {"one": 1, "two": 2})
        task_id = task_id_of(await client.call("gated"))
        assert (await site.look(task_id)).task.attended_by is None
        still = await wait(client, task_id)
        assert task_id == site.begun[0]
        assert f"Task {task_id} is still running." in texts_of(still)[0]
        assert "Progress: 3 of 12." in texts_of(still)[0]
        assert "reading page 3" in texts_of(still)[0]
        site.gate.set()
        done = await wait(client, task_id)

    assert done.result == plain.result  # both are the sum 3


@row(131)
@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_without_the_option_no_call_is_handed_over(version: str) -> None:
    async with hosting() as site, calling(site.url, version) as client:
        call = asyncio.create_task(client.call("gated"))
        task_id = await site.begins()
        await asyncio.sleep(2 * SOON)
        assert not call.done()
        site.gate.set()
        assert "sum" in texts_of(await call)[0]
        refused = await wait(client, task_id)

    assert refused.message.get("error") or refused.result["isError"]


@row(131)
async def test_a_client_with_tasks_is_never_handed_over_a_call() -> None:
    async with (
        hosting(hand_over_after=SOON) as site,
        Client2026(site.url) as modern,
        Client2025(site.url, capabilities={"tasks": {}}) as core,
    ):
        await modern.start("gated")
        assert (await modern.call("wait_for_task", {"task_id": "a"})).result["isError"] is True
        call = asyncio.create_task(core.call("gated"))
        await asyncio.sleep(2 * SOON)
        assert not call.done()
        site.gate.set()

        assert "sum" in texts_of(await call)[0]


async def test_a_task_that_ends_with_an_error_is_a_result_that_a_model_reads() -> None:
    async with hosting(hand_over_after=SOON) as site, calling(site.url, CORE) as client:
        task_id = task_id_of(await client.call("breaking_late"))
        site.gate.set()
        answer = await wait(client, task_id)

    assert answer.result["isError"] is True
    assert texts_of(answer) == [f"Task {task_id} failed: broken."]


@row(131)
async def test_a_client_that_disconnects_after_a_hand_over_does_not_end_the_task() -> None:
    async with hosting(hand_over_after=SOON) as site:
        async with calling(site.url, MODERN) as client:
            task_id = task_id_of(await client.call("gated"))
        async with calling(site.url, CORE) as client:
            waiting = asyncio.create_task(wait(client, task_id))
            await asyncio.sleep(SOON / 2)
            waiting.cancel()
        site.gate.set()

        assert (await site.ended(task_id)).task.status is Status.COMPLETED


# Lists of tools


@row(131)
@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_clients_without_tasks_see_the_tools_and_no_output_schema_of_durable_ones(version: str) -> None:
    async with hosting(hand_over_after=SOON) as site, calling(site.url, version) as client:
        tools = await tools_of(client)

    assert tools.keys() >= ADDED
    assert "outputSchema" not in tools["add"]
    assert all(tools[name]["inputSchema"]["required"] == ["task_id"] for name in ADDED)


@row(131)
async def test_clients_with_tasks_see_the_list_as_it_is_without_the_option() -> None:
    seen: list[dict[str, Json]] = []
    for hand_over_after in (SOON, None):
        async with (
            hosting(hand_over_after=hand_over_after) as site,
            Client2026(site.url) as modern,
            Client2025(site.url, capabilities={"tasks": {}}) as core,
        ):
            seen += [await tools_of(modern), await tools_of(core)]

    assert seen[:2] == seen[2:]
    assert not ADDED & seen[0].keys()
    assert "outputSchema" in seen[0]["add"]


@pytest.mark.parametrize("name", sorted(ADDED))
async def test_a_tool_with_the_name_of_one_of_ours_is_refused_at_start(name: str) -> None:
    tasks = Tasks("memory:", hand_over_after=SOON)
    server: MCPServer[object] = MCPServer("tests", **tasks.attach())

    @server.tool(name=name)
    async def mine() -> str:
        return "mine"

    with pytest.raises(InvalidValue, match=f"the server has a tool named '{name}'"):
        async with tasks.serving(server):
            pass


async def test_a_tool_of_a_low_level_server_with_such_a_name_is_an_error_of_its_list() -> None:
    tasks = Tasks("memory:", hand_over_after=SOON)

    async def list_tools(_: ServerRequestContext[Any], __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="cancel_task", input_schema={"type": "object"})])

    server: Server[Any] = Server("low", on_list_tools=list_tools)
    tasks.install(server)
    async with serving(server.streamable_http_app()) as url, calling(url, CORE) as client:
        answer = await client.send("tools/list", {})

    assert "the server has a tool named 'cancel_task'" in answer.error["message"]


# Cancelling


@row(131)
async def test_a_model_cancels_a_task() -> None:
    async with hosting(hand_over_after=SOON) as site, calling(site.url, CORE) as client:
        task_id = task_id_of(await client.call("gated"))
        cancelled = await client.call("cancel_task", {"task_id": task_id})
        again = await client.call("cancel_task", {"task_id": task_id})
        waited = await wait(client, task_id)

    assert texts_of(cancelled) == [f"Task {task_id} is cancelled."]
    assert texts_of(again) == [f"Task {task_id} has been cancelled already."]
    assert (waited.result["isError"], texts_of(waited)) == (True, [f"Task {task_id} was cancelled."])


# Owners


@row(131)
@pytest.mark.parametrize("tool", sorted(ADDED))
async def test_a_task_of_another_caller_is_one_that_does_not_exist(tool: str) -> None:
    async with (
        hosting(authenticated=True, hand_over_after=SOON) as site,
        calling(site.url, MODERN, token="ana") as ana,  # noqa: S106, a name
        calling(site.url, MODERN, token="bob") as bob,  # noqa: S106, a name
    ):
        task_id = task_id_of(await ana.call("gated"))
        foreign = await bob.call(tool, {"task_id": task_id})
        absent = await bob.call(tool, {"task_id": "0" * 32})
        task = (await site.look(task_id, Owner.user("client client", "ana"))).task

    assert foreign.result == absent.result
    assert foreign.result["isError"] is True
    assert task.status is Status.WORKING


# Questions


@row(131)
@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_a_model_answers_what_its_client_cannot_be_asked(version: str) -> None:
    async with (
        hosting(hand_over_after=LATE) as site,
        calling(site.url, version, capabilities={}) as client,
    ):
        handed_over = await client.call("confirming", {"what": "this"})  # at once
        task_id = task_id_of(handed_over)
        shown = await client.call("answer_task", {"task_id": task_id})
        waited = await wait(client, task_id)
        for text in (*texts_of(handed_over), *texts_of(shown), *texts_of(waited)):
            assert "The task asks a question before it continues: Do this?" in text
            assert '"question": "go"' in text
            assert '{"confirm": {"type": "boolean"}}' in text

        malformed = await client.call("answer_task", {"task_id": task_id, "content": {"confirm": "perhaps"}})
        assert malformed.result["isError"] is True
        assert "go" in texts_of(malformed)[0]
        answer = {"task_id": task_id, "question": "go", "content": {"confirm": True}}
        assert "The answer is stored." in texts_of(await client.call("answer_task", answer))[0]

        assert texts_of(await wait(client, task_id)) == ["accept: True"]
        late = await client.call("answer_task", answer)
        assert (late.result["isError"], texts_of(late)) == (True, ["The task has no open question."])


async def test_a_model_refuses_an_answer() -> None:
    async with hosting(hand_over_after=LATE) as site, calling(site.url, CORE, capabilities={}) as client:
        task_id = task_id_of(await client.call("confirming"))
        await client.call("answer_task", {"task_id": task_id, "action": "decline"})

        assert texts_of(await wait(client, task_id)) == ["decline: None"]


async def test_of_several_questions_a_model_names_the_one_that_it_answers() -> None:
    async with hosting(hand_over_after=LATE) as site, calling(site.url, CORE, capabilities={}) as client:
        task_id = task_id_of(await client.call("confirming_twice"))
        content = {"confirm": True}
        unnamed = await client.call("answer_task", {"task_id": task_id, "content": content})
        unknown = await client.call("answer_task", {"task_id": task_id, "question": "x", "content": content})
        for question in ("one", "two"):
            named = {"task_id": task_id, "question": question, "content": content}
            await client.call("answer_task", named)

        assert texts_of(await wait(client, task_id)) == ["one accept, two accept"]
    assert "pass the key of the one that you answer" in texts_of(unnamed)[0]
    assert unnamed.result["isError"] is unknown.result["isError"] is True


@row(131)
async def test_a_client_that_can_be_asked_is_asked_on_the_stream_and_its_model_cannot_answer() -> None:
    may_answer = asyncio.Event()

    async def person(_: Json) -> Json:
        await may_answer.wait()
        return YES

    async with hosting(hand_over_after=SOON) as site, Client2025(site.url, answering=person) as client:
        call = asyncio.create_task(client.call("confirming"))
        task_id = await site.begins()
        async with calling(site.url, CORE) as other:
            refused = await other.call("answer_task", {"task_id": task_id, "content": {"confirm": True}})
        may_answer.set()

        assert texts_of(await call) == ["accept: True"]
    assert refused.result["isError"] is True
    assert "The user is asked while 'wait_for_task' waits." in texts_of(refused)[0]


@row(131)
async def test_after_a_hand_over_the_person_is_asked_while_the_model_waits() -> None:
    async with hosting(hand_over_after=SOON) as site:
        async with calling(site.url, CORE, capabilities={}) as client:
            task_id = task_id_of(await client.call("confirming"))
        async with calling(site.url, CORE, answering=yes) as client:
            assert texts_of(await wait(client, task_id)) == ["accept: True"]


@row(131)
async def test_after_a_hand_over_a_client_of_2026_is_asked_in_rounds_of_its_wait() -> None:
    async with hosting(hand_over_after=SOON) as site:
        async with calling(site.url, MODERN, capabilities={}) as client:
            task_id = task_id_of(await client.call("confirming"))
        async with calling(site.url, MODERN) as client:
            asked = (await wait(client, task_id)).result
            assert asked["resultType"] == "input_required"
            assert asked["inputRequests"].keys() == {"go"}
            more = {"requestState": asked["requestState"], "inputResponses": {"go": YES}}
            done = await client.call("wait_for_task", {"task_id": task_id}, **more)

    assert texts_of(done) == ["accept: True"]


@row(131)
async def test_a_question_that_needs_a_url_is_not_answered_by_a_model() -> None:
    url_only: Json = {"elicitation": {"url": {}}}
    async with hosting(hand_over_after=SOON) as site:
        async with calling(site.url, MODERN, capabilities={}) as client:
            refused = await client.call("visiting")
        async with Client2025(site.url, capabilities=url_only, answering=never) as core:
            call = asyncio.create_task(core.call("visiting"))
            await wait_until(lambda: len(site.begun) == 2 and bool(core.asked))
            task_id = site.begun[1]
            await wait_until(lambda: is_handed_over(site, task_id))
            call.cancel()
        async with calling(site.url, CORE, capabilities={}) as client:
            answer = await client.call("answer_task", {"task_id": task_id, "action": "accept"})

    assert "elicitation.url" in str(refused.error)
    assert answer.result["isError"] is True
    assert "this client does not support elicitation.url: Sign in" in texts_of(answer)[0]
    assert "https://" not in texts_of(answer)[0]


async def is_handed_over(site: ToolServer, task_id: str) -> bool:
    return (await site.look(task_id)).task.attended_by is None


async def never(_: Json) -> Json:
    await asyncio.Event().wait()
    return {}


async def test_a_question_for_operators_is_not_answered_by_a_model() -> None:
    async with hosting(hand_over_after=SOON) as site, calling(site.url, CORE, capabilities={}) as client:
        task_id = task_id_of(await client.call("approving"))
        answer = await client.call("answer_task", {"task_id": task_id, "content": {"confirm": True}})
        task = (await site.look(task_id)).task

    assert answer.result["isError"] is True
    assert task.outstanding.keys() == {"go"}


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_a_question_for_operators_is_not_shown_to_the_client(version: str) -> None:
    async with hosting(hand_over_after=SOON) as site, calling(site.url, version, capabilities={}) as client:
        handed_over = await client.call("approving")
        task_id = task_id_of(handed_over)
        waited = await wait(client, task_id)
        answered = await client.call("answer_task", {"task_id": task_id})

    for each in (handed_over, waited, answered):
        text = "\n".join(texts_of(each))
        assert "Approve it?" not in text
        assert "The task waits for the answer of an operator" in text


# Mistakes of a model


@pytest.mark.parametrize(
    "arguments",
    [{}, {"task_id": 7}, {"task_id": "a" * 32}, {"task_id": "../x"}, {"task_id": "a", "more": 1}],
)
@pytest.mark.parametrize("tool", sorted(ADDED))
async def test_arguments_that_are_wrong_are_a_result_that_says_so(tool: str, arguments: Json) -> None:
    async with hosting(hand_over_after=SOON) as site, calling(site.url, CORE) as client:
        answer = await client.call(tool, arguments)

    assert answer.result["isError"] is True
    assert texts_of(answer)[0]


# Restarts


@row(131)
async def test_a_call_that_was_handed_over_continues_after_a_kill_and_another_server_has_its_result(
    replicas: Replicas,
) -> None:
    killed = await replicas.start("--doomed", "--hand-over-after", "0.3")
    async with calling(killed.url, CORE) as client:
        task_id = task_id_of(await client.call("careful"))
    await killed.end(signal.SIGKILL)
    next_ = await replicas.start("--hand-over-after", "30")
    async with calling(next_.url, MODERN) as client:
        done = await wait(client, task_id)

    assert texts_of(done) == [f"from 3 in {next_.pid}"]


# Storages and streams that fail


@row(131)
@pytest.mark.parametrize("step", ["leave", "get"])
async def test_a_storage_that_is_busy_during_the_hand_over_costs_only_a_moment(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(hand_over_after=SOON) as site, calling(site.url, MODERN) as client:
        call = asyncio.create_task(client.call("gated"))
        await site.begins()
        be_busy_once(monkeypatch, step)
        task_id = task_id_of(await call)

        assert (await site.look(task_id)).task.status is Status.WORKING


def be_busy_once(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    original, failures = getattr(Runtime, step), [StorageBusy("for a moment")]

    async def busy_once(*given: Any, **named: Any) -> Any:
        if failures:
            raise failures.pop()
        return await original(*given, **named)

    monkeypatch.setattr(Runtime, step, busy_once)


@row(131)
async def test_a_question_that_cannot_reach_the_client_is_answered_by_its_model() -> None:
    async with (
        hosting(hand_over_after=SOON, json_response=True) as site,
        calling(site.url, CORE, answering=yes, capabilities={"elicitation": {}}) as client,
    ):
        task_id = task_id_of(await client.call("confirming"))
        await wait(client, task_id)
        await client.call("answer_task", {"task_id": task_id, "content": {"confirm": True}})

        assert (await wait(client, task_id)).result["isError"] is False
        assert (await site.look(task_id)).task.status is Status.COMPLETED


@row(131)
async def test_an_answer_to_a_task_that_has_ended_returns_its_result() -> None:
    async with (
        hosting(hand_over_after=SOON) as site,
        calling(site.url, MODERN, capabilities={"elicitation": {}}) as client,
        calling(site.url, MODERN, capabilities={}) as other,
    ):
        task_id = task_id_of(await other.call("confirming"))
        asked = await wait(client, task_id)
        await site.tasks.runtime.answer(ANYBODY, task_id, {"go": YES})
        await site.ended(task_id)
        answer = await client.call(
            "wait_for_task",
            {"task_id": task_id},
            requestState=asked.result["requestState"],
            inputResponses={"go": YES},
        )

    assert answer.result["isError"] is False
