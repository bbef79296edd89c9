"""Defines and creates the DynamoDB table, and checks an existing table before it is opened."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ..errors import CannotOpen, ForeignStorage, MissingSchema, NewerSchema, StorageError, StorageUnavailable
from .errors import DriverFailure, error_code, is_access_denied, is_bad_credentials
from .items import FORMAT_KEY, FORMAT_VERSION, int_attribute
from .table_client import ConditionFailed, Parameters, Table

LISTING = "listing"
LISTING_OF_TAG = "listing_of_tag"
EXPIRY = "expiry"
ALL_LISTING = "all_listing"
ALL_LISTING_OF_TAG = "all_listing_of_tag"
ALL_TIMERS = "all_timers"
ALL_EXPIRY = "all_expiry"

_NUMBERS = {"expires_at"}
_KEYS = ("pk", "sk")
_PURGE_ATTRIBUTES = ("tag", "body_id", "body_parts")
_LOCAL_INDEXES: Mapping[str, tuple[tuple[str, str], Sequence[str]]] = {
    LISTING: (("pk", "place"), ()),
    LISTING_OF_TAG: (("pk", "tagged_place"), ()),
    EXPIRY: (("pk", "expires_at"), _PURGE_ATTRIBUTES),
}
_GLOBAL_INDEXES: Mapping[str, tuple[tuple[str, str], Sequence[str]]] = {
    ALL_LISTING: (("space_shard", "place"), ()),
    ALL_LISTING_OF_TAG: (("tag_shard", "place"), ()),
    ALL_TIMERS: (("timer_shard", "timer_place"), ()),
    ALL_EXPIRY: (("expiry_shard", "expires_at"), _PURGE_ATTRIBUTES),
}
TTL_ATTRIBUTE = "removed_after"
"""Name of the attribute that contains the Unix time after which DynamoDB deletes an item."""


def table_definition() -> dict[str, Any]:
    """Return the parameters of a CreateTable request, except the table's name."""
    indexed = {name for keys, _ in (*_LOCAL_INDEXES.values(), *_GLOBAL_INDEXES.values()) for name in keys}
    return {
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": "N" if name in _NUMBERS else "S"}
            for name in sorted(indexed | set(_KEYS))
        ],
        "KeySchema": _key_schema(_KEYS),
        "LocalSecondaryIndexes": [_index(name, *rest) for name, rest in _LOCAL_INDEXES.items()],
        "GlobalSecondaryIndexes": [_index(name, *rest) for name, rest in _GLOBAL_INDEXES.items()],
    }


def _index(name: str, keys: tuple[str, str], projected: Sequence[str]) -> dict[str, Any]:
    projection: dict[str, Any] = {"ProjectionType": "KEYS_ONLY"}
    if projected:
        projection = {"ProjectionType": "INCLUDE", "NonKeyAttributes": list(projected)}
    return {"IndexName": name, "KeySchema": _key_schema(keys), "Projection": projection}


def _key_schema(keys: tuple[str, str]) -> list[dict[str, str]]:
    return [{"AttributeName": keys[0], "KeyType": "HASH"}, {"AttributeName": keys[1], "KeyType": "RANGE"}]


def _types(table: Parameters) -> dict[str, str]:
    return {each["AttributeName"]: each["AttributeType"] for each in table["AttributeDefinitions"]}


def _indexes(table: Parameters) -> dict[str, tuple[object, ...]]:
    """Map the name of each index to its kind, keys and projected attributes."""
    return {
        index["IndexName"]: (
            kind,
            index["KeySchema"],
            index["Projection"]["ProjectionType"],
            sorted(index["Projection"].get("NonKeyAttributes", ())),
        )
        for kind in ("LocalSecondaryIndexes", "GlobalSecondaryIndexes")
        for index in table.get(kind, ())
    }


POLL_SECONDS = 0.2
"""Seconds between two checks of a table that is being created."""
MAX_CREATE_SECONDS = 300.0
"""Maximum number of seconds to wait for a table to become active."""
_USABLE = {"ACTIVE", "UPDATING"}


async def check_table(table: Table) -> None:
    """Raise an error unless the table exists, is ready, and is a perdure table with a supported format."""
    stored = await _describe(table)
    if stored is None:
        remedy = f"run: perdure migrate --url 'dynamodb://{table.name}?...', with the same URL options"
        reason = "the table does not exist in this account and region"
        raise MissingSchema(table.location.display_name, reason, remedy)
    if stored["TableStatus"] not in _USABLE:
        reason = f"the table is not ready: its status is {stored['TableStatus']}; try again later"
        raise StorageUnavailable(f"{table.location.display_name}: {reason}")
    _check_shape(table, stored)
    await _check_format(table)


async def create_table(table: Table) -> None:
    """Create the table if it does not exist, and enable the automatic deletion of expired items.

    Return when the table is active. DynamoDB calls the deletion of expired items Time to Live (TTL).
    """
    _check_shape(table, await _create_and_wait(table))
    await _check_format(table)
    response = await _admin_request(table, "describe_time_to_live", {})
    if response["TimeToLiveDescription"]["TimeToLiveStatus"] == "DISABLED":
        request = {"TimeToLiveSpecification": {"Enabled": True, "AttributeName": TTL_ATTRIBUTE}}
        # DynamoDB rejects this request if TTL was just enabled, by another process or by a repeated request.
        await _admin_request(table, "update_time_to_live", request, expected_error="ValidationException")


async def _create_and_wait(table: Table) -> Parameters:
    """Create the table if it does not exist, wait until it is active, and return its description.

    If the table is being deleted, wait until it no longer exists, and then create it again.
    """
    until = asyncio.get_running_loop().time() + MAX_CREATE_SECONDS
    while True:
        stored = await _describe(table)
        if stored is None:
            await _admin_request(
                table, "create_table", table_definition(), expected_error="ResourceInUseException"
            )
        elif _is_active(stored):
            return stored
        if asyncio.get_running_loop().time() >= until:
            status = "missing" if stored is None else stored["TableStatus"]
            reason = f"the table is still {status} after {MAX_CREATE_SECONDS:.0f} seconds"
            raise CannotOpen(table.location.display_name, reason, "check the table status in the AWS console")
        await asyncio.sleep(POLL_SECONDS)


async def _describe(table: Table) -> Parameters | None:
    response = await _admin_request(table, "describe_table", {}, expected_error="ResourceNotFoundException")
    return response.get("Table")


def _is_active(stored: Parameters) -> bool:
    indexes = stored.get("GlobalSecondaryIndexes", ())
    return stored["TableStatus"] == "ACTIVE" and all(each["IndexStatus"] == "ACTIVE" for each in indexes)


def _check_shape(table: Table, stored: Parameters) -> None:
    """Raise ForeignStorage unless the table has the expected keys and indexes.

    Additional indexes are allowed.
    """
    expected = table_definition()
    is_same = (
        stored["KeySchema"] == expected["KeySchema"]
        and _types(expected).items() <= _types(stored).items()
        and _indexes(expected).items() <= _indexes(stored).items()
    )
    if not is_same:
        reason = "the keys or indexes are not those of a perdure table"
        raise ForeignStorage(table.location.display_name, reason, "change the table name in the URL")


async def _check_format(table: Table) -> None:
    """Raise an error if the format version of the table is missing or unsupported.

    If the table is still empty, store the current format version first.
    """
    found = await _format(table)
    if found is None:
        if await _is_empty(table):
            request = {
                "Item": {**FORMAT_KEY.item, "number": {"N": str(FORMAT_VERSION)}},
                "ConditionExpression": "attribute_not_exists(pk)",
            }
            await _admin_request(table, "put_item", request, expected_error="ConditionalCheckFailedException")
        found = await _format(table)  # another process may have stored it first
    if found is None or found < FORMAT_VERSION:
        reason = "the table has the format of an earlier development version of perdure"
        raise CannotOpen(table.location.display_name, reason, "change the table name, or delete the table")
    if found > FORMAT_VERSION:
        reason = f"its format is {found}, but this version of perdure supports up to {FORMAT_VERSION}"
        raise NewerSchema(table.location.display_name, reason, "upgrade perdure")


async def _format(table: Table) -> int | None:
    """Return the stored format version, or None if no version is stored."""
    request = {"Key": FORMAT_KEY.item, "ConsistentRead": True}
    response = await _admin_request(table, "get_item", request)
    return int_attribute(response.get("Item", {}), "number")


async def _is_empty(table: Table) -> bool:
    response = await _admin_request(table, "scan", {"ConsistentRead": True, "Limit": 1})
    return not response["Items"]


async def _admin_request(
    table: Table, operation: str, request: Parameters, expected_error: str | None = None
) -> Parameters:
    """Return the response to a request, or an empty mapping if the request fails with `expected_error`."""
    try:
        return await table.send(operation, {"TableName": table.name, **request})
    except (ConditionFailed, StorageError) as error:
        cause = cast("DriverFailure", error.__cause__)
        if error_code(cause) == expected_error:
            return {}
        raise (_open_error(table, cause) or error) from cause


def _open_error(table: Table, error: DriverFailure) -> CannotOpen | None:
    """Return an error that says why the table could not be opened and what to do, or `None` if unknown."""
    name = table.location.display_name
    if is_bad_credentials(error):
        remedy = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or profile_name, or attach an IAM role"
        return CannotOpen(name, f"AWS credentials are missing or invalid ({error})", remedy)
    if is_access_denied(error):
        return CannotOpen(
            name, f"access denied ({error})", "grant the permissions that docs/reference/dynamodb.md lists"
        )
    if error_code(error) == "ValidationException":
        return CannotOpen(name, str(error), "check the table name")
    return None
