"""2025-11-25, which has tasks in its core."""

from __future__ import annotations

import pytest

from ..rows import row
from .wire import Core, Json

pytestmark = pytest.mark.anyio


@row(82)
async def test_the_result_of_a_task_is_what_the_call_would_have_returned(core: Core) -> None:
    task_id = await core.start("slow_compute", {"seconds": 0.1, "label": "x"})

    answer = await core.send("tasks/result", {"taskId": task_id})

    assert answer.result["content"][0]["text"] == "computed x in 0.1 seconds"


async def test_what_a_task_asks_reaches_the_client_on_the_stream_of_its_result(url: str) -> None:
    async def yes(request: Json) -> Json:
        return {"action": "accept", "content": {"confirm": True}}

    async with Core(url, answering=yes) as core:
        task_id = await core.start("confirm_delete", {"filename": "a.txt"})
        answer = await core.send("tasks/result", {"taskId": task_id})

    assert answer.result["content"][0]["text"] == "deleted a.txt"
    assert core.asked[0]["params"]["_meta"]["io.modelcontextprotocol/related-task"] == {"taskId": task_id}
