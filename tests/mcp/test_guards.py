"""What the tools that measure `perdure.mcp` count stays within their limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import calls, walk

pytestmark = pytest.mark.anyio


async def test_a_durable_call_and_its_poll_enter_few_files() -> None:
    entered = await walk.walk()
    assert {"admission.py", "handlers.py"} <= entered
    assert len(entered) <= walk.MAX_FILES == 8


async def test_an_empty_task_takes_few_python_calls(tmp_path: Path) -> None:
    parts = await calls.measure(tmp_path)
    assert all(part.total() > 100 for part in parts.values())
    assert calls.total_of(parts) <= calls.MAX_CALLS == 1905
