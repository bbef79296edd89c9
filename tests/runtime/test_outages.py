"""A storage that is slow or fails for a while loses no result, and one that is full holds up nobody else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import pytest
from msgspec.structs import replace

from perdure.runtime import ClaimLost, InProcessExecutor, Job, RuntimeConfig, Task, endings
from perdure.storage import Change, Replace, Space, Watch
from perdure.storage.errors import StorageBusy, StorageError, StorageFailed, StorageFull
from perdure.storage.time_types import to_seconds
from perdure.tasks import Status, TaskStore

from .. import task_edits
from ..conditions import wait_until
from ..markers import row
from .apps import counted, hanging
from .faulty_storage import (
    ME,
    STEADY_HEARTBEAT,
    FaultyLink,
    Hook,
    creates_a_task,
    ends_a_task,
    lease_of,
    nothing,
    now,
    open_faulty,
    several_heartbeats,
    until_status,
)
from .replicas import QUICK, UNHURRIED, Replicas, new_app, value_of

pytestmark = pytest.mark.anyio


def slow(seconds: float) -> Hook:
    async def wait(_: Sequence[Change]) -> None:
        await asyncio.sleep(seconds)

    return wait


def times(count: int, error: StorageError, which: Callable[[Sequence[Change]], bool]) -> Hook:
    """Fail so many commits of a kind."""
    left = [error] * count

    async def fail(changes: Sequence[Change]) -> None:
        if left and which(changes):
            raise left.pop()

    return fail


BUSY, FAILED = StorageBusy("others hold it"), StorageFailed("the line was lost")


# It is slow


@row(64, 65)
@pytest.mark.parametrize("seconds", [1.5 * to_seconds(QUICK.heartbeat_interval), 1.5 * QUICK.lease])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_on_a_slow_disk_work_ends_and_has_one_outcome(
    replicas: Replicas, seconds: float, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slower than a heartbeat, slower than a lease; written late, or answered late."""
    monkeypatch.setattr(endings, "MAX_INTERRUPTIONS", 100)  # the slow worker may claim a task many times
    app, wire = new_app(), FaultyLink()

    @app.function(retries=19, backoff=0.0)
    async def work(task: Task) -> int:
        await task.set_variables({f"attempt {task.attempt}": True})
        await asyncio.sleep(0.2)
        return task.attempt

    setattr(wire, when, slow(seconds))
    async with open_faulty(replicas, wire, app) as slow_one:
        made = await asyncio.gather(*(slow_one.submit("work") for _ in range(2)))
        other = await replicas.start(app)
        ended = [await other.wait(ME, each.task.task_id, 120) for each in made]
    for each in ended:
        assert value_of(each) == each.task.attempts
        assert await now(other, each) == each


# It fails for a while


@row(68)
@pytest.mark.parametrize(
    ("when", "count", "error"), [("before", 4, BUSY), ("before", 4, FAILED), ("after", 1, FAILED)]
)
async def test_a_storage_that_fails_for_a_while_loses_no_result(
    replicas: Replicas, when: str, count: int, error: StorageError
) -> None:
    app, go_on, runs = counted()
    wire = FaultyLink()
    setattr(wire, when, times(count, error, ends_a_task))
    go_on.set()
    async with open_faulty(replicas, wire, app, STEADY_HEARTBEAT) as runtime:
        other = await replicas.start(app, STEADY_HEARTBEAT)
        made = await runtime.submit("work")
        ended = await other.wait(ME, made.task.task_id, 60)
    assert (value_of(ended), ended.task.attempts, runs) == (1, 1, [1])
    assert await now(other, made) == ended


@row(68)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_heartbeats_that_fail_for_less_than_a_lease_do_no_harm(replicas: Replicas, when: str) -> None:
    app, go_on, runs = counted()
    wire = FaultyLink()
    setattr(wire, when, times(3, FAILED, lambda changes: len(changes) == 1))
    async with open_faulty(replicas, wire, app, STEADY_HEARTBEAT) as runtime:
        await replicas.start(app, STEADY_HEARTBEAT)
        made = await runtime.submit("work")
        await several_heartbeats(runtime, made, 2)
        go_on.set()
        assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == 1
    assert runs == [1]


@row(68)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_write_of_which_nothing_was_heard_costs_the_function_nothing_but_another_try(
    replicas: Replicas, when: str
) -> None:
    app, wire = new_app(), FaultyLink()

    @app.function()
    async def work(task: Task) -> list[str]:
        setattr(wire, when, times(1, FAILED, lambda changes: len(changes) == 2))
        with pytest.raises(StorageFailed):
            await task.set_variables({"a": 1})
        await task.set_variables({"b": 2})
        return sorted(task.variables)

    async with open_faulty(replicas, wire, app, STEADY_HEARTBEAT) as runtime:
        made = await runtime.submit("work")
        expected = ["b"] if when == "before" else ["a", "b"]
        assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == expected


@row(69)
@pytest.mark.parametrize(("when", "error"), [("before", BUSY), ("after", FAILED)])
async def test_a_claim_of_which_nothing_was_heard_is_begun_once(
    replicas: Replicas, when: str, error: StorageError
) -> None:
    """A function of one attempt, which would fail if it had to be recovered."""
    app, wire = new_app(), FaultyLink()

    @app.function()
    async def work(task: Task) -> int:
        return task.attempt

    creator = await replicas.start(app, work=False)
    made = await creator.submit("work")
    setattr(wire, when, times(1, error, lambda changes: isinstance(changes[0], Replace)))
    async with open_faulty(replicas, wire, app, STEADY_HEARTBEAT):
        assert value_of(await creator.wait(ME, made.task.task_id, 60)) == 1


@row(68)
async def test_an_end_of_which_nothing_was_heard_does_not_count_as_dropped(
    replicas: Replicas, caplog: pytest.LogCaptureFixture
) -> None:
    app, go_on, runs = counted()
    wire = FaultyLink()
    wire.after = times(1, FAILED, ends_a_task)
    go_on.set()
    other = await replicas.start(app, work=False)
    with caplog.at_level(logging.WARNING, "perdure.runtime"):
        async with open_faulty(replicas, wire, app, STEADY_HEARTBEAT) as runtime:
            made = await runtime.submit("work")
            assert value_of(await other.wait(ME, made.task.task_id, 60)) == 1
    assert runs == [1]
    assert "no outcome was stored" not in caplog.text


@row(68)
@pytest.mark.parametrize(("write", "attempts"), [("set_variables", 2), ("report", 1)])
async def test_a_storage_that_is_busy_costs_a_function_an_attempt_and_a_report_nothing(
    replicas: Replicas, write: str, attempts: int
) -> None:
    app, wire = new_app(), FaultyLink()

    @app.function(retries=2, backoff=0.0)
    async def work(task: Task) -> int:
        if task.attempt == 1:
            wire.before = times(1, BUSY, lambda changes: len(changes) == 2)
        if write == "set_variables":
            await task.set_variables({"half": "done"})
        else:
            await task.report_progress(0.5, message="half done")
        return task.attempt

    async with open_faulty(replicas, wire, app, STEADY_HEARTBEAT) as runtime:
        made = await runtime.submit("work")
        ended = await runtime.wait(ME, made.task.task_id, 60)
    assert (value_of(ended), ended.task.attempts) == (attempts, attempts)
    if write == "set_variables":
        assert ended.task.last_failure == "StorageBusy: others hold it"
        assert dict(ended.task.variables) == {"half": "done"}
    else:
        assert ended.task.reports.entries[-1].message == "half done"


@row(59)
async def test_a_step_that_fails_is_tried_again(replicas: Replicas) -> None:
    """A worker outlives a storage that fails: it recovers, sweeps and claims when that is over."""
    app, wire = hanging(), FaultyLink()
    creator = await replicas.start(app, work=False)
    async with open_faulty(replicas, wire, app, UNHURRIED) as runtime:
        wire.before = times(1, BUSY, lambda changes: not creates_a_task(changes))
        made = await creator.submit("hang")

        async def is_held() -> bool:
            return (await now(runtime, made)).task.is_claimed

        await wait_until(is_held)


@row(68)
async def test_a_result_is_not_lost_to_a_client_that_writes_all_the_time(replicas: Replicas) -> None:
    app, go_on, runs = counted()
    wire, other = FaultyLink(), await replicas.start(new_app(), work=False)
    left = list(range(15))

    async def be_quicker(changes: Sequence[Change]) -> None:
        if left and ends_a_task(changes):
            read = await other.store.get(ME, changes[0].address.key)
            await task_edits.set_variables(other.store, read, {"count": left.pop()})

    wire.before = be_quicker
    go_on.set()
    async with open_faulty(replicas, wire, app, STEADY_HEARTBEAT) as runtime:
        made = await runtime.submit("work")
        ended = await other.wait(ME, made.task.task_id, 120)
    assert (value_of(ended), runs, ended.task.variables) == (1, [1], {"count": 0})


class ShortOfWatches(FaultyLink):
    """A line on which the first watch of a single task cannot be opened."""

    is_refused = False

    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch:
        if key is not None and not self.is_refused:
            self.is_refused = True
            raise StorageBusy("too many watch already")
        return super().watch(space, partition, key)


@row(67, 68)
@pytest.mark.parametrize("word", ["cancel", "answer"])
async def test_a_watch_that_cannot_be_opened_at_first_keeps_no_word_from_the_run(
    replicas: Replicas, word: str
) -> None:
    app, wire = new_app(), ShortOfWatches()

    @app.function()
    async def ask(task: Task) -> str:
        return (await task.elicit("Whose?", key="whose")).action

    other = await replicas.start(app, work=False)
    async with open_faulty(replicas, wire, app, STEADY_HEARTBEAT) as runtime:
        made = await runtime.submit("ask")
        await wait_until(lambda: wire.is_refused)
        await until_status(other, made, Status.INPUT_REQUIRED)
        if word == "cancel":
            await other.cancel(ME, made.task.task_id)
        else:
            await other.answer(ME, made.task.task_id, {"whose": {"action": "decline"}})
        ended = await other.wait(ME, made.task.task_id, 60)
    assert ended.task.status is (Status.CANCELLED if word == "cancel" else Status.COMPLETED)


# It fails for longer than a lease


class Noting(InProcessExecutor):
    """Tells when a run is over, whatever its function still does."""

    is_over: asyncio.Event

    def __init__(self, store: TaskStore, config: RuntimeConfig) -> None:
        super().__init__(store, config)
        Noting.is_over = asyncio.Event()

    async def submit(self, job: Job) -> None:
        await super().submit(job)
        self.is_over.set()


@row(64)
async def test_who_was_given_up_for_want_of_heartbeats_writes_no_more(replicas: Replicas) -> None:
    """The lease in the storage may still be its own, but the run is over, and nobody would end the task."""
    app, wire = new_app(), FaultyLink()
    begun, go_on = asyncio.Event(), asyncio.Event()
    told: list[Exception | None] = []

    @app.function(retries=4)
    async def deaf(task: Task) -> None:
        if begun.is_set():
            return
        begun.set()
        wire.before = times(1000, BUSY, lambda changes: True)
        while not go_on.is_set():
            with suppress(asyncio.CancelledError):
                await go_on.wait()
        try:
            await task.set_variables({"still": "here"})
            told.append(None)
        except Exception as error:
            told.append(error)

    async with open_faulty(replicas, wire, app, executor=Noting) as runtime:
        made = await runtime.submit("deaf")
        await begun.wait()
        Noting.is_over.clear()  # set by now, if an attempt was late and never began
        await Noting.is_over.wait()
        wire.mend()
        go_on.set()
        await wait_until(lambda: bool(told))
        assert isinstance(told[0], ClaimLost)
        assert (await runtime.wait(ME, made.task.task_id, 60)).task.variables == {}


@row(68)
async def test_an_outage_longer_than_a_lease_does_not_fail_what_nobody_else_may_run(
    replicas: Replicas,
) -> None:
    """The worker sees that the lease ran out, and could write that it was lost. But the run is its own."""
    app, wire = new_app(), FaultyLink()
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.function()
    async def work() -> str:
        begun.set()
        await go_on.wait()
        return "done"

    config = replace(QUICK, heartbeat_interval=0.2)
    async with open_faulty(replicas, wire, app, config) as runtime:
        made = await runtime.submit("work")
        await begun.wait()
        wire.before = times(1000, BUSY, lambda changes: len(changes) == 1)

        async def is_overdue() -> bool:
            lease = await lease_of(runtime, made)
            return lease is not None and (lease.wake_at or 0) <= runtime.store.clock()

        await wait_until(is_overdue)
        await asyncio.sleep(5 * to_seconds(config.heartbeat_interval))
        wire.mend()
        await several_heartbeats(runtime, made, 1)
        go_on.set()
        assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == "done"


def full(changes: Sequence[Change]) -> Awaitable[None]:
    """A hook: there is room for heartbeats, and never for the end of a task."""
    if ends_a_task(changes):
        raise StorageFull("no room left")
    return nothing(changes)


@row(68)
async def test_a_run_whose_end_can_never_be_written_is_given_up_after_a_lease(replicas: Replicas) -> None:
    app, wire = new_app(), FaultyLink()
    begun, go_on = list[int](), asyncio.Event()

    @app.function()
    async def work(number: int) -> None:
        begun.append(number)
        await go_on.wait()

    wire.before = full
    asyncio.get_running_loop().call_later(60, wire.mend)  # or a test that fails would not end
    async with open_faulty(replicas, wire, app, replace(QUICK, concurrency=1, drain_timeout=60.0)) as runtime:
        made = [await runtime.submit("work", {"number": number}) for number in range(2)]
        assert [each.task.is_claimed for each in made] == [True, False]
        await several_heartbeats(runtime, made[0], 1)
        go_on.set()
        await wait_until(lambda: 1 in begun)  # the other has the slot now
    assert wire.before is full
