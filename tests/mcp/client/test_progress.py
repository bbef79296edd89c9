"""A progress callback of `ClientTasks.call` gets the progress of the task, in both generations."""

from __future__ import annotations

import asyncio

import pytest
from mcp.client.session import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult

from perdure import Task

from ...conditions import wait_until
from ...markers import row
from ..raw_clients import Json
from ..tool_helpers import NAME_FORM, text_of
from .tool_server import BOTH, AnsweringUser, Mode, Target, ToolServer, visiting

pytestmark = pytest.mark.anyio


@row(127)
@BOTH
async def test_a_progress_callback_gets_each_report_once(
    shop: ToolServer, target: Target, mode: Mode
) -> None:
    reports: list[tuple[float, float | None, str | None]] = []
    page = 1

    def report(task: Json) -> Json:
        return {**task, "statusMessage": "writing", "_meta": {"perdure/progress": {"done": page, "total": 2}}}

    async def progress(done: float, total: float | None, message: str | None) -> None:
        reports.append((done, total, message))
        if done == 1:
            raise ValueError("a callback that fails does not end the call")

    shop.answers.changing["tasks/get"] = report
    async with visiting(target, mode) as visitor:
        calling = asyncio.create_task(visitor.call("hold", progress_callback=progress))
        await wait_until(lambda: len(shop.watch.of("tasks/get")) > 3)
        page = 2
        await wait_until(lambda: len(reports) > 1)
        shop.gate.set()
        assert text_of(await calling) == "held "

    assert reports == [(1, 2, "writing"), (2, 2, "writing")]


@row(127)
@BOTH
async def test_progress_is_reported_while_and_after_the_task_asks(
    shop: ToolServer, target: Target, mode: Mode
) -> None:
    @shop.server.tool()
    @shop.tasks.durable(poll_interval=0.05)
    async def ask_and_report(task: Task) -> str:
        await task.report_progress(1, 3)
        await task.elicit("Who?", NAME_FORM)
        await task.report_progress(2, 3)
        await task.elicit("And who?", NAME_FORM)
        await task.report_progress(3, 3, "the last page")
        await shop.gate.wait()
        return "done"

    reports: list[float] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        reports.append(done)

    person = Slow(reports)
    async with visiting(target, mode, person=person) as visitor:
        calling = asyncio.create_task(visitor.call("ask_and_report", progress_callback=progress))
        await wait_until(lambda: reports == [1, 2, 3], seconds=20)
        shop.gate.set()
        assert text_of(await calling) == "done"

    assert reports == [1, 2, 3]  # and not once more because the message of the last report is gone
    assert person.asked == ["Who?", "And who?"]


class Slow(AnsweringUser):
    """Answers when the progress that was reported before the question has arrived."""

    def __init__(self, reports: list[float]) -> None:
        super().__init__()
        self._reports = reports

    async def elicit(self, _: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params.message)
        await wait_until(lambda: len(self._reports) >= len(self.asked), seconds=20)
        return ElicitResult(action="accept", content={"name": self.name})
