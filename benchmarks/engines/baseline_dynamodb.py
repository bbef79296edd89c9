"""The baseline of DynamoDB: a PutItem with a condition for each write, a consistent GetItem for the read.

The table has one local index, by time, for listing an owner's tasks. The client is configured like the
engine's: the same number of connections, no retries, and no validation of parameters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, cast

from aiobotocore.config import AioConfig  # pyright: ignore[reportMissingTypeStubs]
from aiobotocore.session import AioSession  # pyright: ignore[reportMissingTypeStubs]

from perdure.storage import Record
from perdure.storage.dynamodb.location import parse_url

from .baseline import Baseline
from .synthetic_tasks import Lifecycle

if TYPE_CHECKING:
    from types_aiobotocore_dynamodb.client import DynamoDBClient

ABSENT: dict[str, Any] = {"ConditionExpression": "attribute_not_exists(id)"}
POLL_SECONDS = 0.2


class BaselineDynamoDb(Baseline):
    db: DynamoDBClient

    def __init__(self, url: str, lifecycles: Iterator[Lifecycle]) -> None:
        super().__init__(lifecycles)
        self._location = parse_url(url)
        self._table = self._location.table

    async def open(self) -> None:
        options = self._location.options
        config = AioConfig(
            connect_timeout=options.timeout,
            read_timeout=options.timeout,
            max_pool_connections=options.connections,
            parameter_validation=False,
            retries={"total_max_attempts": 1, "mode": "standard"},
        )
        client: object = AioSession().create_client(  # pyright: ignore[reportUnknownMemberType]
            "dynamodb", region_name=options.region_name, endpoint_url=options.endpoint_url, config=config
        )
        self.db = await self._stack.enter_async_context(
            cast("AbstractAsyncContextManager[DynamoDBClient]", client)
        )
        await self._make_table()

    async def insert(self, record: Record) -> None:
        await self.db.put_item(TableName=self._table, Item=_item(record), **ABSENT)

    async def update(self, before: Record, after: Record) -> None:
        await self.db.put_item(
            TableName=self._table,
            Item=_item(after),
            ConditionExpression="version = :version",
            ExpressionAttributeValues={":version": {"N": str(before.version)}},
        )

    async def read(self, record: Record) -> str:
        key = {"owner": {"S": record.partition}, "id": {"S": record.key}}
        answer = await self.db.get_item(TableName=self._table, Key=key, ConsistentRead=True)
        return cast("dict[str, dict[str, str]]", answer.get("Item"))["body"]["S"]

    async def _make_table(self) -> None:
        await self.db.create_table(
            TableName=self._table,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[
                {"AttributeName": "owner", "AttributeType": "S"},
                {"AttributeName": "id", "AttributeType": "S"},
                {"AttributeName": "created_at", "AttributeType": "N"},
            ],
            KeySchema=[
                {"AttributeName": "owner", "KeyType": "HASH"},
                {"AttributeName": "id", "KeyType": "RANGE"},
            ],
            LocalSecondaryIndexes=[
                {
                    "IndexName": "list",
                    "KeySchema": [
                        {"AttributeName": "owner", "KeyType": "HASH"},
                        {"AttributeName": "created_at", "KeyType": "RANGE"},
                    ],
                    "Projection": {"ProjectionType": "KEYS_ONLY"},
                }
            ],
        )
        while not await self._is_active():  # noqa: ASYNC110 - DynamoDB does not notify
            await asyncio.sleep(POLL_SECONDS)

    async def _is_active(self) -> bool:
        answer = await self.db.describe_table(TableName=self._table)
        return answer["Table"].get("TableStatus") == "ACTIVE"


def _item(record: Record) -> dict[str, Any]:
    return {
        "owner": {"S": record.partition},
        "id": {"S": record.key},
        "created_at": {"N": str(record.order)},
        "version": {"N": str(record.version)},
        "status": {"S": record.tag},
        "expires_at": {"N": str(record.expires_at or 0)},
        "body": {"S": record.body},
    }
