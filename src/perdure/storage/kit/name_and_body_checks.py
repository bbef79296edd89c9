"""Checks unusual names and bodies: promise 17 of the storage contract."""

from __future__ import annotations

from ..limits import MAX_KEY_BYTES, MAX_LANE_BYTES, MAX_PARTITION_BYTES, MAX_SPACE_BYTES, MAX_TAG_BYTES
from ..records_and_changes import Accepted, Record, Space
from .check_framework import Subject, check, expect, expect_intact
from .sample_records import (
    HOSTILE_BODIES,
    HOSTILE_NAMES,
    NOW,
    NUMBERS,
    OTHER_SPACE,
    PARTITION,
    SPACE,
    expect_result,
    insert_each,
    make_record,
    read_counts,
)


@check(17)
async def bodies_are_returned_byte_for_byte(subject: Subject) -> None:
    records = [make_record(f"k{n}", order=n, body=body) for n, body in enumerate(HOSTILE_BODIES)]
    await insert_each(subject.storage, *records)
    got = await subject.storage.page(SPACE, PARTITION, limit=len(records), now=NOW)
    for record, back in zip(records, got, strict=True):
        expect_intact(back.body, record.body, f"{record.body[:40]!r}")


@check(17, "catch_up")
async def hostile_partition_names_are_distinct(subject: Subject) -> None:
    records = [
        make_record(key, partition=name, order=n, tag=name[:16])
        for n, name in enumerate(HOSTILE_NAMES)
        for key in ("a", "b")
    ]
    await insert_each(subject.storage, *records)
    for name in HOSTILE_NAMES:
        mine = [record for record in records if record.partition == name]
        got = await subject.storage.page(SPACE, name, limit=9, now=NOW)
        expect(got, mine, f"the records of partition {name!r}")
        counts = await read_counts(subject.storage, partition=name)
        expect(counts, {name[:16]: 2}, f"the counts of partition {name!r}")
    storage = await subject.caught_up()
    expect(await storage.page(SPACE, limit=99, now=NOW), _sorted(records), "all of them")


@check(17)
async def hostile_keys_are_distinct_and_sort_by_code_point(subject: Subject) -> None:
    records = [make_record(name) for name in HOSTILE_NAMES]
    await insert_each(subject.storage, *records)
    got = await subject.storage.get_many([record.address for record in records], now=NOW)
    expect(got, records, "the records of hostile keys")
    listed = await subject.storage.page(SPACE, PARTITION, limit=99, now=NOW)
    expect(listed, _sorted(records), "their listing")


@check(17, "catch_up")
async def hostile_lanes_and_tags_are_distinct(subject: Subject) -> None:
    storage = subject.storage
    names = [name for name in HOSTILE_NAMES if len(name.encode()) <= 64]
    records = [make_record(f"k{n}", tag=name, lane=name, wake_at=n) for n, name in enumerate(names)]
    await insert_each(storage, *records)
    storage = await subject.caught_up()
    for record in records:
        tagged = await storage.page(SPACE, PARTITION, tag=record.tag, limit=9, now=NOW)
        expect(tagged, [record], f"the records with the tag {record.tag!r}")
        due = await storage.due(record.tag, until=NOW, limit=9, now=NOW)
        expect(due, [record], f"the records due in lane {record.tag!r}")
    expect(await read_counts(storage), dict.fromkeys(names, 1), "the counts of all tags")


@check(17, "catch_up")
async def the_longest_names_fit_together(subject: Subject) -> None:
    record = make_record(
        "k" * MAX_KEY_BYTES,
        partition="p" * MAX_PARTITION_BYTES,
        space=Space("s" * MAX_SPACE_BYTES),
        tag="t" * MAX_TAG_BYTES,
        lane="l" * MAX_LANE_BYTES,
        wake_at=1,
        expires_at=NOW + 1,
    )
    await insert_each(subject.storage, record)
    storage = await subject.caught_up()
    expect(await storage.get(record.address, now=NOW), record, "the record")
    listed = await storage.page(record.space, tag=record.tag, limit=9, now=NOW)
    expect(listed, [record], "the listing over all partitions")
    expect(await storage.due(record.lane or "", until=1, limit=9, now=NOW), [record], "the lane")
    expect(len(await storage.purge(until=NOW + 1, limit=9)), 1, "the number of purged records")


@check(17, "catch_up")
async def numbers_keep_all_their_bits(subject: Subject) -> None:
    records = [
        make_record(f"k{n}", order=number, version=max(1, number - 1), lane="l", wake_at=number)
        for n, number in enumerate(NUMBERS)
    ]
    await insert_each(subject.storage, *records)
    storage = await subject.caught_up()
    expect(await storage.page(SPACE, PARTITION, limit=99, now=NOW), records, "the listing")
    for n, number in enumerate(NUMBERS):
        due = await storage.due("l", until=number, limit=99, now=NOW)
        expect(due, records[: n + 1], f"the records due at {number}")
    last = records[-1]
    change = last.replace_with(body="2", tag="")
    await expect_result(storage, change, Accepted(last.version + 1), "a version near the greatest")


@check(17)
async def spaces_are_distinct(subject: Subject) -> None:
    storage = subject.storage
    one, other = make_record(tag="t"), make_record(space=OTHER_SPACE, tag="u", body="2")
    await insert_each(storage, one, other)
    expect(await storage.get_many([one.address, other.address], now=NOW), [one, other], "both records")
    expect(await storage.page(SPACE, PARTITION, limit=9, now=NOW), [one], "one listing")
    expect(await read_counts(storage, OTHER_SPACE), {"u": 1}, "the counts of the other space")
    expect(await storage.page(Space("none"), PARTITION, limit=9, now=NOW), [], "an empty space")


def _sorted(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda record: record.position)
