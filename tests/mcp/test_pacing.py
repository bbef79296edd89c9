"""Clients that look at a task more often than they are told to."""

from __future__ import annotations

import asyncio
import time

import pytest

from perdure.mcp.handlers import EARLY_POLL_DELAY, MAX_REMEMBERED_POLLS, PollLimiter

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


async def test_a_client_that_polls_as_advised_is_never_delayed(modern: Client2026, core: Client2025) -> None:
    """The advised interval grows with the age of the task. A poll is compared with the advice it had."""
    task_id = await modern.start("slow_compute", {"seconds": 3})
    delayed = EARLY_POLL_DELAY * 0.9
    slow: list[float] = []
    for client, name in ((modern, "pollIntervalMs"), (core, "pollInterval")):
        interval = (await client.get(task_id))[name]
        for _ in range(6):
            await asyncio.sleep(interval / 1000 + 0.002)
            started = time.monotonic()
            interval = (await client.get(task_id))[name]
            if time.monotonic() - started > delayed:
                slow.append(interval)
    assert len(slow) <= 1  # a busy machine may delay one


def test_a_poll_is_early_before_the_time_that_was_promised() -> None:
    polls = PollLimiter()
    assert not polls.is_early("a")

    polls.promise("a", 60_000)
    assert polls.is_early("a")
    assert not polls.is_early("b")

    polls.promise("a", 0)
    assert not polls.is_early("a")


def test_no_more_polls_are_remembered_than_fit() -> None:
    polls = PollLimiter()
    for number in range(MAX_REMEMBERED_POLLS + 1):
        polls.promise(str(number), 60_000)

    assert not polls.is_early("0")
    assert polls.is_early("1")
