"""Clients that poll a task more often than they are advised to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count

import anyio
import pytest

from perdure import Owner
from perdure.mcp.handlers import EARLY_POLL_DELAY, MAX_POLLERS, MAX_REMEMBERED_POLLS, PollLimiter
from perdure.testing import SIMULATED_INTERVALS, SimulatedTime

from ..markers import row
from .conformance_server import make_server
from .raw_clients import Client2025, Client2026, Json, in_process

pytestmark = pytest.mark.anyio

SECONDS = 3
"""How long the task runs."""


@asynccontextmanager
async def polled(client_type: type[Client2025 | Client2026]) -> AsyncGenerator[Callable[[], Awaitable[Json]]]:
    """A task that runs for some seconds of simulated time, and a function that polls it."""
    server, tasks = make_server("memory:")
    simulated = SimulatedTime.current()
    assert simulated is not None
    with tasks.overridden("memory:", owner=Owner.local(), clock=simulated.clock, **SIMULATED_INTERVALS):
        async with in_process(server.streamable_http_app()) as app, client_type(app) as client:
            task_id = await client.start("slow_compute", {"seconds": SECONDS})
            yield lambda: client.get(task_id)


@row(90)
@pytest.mark.parametrize("client_type", [Client2026, Client2025])
def test_a_client_in_a_hurry_needs_few_polls_and_learns_of_the_end_when_it_comes(
    client_type: type[Client2025 | Client2026],
) -> None:
    """In simulated time a poll that is not delayed takes no time: without delays, the task never ends.

    Between two delays, at most as many polls come as if that many clients did as they were advised.
    """
    limit = (SECONDS / EARLY_POLL_DELAY + 1) * (1 + MAX_POLLERS)

    async def scenario() -> tuple[int, float]:
        async with polled(client_type) as poll:
            started, polls = anyio.current_time(), 1
            while (await poll())["status"] == "working" and polls <= limit:
                polls += 1
            return polls, anyio.current_time() - started

    polls, elapsed = SimulatedTime().run(scenario)
    assert polls <= limit
    assert elapsed == pytest.approx(SECONDS)


async def test_a_client_that_is_delayed_sees_a_question_soon(modern: Client2026) -> None:
    task_id = await modern.start("confirm_delete", {"filename": "a.txt"})

    async with asyncio.timeout(15):
        while (await modern.get(task_id))["status"] != "input_required":
            pass


@pytest.mark.parametrize(
    ("client_type", "interval"), [(Client2026, "pollIntervalMs"), (Client2025, "pollInterval")]
)
def test_a_client_that_polls_as_advised_is_never_delayed(
    client_type: type[Client2025 | Client2026], interval: str
) -> None:
    """The advised interval grows with the age of the task. A poll is compared with the advice it had."""

    async def scenario() -> list[float]:
        delays: list[float] = []
        async with polled(client_type) as poll:
            while True:
                started = anyio.current_time()
                task = await poll()
                delays.append(anyio.current_time() - started)
                if task["status"] != "working":
                    return delays
                await anyio.sleep(task[interval] / 1000)

    first, *advised = SimulatedTime().run(scenario)
    assert first == pytest.approx(EARLY_POLL_DELAY)  # right after the call, which came with an advice, too
    assert len(advised) >= 5
    assert max(advised) == pytest.approx(0, abs=1e-6)


async def test_a_client_in_a_hurry_does_not_delay_one_that_polls_as_advised() -> None:
    polls = PollLimiter()
    polls.promise("task", 50)
    for _ in range(10 * MAX_POLLERS):
        assert polls.comes_early("task")
        polls.promise("task", 60_000)
    await anyio.sleep(0.06)
    assert not polls.comes_early("task")
    assert polls.comes_early("task")


def test_clients_that_poll_the_same_task_as_advised_are_not_delayed() -> None:
    """A client that did not create the task has no advice before its first poll."""

    async def scenario() -> list[float]:
        delays: list[float] = []

        async def follow(poll: Callable[[], Awaitable[Json]], offset: float) -> None:
            await anyio.sleep(offset)
            for number in count():
                started = anyio.current_time()
                task = await poll()
                if number > 1:
                    delays.append(anyio.current_time() - started)
                if task["status"] != "working":
                    return
                await anyio.sleep(task["pollIntervalMs"] / 1000)

        async with polled(Client2026) as poll, anyio.create_task_group() as group:
            for offset in (0.06, 0.11, 0.2, 0.3):
                group.start_soon(follow, poll, offset)
        return delays

    delays = SimulatedTime().run(scenario)
    assert len(delays) >= 20
    assert max(delays) == pytest.approx(0, abs=1e-6)


async def test_a_poll_is_early_before_the_time_that_was_promised() -> None:
    polls = PollLimiter()
    assert not polls.comes_early("a")

    polls.promise("a", 0)
    polls.promise("a", 60_000)
    assert not polls.comes_early("b")
    assert not polls.comes_early("a")
    assert polls.comes_early("a")


async def test_no_more_polls_are_remembered_than_fit() -> None:
    polls = PollLimiter()
    for number in range(MAX_REMEMBERED_POLLS + 1):
        polls.promise(str(number), 60_000)

    assert not polls.comes_early("0")
    assert polls.comes_early("1")
