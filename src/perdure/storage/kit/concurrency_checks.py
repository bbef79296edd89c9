"""Checks the results of concurrent writers: promises 8, 9 and 21 of the storage contract."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

from ..records_and_changes import Change, Committed, Delete, Guard, Insert, InsertIfAbsent, Record, Refused
from ..storage import Storage
from .check_framework import ContractViolation, Subject, check, expect
from .child_processes import MAX_ATTEMPTS, contend, contend_in_children
from .linearizability import Recorder, Write, is_linearizable
from .sample_records import NOW, PARTITION, SPACE, insert_each, make_record, read_counts

WRITER_COUNT = 8
ROUNDS = 100
PROCESS_ROUNDS = 20
"""Number of rounds in checks with several processes. It is lower than ROUNDS to save time."""


def expect_one_winner_each(won: Sequence[Sequence[int]], rounds: int) -> None:
    winners = Counter(version for writer in won for version in writer)
    expect(winners, Counter(range(1, rounds + 1)), "the number of winners of each version")


@check(8)
async def one_of_eight_writers_of_a_version_wins(subject: Subject) -> None:
    await insert_each(subject.storage, make_record("contended"))
    won = await asyncio.gather(*[contend(subject.storage, ROUNDS) for _ in range(WRITER_COUNT)])
    expect_one_winner_each(won, ROUNDS)


@check(8)
async def one_of_eight_inserts_of_a_key_wins(subject: Subject) -> None:
    for key in range(20):
        records = [make_record(f"k{key}", body=str(writer)) for writer in range(WRITER_COUNT)]
        results = await asyncio.gather(
            *[subject.storage.commit([Insert(record=record)], now=NOW) for record in records]
        )
        winners = [n for n, result in enumerate(results) if isinstance(result, Committed)]
        expect(len(winners), 1, "winners")
        got = await subject.storage.get(records[0].address, now=NOW)
        expect(got, records[winners[0]], "the record of the winner")


@check(8)
async def no_update_is_lost_between_interleaved_reads_and_writes(subject: Subject) -> None:
    storage = subject.storage
    await insert_each(storage, make_record("sum", body="0"))

    async def add_ten() -> None:
        done = 0
        for _ in range(MAX_ATTEMPTS):
            if done == 10:
                return
            record = await storage.get(make_record("sum").address, now=NOW)
            if record is None:
                raise ContractViolation("a record disappeared during concurrent writes")
            await asyncio.sleep(0)  # let the others read the same version
            change = record.replace_with(body=str(int(record.body) + 1), tag="")
            done += isinstance(await storage.commit([change], now=NOW), Committed)
        raise ContractViolation(f"a writer replaced a record fewer than 10 times in {MAX_ATTEMPTS} attempts")

    await asyncio.gather(*[add_ten() for _ in range(WRITER_COUNT)])
    got = await storage.get(make_record("sum").address, now=NOW)
    expect(got and got.body, str(WRITER_COUNT * 10), "the sum")


@check(8)
async def the_history_of_one_record_is_linearizable(subject: Subject) -> None:
    await _expect_linearizable([subject.storage] * 4, seed=1)


@check(8, "second_client")
async def the_history_over_two_clients_is_linearizable(subject: Subject) -> None:
    async with await subject.another_client() as second:
        await _expect_linearizable([subject.storage, second] * 2, seed=2)


async def _expect_linearizable(clients: Sequence[Storage], seed: int) -> None:
    recorder = Recorder()
    await asyncio.gather(
        *[_random_operations(client, recorder, seed * 10 + n) for n, client in enumerate(clients)]
    )
    if not is_linearizable(recorder.operations):
        lines = "\n".join(str(each) for each in sorted(recorder.operations, key=lambda each: each.called))
        raise ContractViolation(f"no sequential order of these operations explains their results:\n{lines}")


async def _random_operations(storage: Storage, recorder: Recorder, seed: int) -> None:
    """Read, insert, replace and delete one record at random, often with an outdated version."""
    chance = random.Random(seed)
    known: Record | None = None
    for n in range(25):
        body = f"{seed}.{n}"
        choice = chance.choice(("get", "get", "insert", "replace", "replace", "delete"))
        if choice == "insert" or (known is None and choice != "get"):
            changes = [Insert(record=make_record("h", body=body))]
            await recorder.write(Write("insert", 0, body), storage.commit(changes, now=NOW))
        elif choice == "get" or known is None:
            known = await recorder.get(storage.get(make_record("h").address, now=NOW)) or known
        else:
            change = known.replace_with(body=body, tag="") if choice == "replace" else Delete(before=known)
            what = Write("replace" if choice == "replace" else "delete", known.version, body)
            await recorder.write(what, storage.commit([change], now=NOW))


@check(9)
async def a_guard_holds_against_concurrent_writers(subject: Subject) -> None:
    guard = Guard(space=SPACE, tags=frozenset({"a", "b"}), max_count=10)
    changes = [[Insert(record=make_record(f"k{n}", tag="ab"[n % 2]))] for n in range(40)]
    results = await asyncio.gather(
        *[subject.storage.commit(change, guard=guard, now=NOW) for change in changes]
    )
    admitted = sum(isinstance(result, Committed) for result in results)
    expect(admitted, 10, "the number of admitted commits")
    others = [result for result in results if isinstance(result, Refused) and result.guard_count is not None]
    expect(len(others), 30, "the number of commits that the guard refused")
    counts = await subject.storage.counts(SPACE, PARTITION, now=NOW)
    expect(sum(counts.values()), 10, "the sum of the counts")


@check(21, "url")
async def one_of_eight_processes_writing_a_version_wins(subject: Subject) -> None:
    await insert_each(subject.storage, make_record("contended"))
    won = await contend_in_children(subject, PROCESS_ROUNDS, WRITER_COUNT)
    expect_one_winner_each(won, PROCESS_ROUNDS)
    got = await subject.storage.get(make_record("contended").address, now=NOW)
    expect(got and got.version, PROCESS_ROUNDS + 1, "the version at the end")


@check(21, "second_client")
async def a_guard_holds_against_two_clients(subject: Subject) -> None:
    guard = Guard(space=SPACE, tags=frozenset({"a"}), max_count=10)
    changes = [[Insert(record=make_record(f"k{n}", tag="a"))] for n in range(40)]
    async with await subject.another_client() as second:
        clients = [subject.storage, second]
        results = await asyncio.gather(
            *[clients[n % 2].commit(change, guard=guard, now=NOW) for n, change in enumerate(changes)]
        )
    expect(sum(isinstance(result, Committed) for result in results), 10, "the number of admitted commits")


@check(8, "catch_up")
async def after_concurrent_commits_every_index_agrees(subject: Subject) -> None:
    storage = subject.storage
    await asyncio.gather(*[_random_commits(storage, f"p{seed % 2}", seed) for seed in range(6)])
    storage = await subject.caught_up()
    records = await storage.page(SPACE, limit=1000, now=NOW)
    parts = [
        record for part in ("p0", "p1") for record in await storage.page(SPACE, part, limit=999, now=NOW)
    ]
    expect(sorted(parts, key=lambda each: each.position), records, "the partitions' listings")
    tagged = [record for tag in "xyz" for record in await storage.page(SPACE, tag=tag, limit=999, now=NOW)]
    expect(sorted(tagged, key=lambda each: each.position), records, "the tags' listings")
    counted = Counter(record.tag for record in records)
    expect(await read_counts(storage, partition=None), dict(counted), "the counts")
    timed = sorted(record.address for record in records if record.lane)
    due = sorted(record.address for record in await storage.due("l", until=NOW, limit=999, now=NOW))
    expect(due, timed, "the lane")


async def _random_commits(storage: Storage, partition: str, seed: int) -> None:
    """Make random commits of three changes each, to records that other writers also change."""
    chance = random.Random(seed)
    for n in range(30):
        keys = chance.sample("abcdefgh", 3)
        addresses = [make_record(key, partition=partition).address for key in keys]
        found = await storage.get_many(addresses, now=NOW)
        changes = [
            _random_change(chance, key, partition, n, old) for key, old in zip(keys, found, strict=True)
        ]
        await storage.commit(changes, now=NOW)


def _random_change(chance: random.Random, key: str, partition: str, order: int, old: Record | None) -> Change:
    lane, wake_at = chance.choice([("l", order), (None, None)])
    tag = chance.choice("xyz")
    if old is None:
        new = make_record(key, partition=partition, order=order, tag=tag, lane=lane, wake_at=wake_at)
        return chance.choice([Insert, InsertIfAbsent])(record=new)
    if chance.random() < 0.3:
        return Delete(before=old)
    return old.replace_with(body="2", tag=tag, lane=lane, wake_at=wake_at)
