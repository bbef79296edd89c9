"""Maintenance: scans the table, checks and repairs the counters, and deletes orphaned parts of bodies.

Other clients may write during the scan, so everything that seems wrong is checked again. To check a counter,
the counter is read, the records are counted, and the counter is read again. The result is valid only if the
counter has not changed in between. A total, which is the sum of several counters, is reported only if it does
not change during a second scan and is still wrong afterwards. A part of a body is orphaned if its record does
not refer to it. The transaction that deletes the part checks this condition.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

from ..contract import MaintenanceReport, counter_finding
from ..damaged_record import Damaged
from ..records_and_changes import Space, Tag
from ..request_batcher import batched
from ..shards import SHARD_COUNT, shard_of
from .counters import (
    MAX_READ_ATTEMPTS,
    StoredCounter,
    counter_update,
    empty_condition,
    read_counter,
    read_counters,
    revision_condition,
    with_condition,
)
from .items import (
    ORDER_NAME,
    Item,
    Key,
    SpacePartition,
    count_key,
    decode_record,
    int_attribute,
    item_key,
    owner_of,
    parse_pk,
    partition_pk,
    tag_in,
    total_key,
)
from .partition_reader import PartitionReader
from .table_client import MAX_BATCH_GET, RECORD_PROJECTION, ConditionFailed, Parameters, Table
from .transaction import Transaction

SpaceShard: TypeAlias = tuple[Space, int]
"""A space and a shard number. Each pair has a total: the sum of the space's counters in the shard."""

MAX_TAGS_PER_UPDATE = 100
"""Maximum number of tags in one update. DynamoDB limits an update expression to 4 KB."""
_SCAN: Parameters = {
    "ConsistentRead": True,
    "ProjectionExpression": f"{RECORD_PROJECTION['ProjectionExpression']}, part_bytes, record_pk, record_sk",
    "ExpressionAttributeNames": ORDER_NAME,
}


class TableScan:
    """The results of a table scan. They must be checked again, because clients may write during the scan."""

    def __init__(self) -> None:
        self.records: defaultdict[SpacePartition, Counter[Tag]] = defaultdict(Counter)
        self.counters: dict[SpacePartition, StoredCounter] = {}
        self._undecodable: list[Key] = []
        self._bodies: dict[str, tuple[Key, int]] = {}
        """Maps the id of each split body to the key of its record and the number of its parts."""
        self._parts: defaultdict[str, list[Item]] = defaultdict(list)

    def suspect_counters(self) -> list[SpacePartition]:
        """Return each space and partition whose counter does not match the records that the scan found."""
        return [each for each, counted in self.records.items() if self.counters[each].counts != counted]

    def empty_counters(self) -> dict[SpacePartition, int]:
        """Return the revision of each empty counter, by space and partition."""
        return {
            each: stored.revision
            for each, stored in self.counters.items()
            if stored.revision and not stored.counts and not self.records[each]
        }

    def expected_totals(self) -> dict[SpaceShard, Counter[Tag]]:
        """Return the sum of the scanned counters for each space and shard."""
        totals: defaultdict[SpaceShard, Counter[Tag]] = defaultdict(Counter)
        for (space, partition), stored in self.counters.items():
            totals[space, shard_of(partition)].update(stored.counts)
        return totals

    def suspect_records(self) -> list[Key]:
        """Return the keys of the records that seem to be damaged."""
        bodies = self._bodies.items()
        incomplete = [key for body_id, (key, parts) in bodies if len(self._parts.get(body_id, ())) != parts]
        return self._undecodable + incomplete

    def orphaned_bodies(self) -> list[list[Item]]:
        """For each body that no record refers to, return its parts. Omit the bodies of damaged records."""
        orphaned = [parts for body_id, parts in self._parts.items() if body_id not in self._bodies]
        damaged = set(self._undecodable)
        return [parts for parts in orphaned if owner_of(parts[0]) not in damaged]

    def add(self, item: Item) -> None:
        pk = item["pk"]["S"]
        kind, _, rest = pk.partition("#")
        if kind == "record":
            self._add_record(item)
        elif kind == "count":
            self.records.setdefault(parse_pk(pk), Counter())
        elif kind == "body":
            self._parts[rest].append(item)

    def _add_record(self, item: Item) -> None:
        counted = self.records[parse_pk(item["pk"]["S"])]
        if (tag := tag_in(item)) is not None:
            counted[tag] += 1
        if "S" in item.get("body_id", {}):
            self._bodies[item["body_id"]["S"]] = item_key(item), int_attribute(item, "body_parts") or 0
        elif "S" not in item.get("body", {}) or isinstance(decode_record(item, ""), Damaged):
            self._undecodable.append(item_key(item))


async def scan_table(table: Table) -> TableScan:
    scan = TableScan()
    async for item in table.read_all("scan", _SCAN):
        scan.add(item)
    scan.counters = await read_counters(table.get, {each: count_key(*each) for each in scan.records})
    return scan


async def maintain(table: Table, reader: PartitionReader, *, repair: bool) -> MaintenanceReport:
    scan = await scan_table(table)
    findings: list[str] = []
    for each in scan.suspect_counters():
        findings += await _check_partition(table, each, repair=repair)
    findings += await _check_totals(table, scan, repair=repair)
    # Read these records again: they may have been replaced during the scan. With now=0, none has expired.
    records = await reader.records(scan.suspect_records(), now=0)
    findings += [str(each) for each in records.values() if isinstance(each, Damaged)]
    for each, revision in scan.empty_counters().items():
        await _delete_empty_counter(table, each, revision)
    reclaimed = sum([await _delete_orphaned_body(table, parts) for parts in scan.orphaned_bodies()])
    return MaintenanceReport(reclaimed_bytes=reclaimed, findings=tuple(findings))


async def _check_partition(table: Table, partition: SpacePartition, *, repair: bool) -> list[str]:
    """Compare a counter with the records of its partition, and return the problems that were found.

    If `repair` is true, also correct the counter. If the counter changes during every attempt, return [].
    """
    for _ in range(MAX_READ_ATTEMPTS):
        before = await read_counter(table.get, *partition)
        wrong = _differences(before.counts, await _count_records(table, partition))
        if repair and wrong:
            is_unchanged = await _repair_counter(table, partition, before, wrong)
        else:
            after = await read_counter(table.get_transactional, *partition)
            is_unchanged = after.revision == before.revision
        if is_unchanged:
            return list(_findings(*partition, before.counts, wrong))
    return []


async def _count_records(table: Table, partition: SpacePartition) -> Counter[Tag]:
    request: Parameters = {
        "ConsistentRead": True,
        "KeyConditionExpression": "pk = :pk",
        "ExpressionAttributeValues": {":pk": {"S": partition_pk(*partition)}},
        "ProjectionExpression": "tag",
    }
    items = table.read_all("query", request)
    return Counter([tag async for item in items if (tag := tag_in(item)) is not None])


async def _repair_counter(
    table: Table, partition: SpacePartition, before: StoredCounter, wrong: Mapping[Tag, int]
) -> bool:
    """Add the numbers in `wrong` to a counter and to the total of its shard.

    Return False if the counter has changed since it was read as `before`.
    """
    for n, deltas in enumerate(batched(list(wrong.items()), MAX_TAGS_PER_UPDATE)):
        transaction = Transaction(table)
        for tag, delta in deltas:
            transaction.add_count(*partition, tag, delta)
        transaction.require_counter(*partition, revision_condition(before.revision + n))
        if not await transaction.commit():
            return False
    return True


async def _check_totals(table: Table, scan: TableScan, *, repair: bool) -> list[str]:
    """Check that each total is the sum of the counters in its shard. Return the problems that were found.

    If a total seems to be wrong, scan the table again. Ignore a total that has changed in the meantime.
    """
    shards = [
        (space, shard) for space in {space for space, _ in scan.records} for shard in range(SHARD_COUNT)
    ]
    before = await read_counters(table.get, {each: total_key(*each) for each in shards})
    suspects = _wrong_totals(scan, before)
    if not suspects:
        return []
    second_scan = await scan_table(table)
    after: dict[SpaceShard, StoredCounter] = {}
    for batch in batched(list(suspects), MAX_BATCH_GET):
        # A transactional read sees every transaction that the scan has seen.
        after |= await read_counters(table.get_transactional, {each: total_key(*each) for each in batch})
    unchanged = {each: total for each, total in after.items() if total.revision == before[each].revision}
    findings: list[str] = []
    for each, wrong in _wrong_totals(second_scan, unchanged).items():
        space, shard = each
        findings += _findings(Space(f"{space}, shard {shard}"), None, unchanged[each].counts, wrong)
        if repair:
            await _repair_total(table, each, unchanged[each], wrong)
    return findings


def _wrong_totals(
    scan: TableScan, stored: Mapping[SpaceShard, StoredCounter]
) -> dict[SpaceShard, dict[Tag, int]]:
    expected = scan.expected_totals()
    wrong = {each: _differences(total.counts, expected[each]) for each, total in stored.items()}
    return {each: differences for each, differences in wrong.items() if differences}


async def _repair_total(
    table: Table, shard: SpaceShard, before: StoredCounter, wrong: Mapping[Tag, int]
) -> None:
    """Correct a total. If another client has changed it in the meantime, do nothing."""
    with suppress(ConditionFailed):
        for n, deltas in enumerate(batched(list(wrong.items()), MAX_TAGS_PER_UPDATE)):
            condition = revision_condition(before.revision + n)
            update = with_condition(counter_update(dict(deltas)), condition)
            await table.transact([("Update", {"Key": total_key(*shard).item, **update})])


async def _delete_empty_counter(table: Table, partition: SpacePartition, revision: int) -> None:
    """Delete an empty counter, unless it has changed since the scan."""
    with suppress(ConditionFailed):
        await table.transact([("Delete", {"Key": count_key(*partition).item, **empty_condition(revision)})])


async def _delete_orphaned_body(table: Table, parts: Sequence[Item]) -> int:
    """Delete the parts of a body, unless their record refers to them. Return the number of deleted bytes."""
    body_id = parts[0]["pk"]["S"].partition("#")[2]
    check = {
        "Key": owner_of(parts[0]).item,
        "ConditionExpression": "attribute_not_exists(body_id) OR body_id <> :body_id",
        "ExpressionAttributeValues": {":body_id": {"S": body_id}},
    }
    deletes = [("Delete", {"Key": item_key(part).item}) for part in parts]
    try:
        await table.transact([("ConditionCheck", check), *deletes])
    except ConditionFailed:
        return 0  # the record was written after it was scanned
    return sum(int(part["part_bytes"]["N"]) for part in parts)


def _differences(stored: Mapping[Tag, int], actual: Mapping[Tag, int]) -> dict[Tag, int]:
    """For each tag whose count is wrong, return the number that must be added to the count."""
    deltas = {tag: actual.get(tag, 0) - stored.get(tag, 0) for tag in {**stored, **actual}}
    return {tag: delta for tag, delta in deltas.items() if delta}


def _findings(
    space: Space, partition: str | None, stored: Mapping[Tag, int], wrong: Mapping[Tag, int]
) -> Iterator[str]:
    for tag, delta in sorted(wrong.items()):
        count = stored.get(tag, 0)
        yield counter_finding(space, partition, tag, stored=count, actual=count + delta)
