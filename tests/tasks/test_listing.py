"""Listing: pages, order, cursors and filters."""

from __future__ import annotations

import asyncio
import random
from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.storage import MAX_PAGE_BYTES, Address, Insert, Position, Record, Space, Storage
from perdure.storage.kit import Subject
from perdure.storage.memory import MemoryEngine
from perdure.storage.time_types import DAY, SECOND
from perdure.tasks import NewTask, Owner, Status, StoreConfig, Success, TaskFilter, TaskStore
from perdure.tasks.errors import CorruptRecord, InvalidCursor, InvalidValue
from perdure.tasks.listing import page_of_tags
from perdure.tasks.owner import partition_of
from perdure.tasks.task_snapshot import TASKS

from .. import task_edits
from ..markers import once, row
from .samples import ANA, BOB, CALL, START, Clock, created, ids_of

pytestmark = pytest.mark.anyio


@row(38)
async def test_a_page_has_fifty_unless_asked_otherwise(store: TaskStore) -> None:
    await created(store, 60)
    page = await store.list(ANA)
    assert len(page.tasks) == 50
    rest = await store.list(ANA, cursor=page.next_cursor)
    assert len(rest.tasks) == 10
    assert rest.next_cursor is None


@row(39)
async def test_ten_tasks_of_one_instant_in_pages_of_three(store: TaskStore) -> None:
    made = [each.task.task_id for each in await created(store, 10)]
    assert await ids_of(store, limit=3) == sorted(made)


@row(39)
async def test_listings_are_by_creation_and_newest_first_if_asked(store: TaskStore, clock: Clock) -> None:
    made: list[str] = []
    for _ in range(7):
        made.append((await store.create(ANA, CALL)).task.task_id)
        clock.advance(SECOND)
    assert await ids_of(store, limit=2) == made
    newest = await store.list(ANA, limit=4, newest_first=True)
    older = await store.list(ANA, limit=4, newest_first=True, cursor=newest.next_cursor)
    assert [each.task.task_id for each in (*newest.tasks, *older.tasks)] == made[::-1]


@row(40)
@given(st.integers(0, 2**32))
def test_a_walk_meets_what_stays_once_while_others_come_and_go(seed: int) -> None:
    async def walk() -> None:
        chance, clock = random.Random(seed), Clock()
        store = TaskStore(
            Storage(MemoryEngine()), StoreConfig(max_tasks_per_owner=1000), clock=clock, application="tests"
        )
        stay: list[str] = []
        leave: list[str] = []
        for _ in range(30):
            clock.advance(chance.choice([0, 0, SECOND]))
            made = (await store.create(ANA, CALL)).task.task_id
            chance.choice([stay, leave]).append(made)
        seen: list[str] = []
        cursor: str | None = None
        while True:
            page = await store.list(ANA, cursor=cursor, limit=chance.randint(1, 5))
            seen += [each.task.task_id for each in page.tasks]
            cursor = page.next_cursor
            if cursor is None:
                break
            if leave:
                await store.delete(ANA, leave.pop(chance.randrange(len(leave))))
            await store.create(ANA, CALL)
            clock.advance(chance.choice([0, SECOND]))
            if len(seen) > 500:
                break
        assert len(seen) == len(set(seen))
        assert set(stay) <= set(seen)

    asyncio.run(walk())


@row(40, 41)
async def test_a_deleted_cursor_task_does_not_restart_the_list(store: TaskStore) -> None:
    await created(store, 9)
    first = await store.list(ANA, limit=3)
    for each in first.tasks:
        await store.delete(ANA, each.task.task_id)
    rest = await store.list(ANA, cursor=first.next_cursor, limit=9)
    assert len(rest.tasks) == 6
    assert not {each.task.task_id for each in rest.tasks} & {each.task.task_id for each in first.tasks}


@row(41)
async def test_a_cursor_serves_only_its_own_listing(store: TaskStore) -> None:
    await created(store, 5)
    await created(store, 5, BOB)
    cursor = (await store.list(ANA, limit=2)).next_cursor
    assert (await store.list(ANA, limit=4, cursor=cursor)).tasks
    for attempt in (
        store.list(BOB, cursor=cursor),
        store.list(ANA, cursor=cursor, newest_first=True),
        store.list(ANA, cursor=cursor, task_filter=TaskFilter(status=Status.WORKING)),
        store.list(ANA, cursor=cursor, task_filter=TaskFilter(method="tools/call")),
        store.list(ANA, cursor=cursor, task_filter=TaskFilter(session_id="s")),
    ):
        with pytest.raises(InvalidCursor):
            await attempt


@row(41)
async def test_a_cursor_cannot_be_forged_or_damaged(store: TaskStore) -> None:
    await created(store, 5)
    cursor = (await store.list(ANA, limit=2)).next_cursor
    assert cursor is not None
    sealed = bytearray(urlsafe_b64decode(cursor))
    for place in range(len(sealed)):
        sealed[place] ^= 1
        with pytest.raises(InvalidCursor):
            await store.list(ANA, cursor=urlsafe_b64encode(sealed).decode())
        sealed[place] ^= 1
    for forged in ("", "x", "é", "\ud800", "AAAA", cursor[:-4], cursor + "AAAA", cursor * 2, "0" * 32):
        with pytest.raises(InvalidCursor):
            await store.list(ANA, cursor=forged)


@row(41)
async def test_replicas_accept_each_others_cursors(subject: Subject, clock: Clock) -> None:
    one, other = (TaskStore(subject.storage, clock=clock, application="tests") for _ in range(2))
    await created(one, 5)
    cursor = (await one.list(ANA, limit=2)).next_cursor
    assert len((await other.list(ANA, cursor=cursor)).tasks) == 3


@row(42)
@pytest.mark.parametrize("limit", [1, 2, 3, 6])
async def test_there_is_no_cursor_after_an_exactly_full_last_page(store: TaskStore, limit: int) -> None:
    await created(store, 6)
    cursor: str | None = None
    for _ in range(6 // limit):
        page = await store.list(ANA, limit=limit, cursor=cursor)
        assert len(page.tasks) == limit
        cursor = page.next_cursor
    assert cursor is None


@row(43)
@pytest.mark.parametrize("limit", [0, -1, 201, 10**9])
@once
async def test_a_limit_out_of_bounds_is_refused(store: TaskStore, limit: int) -> None:
    with pytest.raises(InvalidValue, match="must be an integer from 1 to 200"):
        await store.list(ANA, limit=limit)


@row(43)
@pytest.mark.parametrize("limit", [1, 200])
async def test_a_limit_at_its_bounds_is_taken(store: TaskStore, limit: int) -> None:
    await created(store, 2)
    assert len((await store.list(ANA, limit=limit)).tasks) == min(2, limit)


@row(44)
async def test_operators_list_all_owners_in_true_order(
    subject: Subject, store: TaskStore, clock: Clock
) -> None:
    made: list[str] = []
    for n in range(12):
        owner = [ANA, BOB, Owner.anonymous(), Owner.local()][n * 7 % 4]
        made.append((await store.create(owner, CALL)).task.task_id)
        clock.advance(SECOND)
    await subject.caught_up()
    seen: list[str] = []
    after: Position | None = None
    is_last = False
    for _ in range(3):
        page, is_last = await page_of_tags(
            store.storage, (None,), after=after, limit=5, descending=False, now=clock.now
        )
        seen += [each.key for each in page]
        after = page[-1].position
    assert (seen, is_last) == (made, True)


@row(45)
async def test_a_listing_can_be_narrowed_by_status_method_and_session(store: TaskStore) -> None:
    for n in range(12):
        new = NewTask(method="ab"[n % 2], session_id="xyz"[n % 3])
        made = await store.create(ANA, new)
        if n % 4 == 0:
            await task_edits.finish(store, made, Success.of(n, error="no disk" if n == 4 else None))
    for wanted, count in (
        (TaskFilter(status=Status.COMPLETED), 3),
        (TaskFilter(status=Status.WORKING), 9),
        (TaskFilter(method="a"), 6),
        (TaskFilter(session_id="x"), 4),
        (TaskFilter(status=Status.WORKING, method="a", session_id="x"), 1),
        (TaskFilter(status=Status.FAILED), 0),
    ):
        assert len(await _walk(store, wanted, limit=2)) == count, wanted


async def _walk(store: TaskStore, wanted: TaskFilter, limit: int) -> list[str]:
    page = await store.list(ANA, task_filter=wanted, limit=limit)
    seen: list[str] = [each.task.task_id for each in page.tasks]
    while page.next_cursor is not None:
        page = await store.list(ANA, task_filter=wanted, limit=limit, cursor=page.next_cursor)
        seen += [each.task.task_id for each in page.tasks]
    return seen


@row(45)
async def test_a_filter_reads_a_thousand_records_a_call_and_continues(subject: Subject, clock: Clock) -> None:
    config = StoreConfig(max_tasks_per_owner=5000)
    store = TaskStore(subject.storage, config, clock=clock, application="tests")
    await asyncio.gather(*[store.create(ANA, NewTask(method="common")) for _ in range(1200)])
    clock.advance(SECOND)
    rare = await store.create(ANA, NewTask(method="rare"))
    first = await store.list(ANA, task_filter=TaskFilter(method="rare"))
    assert first.tasks == ()
    assert first.next_cursor is not None
    second = await store.list(ANA, task_filter=TaskFilter(method="rare"), cursor=first.next_cursor)
    assert second.tasks == (rare,)
    assert second.next_cursor is None


@row(38)
async def test_a_page_of_large_tasks_has_fewer_and_a_walk_meets_all(store: TaskStore) -> None:
    large = NewTask(method="tools/call", params={"text": "x" * (MAX_PAGE_BYTES // 10)})
    made = [(await store.create(ANA, large)).task.task_id for _ in range(14)]
    page = await store.list(ANA)
    assert len(page.tasks) == 10
    assert page.next_cursor is not None
    assert await ids_of(store) == sorted(made)


@row(46)
async def test_counts_are_exact(subject: Subject, store: TaskStore, clock: Clock) -> None:
    made = await created(store, 6) + await created(store, 3, BOB)
    await task_edits.finish(store, made[0], Success.of(1))
    await task_edits.finish(store, made[6], Success.of(1, error="no disk"))
    await task_edits.cancel(store, made[1])
    await store.delete(ANA, made[2].task.task_id)
    await task_edits.claim(store, made[3])
    assert await task_edits.counts(store, ANA) == {
        Status.WORKING: 3,
        Status.COMPLETED: 1,
        Status.CANCELLED: 1,
    }
    await subject.caught_up()
    assert await task_edits.counts(store) == {Status.WORKING: 5, Status.COMPLETED: 2, Status.CANCELLED: 1}
    clock.advance(8 * DAY)
    assert await task_edits.counts(store) == {Status.WORKING: 1}


@row(47)
async def test_a_corrupt_record_is_surfaced_and_quarantined(subject: Subject, store: TaskStore) -> None:
    good = await created(store, 4)
    await _damage(subject.storage, good[1].task.task_id, "not a task at all")
    await _damage(subject.storage, good[2].task.task_id, good[0].record.body)  # another task's record
    bad = {good[1].task.task_id, good[2].task.task_id}
    page = await store.list(ANA)
    assert {each.task.task_id for each in page.tasks} == {each.task.task_id for each in good} - bad
    assert {each.key for each in page.corrupt} == bad
    for task_id in bad:
        with pytest.raises(CorruptRecord):
            await store.get(ANA, task_id)
    await subject.caught_up()
    found = await task_edits.quarantine_damaged(store)
    assert ({each.key for each in found.damaged if each.is_quarantined}, found.examined) == (bad, 4)
    assert await task_edits.counts(store, ANA) == {Status.WORKING: 2}  # out of the quota, and kept
    assert {each.key for each in (await store.list(ANA)).corrupt} == bad
    await subject.caught_up()
    again = await task_edits.quarantine_damaged(store)
    assert (again.damaged, again.quarantined) == ((), 2)
    for task_id in bad:
        assert await store.delete(ANA, task_id) is True


async def _damage(storage: Storage, task_id: str, body: str) -> None:
    address = Address(TASKS, partition_of("tests", ANA, task_id), task_id)
    record = await storage.get(address, now=START)
    assert record is not None
    await storage.commit([record.replace_with(body=body, tag=record.tag)], now=START)


@pytest.mark.parametrize("body", ["nonsense", '{"format":1,"key":"abcd"}'], ids=["not JSON", "too short"])
async def test_a_damaged_cursor_key_is_reported(subject: Subject, store: TaskStore, body: str) -> None:
    key = Record(space=Space("settings"), partition="perdure", key="cursor-key", order=1, body=body)
    await subject.storage.commit([Insert(record=key)], now=START)
    with pytest.raises(CorruptRecord, match="cursor-key"):
        await store.list(ANA)


async def test_a_record_of_another_owner_in_a_partition_is_corrupt_not_shown(
    subject: Subject, store: TaskStore
) -> None:
    mine = await store.create(ANA, CALL)
    moved = Record(
        space=TASKS,
        partition=partition_of("tests", BOB, ""),
        key=mine.task.task_id,
        order=1,
        body=mine.record.body,
    )
    await subject.storage.commit([Insert(record=moved)], now=START)
    with pytest.raises(CorruptRecord, match="does not match the key and partition"):
        await store.get(BOB, mine.task.task_id)
