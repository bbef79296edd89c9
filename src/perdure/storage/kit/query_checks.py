"""Checks `page`, `due`, `counts` and `watch`: promises 10 to 13 and 18 of the storage contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from ..page_builder import MAX_PAGE_BYTES, is_last_page
from ..records_and_changes import Delete, Insert, InsertIfAbsent, Position, Record, Tag
from ..storage import Storage
from ..watch import Watch
from .check_framework import ContractViolation, Subject, check, expect, expect_intact, within_timeout
from .sample_records import (
    NOW,
    OTHER_SPACE,
    PARTITION,
    SPACE,
    commit_changes,
    insert_each,
    insert_many,
    make_record,
    read_counts,
)

MAX_PAGES = 200
"""Maximum number of pages that a check reads. If the engine is correct, every check needs fewer."""


async def read_all_pages(
    storage: Storage,
    partition: str | None,
    *,
    limit: int,
    tag: Tag | None = None,
    descending: bool = False,
) -> list[Record]:
    """Read a whole listing page by page, and return the records."""
    seen: list[Record] = []
    after: Position | None = None
    for _ in range(MAX_PAGES):
        page = await storage.page(
            SPACE, partition, after=after, limit=limit, tag=tag, descending=descending, now=NOW
        )
        seen += page
        if is_last_page(page, limit):
            return seen
        after = page[-1].position
    raise ContractViolation(f"the listing did not end within {MAX_PAGES} pages")


async def expect_pages(
    storage: Storage, partition: str | None, expected: Sequence[Record], *, limit: int, tag: Tag | None = None
) -> None:
    """Read a whole listing page by page, in each direction, and compare the records with `expected`."""
    for descending in (False, True):
        seen = await read_all_pages(storage, partition, limit=limit, tag=tag, descending=descending)
        ordered = list(reversed(expected) if descending else expected)
        expect(seen, ordered, f"pages of {limit} ({partition}, {tag}{', descending' * descending})")


@check(10)
async def pages_are_in_order_then_key(subject: Subject) -> None:
    records = [make_record(f"k{n * 7 % 10}", order=n // 4) for n in range(10)]
    await insert_each(subject.storage, *records)
    expected = sorted(records, key=lambda record: record.position)
    for limit in (1, 3, 5, 10, 11):
        await expect_pages(subject.storage, PARTITION, expected, limit=limit)


@check(10)
async def ten_records_of_one_instant_come_in_pages_of_three(subject: Subject) -> None:
    records = [make_record(f"k{n}", order=7) for n in range(10)]
    await insert_each(subject.storage, *reversed(records))
    await expect_pages(subject.storage, PARTITION, records, limit=3)


@check(10)
async def pages_of_one_tag_contain_only_that_tag(subject: Subject) -> None:
    records = [make_record(f"k{n}", order=n, tag="ab"[n % 3 == 0]) for n in range(20)]
    await insert_each(subject.storage, *records)
    expected = [record for record in records if record.tag == "a"]
    await expect_pages(subject.storage, PARTITION, expected, limit=4, tag="a")
    await expect_pages(subject.storage, PARTITION, [], limit=4, tag="c")


@check(10)
async def a_retagged_record_moves_to_its_new_tag(subject: Subject) -> None:
    storage, record = subject.storage, make_record(tag="old")
    await insert_each(storage, record)
    change = record.replace_with(body="2", tag="new")
    await commit_changes(storage, change)
    await expect_pages(storage, PARTITION, [], limit=9, tag="old")
    await expect_pages(storage, PARTITION, [change.after], limit=9, tag="new")


@check(10)
async def a_position_need_not_exist(subject: Subject) -> None:
    records = [make_record(f"k{n}", order=n) for n in (1, 2, 4, 5)]
    await insert_each(subject.storage, *records)
    after = Position(3, "anything", PARTITION)
    ahead = await subject.storage.page(SPACE, PARTITION, after=after, limit=9, now=NOW)
    expect(ahead, records[2:], "the records after a position between records")
    behind = await subject.storage.page(SPACE, PARTITION, after=after, limit=9, descending=True, now=NOW)
    expect(behind, records[1::-1], "the records before it")


@check(10)
async def reading_all_pages_returns_each_lasting_record_once(subject: Subject) -> None:
    storage = subject.storage
    stay = [make_record(f"stay{n:02}", order=n * 10) for n in range(20)]
    leave = [make_record(f"leave{n:02}", order=n * 10 + 5) for n in range(20)]
    await insert_each(storage, *stay, *leave)
    seen: list[str] = []
    after: Position | None = None
    for step in range(40):
        page = await storage.page(SPACE, PARTITION, after=after, limit=3, now=NOW)
        if not page:
            break
        seen += [record.key for record in page]
        after = page[-1].position
        new = make_record(f"new{step}", order=step * 7)
        await commit_changes(storage, Delete(before=leave[step]), Insert(record=new))
    lasting = [key for key in seen if key.startswith("stay")]
    expect(lasting, [record.key for record in stay], "the records that existed throughout")
    expect(len(seen), len(set(seen)), "the number of distinct records")


@check(11, "catch_up")
async def pages_over_all_partitions_are_in_true_order(subject: Subject) -> None:
    records = [
        make_record(f"k{n % 7}", partition=f"p{n * 7 % 11}", order=n // 6, tag="ab"[n % 2]) for n in range(24)
    ]
    await insert_each(subject.storage, *records)
    expected = sorted(records, key=lambda record: record.position)
    storage = await subject.caught_up()
    for limit in (1, 7, 24):
        await expect_pages(storage, None, expected, limit=limit)
    await expect_pages(storage, None, [record for record in expected if record.tag == "b"], limit=7, tag="b")


@check(11, "catch_up")
async def equal_keys_of_one_instant_in_many_partitions_are_all_returned(subject: Subject) -> None:
    records = [make_record("same", partition=f"p{n:02}", order=7) for n in range(10)]
    await insert_each(subject.storage, *records)
    await expect_pages(await subject.caught_up(), None, records, limit=3)


@check(12, "catch_up")
async def due_returns_what_should_have_woken_earliest_first(subject: Subject) -> None:
    records = [
        make_record(f"k{n}", partition=f"p{n % 3}", lane="l", wake_at=100 - n // 2, order=n)
        for n in range(20)
    ]
    other = [make_record("other", lane="m", wake_at=1), make_record("none", space=OTHER_SPACE)]
    await insert_each(subject.storage, *records, *other)
    expected = sorted(records, key=lambda record: (record.wake_at, record.key, record.partition))
    storage = await subject.caught_up()
    for until, limit, count in ((100, 99, 20), (100, 7, 7), (95, 99, 10), (90, 99, 0)):
        due = await storage.due("l", until=until, limit=limit, now=NOW)
        expect(due, expected[:count], f"up to {limit} records that are due at {until}")
    expect(await storage.due("x", until=100, limit=99, now=NOW), [], "an empty lane")
    for start in range(20):
        after = expected[start].lane_position
        due = await storage.due("l", after=after, until=95, limit=3, now=NOW)
        expect(due, expected[start + 1 : 10][:3], f"up to 3 records after {after} that are due at 95")


@check(12, "catch_up")
async def due_orders_what_wakes_at_one_instant(subject: Subject) -> None:
    records = [
        make_record("same", partition=partition, space=space, lane="l", wake_at=5)
        for partition in ("a", "b", "c")
        for space in (SPACE, OTHER_SPACE)
    ]
    await insert_each(subject.storage, *reversed(records))
    storage = await subject.caught_up()
    expect(await storage.due("l", until=5, limit=9, now=NOW), records, "six records of one key and time")
    expect(await storage.due("l", until=5, limit=3, now=NOW), records[:3], "the first three")
    for start, record in enumerate(records):
        due = await storage.due("l", after=record.lane_position, until=5, limit=9, now=NOW)
        expect(due, records[start + 1 :], f"the records after {record.lane_position}")


@check(12, "catch_up")
async def a_record_leaves_its_lane_when_replaced_or_deleted(subject: Subject) -> None:
    storage = subject.storage
    later, away, gone = (make_record(key, lane="l", wake_at=5) for key in ("later", "away", "gone"))
    await insert_each(storage, later, away, gone)
    change = later.replace_with(body="2", tag="", lane="l", wake_at=9)
    moved = away.replace_with(body="2", tag="", lane="m", wake_at=5)
    await commit_changes(storage, change, moved, Delete(before=gone))
    storage = await subject.caught_up()
    expect(await storage.due("l", until=8, limit=9, now=NOW), [], "the lane before the new time")
    expect(await storage.due("l", until=9, limit=9, now=NOW), [change.after], "the lane at the new time")


@check(10, "catch_up")
async def a_thousand_records_come_in_one_answer(subject: Subject) -> None:
    records = [make_record(f"k{n:04}", order=n, tag="t", lane="l", wake_at=n) for n in range(1010)]
    await insert_many(subject.storage, records)
    storage = await subject.caught_up()
    expect_intact(await storage.page(SPACE, PARTITION, limit=1000, now=NOW), records[:1000], "a page")
    page = await storage.page(SPACE, tag="t", limit=1000, now=NOW)
    expect_intact(page, records[:1000], "a page of all partitions")
    due = await storage.due("l", until=2000, limit=1000, now=NOW)
    expect_intact(due, records[:1000], "the due records")
    due = await storage.due("l", after=due[-1].lane_position, until=2000, limit=1000, now=NOW)
    expect_intact(due, records[1000:], "the due records after a thousand")
    expect(await read_counts(storage), {"t": 1010}, "the counts")


@check(10, "catch_up")
async def large_records_come_in_one_answer(subject: Subject) -> None:
    records = [
        make_record(f"k{n:02}", order=n, body=str(n) * 300_000, lane="l", wake_at=n) for n in range(10, 20)
    ]
    await insert_each(subject.storage, *records)
    storage = await subject.caught_up()
    expect_intact(await storage.page(SPACE, PARTITION, limit=99, now=NOW), records, "a page of 6 MB")
    expect_intact(await storage.due("l", until=99, limit=99, now=NOW), records, "6 MB that are due")
    got = await storage.get_many([record.address for record in records], now=NOW)
    expect_intact(got, records, "6 MB by address")


@check(10, "catch_up")
async def a_page_ends_when_its_bodies_reach_the_byte_limit(subject: Subject) -> None:
    part = MAX_PAGE_BYTES // 5
    records = [
        make_record(f"k{n:02}", order=n, body=chr(97 + n) * part, tag="t", lane="l", wake_at=n)
        for n in range(8)
    ]
    await insert_each(subject.storage, *records)
    storage = await subject.caught_up()
    expected = records[:6]  # the bodies of five records are slightly smaller than the limit
    for partition, tag in ((PARTITION, None), (PARTITION, "t"), (None, None), (None, "t")):
        page = await storage.page(SPACE, partition, tag=tag, limit=99, now=NOW)
        expect_intact(page, expected, f"a page of large records ({partition}, {tag})")
        backwards = await storage.page(SPACE, partition, tag=tag, limit=99, descending=True, now=NOW)
        expect_intact(backwards, records[:1:-1], f"a page of large records, descending ({partition}, {tag})")
        pages = await read_all_pages(storage, partition, limit=99, tag=tag)
        expect_intact(pages, records, f"all pages of large records ({partition}, {tag})")
    page = await storage.page(SPACE, PARTITION, limit=6, now=NOW)
    expect_intact(page, expected, "a page of six large records")
    expect_intact(await storage.due("l", until=99, limit=99, now=NOW), expected, "large records that are due")


@check(13, "catch_up")
async def counts_follow_every_change(subject: Subject) -> None:
    storage = subject.storage
    records = [make_record(f"k{n}", partition=f"p{n % 2}", tag="abc"[n % 3]) for n in range(12)]
    await insert_each(storage, *records)
    expect(await read_counts(storage, partition="p0"), {"a": 2, "b": 2, "c": 2}, "after inserts")
    await commit_changes(storage, records[0].replace_with(body="2", tag="b"))
    await commit_changes(storage, Delete(before=records[2]))
    await commit_changes(storage, InsertIfAbsent(record=records[4]))
    await storage.commit([Insert(record=records[4])], now=NOW)
    expect(await read_counts(storage, partition="p0"), {"a": 1, "b": 3, "c": 1}, "after all changes")
    storage = await subject.caught_up()
    expect(await read_counts(storage, partition=None), {"a": 3, "b": 5, "c": 3}, "over all partitions")
    expect(await read_counts(storage, OTHER_SPACE, partition=None), {}, "an empty space")


@check(13)
async def a_tag_without_records_is_absent_from_counts(subject: Subject) -> None:
    storage, record = subject.storage, make_record(tag="t")
    await insert_each(storage, record)
    await commit_changes(storage, record.replace_with(body="2", tag="u"))
    expect(await read_counts(storage), {"u": 1}, "the counts")


@asynccontextmanager
async def expect_wake_up(watch: Watch, what: str) -> AsyncGenerator[None]:
    """Wait for a change while the block runs, then raise ContractViolation if the watch does not wake."""
    waiting = asyncio.ensure_future(watch.changed())
    try:
        await asyncio.sleep(0)
        yield
        await within_timeout(waiting, f"the wake-up {what}")
    finally:
        waiting.cancel()


@check(18)
async def a_watch_wakes_for_what_it_covers(subject: Subject) -> None:
    storage, record = subject.storage, make_record()
    change = record.replace_with(body="2", tag="", expires_at=NOW + 5)
    for scope in ((SPACE, None, None), (SPACE, PARTITION, None), (SPACE, PARTITION, record.key)):
        async with storage.watch(*scope) as watch:
            for step in (Insert(record=record), change, Delete(before=change.after)):
                async with expect_wake_up(watch, f"of {scope} for {type(step).__name__}"):
                    await commit_changes(storage, step)


@check(18)
async def a_watch_of_lanes_wakes_for_records_that_are_put_into_one(subject: Subject) -> None:
    storage, record = subject.storage, make_record()
    inserted = make_record("timed", lane="l", wake_at=NOW)
    moved = record.replace_with(body="2", tag="", lane="l", wake_at=NOW)
    await insert_each(storage, record)
    async with storage.watch(SPACE, only_lanes=True) as watch:
        for step in (Insert(record=inserted), moved):
            async with expect_wake_up(watch, f"for {type(step).__name__}"):
                await commit_changes(storage, step)


@check(18)
async def a_watch_remembers_a_change_made_while_nothing_waited(subject: Subject) -> None:
    async with subject.storage.watch(SPACE, PARTITION, "k") as watch:
        await insert_each(subject.storage, make_record("k"))
        await within_timeout(watch.changed(), "the wake-up of a watch that was not waiting")


@check(18, "second_client")
async def a_watch_wakes_for_another_clients_commit(subject: Subject) -> None:
    async with (
        await subject.another_client() as other,
        subject.storage.watch(SPACE, PARTITION, "k") as watch,
        expect_wake_up(watch, "for another client's commit"),
    ):
        await insert_each(other, make_record("k"))
