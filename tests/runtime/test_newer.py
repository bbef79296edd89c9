"""Workers leave tasks of a newer version to newer workers, and reach what waits behind them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from perdure.runtime import App, Pause, Runtime, deadline
from perdure.runtime.intake import MAX_CLAIMS_AT_ONCE
from perdure.storage import Insert, Record
from perdure.storage.errors import NewerFormat
from perdure.storage.time_types import MINUTE
from perdure.tasks import InputKind, InputRequest, Snapshot
from perdure.tasks.task_snapshot import LEASES, lease_address

from ..conditions import wait_until
from ..markers import row, strong_memory
from ..newer import FUTURE, changed, newer, put, stored
from .apps import counted, hanging
from .faulty_storage import ME, MovedClock, now, until_released
from .replicas import (
    QUICK,
    UNHURRIED,
    Replicas,
    leave_with_a_dead_worker,
    new_app,
    value_of,
    with_concurrency,
)

pytestmark = pytest.mark.anyio

CHANGES: list[dict[str, Any]] = [{"format": FUTURE}, {"status": "paused"}]


@pytest.fixture(params=CHANGES, ids=["format", "status"])
def change(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


def quick() -> App:
    app = new_app()

    @app.function(retries=4, backoff=0.0)
    async def work() -> str:
        return "done"

    return app


async def make_newer(runtime: Runtime, task: Snapshot, change: dict[str, Any]) -> Record:
    store = runtime.store
    return await put(store.storage, task.record, changed(task.record.body, **change), now=store.clock())


async def is_unchanged(runtime: Runtime, record: Record) -> bool:
    return await stored(runtime.store.storage, record.address, now=runtime.store.clock()) == record


@row(105)
async def test_a_worker_claims_what_waits_behind_tasks_of_a_newer_version(
    replicas: Replicas, change: dict[str, Any]
) -> None:
    """They are more than one look at the queue finds, and the worker is not woken again."""
    app = quick()
    creator = await replicas.start(app, work=False)
    newer_tasks = [
        await make_newer(creator, await creator.submit("work"), change) for _ in range(3 * MAX_CLAIMS_AT_ONCE)
    ]
    made = await creator.submit("work")
    await replicas.subject.caught_up()
    await replicas.start(app, replace(with_concurrency(2), queue_poll_interval=3600))
    assert value_of(await creator.wait(ME, made.task.task_id, 20)) == "done"
    for record in newer_tasks:
        assert await is_unchanged(creator, record)


@row(105)
async def test_recovery_leaves_a_task_of_a_newer_version_and_its_lease(
    replicas: Replicas, change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    app, clock = quick(), MovedClock()
    creator = await replicas.start(app, work=False)
    made = await creator.get(ME, await leave_with_a_dead_worker(creator, ME))
    now = creator.store.clock()
    record = await make_newer(creator, made, change)
    lease = await stored(creator.store.storage, lease_address(made.record), now=now)
    mine = await leave_with_a_dead_worker(creator, ME)
    survivor = await replicas.start(app, clock=clock)
    clock.ahead = MINUTE  # both leases are over
    assert value_of(await survivor.wait(ME, mine, 20)) == "done"
    await wait_until(lambda: f"leaving the recovery of task {record.key} to other workers" in caplog.text)
    assert await is_unchanged(creator, record)
    assert await is_unchanged(creator, lease)


@row(105)
async def test_recovery_leaves_a_lease_of_a_newer_version_and_its_task(
    replicas: Replicas, caplog: pytest.LogCaptureFixture
) -> None:
    app, clock = quick(), MovedClock()
    creator = await replicas.start(app, work=False)
    made = await creator.get(ME, await leave_with_a_dead_worker(creator, ME))
    before = await stored(creator.store.storage, lease_address(made.record), now=creator.store.clock())
    lease = await put(creator.store.storage, before, newer(before.body, holder=7), now=creator.store.clock())
    await replicas.start(app, clock=clock)
    clock.ahead = MINUTE
    await wait_until(lambda: f"leaving the recovery of task {lease.key} to other workers" in caplog.text)
    assert await is_unchanged(creator, lease)
    assert await is_unchanged(creator, made.record)


@row(105)
@strong_memory("it writes the lease by itself, and a commit that is lost is not repeated")
async def test_a_free_lease_of_a_newer_version_is_not_taken_cancelled_or_deleted(replicas: Replicas) -> None:
    app = quick()
    creator = await replicas.start(app, work=False)
    made = await creator.submit("work")
    body = newer('{"format":1}', turn=3)
    lease = Record(
        space=LEASES, partition=made.record.partition, key=made.record.key, order=made.record.order,
        body=body, tag="free",
    )  # fmt: skip
    await creator.store.storage.commit([Insert(record=lease)], now=creator.store.clock())
    worker = await replicas.start(app)
    other = await creator.submit("work")
    assert value_of(await worker.wait(ME, other.task.task_id, 20)) == "done"
    with pytest.raises(NewerFormat):
        await creator.cancel(ME, made.task.task_id)
    with pytest.raises(NewerFormat):
        await creator.store.delete(ME, made.task.task_id)
    assert await is_unchanged(creator, lease)
    assert await is_unchanged(creator, made.record)


@row(105)
async def test_a_run_whose_task_a_newer_version_has_rewritten_writes_nothing_more(
    replicas: Replicas, caplog: pytest.LogCaptureFixture
) -> None:
    app, go_on, runs = counted()
    worker = await replicas.start(app, replace(UNHURRIED, queue_poll_interval=QUICK.queue_poll_interval))
    made = await worker.submit("work")
    await wait_until(lambda: bool(runs))
    held = await worker.get(ME, made.task.task_id)
    record = await make_newer(worker, held, {"format": FUTURE})
    await wait_until(lambda: f"task {made.task.task_id}: no outcome was stored" in caplog.text)
    go_on.set()
    other = await worker.submit("work")
    await worker.wait(ME, other.task.task_id, 20)
    assert await is_unchanged(worker, record)


async def test_a_waiting_caller_learns_that_a_newer_version_wrote_the_task(replicas: Replicas) -> None:
    creator = await replicas.start(hanging(), work=False)
    made = await creator.submit("hang")
    waiting = asyncio.create_task(creator.wait(ME, made.task.task_id))
    await make_newer(creator, made, {"format": FUTURE})
    with pytest.raises(NewerFormat, match="newer version"):
        await asyncio.wait_for(waiting, 20)


@row(103, 105)
async def test_a_deadline_leaves_a_task_of_a_newer_version_and_ends_what_waits_behind_it(
    replicas: Replicas, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadline, "BATCH", 1)
    app, clock = new_app(), MovedClock()

    @app.function
    async def asks() -> None:
        raise Pause({"name": InputRequest(kind=InputKind.ELICITATION, params={"message": "Whose?"})})

    runtime = await replicas.start(app, clock=clock)
    first, second = await runtime.submit("asks", ttl=60), await runtime.submit("asks", ttl=61)
    for each in (first, second):
        await until_released(runtime, each)
    record = await make_newer(runtime, await now(runtime, first), change)
    clock.ahead = 2 * MINUTE
    ended = await runtime.wait(ME, second.task.task_id, 120)
    assert ended.task.status_message == "a question was not answered in time"
    assert await is_unchanged(runtime, record)
