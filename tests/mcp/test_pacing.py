"""Clients that look at a task more often than they are told to."""

from __future__ import annotations

import asyncio
import time

import pytest

from perdure.mcp.pacing import MOST_REMEMBERED, Pacing

from ..markers import row
from .raw_clients import Client2025, Client2026

pytestmark = pytest.mark.anyio

FEW = 40
"""Unheld, these loops look some hundred times a second; held, four or five times, for as long as it takes."""


@row(90)
async def test_a_client_in_a_hurry_needs_few_looks_and_learns_of_the_end_when_it_comes(
    modern: Client2026,
) -> None:
    task_id = await modern.start("slow_compute", {"seconds": 1})
    looks = 1
    while (await modern.get(task_id))["status"] == "working":
        looks += 1

    assert looks < FEW


@row(90)
async def test_a_client_in_a_hurry_is_held_in_the_earlier_protocol_too(core: Client2025) -> None:
    task_id = await core.start("slow_compute", {"seconds": 1})
    looks = 1
    while (await core.get(task_id))["status"] == "working":
        looks += 1

    assert looks < FEW


async def test_a_client_that_is_held_hears_of_a_question_soon(modern: Client2026) -> None:
    task_id = await modern.start("confirm_delete", {"filename": "a.txt"})

    async with asyncio.timeout(15):
        while (await modern.get(task_id))["status"] != "input_required":
            pass


def test_only_who_was_told_less_than_an_interval_ago_is_early() -> None:
    pacing = Pacing()
    assert not pacing.is_early("a", 60_000)

    pacing.told("a")
    assert pacing.is_early("a", 60_000)
    assert not pacing.is_early("b", 60_000)

    time.sleep(0.06)
    assert not pacing.is_early("a", 50)


def test_no_more_tasks_are_remembered_than_fit() -> None:
    pacing = Pacing()
    for number in range(MOST_REMEMBERED + 1):
        pacing.told(str(number))

    assert not pacing.is_early("0", 60_000)
    assert pacing.is_early("1", 60_000)
