"""A progress callback of `ClientTasks.call` gets the progress of the task, in both generations."""

from __future__ import annotations

import asyncio

import pytest

from ...conditions import wait_until
from ...markers import row
from ..raw_clients import Json
from ..tool_helpers import text_of
from .tool_server import BOTH, Mode, Target, ToolServer, visiting

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
