"""What a durable tool tells and asks reaches clients, and their answers reach its run."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import pytest
from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import Elicit, Resolve
from pydantic import BaseModel

from perdure import Task
from perdure.runtime import Retry

from ...conditions import wait_until
from ..raw_clients import Client2025, Json
from ..tool_helpers import NAME_FORM
from .tool_server import ADA, NO, ToolServer, text_of

pytestmark = pytest.mark.anyio


# What it tells and asks


async def test_what_a_tool_reports_is_the_message_and_the_progress_of_its_task(bench: ToolServer) -> None:
    go_on, finish = asyncio.Event(), asyncio.Event()

    @bench.tool()
    async def work(task: Task) -> str:
        await task.report_progress(3, 12, "collecting")
        await go_on.wait()
        await task.report_progress(12.5, message="binding")
        await finish.wait()
        return "bound"

    async def reported(task_id: str, message: str = "collecting") -> bool:
        return (await bench.modern.get(task_id)).get("statusMessage") == message

    async with bench.running():
        task_id = await bench.modern.start("work")
        await wait_until(lambda: reported(task_id))
        working, core = await bench.modern.get(task_id), await bench.core.get(task_id)
        go_on.set()
        await wait_until(lambda: reported(task_id, "binding"))
        binding = await bench.modern.get(task_id)
        finish.set()
        done = await bench.end_of(task_id)
    for seen in (working, core):
        assert (seen["status"], seen["statusMessage"]) == ("working", "collecting")
        assert seen["_meta"]["perdure/progress"] == {"done": 3, "total": 12}
    for seen in (binding, done):
        assert seen["_meta"]["perdure/progress"] == {"done": 12.5}


MESSAGES: list[Json] = [{"role": "user", "content": {"type": "text", "text": "A title?"}}]
SAMPLE: Json = {"messages": MESSAGES, "maxTokens": 20}
SAMPLED: Json = {"role": "assistant", "content": {"type": "text", "text": "Dawn"}, "model": "m-1"}
ROOTS: Json = {"roots": [{"uri": "file:///home", "name": "home"}, {"uri": "file:///tmp"}]}


def add_curious(bench: ToolServer) -> None:
    @bench.tool()
    async def curious(task: Task) -> str:
        """Asks everything that can be asked."""
        person = await task.elicit("Who?", NAME_FORM, key="who")
        title = await task.sample(MESSAGES, max_tokens=20, key="title")
        roots = await task.list_roots(key="roots")
        said = title["content"]["text"]
        where = [(root.uri, root.name) for root in roots]
        return json.dumps([person.action, person.data, title["role"], title["model"], said, where])


CURIOUS = json.dumps(
    ["accept", {"name": "Ada"}, "assistant", "m-1", "Dawn", [["file:///home", "home"], ["file:///tmp", None]]]
)


async def test_what_a_tool_asks_is_answered_in_rounds_and_typed(bench: ToolServer) -> None:
    add_curious(bench)
    answers = {"who": ADA, "title": SAMPLED, "roots": ROOTS}
    asked: Json = {}
    async with bench.running():
        task_id = await bench.modern.start("curious")
        for key, answer in answers.items():

            async def is_asked(key: str = key) -> bool:
                asked.update((await bench.modern.get(task_id)).get("inputRequests", {}))
                return key in asked

            await wait_until(is_asked)
            await bench.modern.update(task_id, {key: answer})
        assert text_of(await bench.end_of(task_id)) == CURIOUS
    form = {"mode": "form", "message": "Who?", "requestedSchema": NAME_FORM}
    assert asked == {
        "who": {"method": "elicitation/create", "params": form},
        "title": {"method": "sampling/createMessage", "params": SAMPLE},
        "roots": {"method": "roots/list"},
    }


async def test_what_a_tool_asks_reaches_a_client_without_tasks_in_rounds_of_its_call(
    bench: ToolServer,
) -> None:
    add_curious(bench)
    answers = {"who": ADA, "title": SAMPLED, "roots": ROOTS}
    async with bench.running():
        call: Json = {"name": "curious", "arguments": {}}
        rounds: list[list[str]] = []
        result = (await bench.modern.send("tools/call", call, declared=False)).result
        while result["resultType"] == "input_required":
            rounds.append(list(result["inputRequests"]))
            given = {key: answers[key] for key in result["inputRequests"]}
            again = {**call, "inputResponses": given, "requestState": result["requestState"]}
            result = (await bench.modern.send("tools/call", again, declared=False)).result
    assert rounds == [["who"], ["title"], ["roots"]]
    assert result["content"][0]["text"] == CURIOUS


async def test_a_tool_hears_that_somebody_would_not_answer(bench: ToolServer) -> None:
    @bench.tool()
    async def work(task: Task) -> str:
        answer = await task.elicit("Who?", NAME_FORM)
        return f"{answer.action} {answer.data}"

    async with bench.running():
        task_id = await bench.modern.start("work")
        asked = await bench.modern.until(task_id, "input_required")
        await bench.modern.update(task_id, dict.fromkeys(asked["inputRequests"], NO))
        assert text_of(await bench.end_of(task_id)) == "decline None"


AGREEMENT: Json = {
    "type": "object",
    "properties": {
        "zone": {"type": "string"},
        "agree": {"type": "boolean"},
        "more": {"type": "object"},
        "copies": {"type": "integer"},
    },
}
"""Its fields are in no order but the one in which they were written."""


@pytest.mark.parametrize("agree", [True, False])
async def test_answers_are_plain_values(bench: ToolServer, agree: bool) -> None:  # noqa: FBT001
    @bench.tool()
    async def sign(task: Task) -> str:
        answer = await task.elicit("Agreed?", AGREEMENT, key="sign")
        return "signed" if answer.data and answer.data["agree"] else f"not signed: {answer.data}"

    content: Json = {"agree": agree, "copies": 2**53, "more": {"a": [1, None, "é"]}}
    async with bench.running():
        task_id = await bench.modern.start("sign")
        await bench.modern.until(task_id, "input_required")
        await bench.modern.update(task_id, {"sign": {"action": "accept", "content": content}})
        said = text_of(await bench.end_of(task_id))
    assert said == ("signed" if agree else f"not signed: {content}")


async def test_the_fields_of_a_form_keep_their_order(bench: ToolServer) -> None:
    @bench.tool()
    async def sign(task: Task) -> str:
        return (await task.elicit("Agreed?", AGREEMENT, key="sign")).action

    async with bench.running():
        task_id = await bench.modern.start("sign")
        asked = await bench.modern.until(task_id, "input_required")
        await bench.modern.cancel(task_id)
    schema = asked["inputRequests"]["sign"]["params"]["requestedSchema"]
    assert list(schema["properties"]) == ["zone", "agree", "more", "copies"]


@pytest.mark.parametrize("other", ["Sure?", "Agreed?"])
async def test_another_question_under_the_same_key_is_an_error_and_not_the_first_answer(
    bench: ToolServer, other: str, caplog: pytest.LogCaptureFixture
) -> None:
    @bench.tool()
    async def work(task: Task) -> str:
        first = await task.elicit("Agreed?", NAME_FORM, key="go")
        second = await task.elicit(other, NAME_FORM, key="go")
        return f"{first.action}, {second.action}"

    async with bench.running():
        task_id = await bench.modern.start("work")
        await bench.modern.until(task_id, "input_required")
        await bench.modern.update(task_id, {"go": ADA})
        ended = await bench.end_of(task_id)
    if other == "Agreed?":
        assert text_of(ended) == "accept, accept"
    else:
        assert ended["result"]["isError"]
        assert "the input key 'go' for another question" in caplog.text


# Resolvers


class Person(BaseModel):
    name: str


class Size(BaseModel):
    pages: int


def who() -> Elicit[Person]:
    return Elicit("Who is asking?", Person)


async def how_long(year: int, person: Annotated[Person, Resolve(who)]) -> Elicit[Size]:
    return Elicit(f"How long, {person.name}, for {year}?", Size)


def previous(year: int) -> int:
    return year - 1


async def with_value(year: int, before: Annotated[int, Resolve(previous)], task: Task) -> str:
    return f"{before} and {year} in attempt {task.attempt}"


async def with_answers(
    year: int,
    person: Annotated[Person, Resolve(who)],
    size: Annotated[Size, Resolve(how_long)],
    before: Annotated[int, Resolve(previous)],
) -> str:
    return f"{size.pages} pages on {before} and {year} for {person.name}"


async def with_outcome(person: Annotated[ElicitationResult[Person], Resolve(who)]) -> str:
    return person.data.name if isinstance(person, AcceptedElicitation) else f"{person.action}d"


def answer_to(request: Json) -> Json:
    is_size = "How long" in request["params"]["message"]
    return {"action": "accept", "content": {"pages": 12}} if is_size else ADA


async def test_a_resolver_that_asks_nothing_gives_its_value_to_the_run(bench: ToolServer) -> None:
    bench.tool()(with_value)
    async with bench.running():
        assert await bench.said("with_value", year=2026) == "2025 and 2026 in attempt 1"
        listed = (await bench.modern.send("tools/list")).result["tools"]
    assert list(listed[0]["inputSchema"]["properties"]) == ["year"]


async def test_resolvers_ask_before_there_is_a_task_and_their_answers_reach_the_run(
    bench: ToolServer,
) -> None:
    bench.tool()(with_answers)
    call: Json = {"name": "with_answers", "arguments": {"year": 2026}}
    messages: list[str] = []
    async with bench.running():
        result = (await bench.modern.send("tools/call", call)).result
        while result["resultType"] == "input_required":
            asked = result["inputRequests"]
            messages += [each["params"]["message"] for each in asked.values()]
            given = {key: answer_to(each) for key, each in asked.items()}
            again = {**call, "inputResponses": given, "requestState": result["requestState"]}
            result = (await bench.modern.send("tools/call", again)).result
        done = await bench.end_of(result["taskId"])
    assert messages == ["Who is asking?", "How long, Ada, for 2026?"]
    assert text_of(done) == "12 pages on 2025 and 2026 for Ada"


async def test_resolvers_ask_a_client_of_2025_on_the_stream_of_its_call(bench: ToolServer) -> None:
    bench.tool()(with_answers)

    async def answering(request: Json) -> Json:
        return answer_to(request)

    async with bench.running(), Client2025(bench.url, answering=answering) as core:
        task_id = await core.start("with_answers", {"year": 2026})
        result = (await core.send("tasks/result", {"taskId": task_id})).result
    assert [each["params"]["message"] for each in core.asked] == [
        "Who is asking?",
        "How long, Ada, for 2026?",
    ]
    assert result["content"][0]["text"] == "12 pages on 2025 and 2026 for Ada"


async def test_a_resolver_that_is_declined_ends_the_call_before_there_is_a_task(bench: ToolServer) -> None:
    bench.tool()(with_answers)
    call: Json = {"name": "with_answers", "arguments": {"year": 2026}}
    async with bench.running():
        asked = (await bench.modern.send("tools/call", call)).result
        given = dict.fromkeys(asked["inputRequests"], NO)
        again = {**call, "inputResponses": given, "requestState": asked["requestState"]}
        refused = (await bench.modern.send("tools/call", again)).result
    assert refused["isError"] is True
    assert "taskId" not in refused


async def test_a_tool_may_take_the_outcome_of_what_a_resolver_asked(bench: ToolServer) -> None:
    bench.tool()(with_outcome)
    call: Json = {"name": "with_outcome", "arguments": {}}
    async with bench.running():
        asked = (await bench.modern.send("tools/call", call)).result
        given = dict.fromkeys(asked["inputRequests"], NO)
        again = {**call, "inputResponses": given, "requestState": asked["requestState"]}
        made = (await bench.modern.send("tools/call", again)).result
        assert text_of(await bench.end_of(made["taskId"])) == "declined"


async def test_a_run_that_is_begun_again_asks_nothing_that_resolvers_asked(bench: ToolServer) -> None:
    @bench.tool(retries=1, backoff=0.0)
    async def work(person: Annotated[Person, Resolve(who)], task: Task) -> str:
        if task.attempt == 1:
            raise Retry("once more")
        return f"{person.name} in attempt {task.attempt}"

    call: Json = {"name": "work", "arguments": {}}
    async with bench.running():
        asked = (await bench.modern.send("tools/call", call)).result
        given = dict.fromkeys(asked["inputRequests"], ADA)
        again = {**call, "inputResponses": given, "requestState": asked["requestState"]}
        made = (await bench.modern.send("tools/call", again)).result
        assert text_of(await bench.end_of(made["taskId"])) == "Ada in attempt 2"
