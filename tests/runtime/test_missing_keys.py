"""Workers leave tasks whose key they lack to other workers, and reach what waits behind them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from perdure.runtime import App, Pause, Runtime, current_task, deadline
from perdure.runtime import lease as leases
from perdure.runtime.intake import MAX_CLAIMS_AT_ONCE
from perdure.runtime.recovery import end_attended
from perdure.runtime.task import stored_credentials
from perdure.storage import Record
from perdure.storage.time_types import DAY, MINUTE
from perdure.tasks import InputKind, InputRequest, NewTask, Snapshot, Status, StoreConfig
from perdure.tasks.encryption import Keyring, new_key
from perdure.tasks.errors import KeyMissing
from perdure.tasks.task_snapshot import TASKS, lease_address

from ..conditions import wait_until
from ..markers import row, strong_memory
from ..newer import stored
from .apps import counted
from .faulty_storage import ME, MovedClock, lease_of_process, now, until_released
from .replicas import QUICK, UNHURRIED, Replicas, leave_with_a_dead_worker, new_app, value_of

pytestmark = pytest.mark.anyio

KEY = new_key()
EVERYTHING = StoreConfig(encrypt="everything")
WRONG: list[Sequence[str]] = [(), (new_key(),)]
SECRET = NewTask(
    method="tools/call", function="work", params={"name": "work", "arguments": {}}, credentials={"token": "t"}
)

wrong_keys = pytest.mark.parametrize("keys", WRONG, ids=["no_key", "another_key"])


def quick() -> App:
    app = new_app()

    @app.function(retries=4, backoff=0.0)
    async def work() -> str:
        return "done"

    return app


async def is_unchanged(runtime: Runtime, record: Record) -> bool:
    return await stored(runtime.store.storage, record.address, now=runtime.store.clock()) == record


@row(122, 123)
@wrong_keys
async def test_a_worker_claims_what_waits_behind_tasks_whose_key_it_lacks(
    replicas: Replicas, keys: Sequence[str], caplog: pytest.LogCaptureFixture
) -> None:
    app = quick()
    owner = await replicas.start(app, work=False, keys=[KEY])
    hidden = [await owner.create(ME, SECRET) for _ in range(2 * MAX_CLAIMS_AT_ONCE)]
    everything = await replicas.start(app, work=False, keys=[KEY], limits=EVERYTHING)
    hidden += [await everything.submit("work") for _ in range(MAX_CLAIMS_AT_ONCE)]
    made = await owner.submit("work")
    await replicas.subject.caught_up()
    worker = await replicas.start(app, replace(UNHURRIED, concurrency=2, queue_poll_interval=3600), keys=keys)
    assert value_of(await owner.wait(ME, made.task.task_id, 20)) == "done"
    for each in hidden:
        assert await is_unchanged(owner, each.record)
    assert worker.store.keys.missing_keys["tests"].keys() == set(owner.store.keys.key_ids)
    await wait_until(lambda: f"leaving {len(hidden)} tasks, such as " in caplog.text)
    await replicas.start(app, keys=[KEY])
    for each in hidden:
        assert value_of(await owner.wait(ME, each.task.task_id, 20)) == "done"


@row(122, 123)
@wrong_keys
async def test_recovery_leaves_a_task_whose_key_it_lacks_and_its_lease(
    replicas: Replicas, keys: Sequence[str], caplog: pytest.LogCaptureFixture
) -> None:
    app, clock = quick(), MovedClock()
    owner = await replicas.start(app, work=False, keys=[KEY], limits=EVERYTHING)
    made = await owner.get(ME, await leave_with_a_dead_worker(owner, ME))
    lease = await stored(owner.store.storage, lease_address(made.record), now=owner.store.clock())
    worker = await replicas.start(app, clock=clock, keys=keys)
    clock.ahead = MINUTE
    await wait_until(
        lambda: f"leaving the recovery of task {made.task.task_id} to other workers" in caplog.text
    )
    with pytest.raises(KeyMissing):
        await worker.cancel(ME, made.task.task_id)
    with pytest.raises(KeyMissing):
        await worker.cancel_now(ME, made.task.task_id)
    with pytest.raises(KeyMissing):
        await worker.answer(ME, made.task.task_id, {"name": {"action": "decline"}})
    assert await is_unchanged(owner, lease)
    assert await is_unchanged(owner, made.record)
    await replicas.start(app, clock=clock, keys=[KEY])
    assert value_of(await owner.wait(ME, made.task.task_id, 20)) == "done"


@row(122, 123)
async def test_a_run_whose_task_was_written_with_a_key_it_lacks_writes_nothing_more(
    replicas: Replicas, caplog: pytest.LogCaptureFixture
) -> None:
    app, go_on, runs = counted()
    old, new = new_key(), new_key()
    config = replace(UNHURRIED, queue_poll_interval=QUICK.queue_poll_interval)
    worker = await replicas.start(app, config, keys=[old], limits=EVERYTHING)
    other = await replicas.start(app, work=False, keys=[new, old], limits=EVERYTHING)
    made = await worker.submit("work")
    await wait_until(lambda: bool(runs))
    written = await other.store.update(ME, made.task.task_id, other.store.request_cancel)
    await wait_until(lambda: f"task {made.task.task_id}: no outcome was stored" in caplog.text)
    go_on.set()
    assert await is_unchanged(other, written.record)


@row(123)
async def test_deadlines_leave_a_task_whose_key_is_missing(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadline, "BATCH", 1)
    app, clock = new_app(), MovedClock()

    @app.function
    async def asks() -> None:
        raise Pause({"name": InputRequest(kind=InputKind.ELICITATION, params={"message": "Whose?"})})

    async with replicas.running(app, clock=clock, keys=[KEY], limits=EVERYTHING) as owner:
        made = await owner.submit("asks", ttl=60)
        await until_released(owner, made)
        first = await now(owner, made)
    worker = await replicas.start(app, clock=clock)
    second = await worker.submit("asks", ttl=61)
    await until_released(worker, second)
    clock.ahead = 2 * MINUTE
    ended = await worker.wait(ME, second.task.task_id, 120)
    assert ended.task.status_message == "a question was not answered in time"
    clock.ahead = 40 * DAY
    await deadline.Deadlines(worker.store, QUICK).end_abandoned()
    found = await stored(worker.store.storage, first.record.address, now=worker.store.clock())
    assert found == first.record


@row(122)
async def test_a_worker_restores_what_another_process_encrypted(replicas: Replicas) -> None:
    app = new_app()
    seen: list[object] = []

    @app.function(name="work")
    async def work() -> None:
        seen.append(stored_credentials(current_task()))

    creator = await replicas.start(app, work=False, keys=[KEY])
    made = await creator.create(ME, SECRET)
    record = await stored(creator.store.storage, made.record.address, now=creator.store.clock())
    assert Snapshot.head_of(record).task.ciphertexts.keys() == {"credentials"}
    worker = await replicas.start(app, keys=[new_key(), KEY])
    await worker.wait(ME, made.task.task_id, 20)
    assert seen == [{"token": "t"}]
    ended = await stored(creator.store.storage, made.record.address, now=creator.store.clock())
    assert (ended.space, Snapshot.head_of(ended).task.ciphertexts) == (TASKS, {})


@row(115, 122, 123)
@wrong_keys
@strong_memory("each call of end_attended is one step, which a lost answer would repeat or skip")
async def test_a_lost_process_is_left_to_a_worker_that_can_read_its_tasks(
    replicas: Replicas, keys: Sequence[str]
) -> None:
    owner = await replicas.start(quick(), work=False, keys=[KEY], limits=EVERYTHING)
    async with owner.attendance.waiting() as process:
        made = await owner.create(ME, replace(SECRET, attended_by=process))
    other = await replicas.start(quick(), work=False, keys=keys)
    await replicas.subject.caught_up()
    for tag in (leases.ATTENDING, leases.SUSPECTED, leases.LOST):
        lease = await lease_of_process(owner, process)
        assert lease is not None
        assert lease.tag == tag
        with pytest.raises(KeyMissing):
            await end_attended(lease, other.store)
        assert await lease_of_process(owner, process) == lease
        await end_attended(lease, owner.store)
        if tag == leases.SUSPECTED:  # the same call declares it lost and ends its tasks
            break

    assert (await now(owner, made)).task.status is Status.CANCELLED
    assert await lease_of_process(owner, process) is None


async def test_an_app_on_another_storage_has_the_same_keys() -> None:
    app = App("memory:", application="tests", store=EVERYTHING, encryption_keys=[KEY])
    async with app.replaced("memory:", clock=MovedClock()).open(work=False) as runtime:
        assert runtime.store.keys.key_ids == Keyring([KEY]).key_ids
