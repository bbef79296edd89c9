"""Helpers of the DynamoDB tests: storages on servers, and direct access to tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Protocol, cast
from urllib.parse import urlsplit
from uuid import uuid4

from aiobotocore.session import get_session  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

from perdure.storage import Storage, migrate_storage, open_storage
from perdure.storage.kit.servers.dynamodb import REGION

TEST_TIMEOUT = 60.0
"""Seconds after which a test fails instead of hanging."""

_INDEXES = {
    "all_listing": "space_shard",
    "all_listing_of_tag": "tag_shard",
    "all_timers": "timer_shard",
    "all_expiry": "expiry_shard",
}


class DynamoDb(Protocol):
    @property
    def endpoint(self) -> str: ...

    def new_url(self, options: str = "") -> str: ...


@asynccontextmanager
async def storage_on(server: DynamoDb, options: str = "") -> AsyncGenerator[Storage]:
    url = server.new_url(options)
    await migrate_storage(url)
    async with await open_storage(url) as storage:
        yield storage


@asynccontextmanager
async def client_of(endpoint: str) -> AsyncGenerator[Any]:
    """Yield the driver's own client, to read the table directly. Its methods are typed by another package."""
    async with _session().create_client("dynamodb", endpoint_url=endpoint, region_name=REGION) as client:
        yield client


@cache
def _session() -> Any:  # noqa: ANN401 - see client_of
    """Return one session for all clients: each would load the service model again."""
    return cast("Any", get_session())


def table_of(url: str) -> str:
    return urlsplit(url).netloc


async def settle(db: Any, table: str) -> None:  # noqa: ANN401 - see client_of
    """Wait until the global indexes include the latest writes. They apply writes in the table's order."""
    token = {"S": uuid4().hex}
    item = {"pk": token, "sk": token, "place": token, "timer_place": token, "expires_at": {"N": "0"}}
    await db.put_item(TableName=table, Item=item | dict.fromkeys(_INDEXES.values(), token))
    async with asyncio.timeout(TEST_TIMEOUT):
        await asyncio.gather(*[_seen(db, table, index, token) for index in _INDEXES])
    await db.delete_item(TableName=table, Key={"pk": token, "sk": token})


async def _seen(db: Any, table: str, index: str, token: Mapping[str, str]) -> None:  # noqa: ANN401
    query = {
        "KeyConditionExpression": f"{_INDEXES[index]} = :token",
        "ExpressionAttributeValues": {":token": token},
    }
    while not (await db.query(TableName=table, IndexName=index, **query))["Count"]:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def items_of(db: Any, table: str, kind: str) -> list[dict[str, Any]]:  # noqa: ANN401
    """Return the stored items whose key starts with a kind; all of them if the kind is empty."""
    found: list[dict[str, Any]] = []
    start: dict[str, Any] = {}
    while True:
        answer = await db.scan(TableName=table, ConsistentRead=True, **start)
        found += [item for item in answer["Items"] if not kind or item["pk"]["S"].startswith(f"{kind}#")]
        if "LastEvaluatedKey" not in answer:
            return found
        start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}
