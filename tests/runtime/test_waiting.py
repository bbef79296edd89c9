"""Waiting for the end of a task and watching it on its way, from any replica."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from perdure.runtime import App, Runtime, RuntimeConfig, Task
from perdure.runtime.waits import MAX_FAILED_READS
from perdure.storage.errors import StorageFailed
from perdure.storage.time_types import to_seconds
from perdure.tasks import Owner, Snapshot, Status, TaskStore
from perdure.tasks.errors import NotFound

from .. import task_edits
from ..conditions import wait_until
from ..markers import row, strong_memory
from .faulty_storage import ME, FaultyLink, now, open_faulty, several_heartbeats
from .replicas import QUICK, Replicas, new_app, value_of

pytestmark = pytest.mark.anyio


def gated(go_on: asyncio.Event) -> App:
    app = new_app()

    @app.function()
    async def work() -> str:
        await go_on.wait()
        return "done"

    return app


@row(72)
async def test_the_end_is_heard_on_another_replica_that_does_not_work(replicas: Replicas) -> None:
    go_on = asyncio.Event()
    runtime = await replicas.start(gated(go_on))
    other = await replicas.start(new_app(), work=False)
    made = await runtime.submit("work")
    waiting = [asyncio.create_task(each.wait(ME, made.task.task_id, 60)) for each in (runtime, other, other)]
    await several_heartbeats(runtime, made, 1)
    go_on.set()
    for each in waiting:
        assert value_of(await each) == "done"


@row(72)
async def test_who_waits_too_short_a_time_is_told_and_the_task_goes_on(replicas: Replicas) -> None:
    go_on = asyncio.Event()
    runtime = await replicas.start(gated(go_on))
    other = await replicas.start(new_app(), work=False)
    made = await runtime.submit("work")
    for each in (runtime, other):
        with pytest.raises(TimeoutError):
            await each.wait(ME, made.task.task_id, 0.05)
    assert await now(other, made) == made
    go_on.set()
    assert value_of(await other.wait(ME, made.task.task_id, 60)) == "done"


@row(72)
async def test_the_end_of_a_task_that_has_ended_is_there_at_once(replicas: Replicas) -> None:
    go_on, wire = asyncio.Event(), FaultyLink()
    go_on.set()
    runtime = await replicas.start(gated(go_on))
    made = await runtime.submit("work")
    ended = await runtime.wait(ME, made.task.task_id, 60)
    async with open_faulty(replicas, wire, new_app(), work=False) as other:
        assert await other.wait(ME, made.task.task_id, 60) == ended
        assert await other.wait(ME, made.task.task_id, 0) == ended
        assert wire.calls == {"get": 2}  # and nobody watched


@row(72)
async def test_absent_and_foreign_tasks_cannot_be_waited_for(replicas: Replicas) -> None:
    runtime = await replicas.start(gated(asyncio.Event()), work=False)
    made = await runtime.submit("work")
    stranger = Owner.user("https://issuer.example", "eve")
    for owner, task_id in ((stranger, made.task.task_id), (ME, "0" * 32), (ME, "no id at all")):
        with pytest.raises(NotFound, match=r"^Task not found$"):
            await runtime.wait(owner, task_id, 60)
        with pytest.raises(NotFound, match=r"^Task not found$"):
            await anext(runtime.watch(owner, task_id))


@row(72)
async def test_who_waits_for_a_task_that_is_deleted_is_told(replicas: Replicas) -> None:
    runtime = await replicas.start(gated(asyncio.Event()), work=False)
    other = await replicas.start(new_app(), work=False)
    made = await runtime.submit("work")
    waiting = asyncio.create_task(other.wait(ME, made.task.task_id, 60))
    await begun(waiting)
    await runtime.store.delete(ME, made.task.task_id)
    with pytest.raises(NotFound):
        await waiting


async def begun(waiting: asyncio.Task[Snapshot]) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 0.05)


@row(72)
async def test_the_end_is_heard_though_no_wake_up_ever_comes(replicas: Replicas) -> None:
    go_on, wire = asyncio.Event(), FaultyLink()
    wire.is_deaf = True
    runtime = await replicas.start(gated(go_on))
    async with open_faulty(replicas, wire, new_app(), work=False) as other:
        made = await runtime.submit("work")
        waiting = asyncio.create_task(other.wait(ME, made.task.task_id, 60))
        await wait_until(lambda: wire.calls["get"] >= 3)
        go_on.set()
        assert value_of(await waiting) == "done"
        assert wire.open_watches == 0


@row(72)
async def test_waiting_is_quiet(replicas: Replicas) -> None:
    """One look when a wake-up comes, and one each poll interval."""
    go_on, wire = asyncio.Event(), FaultyLink()
    runtime = await replicas.start(gated(go_on))
    async with open_faulty(replicas, wire, new_app(), work=False) as other:
        made = await runtime.submit("work")
        with pytest.raises(TimeoutError):
            await other.wait(ME, made.task.task_id, 5 * to_seconds(QUICK.queue_poll_interval))
        assert wire.calls["get"] <= 14  # five looks, each after half a poll interval at the least
        assert wire.open_watches == 0


@row(73)
async def test_a_watcher_sees_the_states_in_their_order_up_to_the_last(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def work(task: Task) -> str:
        await task.elicit("Whose?", key="whose")
        for page in range(20):
            await task.set_variables({"page": page})
        return "done"

    runtime = await replicas.start(app)
    other = await replicas.start(new_app(), work=False)
    made = await runtime.submit("work")
    seen: list[Snapshot] = []
    watching = asyncio.create_task(watch_into(seen, other, made))
    await wait_until(lambda: bool(seen) and seen[-1].task.status is Status.INPUT_REQUIRED)
    await runtime.answer(ME, made.task.task_id, {"whose": {"action": "accept"}})
    await asyncio.wait_for(watching, 30)
    versions = [each.version for each in seen]
    assert versions == sorted(set(versions))
    assert [each.task.is_terminal for each in seen] == [False] * (len(seen) - 1) + [True]
    assert value_of(seen[-1]) == "done"


async def watch_into(seen: list[Snapshot], runtime: Runtime, task: Snapshot) -> None:
    async for each in runtime.watch(ME, task.task.task_id):
        seen.append(each)  # noqa: PERF401


@row(73)
@strong_memory("without polling, every wake-up is needed")
async def test_each_change_is_pushed_to_who_watches_without_a_poll(replicas: Replicas) -> None:
    """The runtime's poll interval is far longer than the test waits."""
    runtime = await replicas.start(gated(asyncio.Event()), work=False)
    other = await replicas.start(new_app(), PATIENT, work=False)
    made = await runtime.submit("work")
    async with aclosing(other.watch(ME, made.task.task_id)) as seen:
        latest = await anext(seen)
        for page in range(3):
            coming = asyncio.create_task(anext(seen))
            await asyncio.sleep(0)
            written = await task_edits.set_variables(runtime.store, latest, {"page": page})
            latest = await asyncio.wait_for(coming, 30)
            assert latest == written


PATIENT = RuntimeConfig(queue_poll_interval=120.0)


@row(73)
async def test_who_stops_watching_leaves_no_watch_behind(replicas: Replicas) -> None:
    wire = FaultyLink()
    async with open_faulty(replicas, wire, gated(asyncio.Event()), work=False) as runtime:
        made = await runtime.submit("work")
        async with aclosing(runtime.watch(ME, made.task.task_id)) as seen:
            assert await anext(seen) == made
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(seen)
        waiting = asyncio.create_task(runtime.wait(ME, made.task.task_id))
        await wait_until(lambda: wire.open_watches == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (wire.open_watches, wire.calls["watch"]) == (0, 2)


@pytest.mark.parametrize("failures", [MAX_FAILED_READS, MAX_FAILED_READS + 1])
async def test_reads_that_fail_now_and_then_do_not_end_the_waiting(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    go_on = asyncio.Event()
    runtime = await replicas.start(gated(go_on), QUICK)
    other = await replicas.start(new_app(), QUICK, work=False)
    made = await runtime.submit("work")
    waiting = asyncio.create_task(other.wait(ME, made.task.task_id, 60))
    await several_heartbeats(runtime, made, 1)
    get, left = TaskStore.get, [StorageFailed("for no known reason")] * failures

    async def fail_first(store: TaskStore, owner: Owner, task_id: str) -> Snapshot:
        if left:
            raise left.pop()
        return await get(store, owner, task_id)

    monkeypatch.setattr(TaskStore, "get", fail_first)
    go_on.set()
    if failures > MAX_FAILED_READS:
        with pytest.raises(StorageFailed):
            await waiting
    else:
        assert value_of(await waiting) == "done"
