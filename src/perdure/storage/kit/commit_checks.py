"""Checks `get` and `commit`: promises 1 to 7 of the storage contract."""

from __future__ import annotations

from ..records_and_changes import (
    Accepted,
    Address,
    Committed,
    Conflict,
    Delete,
    Insert,
    InsertIfAbsent,
    Kept,
    Missing,
    Record,
    Refused,
)
from ..request_batcher import batched
from .check_framework import Subject, check, expect, expect_intact
from .sample_records import (
    NOW,
    OTHER_SPACE,
    PARTITION,
    SPACE,
    commit_changes,
    expect_result,
    insert_each,
    make_record,
    read_counts,
)


@check(1)
async def get_returns_each_address_in_the_order_given(subject: Subject) -> None:
    records = [make_record(f"k{n}", partition=f"p{n % 7}", order=n) for n in range(60)]
    await insert_each(subject.storage, *records)
    addresses = [each for record in reversed(records) for each in (record.address, _absent(record))]
    expected = [each for record in reversed(records) for each in (record, None)]
    got: list[Record | None] = []
    for batch in batched(addresses, 100):
        got += await subject.storage.get_many(batch, now=NOW)
    expect(got, expected, "the records of 120 addresses, every second absent")


def _absent(record: Record) -> Address:
    return record.address._replace(key=record.key + "!")


@check(1)
async def get_returns_an_address_as_often_as_it_is_given(subject: Subject) -> None:
    record = make_record()
    await insert_each(subject.storage, record)
    got = await subject.storage.get_many([record.address, record.address], now=NOW)
    expect(got, [record, record], "one address given twice")


@check(2)
async def what_was_committed_is_read_at_once_by_every_verb(subject: Subject) -> None:
    storage = subject.storage
    for n in range(20):
        record = make_record(f"k{n}", order=n, tag="t")
        await insert_each(storage, record)
        expect(await storage.get(record.address, now=NOW), record, "get after the commit")
        last = await storage.page(SPACE, PARTITION, limit=1, descending=True, now=NOW)
        expect(last, [record], "the last page after the commit")
        expect(await read_counts(storage), {"t": n + 1}, "counts after the commit")


@check(2, "second_client")
async def what_one_client_committed_the_other_reads_at_once(subject: Subject) -> None:
    async with await subject.another_client() as other:
        for n in range(20):
            writer, reader = (subject.storage, other) if n % 2 else (other, subject.storage)
            record = make_record(f"k{n}", order=n)
            await insert_each(writer, record)
            expect(await reader.get(record.address, now=NOW), record, "the other client's record")


@check(3)
async def an_insert_stores_every_field(subject: Subject) -> None:
    record = make_record(
        "k", order=5, body='{"a":1}', tag="t", expires_at=NOW + 9, lane="l", wake_at=7, space=OTHER_SPACE
    )
    await expect_result(subject.storage, Insert(record=record), Accepted(1), "the insert")
    expect(await subject.storage.get(record.address, now=NOW), record, "the record read back")


@check(3)
async def an_insert_never_overwrites(subject: Subject) -> None:
    storage, first = subject.storage, make_record(body="1")
    await insert_each(storage, first)
    await expect_result(storage, first.replace_with(body="2", tag=""), Accepted(2), "the replace")
    await expect_result(
        storage, Insert(record=make_record(body="3")), Conflict(2), "an insert over version 2"
    )
    got = await storage.get(first.address, now=NOW)
    expect(got, make_record(body="2", version=2), "the record afterwards")


@check(3)
async def an_insert_may_carry_its_version(subject: Subject) -> None:
    record = make_record(version=41)
    await expect_result(subject.storage, Insert(record=record), Accepted(41), "the insert")
    change = record.replace_with(body="2", tag="")
    await expect_result(subject.storage, change, Accepted(42), "the replace afterwards")


@check(4)
async def insert_if_absent_keeps_the_stored_record(subject: Subject) -> None:
    storage, first = subject.storage, make_record(body="1", tag="t")
    await expect_result(storage, InsertIfAbsent(record=first), Accepted(1), "the first insert")
    again = InsertIfAbsent(record=make_record(body="2", tag="u", order=9))
    await expect_result(storage, again, Kept(1), "the second insert")
    expect(await storage.get(first.address, now=NOW), first, "the record afterwards")
    expect(await read_counts(storage), {"t": 1}, "the counts afterwards")


@check(4)
async def a_replayed_page_of_inserts_if_absent_adds_only_new_records(subject: Subject) -> None:
    storage = subject.storage
    inserts = [InsertIfAbsent(record=make_record(f"k{n}", order=n)) for n in range(25)]
    await commit_changes(storage, *inserts[:15])
    replayed = await commit_changes(storage, *inserts[10:])
    expect(replayed.results, (Kept(1),) * 5 + (Accepted(1),) * 10, "the results of the replay")
    expect(await read_counts(storage), {"": 25}, "the counts afterwards")


@check(5)
async def a_replace_needs_the_stored_version(subject: Subject) -> None:
    storage, first = subject.storage, make_record(order=3)
    await insert_each(storage, first)
    change = first.replace_with(body="2", tag="t", lane="l", wake_at=4, expires_at=NOW + 5)
    await expect_result(storage, change, Accepted(2), "the first replace")
    expect(await storage.get(first.address, now=NOW), change.after, "the record afterwards")
    stale = first.replace_with(body="3", tag="")
    await expect_result(storage, stale, Conflict(2), "a replace of version 1 when 2 is stored")
    expect(await storage.get(first.address, now=NOW), change.after, "the record after the refusal")


@check(5)
async def a_replace_of_nothing_is_missing(subject: Subject) -> None:
    change = make_record().replace_with(body="2", tag="")
    await expect_result(subject.storage, change, Missing(), "a replace of nothing")
    expect(await subject.storage.get(make_record().address, now=NOW), None, "the record afterwards")


@check(5, "catch_up")
async def a_replace_can_remove_fields(subject: Subject) -> None:
    storage = subject.storage
    first = make_record(tag="t", expires_at=NOW + 5, lane="l", wake_at=1)
    await insert_each(storage, first)
    await commit_changes(storage, first.replace_with(body="2", tag=""))
    got = await storage.get(first.address, now=NOW + 9)
    expect(got, make_record(body="2", version=2), "the record without these fields")
    storage = await subject.caught_up()
    expect(await storage.due("l", until=NOW, limit=9, now=NOW), [], "the lane it has left")
    expect(await storage.purge(until=NOW + 9, limit=9), [], "the purged records")


@check(6)
async def a_delete_needs_the_stored_version(subject: Subject) -> None:
    storage, first = subject.storage, make_record(tag="t", lane="l", wake_at=1)
    await insert_each(storage, first)
    second = first.replace_with(body="2", tag="t")
    await commit_changes(storage, second)
    delete = Delete(before=second.after)
    await expect_result(storage, Delete(before=first), Conflict(2), "a delete of version 1 when 2 is stored")
    await expect_result(storage, delete, Accepted(2), "the delete")
    expect(await storage.get(first.address, now=NOW), None, "the record afterwards")
    expect(await read_counts(storage), {}, "the counts afterwards")
    await expect_result(storage, delete, Missing(), "the repeated delete")


@check(5)
async def a_reinserted_record_is_not_the_one_that_was_read(subject: Subject) -> None:
    storage = subject.storage
    for again in (make_record("tag", tag="new", order=1), make_record("order", tag="old", order=7)):
        first = make_record(again.key, tag="old", order=1)
        await insert_each(storage, first)
        await commit_changes(storage, Delete(before=first))
        await insert_each(storage, again)
        for change in (first.replace_with(body="2", tag="x"), Delete(before=first)):
            await expect_result(
                storage, change, Conflict(1), f"a {type(change).__name__} of the record before"
            )
        expect(await storage.get(again.address, now=NOW), again, f"the record with another {again.key}")
    expect(await read_counts(storage), {"new": 1, "old": 1}, "the counts")


@check(6)
async def a_deleted_key_can_be_inserted_at_version_one(subject: Subject) -> None:
    storage, record = subject.storage, make_record()
    await insert_each(storage, record)
    await commit_changes(storage, Delete(before=record))
    await expect_result(storage, Insert(record=record), Accepted(1), "the second insert")


@check(7)
async def a_commit_writes_all_its_changes_across_spaces(subject: Subject) -> None:
    storage = subject.storage
    old, gone = make_record("old", tag="t"), make_record("gone", tag="t")
    await insert_each(storage, old, gone)
    inserted, kept = make_record("inserted", space=OTHER_SPACE), make_record("kept")
    change = old.replace_with(body="2", tag="u")
    others = Delete(before=gone), InsertIfAbsent(record=kept)
    results = await commit_changes(storage, Insert(record=inserted), change, *others)
    expect(results, Committed((Accepted(1), Accepted(2), Accepted(1), Accepted(1))), "the results")
    got = await storage.get_many([inserted.address, old.address, gone.address, kept.address], now=NOW)
    expect(got, [inserted, change.after, None, kept], "the records")
    expect(await read_counts(storage), {"u": 1, "": 1}, "the counts")
    expect(await read_counts(storage, OTHER_SPACE), {"": 1}, "the counts of the other space")


@check(7)
async def a_commit_with_one_refusal_writes_nothing_and_reports_each(subject: Subject) -> None:
    storage = subject.storage
    taken, other = make_record("taken"), make_record("other", tag="t")
    await insert_each(storage, taken, other)
    new, kept = make_record("new", space=OTHER_SPACE), make_record("kept")
    if_absent = InsertIfAbsent(record=kept), InsertIfAbsent(record=other)
    replace = make_record("absent").replace_with(body="2", tag="")
    result = await storage.commit([Insert(record=new), *if_absent, Insert(record=taken), replace], now=NOW)
    expect(result, Refused((Accepted(1), Accepted(1), Kept(1), Conflict(1), Missing())), "the results")
    got = await storage.get_many([new.address, kept.address, taken.address, other.address], now=NOW)
    expect(got, [None, None, taken, other], "the records after the refusal")
    expect(await read_counts(storage), {"": 1, "t": 1}, "the counts afterwards")
    expect(await storage.page(OTHER_SPACE, PARTITION, limit=9, now=NOW), [], "the other space afterwards")


@check(7)
async def a_refusal_at_any_index_undoes_the_whole(subject: Subject) -> None:
    storage, taken = subject.storage, make_record("taken")
    await insert_each(storage, taken)
    for index in range(5):
        changes = [Insert(record=make_record(f"n{n}")) for n in range(4)]
        changes.insert(index, Insert(record=taken))
        result = await storage.commit(changes, now=NOW)
        expect(type(result), Refused, f"the result with the conflict at index {index}")
        expect(await storage.page(SPACE, PARTITION, limit=9, now=NOW), [taken], "the records afterwards")


@check(7)
async def a_refusal_for_a_large_body_reports_its_neighbours_truly(subject: Subject) -> None:
    storage = subject.storage
    large, taken = make_record("large", body="x" * 900_000), make_record("taken")
    await insert_each(storage, large, taken)
    await commit_changes(storage, Delete(before=large))
    result = await storage.commit([Delete(before=large), Insert(record=taken)], now=NOW)
    expect(result, Refused((Missing(), Conflict(1))), "the results")


@check(7)
async def a_commit_takes_25_changes_and_2_mib(subject: Subject) -> None:
    storage = subject.storage
    share = 2 * 1024 * 1024 // 25
    records = [make_record(f"k{n}", order=n, body=str(n % 10) * share) for n in range(25)]
    await commit_changes(storage, *[Insert(record=record) for record in records])
    got = await storage.get_many([record.address for record in records], now=NOW)
    expect_intact(got, records, "25 records with 2 MiB in total")


@check(7)
async def one_body_takes_2_mib(subject: Subject) -> None:
    record = make_record(body="é" * (1024 * 1024))
    await insert_each(subject.storage, record)
    got = await subject.storage.get(record.address, now=NOW)
    expect_intact(got, record, "a record of 2 MiB")
    change = record.replace_with(body="x" * (2 * 1024 * 1024), tag="")
    await commit_changes(subject.storage, change)
    got = await subject.storage.get(record.address, now=NOW)
    expect_intact(got, change.after, "its replacement")
    await commit_changes(subject.storage, change.after.replace_with(body="small", tag=""))


@check(5)
async def a_reinserted_record_with_equal_state_is_the_one_that_was_read(subject: Subject) -> None:
    storage = subject.storage
    first, again = make_record(body="1", tag="t"), make_record(body="2", tag="t")
    await insert_each(storage, first)
    await commit_changes(storage, Delete(before=first))
    await insert_each(storage, again)
    change = first.replace_with(body="3", tag="t")
    await expect_result(storage, change, Accepted(2), "the replace")
    expect(await storage.get(first.address, now=NOW), change.after, "the record afterwards")
