"""Checks how an engine handles damaged records and their neighbours: promise 23 of the storage contract."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from logging.handlers import BufferingHandler

from ..errors import StorageCorrupt
from ..records_and_changes import Address, Delete, Insert, InsertIfAbsent, Record
from ..storage import Storage
from .check_framework import ContractViolation, MissingCapability, Subject, check, expect
from .sample_records import NOW, PARTITION, SPACE, commit_changes, insert_each, make_record

DAMAGED = "bad"


def neighbours() -> list[Record]:
    """Return four intact records. In listings, two precede the damaged record and two follow it."""
    return [make_record(f"k{n}", order=n, tag="t", lane="l", wake_at=n) for n in (1, 2, 8, 9)]


async def with_damage(subject: Subject) -> tuple[Storage, Record]:
    """Store five records and damage the third record. Return the storage and the damaged record."""
    if subject.damage is None:
        raise MissingCapability("damage")
    damaged = make_record(DAMAGED, order=5, tag="t", lane="l", wake_at=5)
    first, second, *last = neighbours()
    await insert_each(subject.storage, first, second, damaged, *last)
    await subject.damage(damaged.address)
    return await subject.caught_up(), damaged


@contextmanager
def logged_warnings() -> Generator[list[logging.LogRecord]]:
    """Collect the warnings that are logged inside the `with` block."""
    handler = BufferingHandler(capacity=1000)
    handler.setLevel(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        yield handler.buffer
    finally:
        logging.getLogger().removeHandler(handler)


def expect_named(text: str, address: Address, what: str) -> None:
    if not all(name in text for name in address):
        raise ContractViolation(f"{what} does not contain {address}: {text}")


@check(23, "damage")
async def a_damaged_record_is_an_error_that_names_it(subject: Subject) -> None:
    storage, damaged = await with_damage(subject)
    for addresses in ([damaged.address], [neighbours()[0].address, damaged.address]):
        try:
            await storage.get_many(addresses, now=NOW)
        except StorageCorrupt as error:
            expect_named(str(error), damaged.address, "the error")
        else:
            raise ContractViolation("get_many did not raise StorageCorrupt for a damaged record")
    expect(await storage.get(neighbours()[0].address, now=NOW), neighbours()[0], "its neighbour")


@check(23, "damage", "catch_up")
async def listings_skip_a_damaged_record_and_warn(subject: Subject) -> None:
    storage, damaged = await with_damage(subject)
    await _expect_listings(storage, damaged.address)


async def _expect_listings(storage: Storage, damaged: Address) -> None:
    expected = neighbours()
    for limit in (1, 3, 4, 9):
        for partition, tag in ((PARTITION, None), (PARTITION, "t"), (None, None), (None, "t")):
            for descending in (False, True):
                with logged_warnings() as warnings:
                    page = await storage.page(
                        SPACE, partition, limit=limit, tag=tag, descending=descending, now=NOW
                    )
                ordered = expected[::-1] if descending else expected
                expect(page, ordered[:limit], f"a page of {limit} with a damaged record in the partition")
                if limit >= 3:
                    text = " ".join(warning.getMessage() for warning in warnings)
                    expect_named(text, damaged, "the warning")
        expect(await storage.due("l", until=9, limit=limit, now=NOW), expected[:limit], "the due records")
    after = expected[1].position
    page = await storage.page(SPACE, PARTITION, after=after, limit=1, now=NOW)
    expect(page, [expected[2]], "the page that starts at the damaged record")


@check(23, "damage", "catch_up")
async def a_commit_that_meets_a_damaged_record_fails_alone(subject: Subject) -> None:
    storage, damaged = await with_damage(subject)
    other = make_record(DAMAGED, order=5, body="2", tag="t")
    replace = damaged.replace_with(body="2", tag="u")
    for change in (Insert(record=other), InsertIfAbsent(record=other), replace, Delete(before=replace.after)):
        try:
            await storage.commit([change], now=NOW)
        except StorageCorrupt as error:
            expect_named(str(error), damaged.address, "the error")
    change = neighbours()[0].replace_with(body="2", tag="t", lane="l", wake_at=1)
    await commit_changes(storage, change)
    expect(await storage.get(change.address, now=NOW), change.after, "a neighbour that was replaced")


@check(23, "damage", "catch_up")
async def maintenance_reports_a_damaged_record(subject: Subject) -> None:
    storage, damaged = await with_damage(subject)
    for repair in (False, True):
        findings = (await storage.maintain(repair=repair)).findings
        expect_named(" ".join(findings), damaged.address, "the findings of maintenance")
    await _expect_listings(storage, damaged.address)
    expect(await storage.purge(until=NOW, limit=9), [], "a purge of nothing")
