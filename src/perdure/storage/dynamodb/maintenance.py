"""Looking for damage, and giving back room.

Others go on writing meanwhile, so what a survey makes look wrong is looked at again: a partition is counted
between two reads of its counter, a total is believed wrong only if it did not move during a whole survey, and
a part of a body is removed only in a transaction that finds its record without it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias, TypeVar

from ..contract import MaintenanceReport
from ..damage import Damaged
from ..record import Micros, Space, Tag
from ..shards import SHARD_COUNT, shard_of
from .counters import (
    MOST_LOOKS,
    Stored,
    addition,
    joined,
    read,
    read_settled,
    stored_in,
    unchanged,
    unchanged_and_empty,
)
from .items import (
    ORDER_NAME,
    Item,
    Key,
    count_key,
    key_of,
    number,
    owner_of,
    record_of,
    records_of,
    scope_of,
    tag_in,
    total_key,
)
from .reader import Reader
from .table import MOST_GOT, RECORDS, NotAsExpected, Parameters, Table
from .transaction import Transaction

K = TypeVar("K", bound=Hashable)

Scope: TypeAlias = tuple[Space, str]
"""A space and a partition."""
Stripe: TypeAlias = tuple[Space, int]
"""A space and a shard."""

_SCANNED: Parameters = {
    "ProjectionExpression": f"{RECORDS['ProjectionExpression']}, part_bytes, record_pk, record_sk",
    "ExpressionAttributeNames": ORDER_NAME,
}


class Survey:
    """What a scan saw. Others went on writing meanwhile, so it is a suspicion rather than a proof."""

    def __init__(self) -> None:
        self.records: defaultdict[Scope, Counter[Tag]] = defaultdict(Counter)
        self.counters: dict[Scope, Stored] = {}
        self.unreadable: list[Key] = []
        """Records that seem to be damaged."""
        self._bodies: dict[str, tuple[Key, int]] = {}
        """The record of each body in parts, and how many parts there must be."""
        self._parts: defaultdict[str, list[Item]] = defaultdict(list)

    @property
    def stripes(self) -> list[Stripe]:
        return [
            (space, shard) for space in {space for space, _ in self.records} for shard in range(SHARD_COUNT)
        ]

    def suspects(self) -> list[Scope]:
        """The partitions whose counter does not seem to be right."""
        return [scope for scope, counted in self.records.items() if self.counters[scope].counts != counted]

    def empty(self) -> dict[Scope, int]:
        """The counters that count nothing any more, and their revisions."""
        return {
            scope: stored.revision
            for scope, stored in self.counters.items()
            if stored.revision and not stored.counts and not self.records[scope]
        }

    def sums(self) -> dict[Stripe, Counter[Tag]]:
        """What the totals should be, if the counters are right."""
        sums: defaultdict[Stripe, Counter[Tag]] = defaultdict(Counter)
        for (space, partition), stored in self.counters.items():
            sums[space, shard_of(partition)].update(stored.counts)
        return sums

    def suspicious(self) -> list[Key]:
        """Return the records that seem to be damaged."""
        bodies = self._bodies.items()
        lacking = [key for body_id, (key, parts) in bodies if len(self._parts.get(body_id, ())) != parts]
        return self.unreadable + lacking

    def lost_bodies(self) -> list[list[Item]]:
        """The parts of each body that no record seems to know, but for those of damaged records."""
        lost = [parts for body_id, parts in self._parts.items() if body_id not in self._bodies]
        damaged = set(self.unreadable)
        return [parts for parts in lost if owner_of(parts[0]) not in damaged]

    async def scan(self, table: Table) -> None:
        start: Item | None = None
        while True:
            begin: Parameters = {} if start is None else {"ExclusiveStartKey": start}
            items, start = await table.scan({**_SCANNED, **begin})
            for item in items:
                self._add(item)
            if start is None:
                break
        self.counters = await stored(table, {scope: count_key(*scope) for scope in self.records})

    def _add(self, item: Item) -> None:
        pk = item["pk"]["S"]
        kind, _, rest = pk.partition("#")
        if kind == "record":
            self._add_record(item)
        elif kind == "count":
            self.records.setdefault(scope_of(pk), Counter())
        elif kind == "body":
            self._parts[rest].append(item)

    def _add_record(self, item: Item) -> None:
        scope = scope_of(item["pk"]["S"])
        self.records.setdefault(scope, Counter())
        if (tag := tag_in(item)) is not None:
            self.records[scope][tag] += 1
        if "S" in item.get("body_id", {}):
            self._bodies[item["body_id"]["S"]] = key_of(item), number(item, "body_parts") or 0
        elif "S" not in item.get("body", {}) or isinstance(record_of(item, ""), Damaged):
            self.unreadable.append(key_of(item))


async def survey(table: Table) -> Survey:
    seen = Survey()
    await seen.scan(table)
    return seen


async def totals(table: Table, stripes: Sequence[Stripe]) -> dict[Stripe, Stored]:
    return await stored(table, {stripe: total_key(*stripe) for stripe in stripes})


async def settled_totals(table: Table, stripes: Sequence[Stripe]) -> dict[Stripe, Stored]:
    """The totals as they are now that everything surveyed before has been added."""
    found: dict[Stripe, Stored] = {}
    for start in range(0, len(stripes), MOST_GOT):
        keys = {stripe: total_key(*stripe) for stripe in stripes[start : start + MOST_GOT]}
        items = await table.get_settled(list(keys.values()))
        found |= {stripe: stored_in(items.get(key)) for stripe, key in keys.items()}
    return found


async def stored(table: Table, keys: Mapping[K, Key]) -> dict[K, Stored]:
    """Counters as they are stored; one that is not there counts nothing."""
    found: dict[Key, Item] = {}
    wanted = list(keys.values())
    for start in range(0, len(wanted), MOST_GOT):
        found |= await table.get(wanted[start : start + MOST_GOT])
    return {name: stored_in(found.get(key)) for name, key in keys.items()}


_BEGINNING: Micros = 0
"""A time at which nothing has expired."""
MOST_TAGS = 100
"""Tags of one update: an expression has 4 KB at the most."""


async def maintain(table: Table, reader: Reader, *, repair: bool) -> MaintenanceReport:
    seen = await survey(table)
    findings: list[str] = []
    for scope in seen.suspects():
        findings += await _check_partition(table, scope, repair=repair)
    findings += await _check_totals(table, seen, repair=repair)
    findings += await _damaged(reader, seen.suspicious())
    for scope, revision in seen.empty().items():
        await _remove_counter(table, scope, revision)
    reclaimed = sum([await _remove_body(table, parts) for parts in seen.lost_bodies()])
    return MaintenanceReport(reclaimed_bytes=reclaimed, findings=tuple(findings))


async def _damaged(reader: Reader, suspicious: Sequence[Key]) -> list[str]:
    """Read once more what seemed to be damaged: it may only have been replaced during the survey."""
    found = await reader.records(suspicious, _BEGINNING)
    return [str(each) for each in found.values() if isinstance(each, Damaged)]


async def _check_partition(table: Table, scope: Scope, *, repair: bool) -> list[str]:
    """Count a partition again while its counter stands still; if it never does, there is nothing to tell."""
    for _ in range(MOST_LOOKS):
        before = await read(table, *scope)
        wrong = _differences(before.counts, await _count(table, scope))
        if repair and wrong:
            is_still = await _correct(table, scope, before, wrong)
        else:
            is_still = (await read_settled(table, *scope)).revision == before.revision
        if is_still:
            space, partition = scope
            return list(_told(f"{partition}/{space}", before.counts, wrong))
    return []


async def _count(table: Table, scope: Scope) -> Counter[Tag]:
    question: Parameters = {
        "ConsistentRead": True,
        "KeyConditionExpression": "pk = :pk",
        "ExpressionAttributeValues": {":pk": {"S": records_of(*scope)}},
        "ProjectionExpression": "tag",
    }
    return Counter([tag async for item in table.query_all(question) if (tag := tag_in(item)) is not None])


async def _correct(table: Table, scope: Scope, before: Stored, wrong: Mapping[Tag, int]) -> bool:
    """Set a counter right, and its total by as much, if nobody has moved it."""
    left = list(wrong.items())
    for done, start in enumerate(range(0, len(left), MOST_TAGS)):
        transaction = Transaction(table)
        for tag, by in left[start : start + MOST_TAGS]:
            transaction.count(*scope, tag, by)
        transaction.only_if(*scope, unchanged(before.revision + done))
        if not await transaction.commit():
            return False
    return True


async def _check_totals(table: Table, seen: Survey, *, repair: bool) -> list[str]:
    """A total is the sum of its counters. Where it seems not to be, everything is looked at once more."""
    before = await totals(table, seen.stripes)
    suspects = _wrong_totals(seen, before)
    if not suspects:
        return []
    again = await survey(table)
    after = await settled_totals(table, list(suspects))
    still = {stripe: each for stripe, each in after.items() if each.revision == before[stripe].revision}
    findings: list[str] = []
    for stripe, wrong in _wrong_totals(again, still).items():
        findings += _told(f"{stripe[0]}, shard {stripe[1]},", still[stripe].counts, wrong)
        if repair:
            await _correct_total(table, stripe, still[stripe], wrong)
    return findings


def _wrong_totals(seen: Survey, stored: Mapping[Stripe, Stored]) -> dict[Stripe, dict[Tag, int]]:
    sums = seen.sums()
    wrong = {stripe: _differences(each.counts, sums[stripe]) for stripe, each in stored.items()}
    return {stripe: differences for stripe, differences in wrong.items() if differences}


async def _correct_total(table: Table, stripe: Stripe, before: Stored, wrong: Mapping[Tag, int]) -> None:
    """Set a total right, if nobody has moved it; if somebody has, the next look will tell."""
    left = list(wrong.items())
    with suppress(NotAsExpected):
        for done, start in enumerate(range(0, len(left), MOST_TAGS)):
            added = addition(dict(left[start : start + MOST_TAGS]))
            what = joined(added, unchanged(before.revision + done))
            update = {"TableName": table.name, "Key": total_key(*stripe).item, **what}
            await table.transact([{"Update": update}])


async def _remove_counter(table: Table, scope: Scope, revision: int) -> None:
    """Remove a counter that counts nothing, unless somebody has moved it since."""
    what = {"Key": count_key(*scope).item, **unchanged_and_empty(revision)}
    with suppress(NotAsExpected):
        await table.transact([{"Delete": {"TableName": table.name, **what}}])


async def _remove_body(table: Table, parts: Sequence[Item]) -> int:
    """Remove a body that its record does not know; how many bytes that were."""
    body_id = parts[0]["pk"]["S"].partition("#")[2]
    record = {"pk": parts[0]["record_pk"], "sk": parts[0]["record_sk"]}
    check = {
        "Key": record,
        "ConditionExpression": "attribute_not_exists(body_id) OR body_id <> :body_id",
        "ExpressionAttributeValues": {":body_id": {"S": body_id}},
    }
    writes: list[Parameters] = [{"ConditionCheck": {"TableName": table.name, **check}}]
    writes += [{"Delete": {"TableName": table.name, "Key": key_of(part).item}} for part in parts]
    try:
        await table.transact(writes)
    except NotAsExpected:
        return 0  # its record was written after the survey had passed by
    return sum(int(part["part_bytes"]["N"]) for part in parts)


def _differences(stored: Mapping[Tag, int], counted: Mapping[Tag, int]) -> dict[Tag, int]:
    """By how much each stored count must be moved to be right."""
    moved = {tag: counted.get(tag, 0) - stored.get(tag, 0) for tag in {**stored, **counted}}
    return {tag: by for tag, by in moved.items() if by}


def _told(scope: str, stored: Mapping[Tag, int], wrong: Mapping[Tag, int]) -> Iterator[str]:
    for tag, by in sorted(wrong.items()):
        says = stored.get(tag, 0)
        yield f"the counter of {scope} tagged {tag!r} says {says}, there are {says + by}"
