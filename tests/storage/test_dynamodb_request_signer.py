"""Requests of the sender: they get the same responses and errors as those of the driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import pytest

from .. import servers
from .dynamodb_proxy import Error, Fault, conflict, proxy_to
from .dynamodb_signing import Refusal, item, item_key, pair_on

pytestmark = pytest.mark.anyio

SERVERS = pytest.mark.parametrize("start", [servers.dynoxide, servers.extenddb], ids=["dynoxide", "extenddb"])
ODD = 'ключ "quoted" \\ \x01\x7f\u2028 \U0001f600'
LARGE = "é" * 190_000
MISSING = {"ConditionExpression": "attribute_not_exists(pk)"}
RETURN_EXISTING = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
OF_PARTITION = {
    "KeyConditionExpression": "pk = :pk",
    "ExpressionAttributeValues": {":pk": {"S": "p"}},
    "ConsistentRead": True,
}
OF_UNKNOWN = {**OF_PARTITION, "ExpressionAttributeValues": {":pk": {"S": "unknown"}}}


def puts(table: str, *items: Mapping[str, Any], **more: object) -> dict[str, Any]:
    return {"TransactItems": [{"Put": {"TableName": table, "Item": each, **more}} for each in items]}


def questions(table: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield requests that can be sent twice with the same result."""
    named: dict[str, Any] = {"TableName": table}
    yield "put_item", {**named, "Item": item("k")}
    yield "put_item", {**named, "Item": item(ODD, ODD)}
    yield "put_item", {**named, "Item": item("large", LARGE)}
    yield "put_item", {**named, "Item": item("k"), **MISSING, **RETURN_EXISTING}
    yield "put_item", {**named, "Item": item(ODD), **MISSING, **RETURN_EXISTING}
    yield "put_item", {**named, "Item": item("k"), **MISSING}
    yield "put_item", {**named, "Item": {"pk": {"S": "p"}}}
    yield "put_item", {"TableName": "missing", "Item": item("k")}
    yield "transact_write_items", puts(table, item("t1"), item(ODD, ODD), item("t3"))
    yield "transact_write_items", puts(table, *[item(f"large{n}", LARGE) for n in range(4)])
    yield "transact_write_items", puts(table, item("new"), item("k"), item(ODD), **MISSING, **RETURN_EXISTING)
    yield "transact_write_items", puts(table, item("new"), item("k"), **MISSING)
    yield "transact_write_items", puts(table, item("same"), item("same"))
    for keys in (["k"], ["absent"], ["k", ODD, "large", "absent"]):
        asked = {"ConsistentRead": True, "Keys": [item_key(key) for key in keys]}
        yield "batch_get_item", {"RequestItems": {table: asked}}
    yield "query", {**named, **OF_PARTITION}
    yield "query", {**named, **OF_PARTITION, "Limit": 2, "ProjectionExpression": "sk"}
    yield "query", {**named, **OF_PARTITION, "Select": "COUNT"}
    yield "query", {**named, **OF_UNKNOWN}
    yield "query", {**named, "KeyConditionExpression": "nonsense"}
    yield "scan", {**named, "ConsistentRead": True}
    yield "scan", {**named, "Limit": 1}
    yield "get_item", {**named, "Key": item_key(ODD)}
    yield "get_item", {**named, "Key": item_key("absent")}
    deletes = [{"DeleteRequest": {"Key": item_key(key)}} for key in ("t1", "absent")]
    yield "batch_write_item", {"RequestItems": {table: deletes}}
    yield (
        "update_item",
        {
            **named,
            "Key": item_key("k"),
            "UpdateExpression": "SET version = :two",
            "ExpressionAttributeValues": {":two": {"N": "2"}},
            "ReturnValues": "ALL_NEW",
        },
    )
    yield "delete_item", {**named, "Key": item_key("t3")}


@SERVERS
async def test_every_request_is_answered_as_the_driver_is(start: Callable[[], Any]) -> None:
    async with pair_on(start().endpoint) as pair:
        refused = 0
        for operation, question in questions(pair.table):
            response = await pair.by_driver(operation, question)
            assert await pair.by_sender(operation, question) == response
            refused += isinstance(response, Refusal)
        assert refused == 9


async def test_binary_values_go_in_and_come_back_in_base_64() -> None:
    async with pair_on(servers.extenddb().endpoint) as pair:
        put = {"TableName": pair.table, "Item": {**item("k"), "raw": {"B": b"\x00\xff"}}}
        get = {"TableName": pair.table, "Key": item_key("k")}
        await pair.learn_to_put()
        assert await pair.by_sender("put_item", put) == {}
        assert cast("Any", await pair.by_driver("get_item", get))["Item"]["raw"] == {"B": b"\x00\xff"}
        assert cast("Any", await pair.by_sender("get_item", get))["Item"]["raw"] == {"B": "AP8="}


INJECTED: list[Fault] = [
    Error("ProvisionedThroughputExceededException"),
    Error("RequestLimitExceeded"),
    Error("ThrottlingException"),
    Error("TransactionInProgressException"),
    Error("TransactionConflictException"),
    Error("AccessDeniedException"),
    Error("ExpiredTokenException"),
    Error("UnknownException"),
    Error("InternalServerError", status=500),
    Error("ServiceUnavailable", status=503),
]


@pytest.mark.parametrize("fault", INJECTED, ids=str)
async def test_errors_that_only_aws_gives_are_the_drivers(fault: Fault) -> None:
    async with proxy_to(servers.dynoxide().port) as proxy, pair_on(proxy.endpoint) as pair:
        await pair.learn_to_put()
        proxy.fail("PutItem", fault, fault)
        question = {"TableName": pair.table, "Item": item("k")}
        response = await pair.by_driver("put_item", question)
        assert isinstance(response, Refusal)
        assert await pair.by_sender("put_item", question) == response


async def test_a_transaction_conflict_raises_the_error_of_the_driver() -> None:
    async with proxy_to(servers.dynoxide().port) as proxy, pair_on(proxy.endpoint) as pair:
        question = puts(pair.table, item("a"), item("b"))
        await pair.by_driver("transact_write_items", question)
        proxy.rule = lambda operation, asked: conflict(operation, asked) if "TransactItems" in asked else None
        response = await pair.by_driver("transact_write_items", question)
        assert cast("Refusal", response).response["CancellationReasons"][0]["Code"] == "TransactionConflict"
        assert await pair.by_sender("transact_write_items", question) == response


async def test_concurrent_requests_get_their_own_responses() -> None:
    async with pair_on(servers.extenddb().endpoint) as pair:
        await pair.learn_to_put()
        keys = [f"k{number}" for number in range(100)]
        await asyncio.gather(*[pair.put(key) for key in keys])
        asked = [{"TableName": pair.table, "Key": item_key(key)} for key in keys]
        answers = await asyncio.gather(*[pair.sender.send("get_item", question) for question in asked])
        assert [answer["Item"]["sk"]["S"] for answer in answers] == keys
