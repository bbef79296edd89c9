"""What a task asks is answered once, by the callbacks of the client or by hand, and may be refused."""

from __future__ import annotations

from typing import Any, NoReturn, cast

import pytest
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequestParams, ElicitResult, ErrorData

from perdure.mcp.client import ClientTask, TaskState
from perdure.mcp.errors import AnswersNotSupported, TaskWasCancelled

from ...conditions import wait_until
from ..conformance_server import make_server
from ..raw_clients import Json, serving
from ..tool_helpers import text_of
from .tool_server import BOTH, AnsweringUser, Mode, Target, ToolServer, raised_by, told_by, visiting

pytestmark = pytest.mark.anyio


class Shy(AnsweringUser):
    """Answers that it will not."""

    async def elicit(self, _: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        self.asked.append(params.message)
        return ErrorData(code=-32077, message="I would rather not", data={"because": "shy"})


async def asking(task: ClientTask, *keys: str) -> TaskState:
    """The task once it asks these things."""

    async def met() -> bool:
        return set((await task.status()).input_requests) == set(keys)

    await wait_until(met)
    return await task.status()


@BOTH
@pytest.mark.parametrize("by_handle", [False, True])
async def test_questions_are_answered_by_the_clients_own_callbacks_each_once(
    target: Target, mode: Mode, *, by_handle: bool
) -> None:
    person = AnsweringUser()
    async with visiting(target, mode, person=person) as visitor:
        if by_handle:
            result = await (await visitor.start("ask_all")).wait(20)
        else:
            result = await visitor.client.call_tool("ask_all")

    assert text_of(result) == "Ada, wit, 1"
    assert person.asked == ["Who?", "sampling", "roots"]


async def test_several_questions_at_once_are_answered_each_once(shop: ToolServer, target: Target) -> None:
    person = AnsweringUser()
    async with visiting(target, person=person) as visitor:
        result = await visitor.client.call_tool("ask_two")

    assert text_of(result) == "first: Ada, second: Ada"
    assert person.asked == ["Who?", "Who?"]
    assert [set(seen.params["inputResponses"]) for seen in shop.watch.of("tasks/update")] == [
        {"first", "second"}
    ]


async def test_a_question_that_is_still_shown_after_its_answer_is_not_asked_again(
    shop: ToolServer, url: str
) -> None:
    shown: list[Json] = []

    def lagging(task: Json) -> Json:
        """A replica that sees the answer late."""
        if task["status"] == "input_required":
            shown.append(task)
        return shown[0] if shown and len(shop.watch.of("tasks/get")) < 8 else task

    shop.answers.changing["tasks/get"] = lagging
    person = AnsweringUser()
    async with visiting(url, person=person) as visitor:
        assert text_of(await visitor.client.call_tool("ask_two")) == "first: Ada, second: Ada"

    assert person.asked == ["Who?", "Who?"]


@pytest.mark.parametrize("push", [False, True])
async def test_what_a_callback_refuses_is_raised_as_it_refused(
    shop: ToolServer, target: Target, *, push: bool
) -> None:
    async with visiting(target, person=Shy(), push=push) as visitor:
        error = await raised_by(visitor.client.call_tool("ask_two"))

    assert told_by(error) == (-32077, "I would rather not", {"because": "shy"})


async def test_a_call_that_ends_because_a_callback_refuses_leaves_no_task_that_waits_for_ever(
    shop: ToolServer, url: str
) -> None:
    async with visiting(url, person=Shy()) as visitor:
        await raised_by(visitor.client.call_tool("ask_two"))
        await shop.until_statuses("cancelled")


class Broken(AnsweringUser):
    """Fails when it is asked."""

    async def elicit(self, _: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        raise KeyError(params.message)


@pytest.mark.parametrize("by_extension", [False, True])
async def test_a_callback_that_raises_leaves_no_task_that_waits(
    shop: ToolServer, target: Target, *, by_extension: bool
) -> None:
    async with visiting(target, person=Broken()) as visitor:
        if by_extension:
            error = await raised_by(visitor.call("ask_two"))
        else:
            error = await raised_by(visitor.client.call_tool("ask_two"))
        await wait_until(lambda: bool(shop.watch.of("tasks/cancel")))
    assert isinstance(error, MCPError)
    assert isinstance(error.__cause__, KeyError)


@BOTH
async def test_a_handle_whose_callback_refuses_is_told_so_and_can_still_be_cancelled(
    shop: ToolServer, target: Target, mode: Mode
) -> None:
    async with visiting(target, mode, person=Shy()) as visitor:
        task = await visitor.start("ask_two")
        error = await raised_by(task.wait(20))
        assert "I would rather not" in error.message
        if mode == "legacy":  # there the server hears of it, and the tool did not catch it
            assert (await task.status()).status == "failed"
            return
        assert (await task.status()).status == "input_required"
        await task.cancel()
        await shop.until_statuses("cancelled")
        with pytest.raises(TaskWasCancelled):
            await task.wait(10)


async def test_questions_can_be_answered_by_hand_and_one_by_one(target: Target) -> None:
    person = AnsweringUser()
    async with visiting(target, person=person) as visitor:
        task = await visitor.start("ask_two")
        state = await asking(task, "first", "second")
        assert {key: cast("Any", asked.params).message for key, asked in state.questions.items()} == {
            "first": "Who?",
            "second": "Who?",
        }
        await task.answer({"first": {"action": "accept", "content": {"name": "Bob"}}})
        assert set((await task.status()).input_requests) == {"second"}
        assert text_of(await task.wait(20)) == "first: Bob, second: Ada"

    assert person.asked == ["Who?"]


async def test_at_2025_11_25_questions_cannot_be_answered_by_hand(target: Target) -> None:
    async with visiting(target, "legacy") as visitor:
        task = await visitor.start("ask_two")
        with pytest.raises(AnswersNotSupported, match="callbacks"):
            await task.answer({"first": {"action": "decline"}})
        assert text_of(await task.wait(20)) == "first: Ada, second: Ada"


async def test_a_tool_that_asks_before_there_is_a_task_is_answered_and_then_started(
    anyio_backend: str,
) -> None:
    server, _ = make_server("memory:")
    async with serving(server.streamable_http_app()) as url, visiting(url) as visitor:
        task = await visitor.start("test_tool_with_task")
        assert text_of(await task.wait(20)) == "done for Ada"


async def test_at_2025_11_25_a_client_that_cannot_be_asked_does_not_wait(
    shop: ToolServer, target: Target
) -> None:
    def refuse() -> NoReturn:
        raise MCPError(-32042, "there is nobody to ask")

    shop.answers.instead["tasks/result"] = refuse
    async with visiting(target, "legacy") as visitor:
        task = await visitor.start("ask_two")
        error = await raised_by(task.wait(20))
        assert (told_by(error), error.__notes__) == (
            (-32042, "there is nobody to ask", None),
            [f"task id: {task.id}"],
        )
