"""Checks of names and bodies: promise 17."""

from __future__ import annotations

from ..port import MOST_KEY_BYTES, MOST_LANE_BYTES, MOST_PARTITION_BYTES, MOST_SPACE_BYTES, MOST_TAG_BYTES
from ..record import (
    Done,
    Record,
    Space,
)
from .sample_records import (
    HOSTILE_BODIES,
    HOSTILE_NAMES,
    NOW,
    NUMBERS,
    OTHER_SPACE,
    PARTITION,
    SPACE,
    do,
    put,
    sample,
)
from .suite import Subject, check, expect, expect_same


@check(17)
async def bodies_come_back_to_the_byte(subject: Subject) -> None:
    records = [sample(f"k{n}", order=n, body=body) for n, body in enumerate(HOSTILE_BODIES)]
    await put(subject.storage, *records)
    got = await subject.storage.page(SPACE, PARTITION, limit=len(records), now=NOW)
    for record, back in zip(records, got, strict=True):
        expect_same(back.body, record.body, f"{record.body[:40]!r}")


@check(17, "settle")
async def hostile_names_stay_apart_as_partitions(subject: Subject) -> None:
    records = [
        sample(key, partition=name, order=n, tag=name[:16])
        for n, name in enumerate(HOSTILE_NAMES)
        for key in ("a", "b")
    ]
    await put(subject.storage, *records)
    for name in HOSTILE_NAMES:
        mine = [record for record in records if record.partition == name]
        got = await subject.storage.page(SPACE, name, limit=9, now=NOW)
        expect(got, mine, f"the records of partition {name!r}")
        counts = dict(await subject.storage.counts(SPACE, name, now=NOW))
        expect(counts, {name[:16]: 2}, f"the counts of partition {name!r}")
    storage = await subject.settled()
    expect(await storage.page(SPACE, limit=99, now=NOW), _sorted(records), "all of them")


@check(17)
async def hostile_names_stay_apart_as_keys_and_sort_by_code_point(subject: Subject) -> None:
    records = [sample(name) for name in HOSTILE_NAMES]
    await put(subject.storage, *records)
    got = await subject.storage.get_many([record.address for record in records], now=NOW)
    expect(got, records, "the records of hostile keys")
    listed = await subject.storage.page(SPACE, PARTITION, limit=99, now=NOW)
    expect(listed, _sorted(records), "their listing")


@check(17, "settle")
async def hostile_names_stay_apart_as_lanes_and_tags(subject: Subject) -> None:
    storage = subject.storage
    names = [name for name in HOSTILE_NAMES if len(name.encode()) <= 64]
    records = [sample(f"k{n}", tag=name, lane=name, wake_at=n) for n, name in enumerate(names)]
    await put(storage, *records)
    storage = await subject.settled()
    for record in records:
        tagged = await storage.page(SPACE, PARTITION, tag=record.tag, limit=9, now=NOW)
        expect(tagged, [record], f"what is tagged {record.tag!r}")
        due = await storage.due(record.tag, until=NOW, limit=9, now=NOW)
        expect(due, [record], f"what is due in lane {record.tag!r}")
    expect(
        dict(await storage.counts(SPACE, PARTITION, now=NOW)),
        dict.fromkeys(names, 1),
        "the counts of all tags",
    )


@check(17, "settle")
async def the_longest_names_fit_together(subject: Subject) -> None:
    record = sample(
        "k" * MOST_KEY_BYTES,
        partition="p" * MOST_PARTITION_BYTES,
        space=Space("s" * MOST_SPACE_BYTES),
        tag="t" * MOST_TAG_BYTES,
        lane="l" * MOST_LANE_BYTES,
        wake_at=1,
        expires_at=NOW + 1,
    )
    await put(subject.storage, record)
    storage = await subject.settled()
    expect(await storage.get(record.address, now=NOW), record, "the record")
    listed = await storage.page(record.space, tag=record.tag, limit=9, now=NOW)
    expect(listed, [record], "the listing over all partitions")
    expect(await storage.due(record.lane or "", until=1, limit=9, now=NOW), [record], "the lane")
    expect(len(await storage.purge(until=NOW + 1, limit=9)), 1, "what a purge finds")


@check(17, "settle")
async def numbers_keep_all_their_bits(subject: Subject) -> None:
    records = [
        sample(f"k{n}", order=number, version=max(1, number - 1), lane="l", wake_at=number)
        for n, number in enumerate(NUMBERS)
    ]
    await put(subject.storage, *records)
    storage = await subject.settled()
    expect(await storage.page(SPACE, PARTITION, limit=99, now=NOW), records, "the listing")
    for n, number in enumerate(NUMBERS):
        due = await storage.due("l", until=number, limit=99, now=NOW)
        expect(due, records[: n + 1], f"what is due at {number}")
    last = records[-1]
    answers = (await do(storage, last.becoming(body="2", tag=""))).answers
    expect(answers, (Done(last.version + 1),), "a version near the greatest")


@check(17)
async def spaces_stay_apart(subject: Subject) -> None:
    storage = subject.storage
    here, there = sample(tag="t"), sample(space=OTHER_SPACE, tag="u", body="2")
    await put(storage, here, there)
    expect(await storage.get_many([here.address, there.address], now=NOW), [here, there], "both records")
    expect(await storage.page(SPACE, PARTITION, limit=9, now=NOW), [here], "one listing")
    expect(dict(await storage.counts(OTHER_SPACE, PARTITION, now=NOW)), {"u": 1}, "the other counts")
    expect(await storage.page(Space("none"), PARTITION, limit=9, now=NOW), [], "a space of nothing")


def _sorted(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda record: record.position)
