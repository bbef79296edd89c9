"""The queue: who takes what and when, how long it may be, and how quietly it is watched."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

import pytest
from msgspec.structs import replace

from perdure.runtime import App, Function, QueueFull, Retry, Runtime, RuntimeConfig, Task
from perdure.storage import Change, Committed, Guard, LanePosition, Micros, Record, Refused, Replace
from perdure.storage.inspection_and_quarantine import CORRUPT_TAG
from perdure.storage.time_types import SECOND
from perdure.tasks import NewTask, Snapshot, Status, StoreConfig
from perdure.tasks.task_snapshot import BOOKKEEPING_RESERVE_BYTES

from .. import task_edits
from ..conditions import wait_until
from ..markers import row, strong_memory
from .apps import run_all
from .faulty_storage import ME, STEADY_HEARTBEAT, FaultyLink, MovedClock, now, open_faulty
from .replicas import UNHURRIED, Replicas, new_app, value_of, with_concurrency

pytestmark = pytest.mark.anyio

MANY = StoreConfig(max_tasks_per_owner=1000)
UNSWEPT = replace(STEADY_HEARTBEAT, purge_interval=60.0)
"""Of workers of whom there are many: nothing expires here, and a look at what did is dear on some engines."""


def gated(go_on: asyncio.Event) -> App:
    """`wait` ends when it may, `quick` at once."""
    app = new_app()

    @app.function()
    async def wait() -> str:
        await go_on.wait()
        return "waited"

    @app.function()
    async def quick() -> str:
        return "quick"

    return app


# Who takes it


@row(65)
async def test_what_its_creator_has_no_room_for_is_taken_by_another(replicas: Replicas) -> None:
    go_on = asyncio.Event()
    app = gated(go_on)
    creator = await replicas.start(app, with_concurrency(1))
    held, waiting = await creator.submit("wait"), await creator.submit("quick")
    assert (held.task.is_claimed, waiting.task.is_claimed, waiting.task.attempts) == (True, False, 0)
    async with replicas.running(app):
        assert value_of(await creator.wait(ME, waiting.task.task_id, 60)) == "quick"
    assert (await now(creator, held)).task.status is Status.WORKING
    go_on.set()
    assert value_of(await creator.wait(ME, held.task.task_id, 60)) == "waited"


@row(65)
async def test_what_is_created_where_nobody_works_is_taken_elsewhere(replicas: Replicas) -> None:
    app = gated(asyncio.Event())
    creator = await replicas.start(app, work=False)
    early = await creator.submit("quick")
    assert (early.task.is_claimed, early.record.lane) == (False, "run/tests/quick")
    await replicas.start(app)
    late = await creator.submit("quick")
    for made in (early, late):
        assert value_of(await creator.wait(ME, made.task.task_id, 60)) == "quick"


@row(65)
async def test_a_worker_leaves_what_it_does_not_know_to_those_who_do(replicas: Replicas) -> None:
    """A rolling deploy: the new server creates what only new workers can run."""
    go_on = asyncio.Event()
    new, old = gated(go_on), new_app()
    seen: list[int] = []

    @old.function()
    async def known(number: int) -> None:
        seen.append(number)

    @new.function(name="known")
    async def newer(number: int) -> None: ...

    creator = await replicas.start(new, work=False)
    await replicas.start(old)
    made = await creator.submit("quick")
    for number in range(3):  # the old worker is awake, and takes what it knows
        each = await creator.submit("known", {"number": number})
        await creator.wait(ME, each.task.task_id, 60)
    assert seen == [0, 1, 2]
    assert await now(creator, made) == made
    await replicas.start(new)
    assert value_of(await creator.wait(ME, made.task.task_id, 60)) == "quick"


@row(65)
@strong_memory("a queue that lags shows tasks in another order")
async def test_a_worker_that_is_alone_takes_the_oldest_first(replicas: Replicas) -> None:
    app = new_app()
    order: list[int] = []

    @app.function()
    async def work(number: int) -> None:
        order.append(number)

    creator = await replicas.start(app, work=False)
    made = [await creator.submit("work", {"number": number}) for number in range(20)]
    await replicas.start(app, with_concurrency(1))
    for each in made:
        await creator.wait(ME, each.task.task_id, 60)
    assert order == list(range(20))


@row(65)
@strong_memory("a queue that lags shows tasks in another order")
async def test_a_function_with_a_long_queue_does_not_starve_another(replicas: Replicas) -> None:
    """The worker is as quick as the queue, so there is always a slot, and always something to take."""
    app, order = new_app(), list[str]()
    others = [f"lonely {number}" for number in range(8)]  # chance alone puts none of them last
    for name in ("popular", *others):
        app.functions.add(Function(name=name, handler=partial(note, name, order)))
    creator = await replicas.start(app, work=False, limits=MANY)
    made = [await creator.submit(name) for name in ["popular"] * 150 + others]
    await replicas.start(app, with_concurrency(1000), limits=MANY)
    for each in made:
        await creator.wait(ME, each.task.task_id, 60)
    assert max(order.index(name) for name in others) < 80


async def note(name: str, order: list[str], _: Task) -> None:
    order.append(name)


async def test_a_new_task_may_name_its_function_without_a_call(replicas: Replicas) -> None:
    app = gated(asyncio.Event())
    runtime = await replicas.start(app)
    made = await runtime.create(ME, NewTask(method="tools/call", function="quick"))
    assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == "quick"


@row(65)
async def test_a_queue_may_be_bounded_and_what_is_refused_was_not_created(replicas: Replicas) -> None:
    go_on = asyncio.Event()
    app = gated(go_on)
    config = replace(UNHURRIED, concurrency=1, max_queued=2)
    runtime = await replicas.start(app, config)
    made = [await runtime.submit("wait") for _ in range(3)]  # one at work, two waiting
    await replicas.subject.caught_up()
    with pytest.raises(QueueFull, match=r"the queue is full \(max_queued is 2\);") as caught:
        await runtime.submit("wait")
    assert (caught.value.retryable, caught.value.limit) == (True, 2)
    assert await task_edits.counts(runtime.store, ME) == {Status.WORKING: 3}
    go_on.set()
    for each in made:
        await runtime.wait(ME, each.task.task_id, 60)
    await replicas.subject.caught_up()
    await runtime.submit("wait")


# When


@row(65)
async def test_a_backoff_keeps_a_task_from_being_taken_early(replicas: Replicas) -> None:
    app, clock = gated(asyncio.Event()), MovedClock()
    runs: list[int] = []

    @app.function(retries=1, backoff=600)
    async def work(task: Task) -> None:
        runs.append(task.attempt)
        if task.attempt == 1:
            raise Retry("too early")

    runtime = await replicas.start(app, clock=clock)
    made = await runtime.submit("work")
    waiting = await until_waiting(runtime, made)
    pause = (waiting.task.run_at or 0) - waiting.task.last_updated_at
    assert 300 * SECOND <= pause <= 600 * SECOND
    clock.ahead = pause - 60 * SECOND
    await run_all(await replicas.start(app, work=False, clock=clock), ["quick"] * 5)
    assert await now(runtime, made) == waiting
    clock.ahead = pause
    await runtime.wait(ME, made.task.task_id, 60)
    assert runs == [1, 2]


async def until_waiting(runtime: Runtime, task: Snapshot) -> Snapshot:
    async def is_waiting() -> bool:
        return not (await now(runtime, task)).task.is_claimed

    await wait_until(is_waiting)
    return await now(runtime, task)


@row(65)
async def test_a_task_may_say_itself_when_it_is_to_be_run_again(replicas: Replicas) -> None:
    app = new_app()

    @app.function(retries=1, backoff=0.0)
    async def work() -> None:
        raise Retry("the shop is closed", after=900)

    runtime = await replicas.start(app)
    waiting = await until_waiting(runtime, await runtime.submit("work"))
    assert waiting.task.run_at == waiting.record.wake_at == waiting.task.last_updated_at + 900 * SECOND
    assert (waiting.task.attempts, waiting.task.last_failure) == (1, "the shop is closed")


# What is damaged, or cannot be claimed


@row(47, 65)
async def test_a_damaged_record_in_the_queue_is_quarantined_and_is_in_nobodys_way(replicas: Replicas) -> None:
    app = gated(asyncio.Event())
    creator = await replicas.start(app, work=False)
    damaged = [await damage(creator, await creator.submit("quick")) for _ in range(3)]
    made = await creator.submit("quick")
    await replicas.start(app, with_concurrency(1))
    assert value_of(await creator.wait(ME, made.task.task_id, 60)) == "quick"
    for change in damaged:
        await until_quarantined(creator, change)


async def until_quarantined(runtime: Runtime, damaged: Replace) -> None:
    kept = replace(damaged.after, tag=CORRUPT_TAG, version=3, lane=None, wake_at=None, expires_at=None)

    async def is_quarantined() -> bool:
        return await runtime.store.storage.get(kept.address, now=runtime.store.clock()) == kept

    await wait_until(is_quarantined)


async def damage(runtime: Runtime, task: Snapshot) -> Replace:
    record = task.record
    change = record.replace_with(
        body='{"no":"task"}',
        tag=record.tag,
        lane=record.lane,
        wake_at=record.wake_at,
        expires_at=record.expires_at,
    )
    result = await runtime.store.storage.commit([change], now=runtime.store.clock())
    assert isinstance(result, Committed)
    return change


@row(65)
async def test_tasks_that_cannot_be_claimed_are_in_nobodys_way(replicas: Replicas) -> None:
    """They were made where tasks may be larger than here, and fill more than one look at the queue."""
    app = new_app()

    @app.function()
    async def measure(text: str) -> int:
        return len(text)

    creator = await replicas.start(app, work=False)
    large = [
        await creator.submit("measure", {"text": "x" * 2 * BOOKKEEPING_RESERVE_BYTES}) for _ in range(20)
    ]
    made = await creator.submit("measure", {"text": "fits"})
    await replicas.start(app, with_concurrency(4), limits=StoreConfig(max_record_size_bytes=20_000))
    assert value_of(await creator.wait(ME, made.task.task_id, 60)) == 4
    assert [await now(creator, each) for each in large] == large


# How quietly


class Crew:
    """Idle workers, each on a wire, and how often they try to claim."""

    def __init__(self) -> None:
        self.attempts = 0
        self.wires = [FaultyLink() for _ in range(8)]
        for wire in self.wires:
            wire.before = self._count

    async def _count(self, changes: Sequence[Change]) -> None:
        self.attempts += any(isinstance(change, Replace) and not is_end(change) for change in changes[:1])


def is_end(change: Replace) -> bool:
    return change.after.tag != Status.WORKING


@row(65)
@strong_memory("it counts attempts, and a lagging queue invites more of them")
async def test_one_task_does_not_set_a_crowd_of_workers_running(replicas: Replicas) -> None:
    crew, app = Crew(), gated(asyncio.Event())
    creator = await replicas.start(app, work=False)
    rounds = 8 if creator.store.storage.lag else 25
    async with AsyncExitStack() as stack:
        for wire in crew.wires:
            await stack.enter_async_context(open_faulty(replicas, wire, app, UNSWEPT))
        for _ in range(rounds):
            made = await creator.submit("quick")
            await creator.wait(ME, made.task.task_id, 60)
        assert rounds <= crew.attempts < 7 * rounds  # by 8 that are woken together


@row(65)
async def test_an_idle_worker_is_quiet(replicas: Replicas) -> None:
    app, wire = gated(asyncio.Event()), FaultyLink()
    async with open_faulty(replicas, wire, app, RuntimeConfig()):
        await wait_until(lambda: wire.calls["due"] >= 2)
        wire.calls.clear()
        since = asyncio.get_running_loop().time()
        await asyncio.sleep(1.0)
        seconds = asyncio.get_running_loop().time() - since
        assert wire.calls.total() <= 8 * seconds  # by and large a look at each queue, and one at the leases
        assert wire.calls["commit"] == 0


@row(65)
async def test_a_worker_that_hears_nothing_looks_now_and_then(replicas: Replicas) -> None:
    app, wire = gated(asyncio.Event()), FaultyLink()
    wire.is_deaf = True
    creator = await replicas.start(app, work=False)
    async with open_faulty(replicas, wire, app, UNHURRIED):
        await wait_until(lambda: wire.calls["due"] >= 2)
        made = await creator.submit("quick")
        assert value_of(await creator.wait(ME, made.task.task_id, 60)) == "quick"


class Lagging(FaultyLink):
    """A storage whose queues still show for two seconds what was taken from them."""

    lag = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0
        self._taken: dict[Record, float] = {}

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        result = await super().commit(changes, guard=guard, now=now)
        if isinstance(result, Refused):
            self.refused += 1
        else:
            left = [each.before for each in changes if isinstance(each, Replace) and each.before.lane]
            self._taken |= dict.fromkeys(left, asyncio.get_running_loop().time())
        return result

    async def due(
        self, lane: str, *, after: LanePosition | None, until: Micros, limit: int, now: Micros
    ) -> list[Record]:
        since = asyncio.get_running_loop().time() - self.lag
        stale = [each for each, at in self._taken.items() if at > since and each.lane == lane]
        stale = [each for each in stale if after is None or each.lane_position > after]
        found = {
            each.address: each
            for each in await super().due(lane, after=after, until=until, limit=1000, now=now)
        }
        found |= {each.address: each for each in stale if lane.startswith("run/")}
        return sorted(found.values(), key=lambda each: (each.wake_at, each.key))[:limit]


@row(65)
async def test_a_worker_does_not_run_after_what_a_queue_that_lags_still_shows(replicas: Replicas) -> None:
    app, wire, runs = new_app(), Lagging(), Counter[int]()

    @app.function()
    async def work(number: int) -> None:
        runs[number] += 1

    creator = await replicas.start(app, work=False)
    made = [await creator.submit("work", {"number": number}) for number in range(60)]
    async with open_faulty(replicas, wire, app, replace(STEADY_HEARTBEAT, concurrency=4)) as runtime:
        assert runtime.store.storage.lag == 2.0
        for each in made:
            assert (await creator.wait(ME, each.task.task_id, 60)).task.attempts == 1
    assert runs == Counter(range(60))
    assert wire.refused <= 5
