"""The table itself: its keys and its indexes, and how a stranger is told from it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import (
    CannotOpen,
    ForeignStorage,
    MissingSchema,
    NewerSchema,
    StorageError,
    StorageUnavailable,
)
from .errors import (
    DriverError,
    Failure,
    as_storage_error,
    code_of,
    is_bad_credentials,
    is_denied,
    is_passing,
)
from .items import FORMAT, FORMAT_KEY, number
from .table import Parameters, Table, pause

LISTING = "listing"
LISTING_OF_TAG = "listing_of_tag"
EXPIRY = "expiry"
ALL_LISTING = "all_listing"
ALL_LISTING_OF_TAG = "all_listing_of_tag"
ALL_TIMERS = "all_timers"
ALL_EXPIRY = "all_expiry"

_NUMBERS = {"expires_at"}
_KEYS = ("pk", "sk")
_WHAT_PURGE_NEEDS = ("tag", "body_id", "body_parts")
_LOCAL: Mapping[str, tuple[tuple[str, str], Sequence[str]]] = {
    LISTING: (("pk", "place"), ()),
    LISTING_OF_TAG: (("pk", "tagged_place"), ()),
    EXPIRY: (("pk", "expires_at"), _WHAT_PURGE_NEEDS),
}
_GLOBAL: Mapping[str, tuple[tuple[str, str], Sequence[str]]] = {
    ALL_LISTING: (("space_shard", "place"), ()),
    ALL_LISTING_OF_TAG: (("tag_shard", "place"), ()),
    ALL_TIMERS: (("timer_shard", "timer_place"), ()),
    ALL_EXPIRY: (("expiry_shard", "expires_at"), _WHAT_PURGE_NEEDS),
}
TIME_TO_LIVE = "removed_after"
"""The attribute by which DynamoDB itself removes what nobody has purged."""


def description() -> dict[str, Any]:
    """The table in DynamoDB's own words, but for its name."""
    indexed = {name for keys, _ in (*_LOCAL.values(), *_GLOBAL.values()) for name in keys}
    return {
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": "N" if name in _NUMBERS else "S"}
            for name in sorted(indexed | set(_KEYS))
        ],
        "KeySchema": _key_schema(_KEYS),
        "LocalSecondaryIndexes": [_index(name, *rest) for name, rest in _LOCAL.items()],
        "GlobalSecondaryIndexes": [_index(name, *rest) for name, rest in _GLOBAL.items()],
    }


def _index(name: str, keys: tuple[str, str], beside: Sequence[str]) -> dict[str, Any]:
    projection: dict[str, Any] = {"ProjectionType": "KEYS_ONLY"}
    if beside:
        projection = {"ProjectionType": "INCLUDE", "NonKeyAttributes": list(beside)}
    return {"IndexName": name, "KeySchema": _key_schema(keys), "Projection": projection}


def _key_schema(keys: tuple[str, str]) -> list[dict[str, str]]:
    return [{"AttributeName": keys[0], "KeyType": "HASH"}, {"AttributeName": keys[1], "KeyType": "RANGE"}]


def is_ours(stands: Parameters) -> bool:
    """Whether keys and indexes are as they must be; more indexes than ours do no harm."""
    wanted = description()
    types = _types(stands)
    indexes = _indexes(stands)
    return (
        stands["KeySchema"] == wanted["KeySchema"]
        and all(types.get(name) == kind for name, kind in _types(wanted).items())
        and all(indexes.get(name) == shape for name, shape in _indexes(wanted).items())
    )


def _types(table: Parameters) -> dict[str, str]:
    return {each["AttributeName"]: each["AttributeType"] for each in table["AttributeDefinitions"]}


def _indexes(table: Parameters) -> dict[str, tuple[object, ...]]:
    """Of each index its keys and what it holds beside them."""
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


_LOOK_EVERY = 0.2
"""Seconds between two looks at a table that is being made."""
MOST_WAITED = 300.0
"""Seconds until a table that cannot be used is given up."""
_USABLE = {"ACTIVE", "UPDATING"}


async def connect(table: Table) -> None:
    """Make the client, which looks for the region and the credentials. Nothing is sent to the table."""
    try:
        await table.connect()
    except (*DriverError, ValueError) as error:
        remedy = "check region_name, profile_name and endpoint_url, in the URL or in the AWS environment"
        raise CannotOpen(table.location.name, str(error), remedy) from error


async def check(table: Table) -> None:
    """Refuse a table that is not there, not ours, or of another format. Two requests."""
    stands = await _describe(table)
    if stands is None:
        remedy = f"run: perdure migrate --url 'dynamodb://{table.name}?...', with the options of this URL"
        raise MissingSchema(table.location.name, "there is no such table in this account and region", remedy)
    if stands["TableStatus"] not in _USABLE:
        raise StorageUnavailable(
            f"{table.location.name}: it cannot be used yet, it is {stands['TableStatus']}"
        )
    _check_shape(table, stands)
    await _check_format(table)


async def make(table: Table) -> None:
    """Make the table where there is none, and let it expire items; return when it can be used."""
    _check_shape(table, await _active(table))
    await _check_format(table)
    answer = await _administer(table, "describe_time_to_live", {}) or {}
    if answer["TimeToLiveDescription"]["TimeToLiveStatus"] == "DISABLED":
        wanted = {"Enabled": True, "AttributeName": TIME_TO_LIVE}
        question = {"TimeToLiveSpecification": wanted}
        # refused, if somebody else was faster, or an earlier try whose answer was lost
        await _administer(table, "update_time_to_live", question, otherwise="ValidationException")


async def _active(table: Table) -> Parameters:
    """The table once it can be used. One that is being deleted is waited for, and then made again."""
    until = asyncio.get_running_loop().time() + MOST_WAITED
    while True:
        stands = await _describe(table)
        if stands is None:
            await _administer(table, "create_table", description(), otherwise="ResourceInUseException")
        elif _is_active(stands):
            return stands
        if asyncio.get_running_loop().time() >= until:
            status = "missing" if stands is None else stands["TableStatus"]
            raise CannotOpen(table.location.name, f"it is still {status}", "look at it in the AWS console")
        await asyncio.sleep(_LOOK_EVERY)


async def _describe(table: Table) -> Parameters | None:
    answer = await _administer(table, "describe_table", {}, otherwise="ResourceNotFoundException")
    return None if answer is None else answer["Table"]


def _is_active(stands: Parameters) -> bool:
    indexes = stands.get("GlobalSecondaryIndexes", ())
    return stands["TableStatus"] == "ACTIVE" and all(each["IndexStatus"] == "ACTIVE" for each in indexes)


def _check_shape(table: Table, stands: Parameters) -> None:
    if not is_ours(stands):
        reason = "its keys or indexes are not those that perdure makes"
        raise ForeignStorage(table.location.name, reason, "choose another name")


async def _check_format(table: Table) -> None:
    """Refuse a table of another format; give our number to one that holds nothing yet."""
    found = await _format(table)
    if found is None:
        if await _is_empty(table):
            question = {
                "Item": {**FORMAT_KEY.item, "number": {"N": str(FORMAT)}},
                "ConditionExpression": "attribute_not_exists(pk)",
            }
            await _administer(table, "put_item", question, otherwise="ConditionalCheckFailedException")
        found = await _format(table)  # another process may have been first
    if found is None or found < FORMAT:
        reason = "it holds records of an earlier development version of perdure, whose format is not read"
        raise CannotOpen(table.location.name, reason, "choose another table, or delete this one")
    if found > FORMAT:
        reason = f"it is of format {found}, and this perdure knows {FORMAT}"
        raise NewerSchema(table.location.name, reason, "upgrade perdure")


async def _format(table: Table) -> int | None:
    """Return the format number of the table, or None if it has none."""
    question = {"Key": FORMAT_KEY.item, "ConsistentRead": True}
    answer = await _administer(table, "get_item", question) or {}
    return number(answer.get("Item", {}), "number")


async def _is_empty(table: Table) -> bool:
    answer = await _administer(table, "scan", {"ConsistentRead": True, "Limit": 1}) or {}
    return not answer["Items"]


async def _administer(
    table: Table, operation: str, question: Parameters, otherwise: str | None = None
) -> Mapping[str, Any] | None:
    """The answer; None if it is the refusal that was to be expected otherwise. What passes is waited for."""
    tries = 0
    while True:
        try:
            return await getattr(table.db, operation)(TableName=table.name, **question)
        except DriverError as error:
            if code_of(error) == otherwise:
                return None
            tries += 1
            if tries == table.location.options.attempts or not is_passing(error):
                raise _cannot_open(table, error) from error
        await pause(tries)


def _cannot_open(table: Table, error: Failure) -> StorageError:
    name = table.location.name
    if is_bad_credentials(error):
        remedy = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile_name, or a role of this machine"
        return CannotOpen(name, f"there are no valid credentials ({error})", remedy)
    if is_denied(error):
        return CannotOpen(
            name, f"these credentials may not use it ({error})", "see docs/dynamodb.md for a policy"
        )
    if code_of(error) == "ValidationException":
        return CannotOpen(name, str(error), "check the name of the table")
    return as_storage_error(error, name, writes=False, lost=False)
