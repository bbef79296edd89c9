"""Sends requests to the table, and retries them after temporary errors.

The driver's own retries are disabled. It is safe to send a request again, even if DynamoDB has applied it:
repeating a read or a deletion changes nothing, DynamoDB recognizes a repeated transaction by its token, and
the condition of a repeated single write is no longer met. Requests and items are plain mappings in the format
of DynamoDB's API.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cache
from random import uniform
from typing import Any, Literal, TypeAlias, cast
from uuid import uuid4

from aiobotocore.config import AioConfig  # pyright: ignore[reportMissingTypeStubs]
from aiobotocore.session import AioSession  # pyright: ignore[reportMissingTypeStubs]
from botocore.loaders import Loader  # pyright: ignore[reportMissingTypeStubs]

from ..errors import CannotOpen, StorageUnavailable
from ..request_batcher import batched
from .errors import (
    DRIVER_ERRORS,
    CancellationReason,
    as_storage_error,
    cancellation_reasons,
    is_condition_failed,
    is_contended,
    is_transient,
    may_have_been_applied,
)
from .items import ORDER_NAME, Item, Key, item_key
from .location import Location
from .request_signer import Sender

Parameters: TypeAlias = Mapping[str, Any]
"""The parameters of a request, with the names that DynamoDB's API uses."""
ListOperation: TypeAlias = Literal["query", "scan"]
Write: TypeAlias = tuple[str, Parameters]
"""One write of a transaction: the action, such as `Put`, and the parameters except the name of the table."""

_STATE_ATTRIBUTES = "pk, sk, #order, version, tag, expires_at, body_id, body_parts"
ALL_ATTRIBUTES: Parameters = {}
RECORD_PROJECTION: Parameters = {
    "ProjectionExpression": f"{_STATE_ATTRIBUTES}, lane, wake_at, body",
    "ExpressionAttributeNames": ORDER_NAME,
}
"""Request parameters for reading a record without the attributes that only the indexes need."""
STATE_PROJECTION: Parameters = {
    "ProjectionExpression": _STATE_ATTRIBUTES,
    "ExpressionAttributeNames": ORDER_NAME,
}
"""Request parameters for reading only the attributes that determine whether a change is accepted."""
RETURN_EXISTING_ITEM: Parameters = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
"""Request parameters that make DynamoDB return the stored item if a condition fails."""
MAX_BATCH_GET = 100
"""DynamoDB's limit on the number of keys in one BatchGetItem or TransactGetItems request."""
MAX_BATCH_WRITE = 25
"""DynamoDB's limit on the number of items in one BatchWriteItem request."""
MAX_RETRY_SECONDS = 480.0
"""Number of seconds after which a failed request is no longer repeated. It is less than 10 minutes, because
DynamoDB does not recognize a transaction that is repeated later.
"""
_MIN_BACKOFF = 0.02
_MAX_BACKOFF = 1.0


@cache
def _service_models() -> Loader:
    """Return the loader of the driver's service models.

    All clients share it, so each model is loaded once.
    """
    return Loader()


class ConditionFailed(Exception):
    """Raised when a condition of a write was not met. The failed attempt wrote nothing.

    `reasons` has one reason for each item of the write. `maybe_applied` is true if an earlier attempt to
    send the same write may have succeeded. The condition may then have failed because of that attempt.
    """

    def __init__(self, reasons: Sequence[CancellationReason], *, maybe_applied: bool) -> None:
        super().__init__("the condition of a write was not met")
        self.reasons = reasons
        self.maybe_applied = maybe_applied


class Contended(Exception):
    """Raised when a transaction was cancelled because some of its items were throttled or had conflicts.

    `reasons` has one reason for each item. Nothing was written, and the transaction can be tried again.
    """

    def __init__(self, reasons: Sequence[CancellationReason]) -> None:
        super().__init__("a transaction was cancelled because of conflicts or throttling")
        self.reasons = reasons


class Table:
    """Sends requests to one table. Use each instance in only one event loop."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.name = location.table
        self._stack = AsyncExitStack()
        self._sender = Sender()

    async def connect(self) -> None:
        """Create the client, and find the region and the credentials. Send no request to the table."""
        options = self.location.options
        try:
            config = AioConfig(
                connect_timeout=options.timeout,
                read_timeout=options.timeout,
                max_pool_connections=options.connections,
                parameter_validation=False,
                retries={"total_max_attempts": 1, "mode": "standard"},
                http_session_cls=self._sender.http_session_cls,
            )
            session = cast("Any", AioSession(profile=options.profile_name))
            session.register_component("data_loader", _service_models())
            client = session.create_client(
                "dynamodb", region_name=options.region_name, endpoint_url=options.endpoint_url, config=config
            )
            self._sender.start(await self._stack.enter_async_context(client), await session.get_credentials())
        except (*DRIVER_ERRORS, ValueError) as error:
            remedy = "check region_name, profile_name and endpoint_url, in the URL or in the AWS environment"
            raise CannotOpen(self.location.display_name, str(error), remedy) from error

    async def close(self) -> None:
        await self._stack.aclose()

    # Reading

    async def get(self, keys: Iterable[Key], projection: Parameters = ALL_ATTRIBUTES) -> dict[Key, Item]:
        """Return the items with the given `keys`, which must be unique. Omit items that do not exist."""
        found: dict[Key, Item] = {}
        for batch in batched(list(keys), MAX_BATCH_GET):
            remaining: Parameters = {
                "ConsistentRead": True,
                "Keys": [key.item for key in batch],
                **projection,
            }
            idle = 0
            while remaining:
                response = await self.send("batch_get_item", {"RequestItems": {self.name: remaining}})
                items: list[Item] = response["Responses"].get(self.name, [])
                found.update((item_key(item), item) for item in items)
                remaining = response.get("UnprocessedKeys", {}).get(self.name, {})
                idle = 0 if items else idle + 1
                await self._back_off_unprocessed(idle if remaining else 0)
        return found

    async def get_transactional(self, keys: Sequence[Key]) -> dict[Key, Item]:
        """Return the items with the given `keys` (at most 100), all as of the same point in time.

        Every transaction that was visible to an earlier read is also visible to this read.
        """
        gets = [{"Get": {"TableName": self.name, "Key": key.item}} for key in keys]
        response = await self.send("transact_get_items", {"TransactItems": gets})
        items: list[Item | None] = [each.get("Item") for each in response["Responses"]]
        return {key: item for key, item in zip(keys, items, strict=True) if item}

    async def read_some(
        self, operation: ListOperation, request: Parameters
    ) -> tuple[list[Item], Item | None]:
        """Return the next items of a query or a scan, and the key to continue after (None at the end)."""
        response = await self.send(operation, {"TableName": self.name, **request})
        return response["Items"], response.get("LastEvaluatedKey")

    async def read_all(self, operation: ListOperation, request: Parameters) -> AsyncGenerator[Item]:
        """Yield all items of a query or a scan."""
        start: Item | None = None
        while True:
            from_key: Parameters = {} if start is None else {"ExclusiveStartKey": start}
            items, start = await self.read_some(operation, {**request, **from_key})
            for item in items:
                yield item
            if start is None:
                return

    # Writing

    async def put(self, item: Item, condition: Parameters) -> None:
        """Write one item. Raise ConditionFailed if `condition` is not met."""
        request = {"TableName": self.name, "Item": item, **condition, **RETURN_EXISTING_ITEM}
        await self.send("put_item", request, writes=True)

    async def transact(self, writes: Sequence[Write], *, is_shared: bool = False) -> None:
        """Apply either all `writes` or none of them. They are applied only once, even after a retry.

        `is_shared` is true if commits to several partitions share the transaction. In this case, raise
        Contended if some items are throttled or have conflicts, so that the caller can separate the commits.
        """
        items = [{action: {"TableName": self.name, **parameters}} for action, parameters in writes]
        request = {"TransactItems": items, "ClientRequestToken": str(uuid4())}
        await self.send("transact_write_items", request, writes=True, is_shared=is_shared)

    async def delete(self, keys: Sequence[Key]) -> None:
        """Delete the items with the given `keys`. Ignore keys for which no item exists."""
        for batch in batched(keys, MAX_BATCH_WRITE):
            remaining: Parameters = {self.name: [{"DeleteRequest": {"Key": key.item}} for key in batch]}
            idle = 0
            while remaining:
                response = await self.send("batch_write_item", {"RequestItems": remaining}, writes=True)
                remaining = response.get("UnprocessedItems", {})
                idle += 1
                await self._back_off_unprocessed(idle if remaining else 0)

    # Retries

    async def send(
        self, operation: str, request: Parameters, *, writes: bool = False, is_shared: bool = False
    ) -> dict[str, Any]:
        """Send a request and return the response. Retry the request after temporary errors.

        `writes` is true if the request is a write. For `is_shared`, see `transact`.
        """
        maybe_applied = False
        attempts = 0
        until = asyncio.get_running_loop().time() + MAX_RETRY_SECONDS
        while True:
            try:
                return await self._sender.send(operation, request)
            except DRIVER_ERRORS as error:
                if is_condition_failed(error):
                    raise ConditionFailed(cancellation_reasons(error), maybe_applied=maybe_applied) from error
                attempts += 1
                maybe_applied = maybe_applied or may_have_been_applied(error)
                if is_shared and not maybe_applied and is_contended(error):
                    raise Contended(cancellation_reasons(error)) from error
                is_late = asyncio.get_running_loop().time() >= until
                if is_late or attempts == self.location.options.attempts or not is_transient(error):
                    name = self.location.display_name
                    raise as_storage_error(error, name, writes=writes, maybe_applied=maybe_applied) from error
            await backoff(attempts)

    async def _back_off_unprocessed(self, idle: int) -> None:
        """Wait before the unprocessed items of a batch are sent again. If `idle` is 0, return at once.

        `idle` is the number of attempts without enough progress. If it has reached the maximum number of
        attempts, raise StorageUnavailable.
        """
        if idle >= self.location.options.attempts:
            name = self.location.display_name
            raise StorageUnavailable(f"{name}: requests to the table are throttled; try again later")
        if idle:
            await backoff(idle)


async def backoff(attempts: int) -> None:
    """Sleep for a random time, so that clients retry at different times.

    The maximum time doubles with each attempt, up to a limit.
    """
    await asyncio.sleep(uniform(0, min(_MAX_BACKOFF, _MIN_BACKOFF * 2**attempts)))
