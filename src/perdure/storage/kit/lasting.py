"""Checks of what survives: promises 20 to 22."""

from __future__ import annotations

from ..errors import StorageClosed
from ..record import Delete, Insert
from .samples import NOW, PARTITION, SPACE, do, put, sample
from .subject import ContractBroken, Subject, check, expect


@check(20, "reopen", "settle")
async def everything_is_there_after_reopening(subject: Subject) -> None:
    storage = subject.storage
    records = [
        sample(f"k{n}", order=n, tag="ab"[n % 2], lane="l", wake_at=n, body=f'{{"n":{n}}}') for n in range(20)
    ]
    await put(storage, *records)
    change = records[0].becoming(body="2", tag="c", expires_at=NOW + 5)
    await do(storage, change, Delete(before=records[1]))
    wanted = [change.after, *records[2:]]
    storage = await subject.reopened()
    expect(await storage.page(SPACE, PARTITION, limit=99, now=NOW), wanted, "the listing")
    expect(dict(await storage.counts(SPACE, PARTITION, now=NOW)), {"a": 9, "b": 9, "c": 1}, "the counts")
    await subject.settled()
    expect(await storage.due("l", until=99, limit=99, now=NOW), records[2:], "the lane")
    expect(len(await storage.purge(until=NOW + 5, limit=9)), 1, "what a purge finds")


@check(20, "reopen")
async def versions_go_on_after_reopening(subject: Subject) -> None:
    first = sample()
    await put(subject.storage, first)
    change = first.becoming(body="2", tag="")
    await do(subject.storage, change)
    storage = await subject.reopened()
    await do(storage, change.after.becoming(body="3", tag=""))
    got = await storage.get(first.address, now=NOW)
    expect(got, sample(body="3", version=3), "the record replaced across a reopening")


@check(21, "second_client")
async def two_clients_do_not_overwrite_each_other(subject: Subject) -> None:
    first, second = subject.storage, await subject.another_client()
    try:
        record = sample()
        await put(first, record)
        await do(second, record.becoming(body="2", tag=""))
        stale = await first.commit([record.becoming(body="3", tag="")], now=NOW)
        expect([answer.__class__.__name__ for answer in stale.answers], ["Conflict"], "the slower client")
    finally:
        await second.close()


@check(22)
async def a_closed_storage_says_so(subject: Subject) -> None:
    await subject.storage.close()
    await subject.storage.close()  # once more is fine
    try:
        await subject.storage.commit([Insert(record=sample())], now=NOW)
    except StorageClosed:
        return
    raise ContractBroken("a commit after close did not raise StorageClosed")
