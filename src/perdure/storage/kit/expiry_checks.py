"""Checks of guards, expiry and `purge`: promises 9, 14, 15, 16 and 19."""

from __future__ import annotations

from ..record import (
    Committed,
    Conflict,
    Delete,
    Done,
    Guard,
    Insert,
    Keep,
    Micros,
    Missing,
    Purged,
    Record,
    Refused,
)
from .sample_records import NOW, OTHER_SPACE, PARTITION, SPACE, do, must, put, put_many, sample
from .suite import Subject, check, expect

THREE = Guard(space=SPACE, tags=frozenset({"a", "b"}), at_most=3)
DAY: Micros = 86_400_000_000


@check(9)
async def a_guard_admits_up_to_its_bound(subject: Subject) -> None:
    storage = subject.storage
    for n, tag in enumerate("aab"):
        must(await storage.commit([Insert(record=sample(f"k{n}", tag=tag))], guard=THREE, now=NOW))
    refused = await storage.commit([Insert(record=sample("more", tag="b"))], guard=THREE, now=NOW)
    expect(refused, Refused((Done(1),), over=4), "the fourth")
    expect(await storage.get(sample("more").address, now=NOW), None, "the fourth after its refusal")
    must(await storage.commit([Insert(record=sample("c", tag="c"))], guard=THREE, now=NOW))
    must(await storage.commit([Insert(record=sample("a", tag="a", partition="q"))], guard=THREE, now=NOW))


@check(9)
async def a_guard_counts_the_whole_commit(subject: Subject) -> None:
    storage = subject.storage
    first = [sample(f"k{n}", tag="a") for n in range(3)]
    await put(storage, *first)
    swap = [Delete(before=first[0]), Insert(record=sample("new", tag="a"))]
    must(await storage.commit(swap, guard=THREE, now=NOW))
    retag = [first[1].becoming(body="2", tag="c"), Insert(record=sample("newer", tag="b"))]
    must(await storage.commit(retag, guard=THREE, now=NOW))
    two = [Insert(record=sample("x", tag="a", space=OTHER_SPACE)), Insert(record=sample("y", tag="a"))]
    refused = await storage.commit(two, guard=THREE, now=NOW)
    expect(refused, Refused((Done(1), Done(1)), over=4), "one too many beside one of another space")


@check(9)
async def a_guard_counts_only_the_living_and_purges_before_it_refuses(subject: Subject) -> None:
    storage = subject.storage
    soon = [sample(f"soon{n}", tag="a", expires_at=NOW + 5) for n in range(3)]
    await put(storage, *soon)
    early = await storage.commit([Insert(record=sample("k", tag="a"))], guard=THREE, now=NOW + 4)
    expect(early, Refused((Done(1),), over=4), "one more while three live")
    must(await storage.commit([Insert(record=sample("k", tag="a"))], guard=THREE, now=NOW + 5))
    expect(dict(await storage.counts(SPACE, PARTITION, now=NOW + 5)), {"a": 1}, "the living after it")


@check(9)
async def a_guard_looks_past_many_overdue_records(subject: Subject) -> None:
    storage = subject.storage
    overdue = [sample(f"k{n:03}", tag="a", expires_at=NOW + 5) for n in range(130)]
    beside = [
        sample("other space", space=OTHER_SPACE, tag="a", expires_at=NOW + 5),
        sample("other space too", space=OTHER_SPACE, tag="a"),
    ]
    await put_many(storage, overdue + beside)
    await put(storage, sample("k", partition="q", tag="a", expires_at=NOW + 5))
    for n in range(3):
        change = Insert(record=sample(f"new{n}", tag="a"))
        must(await storage.commit([change], guard=THREE, now=NOW + 5))
    refused = await storage.commit([Insert(record=sample("more", tag="a"))], guard=THREE, now=NOW + 5)
    expect(refused, Refused((Done(1),), over=4), "the fourth")
    expect(dict(await storage.counts(SPACE, PARTITION, now=NOW + 5)), {"a": 3}, "its counts")
    expect(dict(await storage.counts(OTHER_SPACE, PARTITION, now=NOW + 5)), {"a": 1}, "the other space's")
    seen = await storage.get(sample("k", partition="q").address, now=NOW)
    expect(seen and seen.tag, "a", "what expired in another partition, at a time before")


@check(9)
async def a_guarded_birth_where_its_own_guard_purges(subject: Subject) -> None:
    """The guard removes the expired record that stands in the way; it must be removed, and counted, once."""
    storage = subject.storage
    await put(storage, *[sample(f"k{n}", tag="a", expires_at=NOW + 5) for n in range(4)])
    changes = [Insert(record=sample("fresh", tag="c")), Insert(record=sample("k1", tag="a", body="2"))]
    must(await storage.commit(changes, guard=THREE, now=NOW + 5))
    for change in changes:
        expect(await storage.get(change.address, now=NOW + 5), change.record, "what was born")
    expect(dict(await storage.counts(SPACE, PARTITION, now=NOW + 5)), {"a": 1, "c": 1}, "the counts")
    for n in range(2):
        must(await storage.commit([Insert(record=sample(f"n{n}", tag="a"))], guard=THREE, now=NOW + 5))
    refused = await storage.commit([Insert(record=sample("n2", tag="a"))], guard=THREE, now=NOW + 5)
    expect(refused, Refused((Done(1),), over=4), "one too many after it")


@check(9)
async def a_guard_lets_pass_what_does_not_raise_the_count(subject: Subject) -> None:
    storage = subject.storage
    records = [sample(f"k{n}", tag="a") for n in range(5)]
    await put(storage, *records)
    must(await storage.commit([Delete(before=records[0])], guard=THREE, now=NOW))
    must(await storage.commit([records[1].becoming(body="2", tag="b")], guard=THREE, now=NOW))
    born_dead = sample("dead", tag="a", expires_at=NOW)
    must(await storage.commit([Insert(record=born_dead)], guard=THREE, now=NOW))


@check(9)
async def a_guard_counts_what_stands_there_not_what_was_read(subject: Subject) -> None:
    """The record was born again with more time than the writer knows of: replacing it adds none."""
    storage, read = subject.storage, sample("k", tag="a", expires_at=NOW + 5)
    await put(storage, read)
    await do(storage, Delete(before=read))
    await put(storage, sample("k", tag="a"), sample("l", tag="a"), sample("m", tag="b"))
    change = read.becoming(body="2", tag="b")
    must(await storage.commit([change], guard=THREE, now=NOW + 9))
    expect(dict(await storage.counts(SPACE, PARTITION, now=NOW + 9)), {"a": 1, "b": 2}, "the counts")


@check(9)
async def a_refused_change_is_told_before_the_guard(subject: Subject) -> None:
    storage, taken = subject.storage, sample("taken", tag="a")
    await put(storage, taken)
    none = Guard(space=SPACE, tags=frozenset({"a"}), at_most=0)
    result = await storage.commit([Insert(record=taken)], guard=none, now=NOW)
    expect(result, Refused((Conflict(1),)), "a conflict under a full guard")


@check(14, "settle")
async def every_verb_stops_seeing_a_record_at_the_same_instant(subject: Subject) -> None:
    end = NOW + 1000
    record = sample(tag="t", expires_at=end, lane="l", wake_at=1)
    await put(subject.storage, record)
    await subject.settled()
    expect(await _seen_by(subject, record, end - 1), dict.fromkeys(_VERBS, True), "one microsecond before")
    expect(await _seen_by(subject, record, end), dict.fromkeys(_VERBS, False), "at the instant")


_VERBS = ("get", "page", "page of a tag", "page of all", "due", "counts", "counts of all")


async def _seen_by(subject: Subject, record: Record, now: Micros) -> dict[str, bool]:
    storage = subject.storage
    answers = (
        await storage.get(record.address, now=now) == record,
        await storage.page(SPACE, PARTITION, limit=9, now=now) == [record],
        await storage.page(SPACE, PARTITION, tag="t", limit=9, now=now) == [record],
        await storage.page(SPACE, limit=9, now=now) == [record],
        await storage.due("l", until=now, limit=9, now=now) == [record],
        dict(await storage.counts(SPACE, PARTITION, now=now)) == {"t": 1},
        dict(await storage.counts(SPACE, now=now)) == {"t": 1},
    )
    return dict(zip(_VERBS, answers, strict=True))


@check(14)
async def an_expired_record_cannot_be_changed(subject: Subject) -> None:
    storage, record = subject.storage, sample(expires_at=NOW + 5)
    await put(storage, record)
    for change in (record.becoming(body="2", tag=""), Delete(before=record)):
        result = await storage.commit([change], now=NOW + 5)
        expect(result, Refused((Missing(),)), f"a {type(change).__name__.lower()} at its expiry")
    must(await storage.commit([record.becoming(body="2", tag="")], now=NOW + 4))


@check(14)
async def pages_are_full_though_expired_records_lie_between(subject: Subject) -> None:
    storage = subject.storage
    records = [sample(f"k{n:02}", order=n, expires_at=None if n % 5 == 0 else NOW) for n in range(50)]
    await put(storage, *records, now=NOW - 1)
    wanted = records[::5]
    expect(await storage.page(SPACE, PARTITION, limit=10, now=NOW), wanted, "ten living among fifty")
    first = await storage.page(SPACE, PARTITION, limit=4, now=NOW)
    expect(first, wanted[:4], "the first four of them")


@check(16)
async def purge_spares_what_was_given_more_time(subject: Subject) -> None:
    storage, record = subject.storage, sample(expires_at=NOW + 5)
    await put(storage, record)
    change = record.becoming(body="2", tag="", expires_at=NOW + 50)
    await do(storage, change)
    expect(await storage.purge(until=NOW + 5, limit=9), [], "what a purge finds at the old time")
    expect(await storage.get(record.address, now=NOW + 5), change.after, "the record")


@check(15, "settle")
async def the_address_of_an_expired_record_is_free(subject: Subject) -> None:
    storage = subject.storage
    for birth in (Insert, Keep):
        key = birth.__name__
        await put(storage, sample(key, tag="old", order=1, lane="l", wake_at=1, expires_at=NOW + 5))
        new = sample(key, tag="new", order=2, body="2")
        expect(await do(storage, birth(record=new), now=NOW + 5), Committed((Done(1),)), "the new birth")
        expect(await storage.get(new.address, now=NOW + 5), new, "the new record")
    expect(dict(await storage.counts(SPACE, PARTITION, now=NOW + 5)), {"new": 2}, "the counts")
    expect(len(await storage.page(SPACE, PARTITION, limit=9, now=NOW + 5)), 2, "the listing's length")
    storage = await subject.settled()
    expect(await storage.purge(until=NOW + 9, limit=9), [], "what a purge still finds")


@check(16, "settle")
async def purge_removes_exactly_what_expired_and_tells_of_it(subject: Subject) -> None:
    storage = subject.storage
    records = [
        sample(f"k{n}", partition=f"p{n % 3}", tag="ab"[n % 2], expires_at=NOW + n, order=n)
        for n in range(10)
    ]
    await put(storage, *records, sample("ever", tag="a"), now=NOW - 1)
    storage = await subject.settled()
    purged = await storage.purge(until=NOW + 5, limit=100)
    wanted = [Purged(*record.address, record.tag) for record in records[:6]]
    expect(sorted(purged), sorted(wanted), "what was purged")
    storage = await subject.settled()
    early = NOW - 1  # at which nothing would be hidden
    left = await storage.page(SPACE, limit=99, now=early)
    expect({record.key for record in left}, {"ever", "k6", "k7", "k8", "k9"}, "what is left")
    expect(dict(await storage.counts(SPACE, now=early)), {"a": 3, "b": 2}, "its counts")
    expect(await storage.purge(until=NOW + 5, limit=100), [], "a second purge")


@check(16, "settle")
async def purge_works_in_batches_earliest_first(subject: Subject) -> None:
    records = [sample(f"k{n}", partition=f"p{n % 4}", expires_at=NOW + n) for n in range(10)]
    await put(subject.storage, *reversed(records), now=NOW - 1)
    storage = await subject.settled()
    keys: list[str] = []
    sizes: list[int] = []
    for _ in range(4):
        batch = await storage.purge(until=NOW + 99, limit=4)
        sizes.append(len(batch))
        keys += [each.key for each in batch]
        storage = await subject.settled()
    expect(sizes, [4, 4, 2, 0], "the sizes of the batches")
    expect(keys, [record.key for record in records], "their keys, earliest first")


@check(16, "settle")
async def purge_takes_a_thousand_at_once(subject: Subject) -> None:
    await put_many(subject.storage, [sample(f"k{n:04}", tag="t", expires_at=NOW + 1) for n in range(1010)])
    storage = await subject.settled()
    expect(len(await storage.purge(until=NOW + 1, limit=1000)), 1000, "the first batch")
    storage = await subject.settled()
    expect(len(await storage.purge(until=NOW + 1, limit=1000)), 10, "the second batch")
    expect(dict(await storage.counts(SPACE, PARTITION, now=NOW)), {}, "the counts at a time before")


@check(16, "settle")
async def purge_frees_the_address_and_the_lane(subject: Subject) -> None:
    record = sample(lane="l", wake_at=1, expires_at=NOW + 5, tag="t")
    await put(subject.storage, record)
    storage = await subject.settled()
    await storage.purge(until=NOW + 5, limit=9)
    storage = await subject.settled()
    expect(await storage.due("l", until=NOW, limit=9, now=NOW), [], "the lane at a time before the expiry")
    expect(await storage.get(record.address, now=NOW), None, "the record at a time before the expiry")
    await put(storage, record)


@check(19, "advance_time", "settle")
async def nothing_is_removed_but_by_purge(subject: Subject) -> None:
    record = sample(tag="t", expires_at=NOW + 5)
    await put(subject.storage, record)
    if subject.advance_time is not None:
        await subject.advance_time(DAY)
    storage = await subject.settled()
    expect(await storage.get(record.address, now=NOW), record, "the record, asked for at its time")
    purged = await storage.purge(until=NOW + DAY, limit=9)
    expect(purged, [Purged(*record.address, "t")], "what a purge a day later finds")
