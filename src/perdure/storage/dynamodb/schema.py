"""The table itself: its keys and its indexes, and how a stranger is told from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .client import Parameters

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
