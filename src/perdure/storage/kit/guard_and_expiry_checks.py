"""Checks guards, expiry and `purge`: promises 9, 14, 15, 16 and 19 of the storage contract."""

from __future__ import annotations

from ..records_and_changes import (
    Accepted,
    Conflict,
    Delete,
    Guard,
    Insert,
    InsertIfAbsent,
    Micros,
    Missing,
    Purged,
    Record,
    Refused,
    Tag,
)
from ..storage import Storage
from ..time_types import DAY
from .check_framework import Subject, check, expect
from .sample_records import (
    NOW,
    OTHER_SPACE,
    PARTITION,
    SPACE,
    commit_changes,
    expect_result,
    insert_each,
    insert_many,
    make_record,
    read_counts,
)

GUARD_OF_THREE = Guard(space=SPACE, tags=frozenset({"a", "b"}), max_count=3)


async def insert_guarded(storage: Storage, *records: Record, now: Micros = NOW) -> None:
    """Insert records one by one with GUARD_OF_THREE, which must admit each record."""
    for record in records:
        await commit_changes(storage, Insert(record=record), guard=GUARD_OF_THREE, now=now)


async def expect_fourth_refused(storage: Storage, tag: Tag, what: str, *, now: Micros = NOW) -> None:
    """Try to insert a fourth record with GUARD_OF_THREE, which must refuse the insert."""
    record = make_record("fourth", tag=tag)
    result = await storage.commit([Insert(record=record)], guard=GUARD_OF_THREE, now=now)
    expect(result, Refused((Accepted(1),), guard_count=4), what)
    expect(await storage.get(record.address, now=now), None, f"{what}, after its refusal")


@check(9)
async def a_guard_admits_up_to_its_limit(subject: Subject) -> None:
    storage = subject.storage
    await insert_guarded(storage, *[make_record(f"k{n}", tag=tag) for n, tag in enumerate("aab")])
    await expect_fourth_refused(storage, "b", "the fourth")
    await insert_guarded(storage, make_record("c", tag="c"), make_record("a", tag="a", partition="q"))


@check(9)
async def a_guard_counts_the_whole_commit(subject: Subject) -> None:
    storage = subject.storage
    first = [make_record(f"k{n}", tag="a") for n in range(3)]
    await insert_each(storage, *first)
    swap = [Delete(before=first[0]), Insert(record=make_record("new", tag="a"))]
    await commit_changes(storage, *swap, guard=GUARD_OF_THREE)
    retag = [first[1].replace_with(body="2", tag="c"), Insert(record=make_record("newer", tag="b"))]
    await commit_changes(storage, *retag, guard=GUARD_OF_THREE)
    two = [Insert(record=make_record("k", tag="a", space=space)) for space in (OTHER_SPACE, SPACE)]
    refused = await storage.commit(two, guard=GUARD_OF_THREE, now=NOW)
    expected = Refused((Accepted(1), Accepted(1)), guard_count=4)
    expect(refused, expected, "a fourth record, with one in another space")


@check(9)
async def a_guard_counts_only_live_records_and_purges_before_it_refuses(subject: Subject) -> None:
    storage = subject.storage
    await insert_each(storage, *[make_record(f"k{n}", tag="a", expires_at=NOW + 5) for n in range(3)])
    await expect_fourth_refused(storage, "a", "one more while three are live", now=NOW + 4)
    await insert_guarded(storage, make_record("new", tag="a"), now=NOW + 5)
    expect(await read_counts(storage, now=NOW + 5), {"a": 1}, "the live records afterwards")


@check(9)
async def a_guard_ignores_many_expired_records(subject: Subject) -> None:
    storage = subject.storage
    expired = [make_record(f"k{n:03}", tag="a", expires_at=NOW + 5) for n in range(130)]
    in_other_space = [
        make_record("other space", space=OTHER_SPACE, tag="a", expires_at=NOW + 5),
        make_record("other space too", space=OTHER_SPACE, tag="a"),
    ]
    await insert_many(storage, expired + in_other_space)
    in_other_partition = make_record("k", partition="q", tag="a", expires_at=NOW + 5)
    await insert_each(storage, in_other_partition)
    await insert_guarded(storage, *[make_record(f"new{n}", tag="a") for n in range(3)], now=NOW + 5)
    await expect_fourth_refused(storage, "a", "the fourth", now=NOW + 5)
    expect(await read_counts(storage, now=NOW + 5), {"a": 3}, "the counts")
    expect(await read_counts(storage, OTHER_SPACE, now=NOW + 5), {"a": 1}, "the counts of the other space")
    seen = await storage.get(in_other_partition.address, now=NOW)
    expect(seen, in_other_partition, "the expired record of another partition, at an earlier time")


@check(9)
async def a_guard_may_purge_the_record_at_an_inserted_address(subject: Subject) -> None:
    """If both the insert and the guard remove the same expired record, the count must decrease only once."""
    storage = subject.storage
    await insert_each(storage, *[make_record(f"k{n}", tag="a", expires_at=NOW + 5) for n in range(4)])
    records = make_record("fresh", tag="c"), make_record("k1", tag="a", body="2")
    changes = [Insert(record=record) for record in records]
    await commit_changes(storage, *changes, guard=GUARD_OF_THREE, now=NOW + 5)
    for record in records:
        expect(await storage.get(record.address, now=NOW + 5), record, "an inserted record")
    expect(await read_counts(storage, now=NOW + 5), {"a": 1, "c": 1}, "the counts")
    await insert_guarded(storage, *[make_record(f"n{n}", tag="a") for n in range(2)], now=NOW + 5)
    await expect_fourth_refused(storage, "a", "the fourth", now=NOW + 5)


@check(9)
async def a_guard_admits_what_does_not_raise_the_count(subject: Subject) -> None:
    storage = subject.storage
    records = [make_record(f"k{n}", tag="a") for n in range(5)]
    await insert_each(storage, *records)
    await commit_changes(storage, Delete(before=records[0]), guard=GUARD_OF_THREE)
    await commit_changes(storage, records[1].replace_with(body="2", tag="b"), guard=GUARD_OF_THREE)
    await insert_guarded(storage, make_record("expired", tag="a", expires_at=NOW))


@check(9)
async def a_guard_counts_the_stored_record_not_the_one_that_was_read(subject: Subject) -> None:
    """Replace a live record with a change whose `before` has expired.

    The number of live records stays the same.
    """
    storage, read = subject.storage, make_record("k", tag="a", expires_at=NOW + 5)
    await insert_each(storage, read)
    await commit_changes(storage, Delete(before=read))
    stored = make_record("k", tag="a"), make_record("l", tag="a"), make_record("m", tag="b")
    await insert_each(storage, *stored)
    change = read.replace_with(body="2", tag="b")
    await commit_changes(storage, change, guard=GUARD_OF_THREE, now=NOW + 9)
    expect(await read_counts(storage, now=NOW + 9), {"a": 1, "b": 2}, "the counts")


@check(9)
async def a_refused_change_is_reported_before_the_guard(subject: Subject) -> None:
    storage, taken = subject.storage, make_record("taken", tag="a")
    await insert_each(storage, taken)
    none = Guard(space=SPACE, tags=frozenset({"a"}), max_count=0)
    result = await storage.commit([Insert(record=taken)], guard=none, now=NOW)
    expect(result, Refused((Conflict(1),)), "a conflict under a full guard")


@check(9)
async def a_guard_that_refuses_may_have_purged(subject: Subject) -> None:
    storage, expired = subject.storage, make_record("expired", tag="a", expires_at=NOW + 5)
    await insert_each(storage, expired)
    await insert_guarded(storage, *[make_record(f"k{n}", tag="b") for n in range(3)], now=NOW + 5)
    await expect_fourth_refused(storage, "b", "the fourth, with an expired record", now=NOW + 5)
    for now in (NOW, NOW + 5):
        is_visible = await storage.get(expired.address, now=now) is not None
        counts = {"b": 3} | ({"a": 1} if is_visible else {})
        expect(await read_counts(storage, now=now), counts, f"the counts at {now}")


@check(14, "catch_up")
async def every_verb_stops_seeing_a_record_at_the_same_instant(subject: Subject) -> None:
    end = NOW + 1000
    record = make_record(tag="t", expires_at=end, lane="l", wake_at=1)
    await insert_each(subject.storage, record)
    storage = await subject.caught_up()
    for now, expected, count in ((end - 1, [record], {"t": 1}), (end, [], {})):
        when = f"{end - now} microseconds before the expiry"
        expect(await storage.get(record.address, now=now), expected[0] if expected else None, f"get {when}")
        for partition in (PARTITION, None):
            for tag in (None, "t"):
                page = await storage.page(SPACE, partition, tag=tag, limit=9, now=now)
                expect(page, expected, f"a page ({partition}, {tag}) {when}")
            expect(await read_counts(storage, partition=partition, now=now), count, f"the counts {when}")
        expect(await storage.due("l", until=now, limit=9, now=now), expected, f"the due records {when}")


@check(14)
async def an_expired_record_cannot_be_changed(subject: Subject) -> None:
    storage, record = subject.storage, make_record(expires_at=NOW + 5)
    await insert_each(storage, record)
    for change in (record.replace_with(body="2", tag=""), Delete(before=record)):
        what = f"a {type(change).__name__.lower()} at its expiry"
        await expect_result(storage, change, Missing(), what, now=NOW + 5)
    await commit_changes(storage, record.replace_with(body="2", tag=""), now=NOW + 4)


@check(14)
async def pages_are_full_although_expired_records_lie_between(subject: Subject) -> None:
    storage = subject.storage
    records = [make_record(f"k{n:02}", order=n, expires_at=None if n % 5 == 0 else NOW) for n in range(50)]
    await insert_each(storage, *records, now=NOW - 1)
    expected = records[::5]
    expect(await storage.page(SPACE, PARTITION, limit=10, now=NOW), expected, "ten live records among fifty")
    first = await storage.page(SPACE, PARTITION, limit=4, now=NOW)
    expect(first, expected[:4], "the first four of them")


@check(16)
async def purge_keeps_records_whose_expiry_was_extended(subject: Subject) -> None:
    storage, record = subject.storage, make_record(expires_at=NOW + 5)
    await insert_each(storage, record)
    change = record.replace_with(body="2", tag="", expires_at=NOW + 50)
    await commit_changes(storage, change)
    expect(await storage.purge(until=NOW + 5, limit=9), [], "the records purged at the old expiry")
    expect(await storage.get(record.address, now=NOW + 5), change.after, "the record")


@check(15, "catch_up")
async def the_address_of_an_expired_record_is_free(subject: Subject) -> None:
    storage = subject.storage
    for kind in (Insert, InsertIfAbsent):
        old = make_record(kind.__name__, tag="old", order=1, lane="l", wake_at=1, expires_at=NOW + 5)
        new = make_record(kind.__name__, tag="new", order=2, body="2")
        await insert_each(storage, old)
        await expect_result(storage, kind(record=new), Accepted(1), "the insert", now=NOW + 5)
        expect(await storage.get(new.address, now=NOW + 5), new, "the new record")
    expect(await read_counts(storage, now=NOW + 5), {"new": 2}, "the counts")
    expect(len(await storage.page(SPACE, PARTITION, limit=9, now=NOW + 5)), 2, "the listing's length")
    storage = await subject.caught_up()
    expect(await storage.purge(until=NOW + 9, limit=9), [], "the purged records")


@check(16, "catch_up")
async def purge_deletes_exactly_what_expired_and_reports_it(subject: Subject) -> None:
    storage = subject.storage
    records = [
        make_record(f"k{n}", partition=f"p{n % 3}", tag="ab"[n % 2], expires_at=NOW + n, order=n)
        for n in range(10)
    ]
    await insert_each(storage, *records, make_record("ever", tag="a"), now=NOW - 1)
    storage = await subject.caught_up()
    purged = await storage.purge(until=NOW + 5, limit=100)
    expected = [Purged(*record.address, record.tag) for record in records[:6]]
    expect(sorted(purged), sorted(expected), "the purged records")
    storage = await subject.caught_up()
    early = NOW - 1  # a time at which no record has expired
    left = await storage.page(SPACE, limit=99, now=early)
    expect({record.key for record in left}, {"ever", "k6", "k7", "k8", "k9"}, "the remaining records")
    expect(await read_counts(storage, partition=None, now=early), {"a": 3, "b": 2}, "the remaining counts")
    expect(await storage.purge(until=NOW + 5, limit=100), [], "a second purge")


@check(16, "catch_up")
async def purge_works_in_batches_earliest_first(subject: Subject) -> None:
    records = [make_record(f"k{n}", partition=f"p{n % 4}", expires_at=NOW + n) for n in range(10)]
    await insert_each(subject.storage, *reversed(records), now=NOW - 1)
    storage = await subject.caught_up()
    keys: list[str] = []
    sizes: list[int] = []
    for _ in range(4):
        batch = await storage.purge(until=NOW + 99, limit=4)
        sizes.append(len(batch))
        keys += [each.key for each in batch]
        storage = await subject.caught_up()
    expect(sizes, [4, 4, 2, 0], "the sizes of the batches")
    expect(keys, [record.key for record in records], "their keys, earliest first")


@check(16, "catch_up")
async def purge_deletes_a_thousand_in_one_call(subject: Subject) -> None:
    records = [make_record(f"k{n:04}", tag="t", expires_at=NOW + 1) for n in range(1010)]
    await insert_many(subject.storage, records)
    storage = await subject.caught_up()
    expect(len(await storage.purge(until=NOW + 1, limit=1000)), 1000, "the first batch")
    storage = await subject.caught_up()
    expect(len(await storage.purge(until=NOW + 1, limit=1000)), 10, "the second batch")
    expect(await read_counts(storage), {}, "the counts at an earlier time")


@check(16, "catch_up")
async def purge_frees_the_address_and_the_lane(subject: Subject) -> None:
    record = make_record(lane="l", wake_at=1, expires_at=NOW + 5, tag="t")
    await insert_each(subject.storage, record)
    storage = await subject.caught_up()
    await storage.purge(until=NOW + 5, limit=9)
    storage = await subject.caught_up()
    expect(await storage.due("l", until=NOW, limit=9, now=NOW), [], "the lane at a time before the expiry")
    expect(await storage.get(record.address, now=NOW), None, "the record at a time before the expiry")
    await insert_each(storage, record)


@check(19, "advance_time", "catch_up")
async def nothing_is_deleted_except_by_purge(subject: Subject) -> None:
    expiry = NOW + 5
    record = make_record(tag="t", expires_at=expiry)
    await insert_each(subject.storage, record)
    if subject.advance_time is not None:
        await subject.advance_time(expiry + 7 * DAY - 1)  # the engine may delete the record a moment later
    storage = await subject.caught_up()
    expect(await storage.get(record.address, now=NOW), record, "the record, read at a time before its expiry")
    purged = await storage.purge(until=NOW + 7 * DAY, limit=9)
    expect(purged, [Purged(*record.address, "t")], "the records purged a week later")


@check(14)
async def an_expired_record_is_visible_at_an_earlier_time(subject: Subject) -> None:
    storage, record = subject.storage, make_record(tag="t", expires_at=NOW + 5)
    await insert_each(storage, record)
    expect(await storage.get(record.address, now=NOW + 5), None, "the expired record")
    expect(await storage.get(record.address, now=NOW + 4), record, "the record at an earlier time")
    expect(await read_counts(storage, now=NOW + 4), {"t": 1}, "the counts at that time")


@check(16, "catch_up")
async def purge_until_a_future_time_deletes_live_records(subject: Subject) -> None:
    record = make_record(tag="t", expires_at=NOW + 5)
    await insert_each(subject.storage, record)
    storage = await subject.caught_up()
    expect(await storage.purge(until=NOW + 5, limit=9), [Purged(*record.address, "t")], "the purge")
    expect(await storage.get(record.address, now=NOW), None, "the record, which was live")
