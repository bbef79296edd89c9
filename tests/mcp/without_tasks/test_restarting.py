"""The call of a client without tasks ends with its connection, also if its server is killed or stops."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress

import httpx2
import pytest

from perdure.tasks import Snapshot, Status, TaskRecord
from perdure.tasks.task_snapshot import LEASES, TASKS

from ...conditions import wait_until
from ...markers import row
from ..raw_clients import CORE, MODERN
from ..replicas import Replica, Replicas
from .tool_server import calling

pytestmark = pytest.mark.anyio


async def task_of(replicas: Replicas) -> TaskRecord | None:
    """The one task that is stored, if there is one."""
    found = await replicas.records(TASKS)
    assert len(found) <= 1
    return Snapshot.from_record(found[0]).task if found else None


async def running(replicas: Replicas) -> TaskRecord:
    """The one task, once its tool has noted that it runs."""

    async def is_running() -> bool:
        task = await task_of(replicas)
        return task is not None and "pid" in task.variables

    await wait_until(is_running)
    task = await task_of(replicas)
    assert task is not None
    return task


async def ended(replicas: Replicas) -> TaskRecord:
    async def has_ended() -> bool:
        task = await task_of(replicas)
        return task is not None and task.is_terminal

    await wait_until(has_ended)
    task = await task_of(replicas)
    assert task is not None
    return task


async def nothing_is_left(replicas: Replicas) -> bool:
    return await replicas.records(LEASES) == []


async def end_while_a_call_waits(
    replicas: Replicas, server: Replica, version: str, number: signal.Signals
) -> None:
    async with calling(server.url, version) as client:
        call = asyncio.create_task(client.call("careful"))
        assert (await running(replicas)).attended_by is not None
        await server.end(number)
        with suppress(httpx2.HTTPError, AssertionError, ValueError):  # the connection was closed
            await call


@row(115)
@pytest.mark.parametrize("version", [MODERN, CORE])
async def test_the_task_of_a_waiting_call_is_cancelled_after_a_kill_and_not_run_again(
    replicas: Replicas, version: str
) -> None:
    await end_while_a_call_waits(replicas, await replicas.start_doomed(), version, signal.SIGKILL)
    await replicas.start()

    task = await ended(replicas)

    assert (task.status, task.attempts) == (Status.CANCELLED, 1)
    await wait_until(lambda: nothing_is_left(replicas))


@row(115)
@pytest.mark.parametrize("version", [MODERN, CORE])
async def test_the_task_of_a_waiting_call_is_cancelled_when_the_server_stops(
    replicas: Replicas, version: str
) -> None:
    await end_while_a_call_waits(replicas, await replicas.start(), version, signal.SIGTERM)

    task = await task_of(replicas)

    assert task is not None
    assert (task.status, task.attempts) == (Status.CANCELLED, 1)
    assert await nothing_is_left(replicas)


@row(115)
async def test_a_task_that_a_worker_runs_is_cancelled_when_the_server_in_which_its_client_waits_is_killed(
    replicas: Replicas,
) -> None:
    worker = await replicas.start()
    server = await replicas.start("--doomed", "--no-work")
    await end_while_a_call_waits(replicas, server, MODERN, signal.SIGKILL)

    task = await ended(replicas)

    assert (task.status, task.attempts) == (Status.CANCELLED, 1)
    assert task.variables["pid"] == worker.pid
    await wait_until(lambda: nothing_is_left(replicas))
