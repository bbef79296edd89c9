"""A client that goes away ends the task of its call, of which nobody else knows."""

from __future__ import annotations

import asyncio

import pytest

from perdure.runtime import Runtime
from perdure.tasks import NewTask, Owner, Snapshot, Status

from ..raw_clients import Client2025, Client2026
from .tool_server import HANDSHAKES, Cancelling, hosting

pytestmark = pytest.mark.anyio


async def test_a_client_of_the_later_generation_that_disconnects_ends_its_task() -> None:
    async with hosting() as site, Client2026(site.url) as client:
        call = asyncio.create_task(client.call("endless", declared=False))
        task_id = await site.begins()
        call.cancel()

        assert (await site.ended(task_id)).task.status is Status.CANCELLED


async def test_a_client_that_disconnects_while_its_task_is_stored_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create, goes_on = Runtime.create, asyncio.Event()
    made: list[Snapshot] = []

    async def create_slowly(runtime: Runtime, owner: Owner, new: NewTask) -> Snapshot:
        made.append(await create(runtime, owner, new))
        await goes_on.wait()
        return made[0]

    monkeypatch.setattr(Runtime, "create", create_slowly)
    async with hosting() as site, Client2026(site.url) as client:
        call = asyncio.create_task(client.call("endless", declared=False))
        task_id = await site.begins()
        call.cancel()
        await asyncio.sleep(0.2)  # until the server has heard of it
        goes_on.set()

        assert (await site.ended(task_id)).task.status is Status.CANCELLED


@pytest.mark.parametrize("version", HANDSHAKES)
async def test_a_client_that_cancels_its_call_ends_its_task(version: str) -> None:
    async with hosting() as site, Cancelling(site.url, version=version) as client:
        call = asyncio.create_task(client.call("endless"))
        task_id = await site.begins()
        await client.cancel_first_call()

        assert (await site.ended(task_id)).task.status is Status.CANCELLED
        call.cancel()


async def test_a_task_that_a_client_knows_of_goes_on_when_the_client_disconnects() -> None:
    async with hosting() as site:
        async with Client2026(site.url) as client:
            one = await client.start("endless")
        async with Client2025(site.url) as core:
            two = await core.start("endless")
        async with Client2026(site.url) as client:
            assert [(await client.get(task_id))["status"] for task_id in (one, two)] == ["working"] * 2
