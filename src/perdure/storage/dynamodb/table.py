"""The table as the rest of the engine uses it: a few requests, repeated within bounds where that is safe.

The driver repeats nothing by itself, so it is known what is repeated: reads, what the server certainly
refused for the moment, and writes that can tell whether they were done before. The driver's types end here;
on the other side items are plain mappings.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import cache
from random import uniform
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from uuid import uuid4

from aiobotocore.config import AioConfig  # pyright: ignore[reportMissingTypeStubs]
from aiobotocore.session import AioSession  # pyright: ignore[reportMissingTypeStubs]
from botocore.loaders import Loader  # pyright: ignore[reportMissingTypeStubs]

from ..errors import StorageUnavailable
from .errors import (
    DriverError,
    Reason,
    as_storage_error,
    is_condition_failed,
    is_contended,
    is_lost,
    is_passing,
    reasons_of,
)
from .items import ORDER_NAME, Item, Key, key_of
from .location import Location
from .signer import Sender

if TYPE_CHECKING:
    from types_aiobotocore_dynamodb.client import DynamoDBClient

Parameters: TypeAlias = Mapping[str, Any]
"""Parameters of a request, in DynamoDB's own words."""

_STANDING = "pk, sk, #order, version, tag, expires_at, body_id, body_parts"
EVERYTHING: Parameters = {}
RECORDS: Parameters = {
    "ProjectionExpression": f"{_STANDING}, lane, wake_at, body",
    "ExpressionAttributeNames": ORDER_NAME,
}
"""What it takes to read a record, without its places in the indexes."""
STANDINGS: Parameters = {
    "ProjectionExpression": _STANDING,
    "ExpressionAttributeNames": ORDER_NAME,
}
"""What it takes to judge a change."""
TELL_WHAT_STANDS: Parameters = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
"""To be told what stands in the way, together with the refusal."""
MOST_GOT = 100
"""Keys of one BatchGetItem."""
MOST_DELETED = 25
"""Keys of one BatchWriteItem."""
SAFE_TO_REPEAT = 480.0
"""Seconds during which a request is made again. DynamoDB remembers a transaction's token for ten minutes."""
_SHORTEST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0


@cache
def _models() -> Loader:
    """The driver's descriptions of services, which it would otherwise read anew for each client."""
    return Loader()


class NotAsExpected(Exception):
    """A write met something else than it expected, and did nothing.

    There is a reason for each of its items. `lost`: the answer to an earlier try is missing, so what stands
    in the way may be this very write.
    """

    def __init__(self, reasons: Sequence[Reason], *, lost: bool) -> None:
        super().__init__("a condition of a write was not met")
        self.reasons = reasons
        self.lost = lost


class Contended(Exception):
    """A transaction was canceled because of some of its items, which others change or which are throttled.

    There is a reason for each of its items. Nothing was written, and the same may work a moment later.
    """

    def __init__(self, reasons: Sequence[Reason]) -> None:
        super().__init__("items of a transaction are contended")
        self.reasons = reasons


class Table:
    """A client of one table. Belongs to one event loop."""

    db: DynamoDBClient

    def __init__(self, location: Location) -> None:
        self.location = location
        self.name = location.table
        self._stack = AsyncExitStack()
        self._sender = Sender()

    async def connect(self) -> None:
        """Make the client; nothing is sent yet."""
        options = self.location.options
        config = AioConfig(
            connect_timeout=options.timeout,
            read_timeout=options.timeout,
            max_pool_connections=options.connections,
            parameter_validation=False,
            retries={"total_max_attempts": 1, "mode": "standard"},
            http_session_cls=self._sender.http_session_cls,
        )
        session = cast("Any", AioSession(profile=options.profile_name))
        session.register_component("data_loader", _models())
        client: AbstractAsyncContextManager[DynamoDBClient] = session.create_client(
            "dynamodb", region_name=options.region_name, endpoint_url=options.endpoint_url, config=config
        )
        self.db = await self._stack.enter_async_context(client)
        self._sender.begin(self.db, await session.get_credentials())

    async def close(self) -> None:
        await self._stack.aclose()

    # Reading

    async def get(self, keys: Iterable[Key], only: Parameters = EVERYTHING) -> dict[Key, Item]:
        """The newest state of up to 100 different keys; what is not there is absent."""
        found: dict[Key, Item] = {}
        asked: Parameters = {"ConsistentRead": True, "Keys": [key.item for key in keys], **only}
        idle = 0
        while asked:
            answer = await self._ask("batch_get_item", {"RequestItems": {self.name: asked}})
            items: list[Item] = answer["Responses"].get(self.name, [])
            found.update((key_of(item), item) for item in items)
            asked = answer.get("UnprocessedKeys", {}).get(self.name, {})
            idle = 0 if items else idle + 1
            await self._wait_for_more(idle if asked else 0)
        return found

    async def get_settled(self, keys: Sequence[Key]) -> dict[Key, Item]:
        """The same, but never as it was before a transaction of which something can be seen already."""
        asked = [{"Get": {"TableName": self.name, "Key": key.item}} for key in keys]
        answer = await self._ask("transact_get_items", {"TransactItems": asked})
        items: list[Item | None] = [each.get("Item") for each in answer["Responses"]]
        return {key: item for key, item in zip(keys, items, strict=True) if item}

    async def query(self, question: Parameters) -> tuple[list[Item], Item | None]:
        """Items that share a key, and where to go on, if anywhere."""
        answer = await self._ask("query", {"TableName": self.name, **question})
        return answer["Items"], answer.get("LastEvaluatedKey")

    async def query_all(self, question: Parameters) -> AsyncGenerator[Item]:
        start: Item | None = None
        while True:
            items, start = await self.query(
                question if start is None else {**question, "ExclusiveStartKey": start}
            )
            for item in items:
                yield item
            if start is None:
                return

    async def scan(self, question: Parameters) -> tuple[list[Item], Item | None]:
        """A piece of everything, and where to go on, if anywhere."""
        answer = await self._ask("scan", {"TableName": self.name, "ConsistentRead": True, **question})
        return answer["Items"], answer.get("LastEvaluatedKey")

    # Writing

    async def put(self, item: Item, condition: Parameters) -> None:
        """Write one item, or raise NotAsExpected."""
        question = {"TableName": self.name, "Item": item, **condition, **TELL_WHAT_STANDS}
        await self._ask("put_item", question, writes=True)

    async def transact(self, writes: Sequence[Parameters], *, is_shared: bool = False) -> None:
        """Write all of it or nothing. By the token DynamoDB knows a repetition, and does nothing twice.

        `is_shared`: raise Contended instead of repeating what only some items prevented.
        """
        question = {"TransactItems": writes, "ClientRequestToken": str(uuid4())}
        await self._ask("transact_write_items", question, writes=True, is_shared=is_shared)

    async def delete(self, keys: Sequence[Key]) -> None:
        """Remove items that nothing refers to; to do so twice is the same."""
        for start in range(0, len(keys), MOST_DELETED):
            batch = [{"DeleteRequest": {"Key": key.item}} for key in keys[start : start + MOST_DELETED]]
            asked: Parameters = {self.name: batch}
            idle = 0
            while asked:
                answer = await self._ask("batch_write_item", {"RequestItems": asked}, writes=True)
                asked = answer.get("UnprocessedItems", {})
                idle += 1
                await self._wait_for_more(idle if asked else 0)

    # Repeating

    async def _ask(
        self, operation: str, question: Parameters, *, writes: bool = False, is_shared: bool = False
    ) -> dict[str, Any]:
        """The answer to a request, which is made again while that may help."""
        lost = False
        tries = 0
        until = asyncio.get_running_loop().time() + SAFE_TO_REPEAT
        while True:
            try:
                return await self._sender.ask(operation, question)
            except DriverError as error:
                if is_condition_failed(error):
                    raise NotAsExpected(reasons_of(error), lost=lost) from error
                tries += 1
                lost = lost or is_lost(error)
                if is_shared and not lost and is_contended(error):
                    raise Contended(reasons_of(error)) from error
                is_late = asyncio.get_running_loop().time() >= until
                if is_late or tries == self.location.options.attempts or not is_passing(error):
                    raise as_storage_error(error, self.location.name, writes=writes, lost=lost) from error
            await pause(tries)

    async def _wait_for_more(self, idle: int) -> None:
        """Before asking for the rest of a batch, of which so many tries brought nothing."""
        if idle >= self.location.options.attempts:
            raise StorageUnavailable(f"{self.location.name}: it takes no more for now")
        if idle:
            await pause(idle)


async def pause(tries: int) -> None:
    """A random while, longer with each try, so that those who met do not meet again."""
    await asyncio.sleep(uniform(0, min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2**tries)))
