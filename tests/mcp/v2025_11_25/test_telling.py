"""At 2025-11-25 the session that made a task is told of each of its statuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from ..raw_clients import Client2025, Json
from .server import RELATED, TASK_FIELDS, yes

pytestmark = pytest.mark.anyio


async def told_until(frames: AsyncIterator[Json], *statuses: str) -> list[Json]:
    """What notifications of status say, up to one of these."""
    told: list[Json] = []
    async with asyncio.timeout(15):
        async for frame in frames:
            if frame["method"] == "notifications/cancelled":  # of a ping, which no test has answered in time
                continue
            assert frame["method"] == "notifications/tasks/status"
            told.append(cast("Json", frame["params"]))
            if told[-1]["status"] in statuses:
                break
    return told


async def test_the_session_that_made_a_task_is_told_of_each_status_with_the_full_task(url: str) -> None:
    async with Client2025(url, answering=yes) as core, core.listen() as frames:
        task_id = await core.start("confirm_delete", {"filename": "a.txt"})
        asked = await told_until(frames, "input_required")
        await core.send("tasks/result", {"taskId": task_id})
        ended = await told_until(frames, "completed")
        read = await core.get(task_id)

    assert [task["status"] for task in asked] == ["input_required"]
    assert {**ended[-1], "pollInterval": None} == {**read, "pollInterval": None}
    assert all(set(task) >= TASK_FIELDS for task in asked + ended)
    assert not any(RELATED in task.get("_meta", {}) for task in asked + ended)


async def test_a_session_is_told_of_its_own_tasks_only(url: str) -> None:
    async with (
        Client2025(url) as core,
        Client2025(url) as other,
        core.listen() as frames,
        other.listen() as others,
    ):
        mine = await core.start("slow_compute", {"seconds": 0.01})
        assert {task["taskId"] for task in await told_until(frames, "completed")} == {mine}

        theirs = await other.start("slow_compute", {"seconds": 0.01})
        assert {task["taskId"] for task in await told_until(others, "completed")} == {theirs}


async def test_a_task_that_fails_and_one_that_is_cancelled_are_told_of_to_the_end(url: str) -> None:
    async with Client2025(url) as core, core.listen() as frames:
        await core.start("protocol_error_job")
        failed = (await told_until(frames, "failed"))[-1]

        task_id = await core.start("confirm_delete", {"filename": "a.txt"})
        await told_until(frames, "input_required")
        await core.send("tasks/cancel", {"taskId": task_id})
        cancelled = (await told_until(frames, "cancelled"))[-1]

    assert failed["statusMessage"]
    assert cancelled["taskId"] == task_id
