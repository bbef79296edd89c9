"""One look at everything: a scan of the whole table, and what it shows of counters and bodies."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from ..damage import Damaged
from ..record import Space, Tag
from ..shards import SHARDS, shard_of
from .client import MOST_GOT, RECORDS, Parameters, Table
from .counting import Stored, stored_in
from .items import (
    ORDER_NAME,
    Item,
    Key,
    count_key,
    key_of,
    number,
    owner_of,
    record_of,
    scope_of,
    tag_in,
    total_key,
)

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
        return [(space, shard) for space in {space for space, _ in self.records} for shard in range(SHARDS)]

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
