"""A client that goes away ends the task of its call, of which nobody else knows."""

from __future__ import annotations

import asyncio

import pytest

from perdure.mcp import task_stream
from perdure.runtime import Runtime
from perdure.storage.errors import StorageBusy
from perdure.tasks import NewTask, Owner, Snapshot, Status

from ...conditions import wait_until
from ...markers import row
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


@pytest.mark.parametrize("failures", [2, 1000])
async def test_a_task_that_cannot_be_cancelled_at_once_is_cancelled_later_or_logged(
    failures: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cancel, tried = Runtime.cancel, list[str]()

    async def cancel_later(runtime: Runtime, owner: Owner, task_id: str) -> Snapshot:
        tried.append(task_id)
        if len(tried) <= failures:
            raise StorageBusy("one moment")
        return await cancel(runtime, owner, task_id)

    monkeypatch.setattr(Runtime, "cancel", cancel_later)
    monkeypatch.setattr(task_stream, "CANCEL_SECONDS", 1.0)
    async with hosting() as site, Client2026(site.url) as client:
        call = asyncio.create_task(client.call("endless", declared=False))
        task_id = await site.begins()
        call.cancel()
        if failures == 2:
            assert (await site.ended(task_id)).task.status is Status.CANCELLED
        else:
            await wait_until(lambda: f"task {task_id} keeps running" in caplog.text)


async def test_a_call_that_a_stop_of_the_server_interrupts_ends_its_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server stops to serve while the task is stored, and the client has left."""
    create, goes_on, stored = Runtime.create, asyncio.Event(), list[Snapshot]()

    async def create_slowly(runtime: Runtime, owner: Owner, new: NewTask) -> Snapshot:
        stored.append(await create(runtime, owner, new))
        await goes_on.wait()
        return stored[0]

    monkeypatch.setattr(Runtime, "create", create_slowly)
    async with hosting() as site, Client2026(site.url) as client:
        runtime, serving = site.tasks.runtime, site.tasks._serving  # pyright: ignore[reportPrivateUsage]
        call = asyncio.create_task(client.call("endless", declared=False))
        await wait_until(lambda: len(stored) == 1)
        call.cancel()
        await asyncio.sleep(0.2)  # until the server has noticed it
        running, serving.running = serving.running, None
        goes_on.set()
        ended = await runtime.wait(stored[0].task.owner, stored[0].task.task_id, timeout=10)
        serving.running = running

    assert ended.task.status is Status.CANCELLED


@row(115)
async def test_the_task_of_a_call_that_can_be_repeated_depends_on_no_process() -> None:
    async with (
        hosting(authenticated=True) as site,
        Client2026(site.url, token="ana") as client,  # noqa: S106, a name
    ):
        meta = {"perdure/idempotencyKey": "mine"}
        params = {"name": "endless", "arguments": {}, "_meta": meta}
        call = asyncio.create_task(client.send("tools/call", params, declared=False))
        task_id = await site.begins()
        task = (await site.look(task_id, Owner.user("client client", "ana"))).task
        call.cancel()

    assert (task.status, task.attended_by) == (Status.WORKING, None)
