"""What a worker knows of the processes in which clients wait, if its clock is an hour ahead of theirs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from perdure.runtime import Runtime, RuntimeConfig
from perdure.runtime import lease as leases
from perdure.runtime.attendance import Attendant, Attendants
from perdure.storage import Storage
from perdure.storage.time_types import HOUR

from ..conditions import wait_until
from ..markers import row, strong_memory
from .faulty_storage import MovedClock
from .replicas import QUICK, Replicas
from .test_attendance import ME, call, lease_of_process, recording, renew_lease

pytestmark = pytest.mark.anyio

LONG_MEMORY = replace(QUICK, heartbeat_interval=60.0, queue_poll_interval=60.0)
"""Of a worker that remembers for minutes when it read a lease, and that it was renewed."""


@asynccontextmanager
async def observed_from_an_hour_ahead(
    replicas: Replicas, config: RuntimeConfig
) -> AsyncGenerator[tuple[Attendants, Runtime, str]]:
    """The processes as a worker observes them whose clock is an hour ahead, and one that attends a call."""
    app, _, _ = recording()
    server = await replicas.start(app, QUICK, work=False)
    worker = await replicas.start(app, work=False, clock=MovedClock(HOUR))
    async with server.attendance.waiting() as process:
        yield Attendants(worker.store, config, "a worker"), server, process


@row(115)
async def test_a_renewal_counts_for_each_task_of_the_process(replicas: Replicas) -> None:
    async with observed_from_an_hour_ahead(replicas, LONG_MEMORY) as (attendants, server, process):
        tasks = [(await server.store.create(ME, call(process))).task for _ in range(3)]
        assert await attendants.find(tasks[0]) is Attendant.LATE
        await renew_lease(server, process)

        assert [await attendants.find(task) for task in tasks] == [Attendant.PRESENT] * 3


@row(115)
async def test_a_renewal_counts_for_one_heartbeat(replicas: Replicas) -> None:
    config = replace(LONG_MEMORY, heartbeat_interval=0.2)
    async with observed_from_an_hour_ahead(replicas, config) as (attendants, server, process):
        task = (await server.store.create(ME, call(process))).task
        assert await attendants.find(task) is Attendant.LATE
        await renew_lease(server, process)
        assert await attendants.find(task) is Attendant.PRESENT

        async def is_late() -> bool:
            return await attendants.find(task) is Attendant.LATE

        await wait_until(is_late)


@row(115)
@strong_memory("it marks the lease by itself, and a commit that is lost is not repeated")
async def test_a_renewal_does_not_count_for_a_process_that_is_suspected(replicas: Replicas) -> None:
    async with observed_from_an_hour_ahead(replicas, LONG_MEMORY) as (attendants, server, process):
        task = (await server.store.create(ME, call(process))).task
        assert await attendants.find(task) is Attendant.LATE
        await renew_lease(server, process)
        assert await attendants.find(task) is Attendant.PRESENT
        lease = await lease_of_process(server, process)
        assert lease is not None
        await server.store.storage.commit([leases.mark(lease, leases.SUSPECTED)], now=server.store.clock())
        assert await attendants.find(task) is Attendant.LATE
        await renew_lease(server, process)

        assert await attendants.find(task) is Attendant.PRESENT


async def test_a_read_that_was_overtaken_by_another_is_not_a_renewal(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with observed_from_an_hour_ahead(replicas, LONG_MEMORY) as (attendants, server, process):
        task = (await server.store.create(ME, call(process))).task
        older = await lease_of_process(server, process)
        await renew_lease(server, process)
        newer = await lease_of_process(server, process)
        reads = iter([newer, older, newer])

        async def read(*_: object, **__: object) -> object:
            return next(reads)

        with monkeypatch.context() as patch:
            patch.setattr(Storage, "get", read)
            assert [await attendants.find(task) for _ in range(3)] == [Attendant.LATE] * 3
