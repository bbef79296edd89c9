"""A task at its client shows its state, waits, cancels, and can be saved and resumed by another client."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from mcp_types import INVALID_PARAMS

from perdure.mcp.client import ClientTask, TaskState
from perdure.mcp.errors import InvalidTaskResponse, TaskWasCancelled

from ...conditions import wait_until
from ..tool_helpers import text_of
from .tool_server import (
    BOTH,
    AnsweringUser,
    Mode,
    Target,
    ToolServer,
    cancelled,
    opened,
    raised_by,
    told_by,
    visiting,
)

pytestmark = pytest.mark.anyio


# Handles


@BOTH
async def test_a_handle_shows_its_task_and_waits_for_its_result(
    shop: ToolServer, target: Target, mode: Mode
) -> None:
    async with visiting(target, mode) as visitor:
        task = await visitor.start("hold", {"label": "it"})
        assert task.tool == "hold"
        assert (await task.status()).status == "working"
        assert (await task.status()).task_id == task.id
        shop.gate.set()
        assert text_of(await task.wait(20)) == "held it"
        assert (await task.status()).status == "completed"


@BOTH
async def test_a_wait_that_times_out_leaves_the_task_as_it_is(
    shop: ToolServer, target: Target, mode: Mode
) -> None:
    async with visiting(target, mode) as visitor:
        task = await visitor.start("hold")
        with pytest.raises(TimeoutError):
            await task.wait(0.3)
        assert (await task.status()).status == "working"
        shop.gate.set()
        assert text_of(await task.wait(20)) == "held "


@BOTH
async def test_a_wait_that_is_cancelled_leaves_the_task_as_it_is(
    shop: ToolServer, target: Target, mode: Mode
) -> None:
    async with visiting(target, mode) as visitor:
        task = await visitor.start("hold")
        waiting = asyncio.create_task(task.wait())
        await wait_until(lambda: len(shop.watch.of("tasks/get")) > 0)
        await cancelled(waiting)
        shop.gate.set()
        assert text_of(await task.wait(20)) == "held "


@BOTH
async def test_a_cancelled_task_is_told_apart_from_one_that_failed(target: Target, mode: Mode) -> None:
    async with visiting(target, mode) as visitor:
        task = await visitor.start("hold")
        await task.cancel()
        with pytest.raises(TaskWasCancelled) as raised:
            await task.wait(10)
        assert raised.value.task_id == task.id
        broken = await visitor.start("break_off")
        assert told_by(await raised_by(broken.wait(10)))[0] == -32042


@BOTH
async def test_to_cancel_a_task_that_has_ended_changes_nothing(
    shop: ToolServer, target: Target, mode: Mode
) -> None:
    shop.gate.set()
    async with visiting(target, mode) as visitor:
        ended, gone = await visitor.start("hold"), await visitor.start("ask_two")
        await ended.wait(20)
        await ended.cancel()
        assert text_of(await ended.wait(20)) == "held "
        await gone.cancel()
        await gone.cancel()
        assert (await gone.status()).status == "cancelled"


@BOTH
async def test_a_task_that_is_cancelled_by_another_while_it_is_waited_for_is_told_so(
    shop: ToolServer, url: str, mode: Mode
) -> None:
    async with visiting(url, mode) as one, visiting(url, mode) as other:
        task = await one.start("hold")
        waiting = asyncio.create_task(task.wait(20))
        await wait_until(lambda: len(shop.watch.of("tasks/get", task.id)) > 0)
        await other.resume(task.save()).cancel()
        with pytest.raises(TaskWasCancelled):
            await waiting


@BOTH
async def test_every_state_in_which_a_task_is_seen_is_shown(
    shop: ToolServer, target: Target, mode: Mode
) -> None:
    states: list[TaskState] = []
    async with visiting(target, mode) as visitor:
        task = await visitor.start("hold")
        waiting = asyncio.create_task(task.wait(20, on_state=states.append))
        await wait_until(lambda: len(states) > 0)
        shop.gate.set()
        await waiting

    assert (states[0].status, states[-1].status) == ("working", "completed")
    assert {state.task_id for state in states} == {task.id}


@BOTH
async def test_a_call_that_is_answered_at_once_is_a_task_that_has_ended(target: Target, mode: Mode) -> None:
    async with visiting(target, mode) as visitor:
        task = await visitor.start("greet", {"name": "Ada"})
        for each in (task, visitor.resume(task.save())):
            assert (each.id, each.tool) == ("", "greet")
            assert (await each.status()).status == "completed"
            await each.cancel()
            await each.answer({"key": {"action": "decline"}})
            assert text_of(await each.wait(10)) == "Hello, Ada!"


async def test_a_call_that_is_refused_starts_nothing(shop: ToolServer, target: Target) -> None:
    async with visiting(target) as visitor:
        task = await visitor.start("add", {"left": "two"})
        assert (await task.wait(10)).is_error
        assert await shop.statuses() == []


async def test_at_2025_11_25_a_call_that_is_refused_starts_nothing(shop: ToolServer, target: Target) -> None:
    """A client that asks for a task cannot be given a result in its place."""
    async with visiting(target, "legacy") as visitor:
        error = await raised_by(visitor.tasks.start(visitor.client, "add", {"left": "two"}))
        assert error.code == INVALID_PARAMS
        assert await shop.statuses() == []


@BOTH
async def test_a_call_that_is_started_twice_with_one_key_is_one_task(
    shop: ToolServer, tmp_path: Path, mode: Mode
) -> None:
    async with visiting(shop.server, mode) as visitor:
        first = await visitor.start("hold", {"label": "it"}, idempotency_key="once")
        again = await visitor.start("hold", {"label": "it"}, idempotency_key="once")
        other = await visitor.start("hold", {"label": "it"}, idempotency_key="twice")

    assert first.id == again.id != other.id


async def test_at_2025_11_25_a_caller_says_how_long_its_task_is_kept(target: Target) -> None:
    async with visiting(target, "legacy") as visitor:
        task = await visitor.start("hold", ttl=timedelta(seconds=123))
        assert (await task.status()).ttl_ms == 2 * 123_000  # at least that long from now on


# Handles that are kept


@BOTH
async def test_a_handle_is_resumed_by_another_client_when_the_first_is_gone(
    shop: ToolServer, url: str, mode: Mode
) -> None:
    async with visiting(url, mode) as first:
        kept = (await first.start("hold", {"label": "it"})).save()
    async with visiting(url, mode) as second:
        task = second.resume(kept)
        assert (task.tool, (await task.status()).status) == ("hold", "working")
        shop.gate.set()
        assert text_of(await task.wait(20)) == "held it"


async def test_a_handle_is_resumed_at_another_version_of_the_protocol(shop: ToolServer, url: str) -> None:
    async with visiting(url, "legacy") as first:
        kept = (await first.start("hold", {"label": "it"})).save()
    shop.gate.set()
    async with visiting(url, "auto") as second:
        assert text_of(await second.resume(kept).wait(20)) == "held it"


@BOTH
async def test_a_handle_is_resumed_when_the_server_was_restarted(tmp_path: Path, mode: Mode) -> None:
    storage = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with opened(storage) as (_, url), visiting(url, mode) as visitor:
        task = await visitor.start("ask_two")
        await wait_until(lambda: _is_asking(task))
        kept = task.save()
    person = AnsweringUser("Bob")
    async with opened(storage) as (_, url), visiting(url, mode, person=person) as visitor:
        assert text_of(await visitor.resume(kept).wait(30)) == "first: Bob, second: Bob"

    assert person.asked == ["Who?", "Who?"]


async def _is_asking(task: ClientTask) -> bool:
    return (await task.status()).status == "input_required"


@pytest.mark.parametrize(
    "kept", ["", "null", "[]", "{}", '{"task_id": 5, "tool": "hold"}', "not json", "\ud800"]
)
async def test_what_is_no_kept_handle_is_refused_by_name(url: str, kept: str) -> None:
    async with visiting(url) as visitor:
        with pytest.raises(InvalidTaskResponse, match="not a saved task"):
            visitor.resume(kept)


@BOTH
async def test_a_handle_of_a_task_that_there_is_not_raises_what_the_server_says(url: str, mode: Mode) -> None:
    async with visiting(url, mode) as visitor:
        task = visitor.resume(f'{{"task_id": "{"0" * 32}", "tool": "hold"}}')
        for awaitable in (task.status(), task.wait(10), task.cancel()):
            assert (await raised_by(awaitable)).code == -32602
