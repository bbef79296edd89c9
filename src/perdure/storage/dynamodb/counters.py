"""Counters: the number of records with each tag, updated in the same transactions as the records.

A tag is a label that a record has, such as the status of a task. Each pair of a space (a kind of record) and
a partition has a counter: an item with a count for each tag.

Expired records are counted until they are purged. The number of live records is therefore the count minus the
number of expired records, which are found with an index. The attribute `expiries` of a counter increases
whenever an expired record is deleted or overwritten. If `expiries` is the same before and after the index is
queried, no expired record was subtracted twice or missed.

The attribute `revision` increases whenever a counter is updated, so that a repair can detect concurrent
updates. A counter that is deleted and created again starts at revision 1. Therefore a counter is deleted only
if its revision has not changed since it was read, and if its attribute `records`, the sum of its counts, is
0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ..errors import StorageBusy
from ..records_and_changes import Micros, Space, Tag
from .items import ExpiredRecord, Item, Key, count_key, decode_expired, int_attribute, partition_pk
from .table_client import Parameters, Table, backoff
from .table_setup import EXPIRY

K = TypeVar("K", bound=Hashable)

ReadItems: TypeAlias = Callable[[list[Key]], Awaitable[Mapping[Key, Item]]]
"""A function that reads items by their keys: `Table.get` or `Table.get_transactional`."""

_COUNT_PREFIX = "count:"
MAX_READ_ATTEMPTS = 20
"""Maximum number of attempts to read a counter that other clients keep changing."""


class StoredCounter(NamedTuple):
    """A counter as stored in the table. The counts include expired records."""

    counts: Mapping[Tag, int]
    expiries: int
    revision: int


def decode_counter(item: Item | None) -> StoredCounter:
    item = item or {}
    tags = [name.removeprefix(_COUNT_PREFIX) for name in item if name.startswith(_COUNT_PREFIX)]
    counts = {tag: int(item[_COUNT_PREFIX + tag]["N"]) for tag in tags}
    return StoredCounter(
        {tag: count for tag, count in counts.items() if count},
        int_attribute(item, "expiries") or 0,
        int_attribute(item, "revision") or 0,
    )


def subtract_expired(counts: Mapping[Tag, int], expired: Iterable[Tag]) -> dict[Tag, int]:
    """Return the number of live records with each tag: the count minus the number of expired records.

    `expired` contains the tag of each expired record. Tags without live records are omitted. If the index is
    out of date, `expired` can contain a tag more often than it was counted; the tag is then omitted, too.
    """
    subtracted = Counter(expired)
    return {tag: count - subtracted[tag] for tag, count in counts.items() if count > subtracted[tag]}


async def read_with_expired(
    table: Table, space: Space, partition: str, now: Micros, before: StoredCounter | None = None
) -> tuple[StoredCounter, list[ExpiredRecord]]:
    """Return the counter of a partition, and the expired records that the counter still includes.

    A caller that has just read the counter can pass it as `before`, which saves a request.
    """
    before = before or await read_counter(table.get, space, partition)
    for attempts in range(MAX_READ_ATTEMPTS):
        expired = await find_expired(table, space, partition, now)
        after = await read_counter(table.get_transactional, space, partition)
        if after.expiries == before.expiries and after.revision >= before.revision:
            return after, expired
        before = after
        await backoff(attempts)
    name = table.location.display_name
    raise StorageBusy(f"{name}: too many concurrent writes to one partition; try again later")


async def read_counter(read: ReadItems, space: Space, partition: str) -> StoredCounter:
    key = count_key(space, partition)
    return decode_counter((await read([key])).get(key))


async def read_counters(read: ReadItems, keys: Mapping[K, Key]) -> dict[K, StoredCounter]:
    """Read several counters. `keys` maps names to keys, and the result maps the same names to counters.

    If a counter does not exist, the result contains an empty counter.
    """
    found = await read(list(keys.values()))
    return {name: decode_counter(found.get(key)) for name, key in keys.items()}


async def find_expired(table: Table, space: Space, partition: str, until: Micros) -> list[ExpiredRecord]:
    """Return the records of a partition that expire at or before `until`, sorted by expiry time."""
    query: Parameters = {
        "IndexName": EXPIRY,
        "ConsistentRead": True,
        "KeyConditionExpression": "pk = :pk AND expires_at <= :until",
        "ExpressionAttributeValues": {
            ":pk": {"S": partition_pk(space, partition)},
            ":until": {"N": str(until)},
        },
    }
    items = table.read_all("query", query)
    return [each async for item in items if (each := decode_expired(item)) is not None]


# Updates and conditions


def counter_update(deltas: Mapping[Tag, int], *, expiry: bool = False) -> dict[str, Any]:
    """Return an update that adds `deltas` to the counts and, if `expiry` is true, 1 to `expiries`."""
    names = {"#revision": "revision", "#records": "records"}
    values = {":one": {"N": "1"}, ":records": {"N": str(sum(deltas.values()))}}
    parts = ["#revision :one", "#records :records"]
    for n, (tag, delta) in enumerate(deltas.items()):
        names[f"#t{n}"], values[f":t{n}"] = f"{_COUNT_PREFIX}{tag}", {"N": str(delta)}
        parts.append(f"#t{n} :t{n}")
    if expiry:
        parts.append("expiries :one")
    return {
        "UpdateExpression": f"ADD {', '.join(parts)}",
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def limit_condition(limits: Mapping[Tag, int]) -> dict[str, Any]:
    """Return a condition that requires the count of each tag in `limits` to be at most the tag's limit."""
    names, values, parts = dict[str, str](), dict[str, dict[str, str]](), list[str]()
    for n, (tag, limit) in enumerate(limits.items()):
        names[f"#b{n}"], values[f":b{n}"] = f"{_COUNT_PREFIX}{tag}", {"N": str(limit)}
        absent = f"attribute_not_exists(#b{n}) OR " if limit >= 0 else ""
        parts.append(f"({absent}#b{n} <= :b{n})")
    return {
        "ConditionExpression": " AND ".join(parts),
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def revision_condition(revision: int) -> dict[str, Any]:
    """Return a condition that requires a counter to have the given revision.

    Revision 0 means that the counter must not exist.
    """
    if not revision:
        return {"ConditionExpression": "attribute_not_exists(pk)"}
    return {
        "ConditionExpression": "#revision = :revision",
        "ExpressionAttributeNames": {"#revision": "revision"},
        "ExpressionAttributeValues": {":revision": {"N": str(revision)}},
    }


def empty_condition(revision: int) -> dict[str, Any]:
    """Return a condition that requires a counter to be empty and to have the given revision."""
    return {
        "ConditionExpression": "#revision = :revision AND #records = :none",
        "ExpressionAttributeNames": {"#revision": "revision", "#records": "records"},
        "ExpressionAttributeValues": {":revision": {"N": str(revision)}, ":none": {"N": "0"}},
    }


def with_condition(update: dict[str, Any], condition: dict[str, Any]) -> dict[str, Any]:
    """Combine the parameters of an update and of a condition, so that they can be sent in one request."""
    if not condition:
        return update
    shared = ("ExpressionAttributeNames", "ExpressionAttributeValues")
    return {
        **update,
        **condition,
        **{name: {**update[name], **condition.get(name, {})} for name in shared},
    }
