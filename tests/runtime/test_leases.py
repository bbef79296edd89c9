"""Leases: one worker at a time, alive by its heartbeat, fenced by its token."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from perdure.runtime import App, ClaimLost, Retry, Runtime, RuntimeConfig, Task
from perdure.runtime import lease as leases
from perdure.storage.time_types import SECOND
from perdure.tasks import Status, StoreConfig, TaskStore
from perdure.tasks.errors import InvalidValue

from .. import task_edits
from ..conditions import wait_until
from ..markers import row
from .faulty_storage import (
    ME,
    FaultyLink,
    MovedClock,
    lease_of,
    now,
    open_faulty,
    several_heartbeats,
    token_of,
    until_released,
    until_status,
)
from .replicas import UNHURRIED, Replicas, new_app, value_of

pytestmark = pytest.mark.anyio

ASLEEP = replace(UNHURRIED, heartbeat_interval=60.0, queue_poll_interval=60.0)
"""Of a worker that sends no heartbeat for the whole of a test."""
MANY = StoreConfig(max_tasks_per_owner=1000)
UNSWEPT = replace(UNHURRIED, concurrency=8, purge_interval=60.0)
"""Of workers that race: nothing expires here, and a look at what did is dear on some engines."""


def app_that_waits(go_on: asyncio.Event) -> App:
    app = new_app()

    @app.function()
    async def wait() -> str:
        await go_on.wait()
        return "done"

    return app


@row(64)
async def test_a_heartbeat_writes_the_lease_and_leaves_the_task_alone(replicas: Replicas) -> None:
    go_on = asyncio.Event()
    runtime = await replicas.start(app_that_waits(go_on))
    made = await runtime.submit("wait")
    full = {f"page {n}": "x" * 65_000 for n in range(16)}
    written = await runtime.store.update(
        ME, made.task.task_id, lambda read: task_edits.set_variables(runtime.store, read, full)
    )
    await several_heartbeats(runtime, made, 2)
    assert await now(runtime, made) == written
    assert len(written.record.body) > 1_000_000
    lease = await lease_of(runtime, made)
    assert lease is not None
    assert len(lease.body.encode()) < 300
    assert (lease.tag, lease.lane, lease.expires_at) == (leases.HELD, leases.expiry_lane("tests"), None)
    go_on.set()
    assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == "done"


@row(64)
async def test_heartbeats_are_in_nobodys_way(replicas: Replicas) -> None:
    """Another replica writes the task again and again, and never meets a version that it did not read."""
    go_on = asyncio.Event()
    runtime = await replicas.start(app_that_waits(go_on))
    other = await replicas.start(new_app(), work=False)
    made = await runtime.submit("wait")
    before = await token_of(runtime, made)
    written = await now(other, made)
    while await token_of(runtime, made) < before + 5:
        written = await task_edits.set_variables(other.store, written, {"count": written.version})
        await asyncio.sleep(0)  # the memory engine never lets anybody else in
    await other.store.request_cancel(written)
    assert (await other.wait(ME, made.task.task_id, 60)).task.status is Status.CANCELLED


@row(64)
async def test_an_answer_and_a_heartbeat_do_not_meet(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def ask(task: Task) -> str:
        return (await task.elicit("Whose?", key="whose")).action

    runtime = await replicas.start(app)
    other = await replicas.start(new_app(), work=False)
    made = await runtime.submit("ask")
    await until_status(other, made, Status.INPUT_REQUIRED)
    asked = await now(other, made)
    await several_heartbeats(runtime, made, 2)
    await task_edits.answer(
        other.store, asked, {"whose": {"action": "decline"}}
    )  # at the version read before
    assert value_of(await other.wait(ME, made.task.task_id, 60)) == "decline"


@asynccontextmanager
async def robbed(replicas: Replicas, app: App, known: App) -> AsyncGenerator[tuple[Runtime, Runtime]]:
    """A worker that sleeps through its heartbeats and hears nothing, and one that takes its work away.

    The clock of the second is ahead, so that to it every lease has run out; it takes those that stand still.
    """
    wire = FaultyLink()
    wire.is_deaf = True
    async with open_faulty(replicas, wire, app, ASLEEP) as sleeper:
        await wait_until(lambda: wire.looks >= len(app.functions))  # it would take back what it lost
        robber = await replicas.start(known, clock=MovedClock(300 * SECOND))
        yield sleeper, robber


@row(64)
@pytest.mark.parametrize("write", ["report", "set_variables", "elicit"])
async def test_what_a_stale_worker_writes_is_refused(replicas: Replicas, write: str) -> None:
    app = new_app()
    go_on = asyncio.Event()
    refused: list[Exception] = []

    @app.function(retries=1)
    async def work(task: Task) -> str:
        await go_on.wait()
        try:
            await {
                "report": lambda: task.report_progress(message="half done"),
                "set_variables": lambda: task.set_variables({"half": "done"}),
                "elicit": lambda: task.elicit("Whose?"),
            }[write]()
        except Exception as error:
            refused.append(error)
            raise
        return "stale"

    async with robbed(replicas, app, new_app()) as (sleeper, other):
        made = await sleeper.submit("work")
        await until_released(other, made)
        before = await now(other, made)
        go_on.set()
        await wait_until(lambda: bool(refused))
        assert isinstance(refused[0], ClaimLost)
        assert await now(other, made) == before


@row(64)
async def test_the_result_of_a_stale_worker_is_dropped(replicas: Replicas) -> None:
    app = new_app()
    go_on = asyncio.Event()
    returned: list[int] = []

    @app.function(retries=1, backoff=0.0)
    async def work(task: Task) -> str:
        if task.attempt == 1:
            await go_on.wait()
        returned.append(task.attempt)
        return f"attempt {task.attempt}"

    async with robbed(replicas, app, app) as (sleeper, robber):
        made = await sleeper.submit("work")
        ended = await robber.wait(ME, made.task.task_id, 60)
        go_on.set()
        await wait_until(lambda: returned == [2, 1])
    assert value_of(ended) == "attempt 2"
    assert await now(robber, made) == ended


@row(64)
async def test_the_lease_goes_with_the_task_that_ends(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def succeed() -> None: ...

    @app.function()
    async def fail() -> None:
        raise ValueError("no")

    @app.function()
    async def hang() -> None:
        await asyncio.Event().wait()

    runtime = await replicas.start(app)
    for name in ("succeed", "fail", "hang"):
        made = await runtime.submit(name)
        if name == "hang":
            assert await lease_of(runtime, made) is not None
            await runtime.cancel(ME, made.task.task_id)
        await runtime.wait(ME, made.task.task_id, 60)
        assert await lease_of(runtime, made) is None


@row(64)
async def test_the_token_grows_with_each_claim(replicas: Replicas) -> None:
    app = new_app()
    tokens: list[int] = []
    holders: list[str | None] = []

    @app.function(retries=3, backoff=0.0)
    async def work(task: Task) -> None:
        lease = await lease_of(runtime, made)
        assert lease is not None
        tokens.append(lease.version)
        holders.append(leases.holder_of(lease))
        raise Retry("once more")

    runtime = await replicas.start(app, work=False)
    made = await runtime.submit("work")
    await replicas.start(app)
    await runtime.wait(ME, made.task.task_id, 60)
    assert len(tokens) == 4 == len(set(holders))
    assert tokens == sorted(set(tokens))


@row(64)
async def test_a_task_that_waits_again_keeps_its_lease_which_is_free(replicas: Replicas) -> None:
    app = new_app()

    @app.function(retries=1, backoff=600)
    async def work() -> None:
        raise Retry("later")

    runtime = await replicas.start(app)
    made = await runtime.submit("work")
    await until_released(runtime, made)
    lease, task = await lease_of(runtime, made), await now(runtime, made)
    assert lease is not None
    assert (lease.tag, lease.wake_at, leases.holder_of(lease)) == (leases.FREE, None, None)
    assert lease.version >= 2  # more, where a heartbeat came between
    assert lease.expires_at is task.record.expires_at is None  # work that was started does not expire
    await runtime.cancel(ME, made.task.task_id)
    assert await lease_of(runtime, made) is None


@row(64, 65)
async def test_replicas_that_race_for_tasks_run_each_exactly_once(replicas: Replicas) -> None:
    app = new_app()
    runs: Counter[int] = Counter()

    @app.function()
    async def work(number: int) -> int:
        runs[number] += 1
        await asyncio.sleep(0.001)
        return number

    creator = await replicas.start(app, work=False, limits=MANY)
    numbers = range(80 if creator.store.storage.lag else 200)
    made = [await creator.submit("work", {"number": number}) for number in numbers]
    for _ in range(4):
        await replicas.start(app, UNSWEPT, limits=MANY)
    ended = [await creator.wait(ME, each.task.task_id, 120) for each in made]
    assert [value_of(each) for each in ended] == [*numbers]
    assert runs == Counter(numbers)
    assert {each.task.attempts for each in ended} == {1}


@row(64)
@pytest.mark.parametrize(
    "wrong", ["heartbeat_interval", "clock_skew", "drain_timeout", "concurrency", "max_queued"]
)
def test_a_lease_lasts_three_heartbeats_and_the_skew_and_nonsense_is_refused(wrong: str) -> None:
    assert RuntimeConfig(heartbeat_interval=2, clock_skew=1.5).lease == 7.5
    with pytest.raises(InvalidValue, match=wrong):
        replace(RuntimeConfig(), **{wrong: -1})


@asynccontextmanager
async def twin(
    replicas: Replicas, wire: FaultyLink, app: App, config: RuntimeConfig, clock: MovedClock
) -> AsyncGenerator[Runtime]:
    """A worker that calls itself as another does, like two containers of one host name."""
    storage = await replicas.subject.another_client()
    store = TaskStore(await wire.around(storage), clock=clock, application="tests")
    try:
        async with Runtime(store, app.functions, config, name="twin").running() as runtime:
            yield runtime
    finally:
        if replicas.subject.url is not None:
            await storage.close()


@row(64)
async def test_workers_of_one_name_cannot_use_each_others_lease(replicas: Replicas) -> None:
    app, deaf = new_app(), FaultyLink()
    deaf.is_deaf = True
    begun: list[int] = []
    go_on = {1: asyncio.Event(), 2: asyncio.Event()}
    refused: list[Exception] = []

    @app.function(retries=1, backoff=0.0)
    async def work(task: Task) -> str:
        begun.append(task.attempt)
        await go_on[task.attempt].wait()
        try:
            await task.set_variables({f"attempt {task.attempt}": "was here"})
        except Exception as error:
            refused.append(error)
            raise
        return f"attempt {task.attempt}"

    async with (
        twin(replicas, deaf, app, ASLEEP, MovedClock()) as zombie,
        twin(replicas, FaultyLink(), app, UNHURRIED, MovedClock(300 * SECOND)) as namesake,
    ):
        assert zombie.name != namesake.name
        await wait_until(lambda: deaf.looks >= 1)  # it would take back what it lost
        made = await zombie.submit("work")  # the first claim of the one, as the next is of the other
        await wait_until(lambda: begun == [1, 2])
        go_on[1].set()
        await wait_until(lambda: bool(refused))
        go_on[2].set()
        ended = await namesake.wait(ME, made.task.task_id, 60)
    assert [type(error) for error in refused] == [ClaimLost]
    assert (value_of(ended), dict(ended.task.variables)) == ("attempt 2", {"attempt 2": "was here"})
