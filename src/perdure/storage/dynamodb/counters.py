"""Counters: how many records of each tag there are, stored beside the records and moved with them.

A counter is an item with an attribute for each tag. It counts expired records until they are purged; who
wants the living subtracts those that an index shows as overdue. `expiries` is a number that grows whenever
an expired record is removed: if it is the same before and after, none was counted twice or not at all.
`revision` grows with every change, for who would set a counter right. As a counter that was removed begins
again, who would remove one asks that `records`, the sum of its counts, is nothing as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..errors import StorageBusy
from ..record import Micros, Space, Tag
from .items import Item, Overdue, count_key, number, overdue_in, records_of
from .schema import EXPIRY
from .table import Parameters, Table, pause

_COUNT = "count:"
MOST_LOOKS = 20
"""How often a counter may move under the eyes of who looks at it."""


class Stored(NamedTuple):
    """A counter as it is stored."""

    counts: Mapping[Tag, int]
    expiries: int
    revision: int


def stored_in(item: Item | None) -> Stored:
    if not item:
        return Stored({}, 0, 0)
    counts = {name[len(_COUNT) :]: int(each["N"]) for name, each in item.items() if name.startswith(_COUNT)}
    return Stored(
        {tag: count for tag, count in counts.items() if count},
        number(item, "expiries") or 0,
        number(item, "revision") or 0,
    )


def living(counts: Mapping[Tag, int], overdue: Iterable[Tag]) -> dict[Tag, int]:
    """Stored counts, less what has expired.

    A lagging index may still show expired records that the counter no longer counts.
    """
    dead = Counter(overdue)
    return {tag: count - dead[tag] for tag, count in counts.items() if count > dead[tag]}


async def look(
    table: Table, space: Space, partition: str, now: Micros, before: Stored | None = None
) -> tuple[Stored, list[Overdue]]:
    """A partition's counter, and the overdue records that it counts. `before` is what was just read of it."""
    before = before or await read(table, space, partition)
    for tries in range(MOST_LOOKS):
        overdue = await find_overdue(table, space, partition, now)
        after = await read_settled(table, space, partition)
        if after.expiries == before.expiries and after.revision >= before.revision:
            return after, overdue
        before = after
        await pause(tries)
    raise StorageBusy(f"{table.location.name}: others kept purging the same partition")


async def read(table: Table, space: Space, partition: str) -> Stored:
    key = count_key(space, partition)
    return stored_in((await table.get([key])).get(key))


async def read_settled(table: Table, space: Space, partition: str) -> Stored:
    """The counter as it is now that everything read before has been counted."""
    key = count_key(space, partition)
    return stored_in((await table.get_settled([key])).get(key))


async def find_overdue(table: Table, space: Space, partition: str, until: Micros) -> list[Overdue]:
    """What had expired by then in a partition, earliest first."""
    question: Parameters = {
        "IndexName": EXPIRY,
        "ConsistentRead": True,
        "KeyConditionExpression": "pk = :pk AND expires_at <= :until",
        "ExpressionAttributeValues": {
            ":pk": {"S": records_of(space, partition)},
            ":until": {"N": str(until)},
        },
    }
    return [each async for item in table.query_all(question) if (each := overdue_in(item)) is not None]


# What moves a counter, and what holds it


def addition(moved: Mapping[Tag, int], *, expiry: bool = False) -> dict[str, Any]:
    """An update that moves a counter by so much."""
    names = {"#revision": "revision", "#records": "records"}
    values = {":one": {"N": "1"}, ":records": {"N": str(sum(moved.values()))}}
    parts = ["#revision :one", "#records :records"]
    for n, (tag, by) in enumerate(moved.items()):
        names[f"#t{n}"], values[f":t{n}"] = f"{_COUNT}{tag}", {"N": str(by)}
        parts.append(f"#t{n} :t{n}")
    if expiry:
        parts.append("expiries :one")
    return {
        "UpdateExpression": f"ADD {', '.join(parts)}",
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def below(bounds: Mapping[Tag, int]) -> dict[str, Any]:
    """A condition that no count is above its bound."""
    names, values, parts = dict[str, str](), dict[str, dict[str, str]](), list[str]()
    for n, (tag, bound) in enumerate(bounds.items()):
        names[f"#b{n}"], values[f":b{n}"] = f"{_COUNT}{tag}", {"N": str(bound)}
        absent = f"attribute_not_exists(#b{n}) OR " if bound >= 0 else ""
        parts.append(f"({absent}#b{n} <= :b{n})")
    return {
        "ConditionExpression": " AND ".join(parts),
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def unchanged(revision: int) -> dict[str, Any]:
    """A condition that a counter is as it was read."""
    if not revision:
        return {"ConditionExpression": "attribute_not_exists(pk)"}
    return {
        "ConditionExpression": "#revision = :revision",
        "ExpressionAttributeNames": {"#revision": "revision"},
        "ExpressionAttributeValues": {":revision": {"N": str(revision)}},
    }


def unchanged_and_empty(revision: int) -> dict[str, Any]:
    """A condition that a counter is as it was read, and counts nothing."""
    return {
        "ConditionExpression": "#revision = :revision AND #records = :none",
        "ExpressionAttributeNames": {"#revision": "revision", "#records": "records"},
        "ExpressionAttributeValues": {":revision": {"N": str(revision)}, ":none": {"N": "0"}},
    }


def joined(update: dict[str, Any], condition: dict[str, Any]) -> dict[str, Any]:
    """An update and its condition, which share their names and values."""
    if not condition:
        return update
    shared = ("ExpressionAttributeNames", "ExpressionAttributeValues")
    return {
        **update,
        **condition,
        **{name: {**update[name], **condition.get(name, {})} for name in shared},
    }
