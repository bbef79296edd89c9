"""Checks of `get` and `commit`: promises 1 to 7."""

from __future__ import annotations

from ..record import (
    Address,
    Committed,
    Conflict,
    Delete,
    Done,
    Insert,
    Keep,
    Kept,
    Missing,
    Record,
    Refused,
)
from .sample_records import (
    NOW,
    OTHER_SPACE,
    PARTITION,
    SPACE,
    do,
    must,
    put,
    sample,
)
from .suite import Subject, check, expect, expect_same


@check(1)
async def get_answers_each_address_in_the_order_asked(subject: Subject) -> None:
    records = [sample(f"k{n}", partition=f"p{n % 7}", order=n) for n in range(60)]
    await put(subject.storage, *records)
    asked = [each for record in reversed(records) for each in (record.address, _absent(record))]
    wanted = [each for record in reversed(records) for each in (record, None)]
    got: list[Record | None] = []
    for start in range(0, len(asked), 100):
        got += await subject.storage.get_many(asked[start : start + 100], now=NOW)
    expect(got, wanted, "the records of 120 addresses, every second absent")


def _absent(record: Record) -> Address:
    return record.address._replace(key=record.key + "!")


@check(1)
async def get_answers_one_address_as_often_as_it_is_asked(subject: Subject) -> None:
    record = sample()
    await put(subject.storage, record)
    got = await subject.storage.get_many([record.address, record.address], now=NOW)
    expect(got, [record, record], "one address asked twice")


@check(2)
async def what_was_committed_is_read_at_once_by_every_verb(subject: Subject) -> None:
    storage = subject.storage
    for n in range(20):
        record = sample(f"k{n}", order=n, tag="t")
        await do(storage, Insert(record=record))
        expect(await storage.get(record.address, now=NOW), record, "get after the commit")
        last = await storage.page(SPACE, PARTITION, limit=1, descending=True, now=NOW)
        expect(last, [record], "the last page after the commit")
        expect(dict(await storage.counts(SPACE, PARTITION, now=NOW)), {"t": n + 1}, "counts after the commit")


@check(2, "second_client")
async def what_one_client_committed_the_other_reads_at_once(subject: Subject) -> None:
    first = subject.storage
    second = await subject.another_client()
    try:
        for n in range(20):
            record = sample(f"k{n}", order=n)
            await do(first if n % 2 else second, Insert(record=record))
            got = await (second if n % 2 else first).get(record.address, now=NOW)
            expect(got, record, "the other client's record")
    finally:
        await second.close()


@check(3)
async def an_insert_stores_every_field(subject: Subject) -> None:
    record = sample(
        "k", order=5, body='{"a":1}', tag="t", expires_at=NOW + 9, lane="l", wake_at=7, space=OTHER_SPACE
    )
    expect(await do(subject.storage, Insert(record=record)), Committed((Done(1),)), "the answer")
    expect(await subject.storage.get(record.address, now=NOW), record, "the record read back")


@check(3)
async def an_insert_never_overwrites(subject: Subject) -> None:
    storage, first = subject.storage, sample(body="1")
    await do(storage, Insert(record=first))
    second = (await do(storage, first.becoming(body="2", tag=""))).answers
    expect(second, (Done(2),), "the answer to the replace")
    result = await storage.commit([Insert(record=sample(body="3"))], now=NOW)
    expect(result, Refused((Conflict(2),)), "an insert where version 2 stands")
    got = await storage.get(first.address, now=NOW)
    expect(got, sample(body="2", version=2), "the record after it")


@check(3)
async def an_insert_may_carry_its_version(subject: Subject) -> None:
    record = sample(version=41)
    expect(await do(subject.storage, Insert(record=record)), Committed((Done(41),)), "the answer")
    replaced = await do(subject.storage, record.becoming(body="2", tag=""))
    expect(replaced, Committed((Done(42),)), "the answer to the replace after it")


@check(4)
async def a_keep_leaves_what_stands_there(subject: Subject) -> None:
    storage, first = subject.storage, sample(body="1", tag="t")
    expect(await do(storage, Keep(record=first)), Committed((Done(1),)), "the first keep")
    again = await do(storage, Keep(record=sample(body="2", tag="u", order=9)))
    expect(again, Committed((Kept(1),)), "the second keep")
    expect(await storage.get(first.address, now=NOW), first, "the record after it")
    expect(dict(await storage.counts(SPACE, PARTITION, now=NOW)), {"t": 1}, "the counts after it")


@check(4)
async def a_replayed_page_of_keeps_adds_only_what_is_new(subject: Subject) -> None:
    storage = subject.storage
    await do(storage, *[Keep(record=sample(f"k{n}", order=n)) for n in range(15)])
    answers = (await do(storage, *[Keep(record=sample(f"k{n}", order=n)) for n in range(10, 25)])).answers
    expect(answers, (Kept(1),) * 5 + (Done(1),) * 10, "the answers to the replay")
    expect(dict(await storage.counts(SPACE, PARTITION, now=NOW)), {"": 25}, "the counts after it")


@check(5)
async def a_replace_needs_the_version_that_stands_there(subject: Subject) -> None:
    storage, first = subject.storage, sample(order=3)
    await put(storage, first)
    change = first.becoming(body="2", tag="t", lane="l", wake_at=4, expires_at=NOW + 5)
    expect(await do(storage, change), Committed((Done(2),)), "the first replace")
    expect(await storage.get(first.address, now=NOW), change.after, "the record after it")
    stale = await storage.commit([first.becoming(body="3", tag="")], now=NOW)
    expect(stale, Refused((Conflict(2),)), "a replace of version 1 where 2 stands")
    expect(await storage.get(first.address, now=NOW), change.after, "the record after the refusal")


@check(5)
async def a_replace_of_nothing_is_missing(subject: Subject) -> None:
    result = await subject.storage.commit([sample().becoming(body="2", tag="")], now=NOW)
    expect(result, Refused((Missing(),)), "a replace of nothing")
    expect(await subject.storage.get(sample().address, now=NOW), None, "the record after it")


@check(5, "settle")
async def a_replace_can_take_fields_away(subject: Subject) -> None:
    storage = subject.storage
    first = sample(tag="t", expires_at=NOW + 5, lane="l", wake_at=1)
    await put(storage, first)
    await do(storage, first.becoming(body="2", tag=""))
    expect(await storage.get(first.address, now=NOW + 9), sample(body="2", version=2), "the bare record")
    storage = await subject.settled()
    expect(await storage.due("l", until=NOW, limit=9, now=NOW), [], "the lane it has left")
    expect(await storage.purge(until=NOW + 9, limit=9), [], "what a purge finds expired")


@check(6)
async def a_delete_needs_the_version_that_stands_there(subject: Subject) -> None:
    storage, first = subject.storage, sample(tag="t", lane="l", wake_at=1)
    await put(storage, first)
    second = first.becoming(body="2", tag="t")
    await do(storage, second)
    stale = await storage.commit([Delete(before=first)], now=NOW)
    expect(stale, Refused((Conflict(2),)), "a delete of version 1 where 2 stands")
    expect(await do(storage, Delete(before=second.after)), Committed((Done(2),)), "the delete")
    expect(await storage.get(first.address, now=NOW), None, "the record after it")
    expect(dict(await storage.counts(SPACE, PARTITION, now=NOW)), {}, "the counts after it")
    again = await storage.commit([Delete(before=second.after)], now=NOW)
    expect(again, Refused((Missing(),)), "the delete repeated")


@check(5)
async def a_record_born_again_is_not_the_one_that_was_read(subject: Subject) -> None:
    storage = subject.storage
    for again in (sample("tag", tag="new", order=1), sample("order", tag="old", order=7)):
        first = sample(again.key, tag="old", order=1)
        await put(storage, first)
        await do(storage, Delete(before=first))
        await put(storage, again)
        for change in (first.becoming(body="2", tag="x"), Delete(before=first)):
            result = await storage.commit([change], now=NOW)
            expect(result, Refused((Conflict(1),)), f"a {type(change).__name__} of what stood there before")
        expect(await storage.get(again.address, now=NOW), again, f"the record with another {again.key}")
    expect(dict(await storage.counts(SPACE, PARTITION, now=NOW)), {"new": 1, "old": 1}, "the counts")


@check(6)
async def a_deleted_key_is_born_again_at_version_one(subject: Subject) -> None:
    storage, record = subject.storage, sample()
    await put(storage, record)
    await do(storage, Delete(before=record))
    expect(await do(storage, Insert(record=record)), Committed((Done(1),)), "the second birth")


@check(7)
async def a_commit_writes_all_its_changes_across_spaces(subject: Subject) -> None:
    storage = subject.storage
    old, gone = sample("old", tag="t"), sample("gone", tag="t")
    await put(storage, old, gone)
    born, kept = sample("born", space=OTHER_SPACE), sample("kept")
    change = old.becoming(body="2", tag="u")
    answers = await do(storage, Insert(record=born), change, Delete(before=gone), Keep(record=kept))
    expect(answers, Committed((Done(1), Done(2), Done(1), Done(1))), "the answers")
    got = await storage.get_many([born.address, old.address, gone.address, kept.address], now=NOW)
    expect(got, [born, change.after, None, kept], "the records")
    expect(dict(await storage.counts(SPACE, PARTITION, now=NOW)), {"u": 1, "": 1}, "the counts")
    expect(dict(await storage.counts(OTHER_SPACE, PARTITION, now=NOW)), {"": 1}, "the other counts")


@check(7)
async def a_commit_with_one_refusal_writes_nothing_and_answers_each(subject: Subject) -> None:
    storage = subject.storage
    taken, other = sample("taken"), sample("other", tag="t")
    await put(storage, taken, other)
    new, kept = sample("new", space=OTHER_SPACE), sample("kept")
    result = await storage.commit(
        [
            Insert(record=new),
            Keep(record=kept),
            Keep(record=other),
            Insert(record=taken),
            sample("absent").becoming(body="2", tag=""),
        ],
        now=NOW,
    )
    expect(result, Refused((Done(1), Done(1), Kept(1), Conflict(1), Missing())), "the answers")
    got = await storage.get_many([new.address, kept.address, taken.address, other.address], now=NOW)
    expect(got, [None, None, taken, other], "the records after the refusal")
    expect(dict(await storage.counts(SPACE, PARTITION, now=NOW)), {"": 1, "t": 1}, "the counts after it")
    expect(await storage.page(OTHER_SPACE, PARTITION, limit=9, now=NOW), [], "the other space after it")


@check(7)
async def a_refusal_in_any_place_undoes_the_whole(subject: Subject) -> None:
    storage, taken = subject.storage, sample("taken")
    await put(storage, taken)
    for place in range(5):
        changes = [Insert(record=sample(f"n{n}")) for n in range(4)]
        changes.insert(place, Insert(record=taken))
        result = await storage.commit(changes, now=NOW)
        expect(type(result), Refused, f"the result with the conflict in place {place}")
        expect(await storage.page(SPACE, PARTITION, limit=9, now=NOW), [taken], "what stands after it")


@check(7)
async def a_refusal_for_a_large_body_answers_its_neighbours_truly(subject: Subject) -> None:
    storage = subject.storage
    large, taken = sample("large", body="x" * 900_000), sample("taken")
    await put(storage, large, taken)
    await do(storage, Delete(before=large))
    result = await storage.commit([Delete(before=large), Insert(record=taken)], now=NOW)
    expect(result, Refused((Missing(), Conflict(1))), "the answers")


@check(7)
async def a_commit_takes_25_changes_and_2_mib(subject: Subject) -> None:
    storage = subject.storage
    share = 2 * 1024 * 1024 // 25
    records = [sample(f"k{n}", order=n, body=str(n % 10) * share) for n in range(25)]
    await do(storage, *[Insert(record=record) for record in records])
    got = await storage.get_many([record.address for record in records], now=NOW)
    expect_same(got, records, "25 records of 2 MiB together")


@check(7)
async def one_body_takes_2_mib(subject: Subject) -> None:
    record = sample(body="é" * (1024 * 1024))
    await put(subject.storage, record)
    got = await subject.storage.get(record.address, now=NOW)
    expect_same(got, record, "a record of 2 MiB")
    change = record.becoming(body="x" * (2 * 1024 * 1024), tag="")
    await do(subject.storage, change)
    got = await subject.storage.get(record.address, now=NOW)
    expect_same(got, change.after, "what replaced it")
    must(await subject.storage.commit([change.after.becoming(body="small", tag="")], now=NOW))
