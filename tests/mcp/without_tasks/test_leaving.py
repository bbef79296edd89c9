"""A client that goes away ends the task of its call, of which nobody else knows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp.server.streamable_http import EventCallback, EventStore, StreamId
from mcp_types import JSONRPCMessage

from perdure.mcp import admission
from perdure.runtime import Runtime, attendance
from perdure.storage.errors import StorageBusy
from perdure.tasks import NewTask, Owner, Snapshot, Status

from ...conditions import wait_until
from ...markers import row
from ..raw_clients import CORE, Client2025, Client2026, Json
from .tool_server import EVERY_VERSION, HANDSHAKES, Cancelling, calling, hosting

pytestmark = pytest.mark.anyio


class NoEvents(EventStore):
    """An event store that stores nothing: with one, clients may try to resume a stream."""

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> str:
        return "1"

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> StreamId | None:
        return None


@pytest.fixture(autouse=True)
def _quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "DISCONNECT_POLL_SECONDS", 0.05)


WAYS_TO_SERVE: list[tuple[str, dict[str, Any]]] = [
    *((version, {}) for version in EVERY_VERSION),
    (CORE, {"json_response": True}),
    (CORE, {"json_response": True, "event_store": NoEvents()}),  # an event store only serves streams
    (CORE, {"stateless_http": True, "json_response": True}),
]


@row(115)
@pytest.mark.parametrize(("version", "options"), WAYS_TO_SERVE)
async def test_a_client_that_disconnects_ends_its_task(version: str, options: dict[str, Any]) -> None:
    async with hosting(**options) as site, calling(site.url, version) as client:
        call = asyncio.create_task(client.call("endless"))
        task_id = await site.begins()
        call.cancel()

        assert (await site.ended(task_id)).task.status is Status.CANCELLED


@row(115)
async def test_a_client_that_disconnects_while_it_is_asked_ends_its_task() -> None:
    asked = asyncio.Event()

    async def never(request: Json) -> Json:
        asked.set()
        return await asyncio.Future[Json]()

    async with hosting() as site, calling(site.url, CORE, answering=never) as client:
        call = asyncio.create_task(client.call("confirming"))
        await asked.wait()
        call.cancel()

        assert (await site.ended(await site.begins())).task.status is Status.CANCELLED


@row(115)
@pytest.mark.parametrize("version", [CORE, "2025-06-18"])
async def test_the_task_of_a_client_that_can_resume_the_stream_ends_with_its_session(version: str) -> None:
    async with (
        hosting(event_store=NoEvents()) as site,
        Client2025(site.url, version=version) as client,
    ):
        call = asyncio.create_task(client.call("endless"))
        task_id = await site.begins()
        call.cancel()
        await asyncio.sleep(0.3)  # time for several checks whether the client is connected
        assert (await site.look(task_id)).task.status is Status.WORKING
        await client.end()

        assert (await site.ended(task_id)).task.status is Status.CANCELLED


@row(115)
async def test_the_task_of_a_client_that_does_not_resume_the_stream_ends_when_its_session_expires() -> None:
    async with (
        hosting(event_store=NoEvents(), session_idle_timeout=0.2) as site,
        Client2025(site.url) as client,
    ):
        call = asyncio.create_task(client.call("endless"))
        task_id = await site.begins()
        call.cancel()

        assert (await site.ended(task_id)).task.status is Status.CANCELLED


@row(115)
async def test_the_task_of_a_waiting_call_ends_with_its_session() -> None:
    async with hosting() as site, Client2025(site.url) as client:
        call = asyncio.create_task(client.call("endless"))
        task_id = await site.begins()
        await client.end()

        assert (await site.ended(task_id)).task.status is Status.CANCELLED
        call.cancel()


async def test_a_call_that_can_be_repeated_ends_with_its_connection_but_its_task_continues() -> None:
    async with (
        hosting(authenticated=True) as site,
        calling(site.url, CORE, token="ana") as client,  # noqa: S106, a name
    ):
        ana = Owner.user("client client", "ana")
        streams = site.tasks._handlers.streams._scopes  # pyright: ignore[reportPrivateUsage]
        call = asyncio.create_task(client.call("gated", _meta={"perdure/idempotencyKey": "mine"}))
        task_id = await site.begins()
        await wait_until(lambda: len(streams) == 1)
        call.cancel()
        await wait_until(lambda: not streams)
        site.gate.set()
        ended = await site.tasks.runtime.wait(ana, task_id, timeout=15)

    assert ended.task.status is Status.COMPLETED


@row(115)
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
    monkeypatch.setattr(attendance, "CANCEL_SECONDS", 1.0)
    async with hosting() as site, Client2026(site.url) as client:
        call = asyncio.create_task(client.call("endless", declared=False))
        task_id = await site.begins()
        call.cancel()
        if failures == 2:
            assert (await site.ended(task_id)).task.status is Status.CANCELLED
        else:
            await wait_until(lambda: f"could not cancel task {task_id}" in caplog.text)


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
        runtime, serving = site.tasks.runtime, site.tasks._handlers  # pyright: ignore[reportPrivateUsage]
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
