"""2026-07-28, as the extension `io.modelcontextprotocol/tasks` has it."""

from __future__ import annotations

import pytest

from ..rows import row
from .wire import Modern

pytestmark = pytest.mark.anyio


@row(84)
async def test_a_task_is_found_as_soon_as_its_id_is_known_and_ends_with_the_result_of_the_call(
    modern: Modern,
) -> None:
    task_id = await modern.start("slow_compute", {"seconds": 0.1, "label": "x"})
    assert (await modern.get(task_id))["status"] in ("working", "completed")

    ended = await modern.until(task_id, "completed")

    assert ended["result"]["content"][0]["text"] == "computed x in 0.1 seconds"
    assert ended["result"]["resultType"] == ended["resultType"] == "complete"
