"""Owners do not see, change, list or count each other's tasks, and cannot find out that they exist."""

from __future__ import annotations

import asyncio

import pytest

from perdure.storage.kit import Subject
from perdure.storage.time_types import DAY
from perdure.tasks import NewTask, Owner, Snapshot, Status, StoreConfig, TaskStore
from perdure.tasks.errors import AuthenticationRequired, InvalidValue, NotFound, QuotaExceeded

from .. import task_edits
from ..markers import row
from .samples import ANA, BOB, CALL, Clock, created, ids_of

pytestmark = pytest.mark.anyio

ANONYMOUS = Owner.anonymous()


async def touch(store: TaskStore, owner: Owner, task_id: str) -> None:
    """Everything that can be done with an id."""

    async def report(read: Snapshot) -> Snapshot:
        return await task_edits.report(store, read, message="mine")

    with pytest.raises(NotFound):
        await store.get(owner, task_id)
    with pytest.raises(NotFound):
        await store.update(owner, task_id, report)
    assert await store.delete(owner, task_id) is False


@row(26)
async def test_a_foreign_task_is_as_absent_as_none(store: TaskStore) -> None:
    mine = await store.create(ANA, CALL)
    others = (BOB, Owner.user("https://other.example", "ana"), Owner.client(ANA.issuer, "ana"), ANONYMOUS)
    for other in (*others, Owner.local(), Owner.session("ana")):
        await touch(store, other, mine.task.task_id)
        assert await ids_of(store, other) == []
        assert await task_edits.counts(store, other) == {}
    assert await store.get(ANA, mine.task.task_id) == mine


@row(28)
async def test_absent_foreign_and_expired_are_one_text_without_the_id(store: TaskStore, clock: Clock) -> None:
    foreign = (await store.create(ANA, CALL)).task.task_id
    expired = (await store.create(BOB, NewTask(method="m", ttl_ms=1))).task.task_id
    clock.advance(1000)
    texts: set[str] = set()
    for task_id in (foreign, expired, "0" * 32):
        with pytest.raises(NotFound) as caught:
            await store.get(BOB, task_id)
        texts.add(str(caught.value))
    assert texts == {"Task not found"}


@row(29)
async def test_no_parameter_changes_the_owner(store: TaskStore) -> None:
    bob = {"kind": "user", "issuer": BOB.issuer, "subject": BOB.subject}
    new = NewTask(
        method="tools/call",
        params={"owner": bob, "_meta": {"owner": bob}},
        meta={"owner": bob},
        variables={"owner": bob},
        session_id="bob",
    )
    made = await store.create(ANA, new)
    assert (await store.get(ANA, made.task.task_id)).task.owner == ANA
    await touch(store, BOB, made.task.task_id)


@row(27)
async def test_hostile_owners_stay_apart_in_listing_and_quota(subject: Subject, clock: Clock) -> None:
    store = TaskStore(subject.storage, StoreConfig(max_tasks_per_owner=2), clock=clock, application="tests")
    names = ["a", "a:", "a:b", "a#", "{a}", "a%", "a%3A", "a/", "a\0", "á", "a" * 200]
    ids = {
        name: [each.task.task_id for each in await created(store, 2, Owner.user("i", name))] for name in names
    }
    for name in names:
        assert sorted(await ids_of(store, Owner.user("i", name))) == sorted(ids[name])
        with pytest.raises(QuotaExceeded):
            await store.create(Owner.user("i", name), CALL)


@row(30)
async def test_anonymous_callers_are_refused_on_every_operation_unless_allowed(
    subject: Subject, clock: Clock
) -> None:
    store = TaskStore(subject.storage, clock=clock, application="tests")
    for attempt in (
        store.create(ANONYMOUS, CALL),
        store.get(ANONYMOUS, "0" * 32),
        store.list(ANONYMOUS),
        store.delete(ANONYMOUS, "0" * 32),
        store.update(ANONYMOUS, "0" * 32, store.request_cancel),
    ):
        with pytest.raises(AuthenticationRequired):
            await attempt


@row(30)
async def test_if_anonymous_is_allowed_the_id_is_the_key_and_nothing_is_listed(store: TaskStore) -> None:
    made = await store.create(ANONYMOUS, CALL)
    task_id = made.task.task_id
    assert await store.get(ANONYMOUS, task_id) == made
    assert (await store.update(ANONYMOUS, task_id, store.request_cancel)).task.cancel_requested_at
    assert (await store.list(ANONYMOUS)).tasks == ()
    assert await task_edits.counts(store, ANONYMOUS) == {}
    await touch(store, ANA, task_id)
    assert await store.delete(ANONYMOUS, task_id) is True


@row(30)
async def test_only_the_global_maximum_applies_to_anonymous_tasks(subject: Subject, clock: Clock) -> None:
    config = StoreConfig(allow_anonymous=True, max_tasks_per_owner=1, max_tasks=3)
    store = TaskStore(subject.storage, config, clock=clock, application="tests")
    await created(store, 3, ANONYMOUS)
    await subject.caught_up()
    with pytest.raises(QuotaExceeded) as caught:
        await store.create(ANONYMOUS, CALL)
    assert caught.value.scope == "server"


async def test_anonymous_callers_share_no_idempotency_keys(store: TaskStore) -> None:
    with pytest.raises(InvalidValue, match="idempotency_key"):
        await store.create(ANONYMOUS, NewTask(method="m", idempotency_key="1"))


@row(34, 36)
async def test_the_owner_quota_is_refused_with_a_hint(store: TaskStore, clock: Clock) -> None:
    made = await created(store, 100)
    with pytest.raises(QuotaExceeded, match="wait for one to finish, or cancel one") as caught:
        await store.create(ANA, CALL)
    assert (caught.value.scope, caught.value.limit, caught.value.retryable) == ("owner", 100, True)
    assert len(await created(store, 1, BOB)) == 1
    await task_edits.cancel(store, made[0])  # a task that ends frees its place
    await store.create(ANA, CALL)
    with pytest.raises(QuotaExceeded):
        await store.create(ANA, CALL)
    clock.advance(8 * DAY)  # and so does one that expires, purged or not
    await created(store, 100)


@row(35)
async def test_the_global_maximum_counts_all_owners(subject: Subject, clock: Clock) -> None:
    store = TaskStore(subject.storage, StoreConfig(max_tasks=4), clock=clock, application="tests")
    made = await created(store, 2) + await created(store, 2, BOB)
    await subject.caught_up()
    with pytest.raises(QuotaExceeded, match="this server has 4") as caught:
        await store.create(Owner.local(), CALL)
    assert caught.value.scope == "server"
    await task_edits.cancel(store, made[0])
    await subject.caught_up()
    await store.create(Owner.local(), CALL)


@row(35)
async def test_zero_is_no_global_maximum(subject: Subject, clock: Clock) -> None:
    store = TaskStore(subject.storage, StoreConfig(max_tasks=0), clock=clock, application="tests")
    await created(store, 30)
    await subject.caught_up()
    assert await task_edits.counts(store) == {Status.WORKING: 30}


@row(37)
async def test_concurrent_creators_never_exceed_the_quota(subject: Subject, clock: Clock) -> None:
    store = TaskStore(subject.storage, StoreConfig(max_tasks_per_owner=7), clock=clock, application="tests")
    results = await asyncio.gather(*[store.create(ANA, CALL) for _ in range(40)], return_exceptions=True)
    assert sum(isinstance(each, Snapshot) for each in results) == 7
    assert sum(isinstance(each, QuotaExceeded) for each in results) == 33
    assert await task_edits.counts(store, ANA) == {Status.WORKING: 7}
