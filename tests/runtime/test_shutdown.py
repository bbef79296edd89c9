"""Stopping in good order: nothing new is begun, what can finish does, the rest is handed back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress

import pytest
from msgspec.structs import replace

from perdure.runtime import App, Runtime, Task
from perdure.runtime.lease import FREE
from perdure.storage import Change, Replace
from perdure.storage.errors import OutcomeUnknown, StorageBusy, StorageError
from perdure.tasks import Snapshot, Status, StoreConfig

from ..conditions import wait_until
from ..markers import row
from .faulty_storage import (
    ME,
    SLOW_HEARTBEAT,
    FaultyLink,
    creates_a_task,
    lease_of,
    now,
    open_faulty,
    until_status,
)
from .replicas import UNHURRIED, Replicas, new_app, value_of

pytestmark = pytest.mark.anyio

LONG = replace(UNHURRIED, heartbeat_interval=60.0, drain_timeout=60.0)
"""A lease of minutes: what is taken within a test was handed back."""
AT_ONCE = replace(LONG, drain_timeout=0.0)
SHUT_DOWN = "the worker was shut down before the task ended"


class Works:
    """Functions that hang when they are begun the first time. What they did is noted."""

    def __init__(self) -> None:
        self.app = new_app()
        self.begun: list[int] = []
        self.made: list[Snapshot] = []
        self.go_on = asyncio.Event()

        @self.app.function(retries=2)
        async def often(task: Task) -> int:
            return await self._work(task)

        @self.app.function(restart=False)
        async def once(task: Task) -> int:
            return await self._work(task)

    async def _work(self, task: Task) -> int:
        self.begun.append(task.attempt)
        if len(self.begun) == 1:
            await self.go_on.wait()
        return task.attempt

    async def begin(self, runtime: Runtime, name: str) -> Snapshot:
        self.made.append(await runtime.submit(name))
        await wait_until(lambda: len(self.begun) == 1)
        return self.made[0]


async def test_what_ends_when_its_storage_is_closed_is_dropped_at_once(
    replicas: Replicas, caplog: pytest.LogCaptureFixture
) -> None:
    works, wire = Works(), FaultyLink()
    async with open_faulty(replicas, wire, works.app, LONG) as runtime:
        await works.begin(runtime, "once")
        wire.cut()
        wire.hang_up_if_cut()
        works.go_on.set()
        await wait_until(lambda: "no outcome was stored" in caplog.text)  # not after a lease of minutes


async def test_what_can_finish_in_time_does(replicas: Replicas) -> None:
    works = Works()
    other = await replicas.start(works.app, work=False)
    async with replicas.running(works.app, LONG) as runtime:
        made = await works.begin(runtime, "once")
        asyncio.get_running_loop().call_later(0.1, works.go_on.set)
    assert value_of(await now(other, made)) == 1


async def test_work_is_kept_alive_while_it_is_let_finish(replicas: Replicas) -> None:
    works = Works()
    other = await replicas.start(works.app, SLOW_HEARTBEAT)
    async with replicas.running(works.app, replace(SLOW_HEARTBEAT, drain_timeout=60.0)) as runtime:
        made = await works.begin(runtime, "often")
        asyncio.get_running_loop().call_later(1.3 * SLOW_HEARTBEAT.lease, works.go_on.set)
    assert value_of(await now(other, made)) == 1
    assert works.begun == [1]


async def test_nothing_new_is_begun_by_a_worker_that_stops(replicas: Replicas) -> None:
    works = Works()
    other = await replicas.start(works.app, work=False)
    leaving = asyncio.Event()
    runtimes: list[Runtime] = []

    async def host() -> None:
        async with replicas.running(works.app, LONG) as runtime:
            runtimes.append(runtime)
            await works.begin(runtime, "once")
            leaving.set()

    hosting = asyncio.create_task(host())
    await leaving.wait()
    await asyncio.sleep(0)
    made = [await other.submit("once"), await runtimes[0].submit("once")]
    assert [each.task.is_claimed for each in made] == [False, False]
    works.go_on.set()
    await asyncio.wait_for(hosting, 10)
    assert [await now(other, each) for each in made] == made
    assert works.begun == [1]


@row(65)
@pytest.mark.parametrize("how", ["left", "cancelled", "raised"])
async def test_what_cannot_finish_is_handed_back_and_taken_at_once(replicas: Replicas, how: str) -> None:
    """A host that is cancelled, or fails, does not wait at all, however long it might."""
    works = Works()
    hosting = asyncio.create_task(host(replicas, works, how))
    await wait_until(lambda: works.begun == [1])
    other = await replicas.start(works.app, LONG)
    if how == "cancelled":
        hosting.cancel()
    await is_over(hosting, how)
    end = await other.wait(ME, works.made[0].task.task_id, 60)
    assert (value_of(end), end.task.attempts, works.begun) == (2, 2, [1, 2])
    assert (end.task.failures, end.task.last_failure) == (0, SHUT_DOWN)


async def host(replicas: Replicas, works: Works, how: str) -> None:
    async with replicas.running(works.app, AT_ONCE if how == "left" else LONG) as runtime:
        await works.begin(runtime, "often")
        if how == "raised":
            raise LookupError("of the host")
        if how == "cancelled":
            await asyncio.Event().wait()


async def is_over(hosting: asyncio.Task[None], how: str) -> None:
    expected = {"cancelled": asyncio.CancelledError, "raised": LookupError}.get(how)
    async with asyncio.timeout(10):
        with nullcontext() if expected is None else pytest.raises(expected):
            await hosting


@row(62)
async def test_a_function_that_must_not_run_twice_fails_with_a_message(replicas: Replicas) -> None:
    works = Works()
    other = await replicas.start(works.app, work=False)
    async with replicas.running(works.app, AT_ONCE) as runtime:
        made = await works.begin(runtime, "once")
    task = (await now(other, made)).task
    assert (task.status, task.status_message, task.attempts) == (
        Status.FAILED,
        f"{SHUT_DOWN}, and the function must not run twice (restart=False)",
        1,
    )
    assert await lease_of(other, made) is None


async def test_a_result_that_comes_in_spite_of_the_shutdown_counts(replicas: Replicas) -> None:
    app, begun = new_app(), threading.Event()

    @app.function()
    async def tidy(task: Task) -> str:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return f"cancelled: {task.is_cancelled()}"

    assert await last_of(replicas, app, "tidy", begun) == (Status.COMPLETED, "cancelled: True")


async def last_of(
    replicas: Replicas, app: App, function: str, begun: threading.Event
) -> tuple[Status, object]:
    """What becomes of a task whose worker leaves as soon as it runs."""
    other = await replicas.start(app, work=False)
    async with replicas.running(app, AT_ONCE) as runtime:
        made = await runtime.submit(function)
        await wait_until(begun.is_set)
    read = await now(other, made)
    return read.task.status, value_of(read) if read.task.status is Status.COMPLETED else None


async def test_a_plain_function_learns_of_the_shutdown_when_it_looks(replicas: Replicas) -> None:
    app, begun = new_app(), threading.Event()
    seen: list[bool] = []

    @app.function(retries=1)
    def plain(task: Task) -> None:
        begun.set()
        while not task.is_cancelled():
            time.sleep(0.005)
        seen.append(True)
        task.check_cancelled()

    assert await last_of(replicas, app, "plain", begun) == (Status.WORKING, None)
    assert seen == [True]


async def test_who_does_not_heed_the_shutdown_is_left_behind_and_handed_back(replicas: Replicas) -> None:
    app, go_on = new_app(), asyncio.Event()

    @app.function(retries=1)
    async def deaf() -> None:
        while not go_on.is_set():
            with suppress(asyncio.CancelledError):
                await go_on.wait()

    other = await replicas.start(app, work=False)
    async with replicas.running(app, replace(AT_ONCE, cancel_grace=0.3)) as runtime:
        made = await runtime.submit("deaf")
        await asyncio.sleep(0)
    assert await now(other, made) != made
    read = (await now(other, made)).task
    assert (read.status, read.is_claimed, read.attempts) == (Status.WORKING, False, 1)
    go_on.set()


@row(69)
@pytest.mark.parametrize("failure", [None, StorageBusy("others hold it"), OutcomeUnknown("no answer")])
async def test_a_host_that_is_cancelled_while_it_creates_does_not_stay_for_the_work(
    replicas: Replicas, failure: StorageError | None
) -> None:
    """It hands the task back, also if that does not work at the first try."""
    works, wire, reached = Works(), FaultyLink(), asyncio.Event()
    other = await replicas.start(works.app, work=False)

    async def hold_up(changes: Sequence[Change]) -> None:
        if creates_a_task(changes):
            reached.set()
            await asyncio.Event().wait()

    async def fail_once(changes: Sequence[Change]) -> None:
        nonlocal failure
        is_handed_back = any(isinstance(each, Replace) and each.after.tag == FREE for each in changes)
        if is_handed_back and failure is not None:
            error, failure = failure, None
            raise error

    async def host() -> None:
        async with open_faulty(replicas, wire, works.app, LONG) as runtime:
            await runtime.submit("often")

    wire.before, wire.after = fail_once, hold_up
    hosting = asyncio.create_task(host())
    await reached.wait()
    hosting.cancel()
    done, _ = await asyncio.wait([hosting], timeout=20)
    works.go_on.set()  # or the test would not end either
    assert done
    (left,) = (await other.store.list(ME)).tasks
    assert (left.task.is_claimed, left.task.status) == (False, Status.WORKING)


@row(69)
async def test_a_claim_that_is_under_way_is_not_forgotten(replicas: Replicas) -> None:
    """Of two claims that are made together one fails; the other succeeds while the worker stops."""
    works, wire = Works(), FaultyLink()
    creator = await replicas.start(works.app, work=False)
    made = [await creator.submit("often") for _ in range(2)]
    go_on, claims = asyncio.Event(), list[int]()

    async def fail_the_first(changes: Sequence[Change]) -> None:
        if isinstance(changes[0], Replace) and changes[0].after.tag == Status.WORKING:
            claims.append(1)
            if len(claims) == 1:
                raise StorageBusy("others hold it")
            await go_on.wait()

    wire.before = fail_the_first
    async with open_faulty(replicas, wire, works.app, AT_ONCE):
        await wait_until(lambda: len(claims) >= 2)
        asyncio.get_running_loop().call_later(0.2, go_on.set)
    assert go_on.is_set()  # it did not stop before it had heard of the other
    for each in made:
        assert not (await now(creator, each)).task.is_claimed


async def test_a_worker_may_be_started_again(replicas: Replicas) -> None:
    works = Works()
    works.go_on.set()
    runtime = await replicas.start(works.app, work=False)
    for count in (1, 2):
        async with runtime.running():
            made = await runtime.submit("once")
            assert made.task.is_claimed
            assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == 1
        assert len(works.begun) == count


async def test_a_worker_that_stops_leaves_the_rest_of_the_queue_alone(replicas: Replicas) -> None:
    app, begun, leaving = new_app(), list[int](), asyncio.Event()

    @app.function()
    async def short(number: int) -> None:
        begun.append(number)
        leaving.set()

    creator = await replicas.start(app, work=False, limits=StoreConfig(max_tasks_per_owner=1000))
    made = [await creator.submit("short", {"number": number}) for number in range(150)]
    async with replicas.running(app, replace(LONG, concurrency=1000)):  # there is always a slot
        await leaving.wait()
    read = [await now(creator, each) for each in made]
    left = [each for each in read if each.task.status is Status.WORKING]
    assert len(left) == 150 - len(begun) > 75
    assert [each for each in made if each in left] == left  # as they were: unheld, not begun


@row(69)
@pytest.mark.parametrize("drain", [60.0, 0.0])
async def test_what_is_being_created_while_the_worker_stops_is_not_left_behind(
    replicas: Replicas, drain: float
) -> None:
    """It is run where there is time for that, else handed back."""
    works, wire = Works(), FaultyLink()
    reached, go_on = asyncio.Event(), asyncio.Event()
    other = await replicas.start(works.app, work=False)

    async def hold_up(changes: Sequence[Change]) -> None:
        if creates_a_task(changes):
            reached.set()
            await go_on.wait()

    wire.before = hold_up
    if drain:
        works.go_on.set()
    async with asyncio.timeout(30):
        async with open_faulty(replicas, wire, works.app, replace(LONG, drain_timeout=drain)) as runtime:
            creating = asyncio.create_task(runtime.submit("often"))
            await reached.wait()
            asyncio.get_running_loop().call_later(0.1, go_on.set)
        made = await creating
    read = await now(other, made)
    assert made.task.is_claimed
    assert not read.task.is_claimed
    assert read.task.status is (Status.COMPLETED if drain else Status.WORKING)


@row(65)
async def test_what_begins_to_wait_for_a_client_while_its_worker_drains_is_handed_back_too(
    replicas: Replicas,
) -> None:
    app = new_app()
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.function(retries=1)
    async def asks(task: Task) -> str:
        begun.set()
        await go_on.wait()
        return (await task.elicit("Whose?", key="whose")).action

    client = await replicas.start(app, work=False)
    async with asyncio.timeout(20), replicas.running(app, replace(UNHURRIED, drain_timeout=600.0)) as runtime:
        made = await runtime.submit("asks")
        await begun.wait()
        asyncio.get_running_loop().call_later(0.3, go_on.set)
    left = await now(client, made)
    assert (left.task.is_claimed, left.task.interruptions, left.task.status) == (
        False,
        0,
        Status.INPUT_REQUIRED,
    )


@row(65)
async def test_what_waits_for_a_client_is_handed_back_without_waiting_for_the_drain(
    replicas: Replicas,
) -> None:
    app = new_app()

    @app.function(retries=1)
    async def asks(task: Task) -> str:
        return (await task.elicit("Whose?", key="whose")).action

    client = await replicas.start(app, work=False)
    async with asyncio.timeout(20), replicas.running(app, replace(UNHURRIED, drain_timeout=600.0)) as runtime:
        made = await runtime.submit("asks")
        await until_status(client, made, Status.INPUT_REQUIRED)
    left = await now(client, made)
    assert (left.task.is_claimed, left.task.interruptions, left.task.status) == (
        False,
        0,
        Status.INPUT_REQUIRED,
    )
