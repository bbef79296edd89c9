"""Checks what happens after reopening, with several clients, and on closing: promises 18 and 20 to 22 of the
storage contract.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

from ..errors import StorageClosed, StorageError
from ..records_and_changes import Conflict, Delete, Insert, Refused
from ..watch import Watch
from .check_framework import ContractViolation, Subject, check, expect, within_timeout
from .child_processes import read_line, start_child
from .sample_records import NOW, PARTITION, SPACE, commit_changes, insert_each, make_record, read_counts


@check(20, "reopen", "catch_up")
async def everything_is_stored_after_reopening(subject: Subject) -> None:
    storage = subject.storage
    records = [
        make_record(f"k{n}", order=n, tag="ab"[n % 2], lane="l", wake_at=n, body=f'{{"n":{n}}}')
        for n in range(20)
    ]
    await insert_each(storage, *records)
    change = records[0].replace_with(body="2", tag="c", expires_at=NOW + 5)
    await commit_changes(storage, change, Delete(before=records[1]))
    expected = [change.after, *records[2:]]
    storage = await subject.reopened()
    expect(await storage.page(SPACE, PARTITION, limit=99, now=NOW), expected, "the listing")
    expect(await read_counts(storage), {"a": 9, "b": 9, "c": 1}, "the counts")
    await subject.caught_up()
    expect(await storage.due("l", until=99, limit=99, now=NOW), records[2:], "the lane")
    expect(len(await storage.purge(until=NOW + 5, limit=9)), 1, "the number of purged records")


@check(20, "reopen")
async def versions_continue_after_reopening(subject: Subject) -> None:
    first = make_record()
    await insert_each(subject.storage, first)
    change = first.replace_with(body="2", tag="")
    await commit_changes(subject.storage, change)
    storage = await subject.reopened()
    await commit_changes(storage, change.after.replace_with(body="3", tag=""))
    got = await storage.get(first.address, now=NOW)
    expect(got, make_record(body="3", version=3), "the record replaced across a reopening")


@check(21, "second_client")
async def two_clients_do_not_overwrite_each_other(subject: Subject) -> None:
    first, record = subject.storage, make_record()
    async with await subject.another_client() as second:
        await insert_each(first, record)
        await commit_changes(second, record.replace_with(body="2", tag=""))
        stale = await first.commit([record.replace_with(body="3", tag="")], now=NOW)
        expect(stale, Refused((Conflict(2),)), "the result of the slower client")


@check(22)
async def a_closed_storage_raises(subject: Subject) -> None:
    storage = subject.storage
    await storage.close()
    await storage.close()  # closing twice is allowed
    await _expect_closed(storage.commit([Insert(record=make_record())], now=NOW))
    await _expect_closed(storage.get(make_record().address, now=NOW))
    await _expect_closed(storage.page(SPACE, limit=1, now=NOW))
    await _expect_closed(storage.due("l", until=NOW, limit=1, now=NOW))
    await _expect_closed(storage.counts(SPACE, now=NOW))
    await _expect_closed(storage.purge(until=NOW, limit=1))
    await _expect_closed(storage.maintain())


@check(22)
async def closing_wakes_a_watch_that_waits(subject: Subject) -> None:
    watch = subject.storage.watch(SPACE)
    waiting = asyncio.ensure_future(_wait_forever(watch))
    await asyncio.sleep(0)
    await subject.storage.close()
    await _expect_closed(within_timeout(waiting, "the error of a waiting watch after its storage was closed"))
    await _expect_closed(within_timeout(watch.changed(), "the error of a watch of a closed storage"))


@check(18)
async def closing_a_watch_wakes_its_waiter(subject: Subject) -> None:
    watch = subject.storage.watch(SPACE)
    waiting = asyncio.ensure_future(_wait_forever(watch))
    await asyncio.sleep(0)
    await watch.close()
    await _expect_closed(within_timeout(waiting, "the error of a waiting watch after it was closed"))


async def _wait_forever(watch: Watch) -> None:
    while True:  # a wake-up without a change is allowed
        await watch.changed()


async def _expect_closed(call: Awaitable[object]) -> None:
    try:
        await call
    except StorageClosed:
        return
    raise ContractViolation("a call after close did not raise StorageClosed")


@check(20, "url", "reopen")
async def acknowledged_commits_of_a_killed_process_are_stored(subject: Subject) -> None:
    process = await start_child(subject, rounds=0)
    acknowledged = [await read_line(process) for _ in range(100)]
    process.kill()
    rest, _ = await process.communicate()
    acknowledged += [line for line in rest.decode().splitlines() if line.endswith("!")]
    storage = await subject.reopened()
    for line in acknowledged:
        addresses = [make_record(f"{line}{n}").address for n in range(3)]
        got = await storage.get_many(addresses, now=NOW)
        if None in got:
            raise ContractViolation(f"the commit {line!r} was acknowledged, but is not fully stored")
    counts = await read_counts(storage)
    expect(sum(counts.values()) % 3, 0, "the records beyond complete commits of three")


@check(22)
async def calls_in_flight_at_close_complete_or_raise(subject: Subject) -> None:
    storage = subject.storage
    record = make_record("stored", expires_at=NOW + 5)
    await insert_each(storage, record)
    calls = [
        asyncio.ensure_future(call)
        for call in (
            storage.get(record.address, now=NOW),
            storage.commit([Insert(record=make_record("new"))], now=NOW),
            storage.page(SPACE, PARTITION, limit=9, now=NOW),
            storage.due("lane", until=NOW, limit=9, now=NOW),
            storage.counts(SPACE, PARTITION, now=NOW),
            storage.purge(until=NOW, limit=9),
        )
    ]
    await asyncio.sleep(0)
    await within_timeout(storage.close(), "the end of close with calls in flight")
    for call in calls:
        with suppress(StorageError):
            await within_timeout(call, "the end of a call in flight at close")
