"""Creating, reading, changing and ending tasks, on every engine."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given

from perdure.storage import Address, Record, Storage
from perdure.storage.kit import Subject
from perdure.storage.memory import MemoryEngine
from perdure.storage.time_types import HOUR, SECOND
from perdure.tasks import (
    Failure,
    InputKind,
    InputRequest,
    Json,
    NewTask,
    Owner,
    Progress,
    Snapshot,
    Status,
    StoreConfig,
    Success,
    TaskId,
    TaskStore,
)
from perdure.tasks.errors import (
    AlreadyExists,
    ConcurrentModification,
    IdempotencyKeyReused,
    InvalidValue,
    NotFound,
    TerminalTask,
)
from perdure.tasks.idempotency import IDEMPOTENCY_KEYS
from perdure.tasks.owner import partition_of

from .. import task_edits
from ..markers import once, row
from ..storage.engines import sqlite
from .samples import ANA, BOB, CALL, START, Clock, json_values

pytestmark = pytest.mark.anyio

QUESTION = InputRequest(kind=InputKind.ELICITATION, params={"message": "Whose?"})


@row(6)
async def test_a_created_task_is_readable_at_once(store: TaskStore) -> None:
    made = await store.create(ANA, CALL)
    assert await store.get(ANA, made.task.task_id) == made
    assert made.task.status is Status.WORKING
    assert (made.version, made.task.created_at, made.task.last_updated_at) == (1, START, START)


async def test_a_task_has_what_it_was_created_with(store: TaskStore) -> None:
    new = NewTask(
        method="tools/call",
        params={"name": "x"},
        meta={"progressToken": 1},
        ttl_ms=1000,
        poll_interval_ms=250,
        session_id="s-1",
        variables={"page": 1},
        idempotency_key="k-1",
    )
    task = (await store.get(ANA, (await store.create(ANA, new)).task.task_id)).task
    assert (task.owner, task.session_id, task.original_method) == (ANA, "s-1", "tools/call")
    assert (task.original_params, task.meta, task.variables) == (
        {"name": "x"},
        {"progressToken": 1},
        {"page": 1},
    )
    assert (task.ttl_ms, task.poll_interval_ms, task.idempotency_key) == (1000, 250, "k-1")


@row(7)
async def test_create_never_overwrites(subject: Subject, clock: Clock) -> None:
    store = TaskStore(subject.storage, clock=clock, new_id=lambda: TaskId("a" * 32), application="tests")
    first = await store.create(ANA, CALL)
    with pytest.raises(AlreadyExists):
        await store.create(ANA, NewTask(method="other"))
    with pytest.raises(AlreadyExists):
        await store.create(ANA, NewTask(method="other", idempotency_key="k"))
    assert await store.get(ANA, "a" * 32) == first


@row(9)
async def test_ids_carry_128_random_bits(store: TaskStore) -> None:
    ids = [(await store.create(ANA, CALL)).task.task_id for _ in range(50)]
    assert len(set(ids)) == 50
    assert all(len(bytes.fromhex(each)) == 16 for each in ids)
    assert ids != sorted(ids)  # not ordered by time


@row(10)
@given(params=json_values, result=json_values)
def test_parameters_and_results_come_back_as_they_went(params: Json, result: Json) -> None:
    async def round_trip() -> None:
        store = TaskStore(Storage(MemoryEngine()), application="tests")
        made = await store.create(ANA, NewTask(method="m", params=params, meta=result))
        await task_edits.finish(store, made, Success.of(result))
        task = (await store.get(ANA, made.task.task_id)).task
        assert (task.original_params, task.meta) == (params, result)
        assert isinstance(task.outcome, Success)
        assert task.outcome.value == result

    asyncio.run(round_trip())


@row(14, 28)
@pytest.mark.parametrize(
    "task_id", ["0" * 32, "", "x", "a b", "\0", "\ud800", "é", "a" * 5000, "../x", "{a}"]
)
async def test_an_unknown_id_is_not_found_whatever_its_form(store: TaskStore, task_id: str) -> None:
    with pytest.raises(NotFound) as caught:
        await store.get(ANA, task_id)
    assert str(caught.value) == "Task not found"


@row(15)
async def test_delete_is_idempotent(store: TaskStore) -> None:
    task_id = (await store.create(ANA, CALL)).task.task_id
    assert await store.delete(ANA, task_id) is True
    assert await store.delete(ANA, task_id) is False
    with pytest.raises(NotFound):
        await store.get(ANA, task_id)


@row(17, 18)
async def test_finish_is_one_write_of_status_outcome_and_message(store: TaskStore) -> None:
    made = await store.create(ANA, CALL)
    done = await task_edits.finish(store, made, Success.of({"content": []}), message="all done")
    assert done.version == made.version + 1
    task = (await store.get(ANA, made.task.task_id)).task
    assert (task.status, task.status_message) == (Status.COMPLETED, "all done")
    assert isinstance(task.outcome, Success)
    assert task.outcome.value == {"content": []}


@row(18)
async def test_every_terminal_task_has_an_outcome(store: TaskStore) -> None:
    completed = await task_edits.finish(store, await store.create(ANA, CALL), Success.of(None))
    failed = await task_edits.finish(store, await store.create(ANA, CALL), Failure.of(-32603, "no disk"))
    cancelled = await task_edits.cancel(store, await store.create(ANA, CALL))
    for ended in (completed, failed, cancelled):
        task = (await store.get(ANA, ended.task.task_id)).task
        assert task.is_terminal
        assert task.outcome is not None
        assert task.finished_at == START


@row(16, 19)
async def test_an_error_result_completes_and_a_protocol_error_fails(store: TaskStore) -> None:
    made = await store.create(ANA, CALL)
    made = await task_edits.report(store, made, message="page 3 of 12")
    outcome = Success.of(
        {"isError": True, "content": []}, error="\n no disk \nat all", cause="OSError: no disk"
    )
    completed = (await task_edits.finish(store, made, outcome)).task
    assert (completed.status, completed.is_error, completed.status_message) == (
        Status.COMPLETED,
        True,
        "no disk",
    )
    assert (await store.get(ANA, completed.task_id)).task == completed
    failed = await task_edits.finish(
        store, await store.create(ANA, CALL), Failure.of(-32001, "no disk", {"disk": "sda"})
    )
    task = (await store.get(ANA, failed.task.task_id)).task
    assert task.status is Status.FAILED
    assert task.status_message == "no disk"
    assert isinstance(task.outcome, Failure)
    assert (task.outcome.code, task.outcome.message, task.outcome.data) == (
        -32001,
        "no disk",
        {"disk": "sda"},
    )


@row(4)
@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled"])
async def test_terminal_freezes_everything(store: TaskStore, clock: Clock, ending: str) -> None:
    made = await store.create(ANA, CALL)
    asked = await task_edits.ask(store, made, {"name": QUESTION})
    ended = await _end(store, asked, ending)
    clock.advance(SECOND)
    for attempt in (
        task_edits.report(store, ended, message="more"),
        task_edits.set_variables(store, ended, {"a": 1}),
        task_edits.finish(store, ended, Success.of(1)),
        task_edits.finish(store, ended, Failure.of(1, "x")),
        task_edits.cancel(store, ended),
        store.request_cancel(ended),
        task_edits.ask(store, ended, {"other": QUESTION}),
        task_edits.answer(store, ended, {"name": {"action": "cancel"}}),
        task_edits.claim(store, ended),
        task_edits.release(store, ended),
    ):
        with pytest.raises(TerminalTask, match=ending):
            await attempt
    assert await store.get(ANA, made.task.task_id) == ended


async def _end(store: TaskStore, snapshot: Snapshot, ending: str) -> Snapshot:
    if ending == "cancelled":
        return await task_edits.cancel(store, snapshot)
    return await task_edits.finish(
        store, snapshot, Success.of(1) if ending == "completed" else Failure.of(1, "x")
    )


@row(20, 21)
async def test_every_write_is_refused_on_a_version_that_is_no_longer_true(store: TaskStore) -> None:
    stale = await store.create(ANA, CALL)
    task_id = stale.task.task_id
    current = await task_edits.ask(store, stale, {"name": QUESTION})
    for attempt in (
        task_edits.report(store, stale, message="x"),
        task_edits.set_variables(store, stale, {"a": 1}),
        task_edits.finish(store, stale, Success.of(1)),
        task_edits.cancel(store, stale),
        store.request_cancel(stale),
        task_edits.ask(store, stale, {"other": QUESTION}),
        task_edits.claim(store, stale),
        task_edits.release(store, stale),
    ):
        with pytest.raises(ConcurrentModification) as caught:
            await attempt
        assert (caught.value.expected, caught.value.actual) == (1, 2)
        assert caught.value.retryable
    assert await store.get(ANA, task_id) == current


@row(22)
async def test_a_write_to_a_task_that_is_gone_is_not_found(store: TaskStore) -> None:
    made = await store.create(ANA, CALL)
    await store.delete(ANA, made.task.task_id)
    with pytest.raises(NotFound):
        await task_edits.report(store, made, message="x")


@row(24, 25)
async def test_mutate_loses_no_update(store: TaskStore) -> None:
    task_id = (await store.create(ANA, CALL)).task.task_id

    async def add(read: Snapshot) -> Snapshot:
        count = read.task.variables.get_int("count", 0)
        await asyncio.sleep(0)  # let the others read the same version
        return await task_edits.set_variables(store, read, {"count": count + 1})

    await asyncio.gather(*[store.update(ANA, task_id, add, attempts=50) for _ in range(8)])
    assert (await store.get(ANA, task_id)).task.variables == {"count": 8}


@row(25)
async def test_mutate_gives_up_after_its_attempts(store: TaskStore) -> None:
    task_id = (await store.create(ANA, CALL)).task.task_id
    tries = 0

    async def always_late(read: Snapshot) -> Snapshot:
        nonlocal tries
        tries += 1
        await task_edits.report(store, read, message="another writer")
        return await task_edits.report(store, read, message="me")

    with pytest.raises(ConcurrentModification):
        await store.update(ANA, task_id, always_late, attempts=3)
    assert tries == 3


async def test_delete_of_a_task_changed_in_between_is_a_conflict(subject: Subject, clock: Clock) -> None:
    class Slow(TaskStore):
        async def _find_record(self, owner: Owner, task_id: str, now: int) -> Record | None:
            found = await super()._find_record(owner, task_id, now)
            if found is not None:
                await task_edits.report(self, Snapshot.from_record(found), message="in between")
            return found

    made = await TaskStore(subject.storage, clock=clock, application="tests").create(ANA, CALL)
    with pytest.raises(ConcurrentModification):
        await Slow(subject.storage, application="tests", clock=clock).delete(ANA, made.task.task_id)


@row(8)
async def test_a_repeated_create_returns_the_first_task(store: TaskStore) -> None:
    new = msgspec.structs.replace(CALL, idempotency_key="order 66 é")
    first = await store.create(ANA, new)
    moved = await task_edits.report(store, first, message="on it")
    assert await store.create(ANA, new) == moved
    assert (await store.create(BOB, new)).task.task_id != first.task.task_id
    assert (await task_edits.counts(store, ANA)) == {Status.WORKING: 1}


@row(8)
async def test_of_concurrent_creates_with_one_key_there_is_one_task(store: TaskStore) -> None:
    new = msgspec.structs.replace(CALL, idempotency_key="k")
    made = await asyncio.gather(*[store.create(ANA, new) for _ in range(10)])
    assert len({each.task.task_id for each in made}) == 1
    assert await task_edits.counts(store, ANA) == {Status.WORKING: 1}


@row(8)
async def test_the_order_of_the_arguments_makes_no_other_call(store: TaskStore) -> None:
    made = [
        await store.create(ANA, NewTask(method="m", params=params, idempotency_key="k"))
        for params in ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1})
    ]
    assert len({each.task.task_id for each in made}) == 1


@row(8)
async def test_a_key_used_for_another_call_is_refused(store: TaskStore) -> None:
    await store.create(ANA, msgspec.structs.replace(CALL, idempotency_key="k"))
    with pytest.raises(IdempotencyKeyReused):
        await store.create(ANA, NewTask(method="tools/call", params={"name": "other"}, idempotency_key="k"))
    first = await store.create(ANA, NewTask(method="m", params=[1], idempotency_key="one"))
    for params in ([1.0], [True]):  # equal in Python, but not the same call
        with pytest.raises(IdempotencyKeyReused):
            await store.create(ANA, NewTask(method="m", params=params, idempotency_key="one"))
    await _spoil_key(store.storage, "one")
    again = await store.create(ANA, NewTask(method="m", params=[1], idempotency_key="one"))
    assert again.task.task_id != first.task.task_id  # a key that cannot be read is free


async def _spoil_key(storage: Storage, key: str) -> None:
    pointer = await storage.get(Address(IDEMPOTENCY_KEYS, partition_of("tests", ANA, ""), key), now=START)
    assert pointer is not None
    await storage.commit([pointer.replace_with(body="nonsense", tag="")], now=START)


@row(8)
async def test_a_key_is_free_again_when_its_task_is_gone_or_its_window_over(
    store: TaskStore, clock: Clock
) -> None:
    new = msgspec.structs.replace(CALL, idempotency_key="k", ttl_ms=24 * 3_600_000)
    first = await store.create(ANA, new)
    await store.delete(ANA, first.task.task_id)
    second = await store.create(ANA, new)
    assert second.task.task_id != first.task.task_id
    await task_edits.claim(store, second)
    clock.advance(25 * HOUR)
    third = await store.create(ANA, new)
    assert third.task.task_id != second.task.task_id
    assert (await store.get(ANA, second.task.task_id)).task.is_claimed


@pytest.mark.parametrize("key", ["", "\0", "a" * 257, "\ud800"])
@once
async def test_a_key_that_cannot_be_one_is_refused(store: TaskStore, key: str) -> None:
    with pytest.raises(InvalidValue, match="idempotency_key"):
        await store.create(ANA, msgspec.structs.replace(CALL, idempotency_key=key))


async def test_reports_change_only_what_they_say(store: TaskStore, clock: Clock) -> None:
    made = await store.create(ANA, CALL)
    clock.advance(SECOND)
    first = await task_edits.report(store, made, message="collecting", progress=Progress(done=3, total=12))
    second = await task_edits.report(store, first, progress=Progress(done=4))
    assert (second.task.status_message, second.task.progress) == ("collecting", Progress(done=4))
    assert second.task.last_updated_at == START + SECOND


@pytest.mark.parametrize(("done", "total"), [(float("nan"), None), (1, float("inf")), (True, 1), (10**40, 1)])
def test_progress_is_a_number(done: float, total: float | None) -> None:
    with pytest.raises(InvalidValue, match="progress"):
        Progress(done=done, total=total)


async def test_the_time_of_a_change_never_runs_backwards(store: TaskStore, clock: Clock) -> None:
    made = await store.create(ANA, CALL)
    clock.advance(-10 * SECOND)
    moved = await task_edits.report(store, made, message="from a replica whose clock is behind")
    assert moved.task.last_updated_at == START


async def test_a_cancel_request_is_durable_and_repeating_it_changes_nothing(store: TaskStore) -> None:
    made = await store.create(ANA, CALL)
    asked = await store.request_cancel(made)
    assert asked.task.cancel_requested_at == START
    assert await store.request_cancel(asked) is asked
    assert (await store.get(ANA, made.task.task_id)) == asked


@row(97)
async def test_tasks_survive_a_restart() -> None:
    async with sqlite() as subject:
        made = await TaskStore(subject.storage, StoreConfig(), application="tests").create(ANA, CALL)
        again = TaskStore(await subject.reopened(), StoreConfig(), application="tests")
        assert await again.get(ANA, made.task.task_id) == made
