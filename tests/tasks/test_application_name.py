"""Applications that share a storage have nothing in common: no task, no key, no quota, no cursor, no lane."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perdure.storage import Record
from perdure.storage.errors import CannotOpen
from perdure.storage.kit import Subject
from perdure.storage.limits import MAX_LANE_BYTES, MAX_PARTITION_BYTES
from perdure.tasks import NewTask, Owner, Snapshot, StoreConfig, TaskStore
from perdure.tasks.application_name import MAX_APPLICATION_BYTES, application_of, escape_application
from perdure.tasks.edits import MAX_FUNCTION_NAME_BYTES, deadline_lane, run_lane
from perdure.tasks.errors import (
    CorruptRecord,
    InvalidCursor,
    InvalidValue,
    LimitExceeded,
    NotFound,
    QuotaExceeded,
)
from perdure.tasks.owner import MAX_OWNER_BYTES, partition_of
from perdure.tasks.task_snapshot import TASKS, check_format

from .. import task_edits
from ..markers import once, row
from ..newer import changed
from .samples import ANA, CALL, START, Clock, created, ids_of, owners

pytestmark = pytest.mark.anyio

names = st.text("ab%:/23A5F é日", min_size=1, max_size=20).filter(lambda name: name == name.strip())


@row(113)
@given(names, names, owners, owners)
def test_no_application_is_confused_with_another(one: str, other: str, owner: Owner, second: Owner) -> None:
    assume(one != other)
    first, foreign = partition_of(one, owner, "t"), partition_of(other, second, "t")
    assert first != foreign
    assert application_of(first) == one
    assert len({run_lane(one, "f"), run_lane(other, "f"), deadline_lane(one), deadline_lane(other)}) == 4


@row(113)
def test_applications_cannot_be_made_to_look_like_each_other() -> None:
    applications = ["a", "a:b", "a%3Ab", "a/b", "a%2Fb", "a%", "a%25", ":", "/", "a/", "user", "run", "日本"]
    functions = ["f", "b/f", "/f", "%2Fb/f", "a/b/f"]
    lanes = {run_lane(application, function) for application in applications for function in functions}
    assert len(lanes) == len(applications) * len(functions)
    assert [application_of(partition_of(each, Owner.local(), "")) for each in applications] == applications


@pytest.mark.parametrize("name", ["", " ", " a", "a ", "a\n", "a\0", "a\u200b", "e\u0301", "\ud800", 7])
def test_a_name_that_is_empty_or_looks_like_another_is_refused(name: str) -> None:
    with pytest.raises(InvalidValue, match="application"):
        escape_application(name)


def test_the_longest_names_fit_into_partitions_and_lanes() -> None:
    longest = "a" * MAX_APPLICATION_BYTES
    owner = Owner.session("s" * (MAX_OWNER_BYTES - len("session::")))
    assert len(partition_of(longest, owner, "")) == MAX_PARTITION_BYTES
    assert len(run_lane(longest, "f" * MAX_FUNCTION_NAME_BYTES)) == MAX_LANE_BYTES
    assert MAX_FUNCTION_NAME_BYTES >= 128  # the longest name of a tool that MCP recommends
    for name in (longest + "a", "/" * 34):
        with pytest.raises(LimitExceeded):
            escape_application(name)


@once
async def test_a_store_refuses_an_invalid_application(subject: Subject) -> None:
    with pytest.raises(InvalidValue, match="application"):
        TaskStore(subject.storage, application="")


@row(113)
async def test_a_task_of_another_application_is_as_absent_as_none(subject: Subject, clock: Clock) -> None:
    config = StoreConfig(allow_anonymous=True)
    store, other = (
        TaskStore(subject.storage, config, application=each, clock=clock) for each in ("shop", "other")
    )
    for owner in (ANA, Owner.local(), Owner.anonymous()):
        mine = await store.create(owner, CALL)
        assert mine.task.application == "shop"
        with pytest.raises(NotFound):
            await other.get(owner, mine.task.task_id)
        assert await other.delete(owner, mine.task.task_id) is False
        assert await ids_of(other, owner) == []
        assert await task_edits.counts(other, owner) == {}
        assert await store.get(owner, mine.task.task_id) == mine


@row(113)
async def test_idempotency_keys_of_two_applications_have_nothing_in_common(
    subject: Subject, clock: Clock
) -> None:
    new = NewTask(method="tools/call", params={"name": "pay"}, idempotency_key="k")
    made = [
        await TaskStore(subject.storage, application=each, clock=clock).create(ANA, new)
        for each in ("shop", "other", "shop")
    ]
    assert made[0].task.task_id == made[2].task.task_id != made[1].task.task_id


@row(113)
async def test_the_quota_of_an_owner_counts_the_tasks_of_one_application(
    subject: Subject, clock: Clock
) -> None:
    config = StoreConfig(max_tasks_per_owner=2)
    store, other = (
        TaskStore(subject.storage, config, application=each, clock=clock) for each in ("shop", "other")
    )
    await created(store, 2)
    await created(other, 2)
    with pytest.raises(QuotaExceeded):
        await store.create(ANA, CALL)


@row(113)
async def test_a_cursor_of_one_application_is_invalid_in_another(subject: Subject, clock: Clock) -> None:
    store, other = (TaskStore(subject.storage, application=each, clock=clock) for each in ("shop", "other"))
    await created(store, 2)
    await created(other, 2)
    cursor = (await store.list(ANA, limit=1)).next_cursor
    with pytest.raises(InvalidCursor):
        await other.list(ANA, limit=1, cursor=cursor)


@once
async def test_the_limit_of_active_tasks_counts_all_applications(subject: Subject, clock: Clock) -> None:
    """It protects the storage, which they share."""
    config = StoreConfig(max_tasks=2)
    store, other = (
        TaskStore(subject.storage, config, application=each, clock=clock) for each in ("shop", "other")
    )
    await created(store, 2)
    await subject.caught_up()
    with pytest.raises(QuotaExceeded):
        await other.create(ANA, CALL)


@once
async def test_a_record_in_the_partition_of_another_application_is_damaged(store: TaskStore) -> None:
    record = (await store.create(ANA, CALL)).record
    moved = Record(
        space=TASKS,
        partition=record.partition,
        key=record.key,
        order=record.order,
        body=changed(record.body, application="other"),
    )
    with pytest.raises(CorruptRecord, match="application"):
        Snapshot.from_record(moved)


@once
async def test_a_storage_with_tasks_of_a_development_version_is_refused(
    subject: Subject, store: TaskStore, clock: Clock
) -> None:
    await check_format(store.storage, now=store.clock())
    first = await store.create(ANA, CALL)
    await check_format(store.storage, now=store.clock())
    body = changed(first.record.body, format=1)
    change = first.record.replace_with(body=body, tag=first.record.tag, expires_at=first.record.expires_at)
    await store.storage.commit([change], now=START)
    clock.advance(1)
    await store.create(ANA, CALL)
    await subject.caught_up()
    with pytest.raises(CannotOpen, match="format 1, which only development versions of perdure wrote"):
        await check_format(store.storage, now=store.clock())
