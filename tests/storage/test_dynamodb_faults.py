"""Commits whose requests are rejected, lost, or applied without a response."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure.storage import (
    Accepted,
    Committed,
    Conflict,
    Delete,
    Guard,
    Insert,
    Missing,
    Record,
    Refused,
    Storage,
    migrate_storage,
    open_storage,
)
from perdure.storage.dynamodb import engine, table_client
from perdure.storage.dynamodb.items import MAX_INLINE_BODY_BYTES
from perdure.storage.dynamodb.purge import MAX_PURGED_PER_TRANSACTION
from perdure.storage.dynamodb.table_setup import table_definition
from perdure.storage.errors import (
    OutcomeUnknown,
    StorageBusy,
    StorageFailed,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
)
from perdure.storage.kit.sample_records import (
    NOW,
    PARTITION,
    SPACE,
    commit_changes,
    insert_each,
    insert_many,
    make_record,
)

from .. import servers
from ..markers import row
from .dynamodb_helpers import TEST_TIMEOUT, client_of, storage_on, table_of
from .dynamodb_proxy import Error, Fault, Loss, Proxy, conflict, proxy_to

pytestmark = pytest.mark.anyio

THROTTLED = Error("ProvisionedThroughputExceededException")
BROKEN = Error("InternalServerError", status=500)
CONFLICT = Error("TransactionCanceledException", reasons=("TransactionConflict", "None", "None"))


@asynccontextmanager
async def through_proxy(options: str = "") -> AsyncGenerator[tuple[Storage, Proxy]]:
    async with proxy_to(servers.dynoxide().port) as proxy, storage_on(proxy, options) as storage:
        yield storage, proxy


PASSING: list[Fault] = [
    CONFLICT,
    THROTTLED,
    Error("RequestLimitExceeded"),
    Error("ThrottlingException"),
    Error("TransactionInProgressException"),
    Error("TransactionCanceledException", reasons=("ThrottlingError", "None", "None")),
    BROKEN,
    Error("ServiceUnavailable", status=503),
    Loss.REQUEST,
    Loss.ANSWER,
]


@pytest.mark.parametrize("fault", PASSING, ids=str)
async def test_a_transaction_gets_over_what_passes_and_is_done_once(fault: Fault) -> None:
    async with through_proxy() as (storage, proxy):
        proxy.fail("TransactWriteItems", fault, fault)
        record = make_record(tag="t")
        assert await commit_changes(storage, Insert(record=record)) == Committed((Accepted(1),))
        assert proxy.asked["TransactWriteItems"] == 3
        assert await storage.get(record.address, now=NOW) == record
        assert dict(await storage.counts(SPACE, PARTITION, now=NOW)) == {"t": 1}
        assert (await storage.maintain()).findings == ()


@pytest.mark.parametrize("fault", [THROTTLED, BROKEN, Loss.REQUEST, Loss.ANSWER], ids=str)
async def test_a_single_write_gets_over_what_passes_and_knows_itself(fault: Fault) -> None:
    async with through_proxy() as (storage, proxy):
        record = make_record()
        await insert_each(storage, record)
        proxy.asked.clear()
        proxy.fail("PutItem", fault, fault)
        change = record.replace_with(body="2", tag="")
        assert await commit_changes(storage, change) == Committed((Accepted(2),))
        assert proxy.asked["PutItem"] == 3
        assert await storage.get(record.address, now=NOW) == change.after


@pytest.mark.parametrize("fault", [THROTTLED, BROKEN, Loss.REQUEST, Loss.ANSWER], ids=str)
async def test_reads_get_over_what_passes(fault: Fault) -> None:
    async with through_proxy() as (storage, proxy):
        record = make_record()
        await insert_each(storage, record)
        proxy.fail("BatchGetItem", fault, fault)
        assert await storage.get(record.address, now=NOW) == record
        proxy.fail("Query", fault, fault)
        assert await storage.page(SPACE, PARTITION, limit=9, now=NOW) == [record]


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (CONFLICT, StorageBusy),
        (THROTTLED, StorageUnavailable),
        (Error("ExpiredTokenException"), StorageUnavailable),
        (Error("ItemCollectionSizeLimitExceededException"), StorageFull),
        (Error("AccessDeniedException"), StorageReadOnly),
        (Error("ValidationException"), StorageFailed),
        (BROKEN, OutcomeUnknown),
        (Loss.ANSWER, OutcomeUnknown),
    ],
    ids=str,
)
async def test_permanent_errors_have_their_type(fault: Fault, kind: type[Exception]) -> None:
    async with through_proxy("&attempts=2") as (storage, proxy):
        proxy.fail("TransactWriteItems", fault, fault)
        with pytest.raises(kind) as raised:
            await insert_each(storage, make_record())
        assert type(raised.value) is kind
        assert raised.value.__cause__ is not None
        is_written = await storage.get(make_record().address, now=NOW) is not None
        assert is_written == (fault is Loss.ANSWER)


async def test_an_unreachable_server_is_unavailable_and_nothing_is_written() -> None:
    server = servers.dynoxide()
    async with proxy_to(server.port) as proxy, storage_on(proxy, "&attempts=2") as storage:
        proxy.rule = lambda _operation, _question: Loss.REQUEST
        with pytest.raises(StorageUnavailable):
            await storage.get(make_record().address, now=NOW)
        with pytest.raises(OutcomeUnknown):  # the connection broke after the request was sent
            await insert_each(storage, make_record())


@row(95)
async def test_a_failed_condition_returns_the_stored_item() -> None:
    async with through_proxy() as (storage, _):
        first = make_record(tag="t")
        await insert_each(storage, first)
        for n in range(2, 5):
            await commit_changes(storage, first.replace_with(body=str(n), tag="t"))
            first = first.replace_with(body=str(n), tag="t").after
        old = make_record(tag="t")
        for change in (Insert(record=old), Delete(before=old), old.replace_with(body="x", tag="t")):
            assert await storage.commit([change], now=NOW) == Refused((Conflict(4),))


async def test_a_lost_answer_that_others_have_written_over_stays_unknown() -> None:
    async with through_proxy() as (storage, proxy):
        record = make_record()
        await insert_each(storage, record)
        mine, theirs = record.replace_with(body="mine", tag=""), record.replace_with(body="theirs", tag="")
        is_first = True

        def rule(operation: str, question: dict[str, Any]) -> Fault:
            nonlocal is_first
            if operation != "PutItem" or question["Item"]["body"]["S"] != "mine":
                return None
            if is_first or not others.done():
                is_first = False
                return Loss.REQUEST
            return None

        proxy.rule = rule
        ours = asyncio.create_task(storage.commit([mine], now=NOW))
        others = asyncio.create_task(storage.commit([theirs], now=NOW))
        results = await asyncio.gather(ours, others, return_exceptions=True)
        assert isinstance(results[0], OutcomeUnknown)
        assert results[1] == Committed((Accepted(2),))


async def test_a_single_write_refused_without_loss_is_a_conflict() -> None:
    async with through_proxy() as (storage, proxy):
        record = make_record()
        await insert_each(storage, record)
        proxy.fail("PutItem", THROTTLED)
        results = await asyncio.gather(
            *[storage.commit([record.replace_with(body=str(n), tag="")], now=NOW) for n in range(4)]
        )
        assert sorted(type(result).__name__ for result in results) == ["Committed"] + ["Refused"] * 3


async def test_many_faults_leave_nothing_double_and_nothing_lost() -> None:
    """Acknowledged commits are stored, deleted records are absent, and the counters are right."""
    chance = random.Random(7)

    def rule(operation: str, question: dict[str, Any]) -> Fault:
        if chance.random() > 0.3:
            return None
        if operation == "TransactWriteItems" and chance.random() < 0.4:
            return conflict(operation, question)
        return chance.choice([THROTTLED, BROKEN, Loss.REQUEST, Loss.ANSWER])

    stored: dict[str, Record] = {}
    guard = Guard(space=SPACE, tags=frozenset({"a", "b"}), max_count=1000)

    async def write(storage: Storage, writer: int) -> None:
        for n in range(10):
            record = make_record(f"{writer}.{n}", partition=f"p{writer % 3}", tag=chance.choice("ab"))
            await commit_changes(storage, Insert(record=record))
            change = record.replace_with(body="2", tag=chance.choice("ab"), expires_at=NOW + 99)
            result = await storage.commit([change], guard=guard, now=NOW)
            assert result == Committed((Accepted(2),))
            stored[record.key] = change.after
            if n % 3 == 0:
                await commit_changes(storage, Delete(before=change.after))
                del stored[record.key]

    async with through_proxy("&attempts=40") as (storage, proxy):
        proxy.rule = rule
        await asyncio.gather(*[write(storage, writer) for writer in range(8)])
        proxy.rule = lambda _operation, _question: None
        everything = await storage.page(SPACE, limit=1000, now=NOW)
        assert {record.key: record for record in everything} == stored
        assert (await storage.maintain()).findings == ()
        counts = await storage.counts(SPACE, now=NOW)
        assert sum(counts.values()) == len(stored)


async def test_one_commit_that_fails_does_not_fail_its_neighbours() -> None:
    async with through_proxy() as (storage, proxy):

        def rule(operation: str, question: dict[str, Any]) -> Fault:
            if operation == "TransactWriteItems" and "spoilt" in str(question):
                return Error("ValidationException")
            return None

        proxy.rule = rule
        outcomes = await asyncio.gather(
            *[insert_each(storage, make_record(key)) for key in ("one", "spoilt", "two")],
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [type(None), StorageFailed, type(None)]
        found = await storage.page(SPACE, PARTITION, limit=9, now=NOW)
        assert [record.key for record in found] == ["one", "two"]


async def test_unprocessed_keys_are_asked_for_again() -> None:
    """A response has at most 16 MB. Keys that do not fit are requested again."""
    async with through_proxy() as (storage, proxy):
        records = [make_record(f"k{n:02}", order=n, body=str(n % 10) * 370_000) for n in range(50)]
        for record in records:
            await insert_each(storage, record)
        before = proxy.asked["BatchGetItem"]
        got = await storage.get_many([record.address for record in records], now=NOW)
        assert got == records
        assert proxy.asked["BatchGetItem"] - before >= 2


async def test_a_server_that_throttles_is_waited_for() -> None:
    """The table has provisioned throughput, on a server that enforces it."""
    server = servers.extenddb()
    url = server.new_url()
    few = {"ProvisionedThroughput": {"ReadCapacityUnits": 100, "WriteCapacityUnits": 1}}
    made: dict[str, Any] = {**table_definition(), "BillingMode": "PROVISIONED", **few}
    made["GlobalSecondaryIndexes"] = [{**index, **few} for index in made["GlobalSecondaryIndexes"]]
    async with client_of(server.endpoint) as db:
        await db.create_table(TableName=table_of(url), **made)
    await migrate_storage(url)
    records = [make_record(f"k{n}") for n in range(20)]
    results: list[object] = []
    async with (
        await open_storage(f"{url}&attempts=100") as patient,
        await open_storage(f"{url}&attempts=1") as storage,
    ):
        await insert_many(patient, records)
        async with asyncio.timeout(TEST_TIMEOUT):
            while StorageUnavailable not in map(
                type, results
            ):  # the server starts to throttle after some time
                changes = [record.replace_with(body="2" * 1000, tag="") for record in records]
                results = await asyncio.gather(
                    *[commit_changes(storage, change) for change in changes], return_exceptions=True
                )
                records = [
                    change.after if isinstance(each, Committed) else change.before
                    for change, each in zip(changes, results, strict=True)
                ]
        assert {type(each) for each in results} <= {Committed, StorageUnavailable}
        assert await patient.get_many([record.address for record in records], now=NOW) == records
        await commit_changes(patient, records[0].replace_with(body="3", tag=""))


async def test_a_count_waits_for_a_transaction_that_is_half_to_be_seen() -> None:
    """AWS rejects a transactional read of an item that another transaction is changing."""
    async with through_proxy() as (storage, proxy):
        await insert_each(storage, make_record(tag="t"))
        met = Error("TransactionCanceledException", reasons=("TransactionConflict",))
        proxy.fail("TransactGetItems", met, met)
        assert dict(await storage.counts(SPACE, PARTITION, now=NOW)) == {"t": 1}
        assert proxy.asked["TransactGetItems"] == 3


@pytest.mark.parametrize("attempts", [1, 10])
async def test_a_look_up_that_finds_nothing_is_an_answer(attempts: int) -> None:
    async with through_proxy(f"&attempts={attempts}") as (storage, proxy):
        assert await storage.get(make_record().address, now=NOW) is None
        assert dict(await storage.counts(SPACE, PARTITION, now=NOW)) == {}
        assert proxy.asked["BatchGetItem"] == 2


async def test_items_that_dynamodb_did_not_check_are_read_before_a_refusal() -> None:
    """In a cancelled transaction, a condition may have failed on one item, and another be in conflict."""
    async with through_proxy() as (storage, proxy):
        gone, changed = make_record("gone", tag="a"), make_record("changed", tag="a")
        await insert_each(storage, gone, changed)
        await commit_changes(storage, Delete(before=gone))
        await commit_changes(storage, changed.replace_with(body="2", tag="a"))

        def rule(operation: str, question: dict[str, Any]) -> Fault:
            if operation != "TransactWriteItems":
                return None
            nothing = ("None",) * (len(question["TransactItems"]) - 2)
            reasons = ("ConditionalCheckFailed", "TransactionConflict", *nothing)
            return Error("TransactionCanceledException", reasons=reasons)

        proxy.rule = rule
        changes = [each.replace_with(body="3", tag="b") for each in (gone, changed)]
        assert await storage.commit(changes, now=NOW) == Refused((Missing(), Conflict(2)))


async def test_a_purge_that_fails_halfway_does_not_report_that_nothing_was_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "POLL_SECONDS", 3600.0)
    async with through_proxy("&attempts=2") as (storage, proxy):
        records = [
            make_record(f"k{n:02}", tag="t", expires_at=NOW + 1)
            for n in range(MAX_PURGED_PER_TRANSACTION + 1)
        ]
        large = make_record("k00-large", body="x" * (MAX_INLINE_BODY_BYTES + 1), expires_at=NOW + 1)
        await insert_each(storage, large)
        await insert_many(storage, records)
        async with storage.watch(SPACE, PARTITION, large.key) as watch:
            proxy.fail("TransactWriteItems", None, THROTTLED, THROTTLED)
            with pytest.raises(OutcomeUnknown) as raised:
                await storage.purge(until=NOW + 1, limit=100)
            assert isinstance(raised.value.__cause__, StorageUnavailable)
            async with asyncio.timeout(TEST_TIMEOUT):
                await watch.changed()
        assert proxy.asked["BatchWriteItem"] == 1
        rest = await storage.purge(until=NOW + 1, limit=100)
        assert [each.key for each in rest] == [f"k{n}" for n in (29, 30)]
        assert (await storage.maintain()).findings == ()


async def test_a_purge_that_fails_first_reports_that_nothing_was_done() -> None:
    async with through_proxy("&attempts=1") as (storage, proxy):
        await insert_each(storage, make_record(expires_at=NOW + 1))
        proxy.fail("TransactWriteItems", THROTTLED)
        with pytest.raises(StorageUnavailable):
            await storage.purge(until=NOW + 1, limit=100)
        assert len(await storage.purge(until=NOW + 1, limit=100)) == 1


async def test_a_token_is_not_used_for_longer_than_dynamodb_remembers_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_client, "MAX_RETRY_SECONDS", 0.0)
    async with through_proxy() as (storage, proxy):
        proxy.fail("TransactWriteItems", Loss.ANSWER)
        with pytest.raises(OutcomeUnknown):
            await insert_each(storage, make_record())
        assert proxy.asked["TransactWriteItems"] == 1
