"""Reads records by address or in pages of one partition, always in their newest version.

Concurrent reads share requests. A page is read in two steps: first the keys are read from an index, and then
the records with these keys are read from the table. A record is skipped if its sort key has changed between
the two steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ..damaged_record import Damaged, checked
from ..errors import StorageBusy
from ..page_builder import MAX_PAGE_BYTES, Page
from ..records_and_changes import Address, Micros, PageRequest, Record, is_live
from ..request_batcher import Batcher, batched
from .items import (
    MAX_INLINE_BODY_BYTES,
    Item,
    Key,
    address_of,
    decode_record,
    int_attribute,
    item_key,
    part_keys,
    partition_pk,
    record_key,
    sort_key,
    tag_sort_key,
)
from .table_client import MAX_BATCH_GET, RECORD_PROJECTION, Parameters, Table, backoff
from .table_setup import LISTING, LISTING_OF_TAG

MAX_CONCURRENT_BATCHES = 8
"""Maximum number of concurrent requests for records. Further reads wait, and then share a request."""
MAX_BODY_READ_ATTEMPTS = 8
"""Maximum number of attempts to read a split body that other clients keep replacing."""


_BODY = ("body", "body_id", "body_parts")


class PartitionReader:
    """Reads records from the table. Use each instance in only one event loop."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._get_batches = Batcher(
            self._get_batch,
            max_items=MAX_BATCH_GET,
            max_concurrent=MAX_CONCURRENT_BATCHES,
            weight=len,
            max_weight=MAX_BATCH_GET,
        )

    async def get(self, addresses: Sequence[Address], now: Micros) -> list[Record | None]:
        keys = [record_key(address) for address in addresses]
        records = await self.records(keys, now)
        return checked(records.get(key) for key in keys)

    async def page(self, request: PageRequest, partition: str, now: Micros) -> list[Record]:
        query = {**_page_query(request, partition), "Limit": request.limit, "ConsistentRead": True}
        name = "place" if request.tag is None else "tagged_place"
        page = Page(request.limit)
        start: Item | None = None
        while not page.is_full:
            from_key = {} if start is None else {"ExclusiveStartKey": start}
            items, start = await self._table.read_some("query", {**query, **from_key})
            sort_keys = {item_key(item): item[name]["S"] for item in items}
            await self.fill(page, sort_keys, lambda record, key: _is_current(record, key, request), now)
            if start is None:
                break
        return page.records

    async def fill(
        self, page: Page, sort_keys: Mapping[Key, str], is_current: Callable[[Record, str], bool], now: Micros
    ) -> None:
        """Read the records whose keys are in `sort_keys`, and add them to `page` until the page is full.

        `sort_keys` maps the key of each record to its sort key in the index. Records for which
        `is_current(record, sort_key)` is false are skipped. The first step fetches up to 100 records. Each
        further step fetches as many records as are expected to fit on the rest of the page, but at least 100
        (or all remaining records, if there are fewer). The parts of a split body are read only if the page is
        not yet full.
        """
        left = list(sort_keys)
        size = MAX_BATCH_GET
        while left and not page.is_full:
            some, left = left[:size], left[size:]
            items = await self._items(some)
            for portion in _portions(some, items):
                records = await self.records(portion, now, items)
                for key in portion:
                    record = records.get(key)
                    is_listed = not isinstance(record, Record) or is_current(record, sort_keys[key])
                    if is_listed and not page.is_full:
                        page.add(record)
                if page.is_full:
                    return
            fitting = (MAX_PAGE_BYTES - page.bytes) * len(page.records) // max(1, page.bytes)
            size = max(MAX_BATCH_GET, fitting)

    async def records(
        self, keys: Iterable[Key], now: Micros, items: Mapping[Key, Item] | None = None
    ) -> dict[Key, Record | Damaged]:
        """Return the newest versions of the live records with the given `keys`.

        A caller that has just read the items of these records can pass the items as `items`. The bodies of
        expired records are not read, because DynamoDB may already have deleted some of their parts.
        """
        left = list(dict.fromkeys(keys))
        found: dict[Key, Record | Damaged] = {}
        for attempt in range(MAX_BODY_READ_ATTEMPTS):
            read = await self._items(left) if items is None or attempt else items
            items = {
                key: read[key]
                for key in left
                if key in read and is_live(int_attribute(read[key], "expires_at"), now)
            }
            bodies = await self._bodies(items)
            found.update((key, decode_record(items[key], body)) for key, body in bodies.items())
            left = [key for key in items if key not in bodies]
            found |= await self._damaged(items, left)
            left = [key for key in left if key not in found]
            if not left:
                return found
            await backoff(attempt)
        name = self._table.location.display_name
        raise StorageBusy(
            f"{name}: {address_of(left[0])} was replaced during each attempt to read it; try again later"
        )

    async def _damaged(self, items: Mapping[Key, Item], incomplete: Sequence[Key]) -> dict[Key, Damaged]:
        """Return the damaged records among those whose keys are in `incomplete`.

        `incomplete` contains the keys of the records whose bodies had missing parts. A transactional read
        returns a record and the parts of its body as of the same time. If the record now has a different body
        than in `items`, the record is not damaged: its body was replaced between two reads.
        """
        damaged: dict[Key, Damaged] = {}
        for key in incomplete:
            parts = _parts_of(items[key])
            found = await self._table.get_transactional([key, *parts])
            current = found.get(key, {})
            is_same = key in found and all(current.get(name) == items[key].get(name) for name in _BODY)
            if is_same and not (parts and _is_complete(found, parts)):
                damaged[key] = Damaged(address_of(key), "parts of its body are missing")
        return damaged

    async def close(self) -> None:
        await self._get_batches.close()

    async def _items(self, keys: Sequence[Key]) -> dict[Key, Item]:
        batches = list(batched(keys, MAX_BATCH_GET))
        if len(batches) == 1:
            return await self._get_batches.submit(batches[0])
        results = await asyncio.gather(*[self._get_batches.submit(batch) for batch in batches])
        return {key: item for response in results for key, item in response.items()}

    async def _get_batch(self, requests: Sequence[Sequence[Key]]) -> list[dict[Key, Item]]:
        if len(requests) == 1:
            return [await self._table.get(requests[0], RECORD_PROJECTION)]
        found = await self._table.get({key for keys in requests for key in keys}, RECORD_PROJECTION)
        return [{key: found[key] for key in keys if key in found} for keys in requests]

    async def _bodies(self, items: Mapping[Key, Item]) -> dict[Key, str]:
        """Return the bodies of the records in `items`. Omit bodies that have missing parts."""
        bodies = {key: item["body"]["S"] for key, item in items.items() if "S" in item.get("body", {})}
        split = {key: _parts_of(item) for key, item in items.items() if key not in bodies}
        parts = await self._table.get(part for keys in split.values() for part in keys)
        for key, keys in split.items():
            if keys and _is_complete(parts, keys):
                bodies[key] = "".join(parts[part]["part"]["S"] for part in keys)
        return bodies


def _portions(keys: Iterable[Key], items: Mapping[Key, Item]) -> Iterator[list[Key]]:
    """Divide the keys into groups, so that the bodies of the records in a group fill about one page."""
    portion: list[Key] = []
    size = 0
    for key in keys:
        item = items.get(key, {})
        portion.append(key)
        size += len(item.get("body", {}).get("S", "")) + MAX_INLINE_BODY_BYTES * len(_parts_of(item))
        if size >= MAX_PAGE_BYTES:
            yield portion
            portion, size = [], 0
    yield portion


def _parts_of(item: Item) -> list[Key]:
    """Return the keys of the parts of a record's body, or an empty list if the item refers to no parts."""
    try:
        return part_keys(item["body_id"]["S"], int(item["body_parts"]["N"]))
    except (KeyError, ValueError):
        return []


def _is_complete(found: Mapping[Key, Item], parts: Sequence[Key]) -> bool:
    return all("S" in found.get(part, {}).get("part", {}) for part in parts)


def _page_query(request: PageRequest, partition: str) -> Parameters:
    values = {":pk": {"S": partition_pk(request.space, partition)}}
    expression = "pk = :pk"
    if request.tag is not None:  # the sort keys of a tag start with the tag and NUL
        first, last = f"{request.tag}\0", f"{request.tag}\1"
        if request.after is not None and request.descending:
            last = tag_sort_key(request.tag, request.after)
        elif request.after is not None:
            first = tag_sort_key(request.tag, request.after)
        values |= {":first": {"S": first}, ":last": {"S": last}}
        expression += " AND tagged_place BETWEEN :first AND :last"
    elif request.after is not None:
        values[":after"] = {"S": sort_key(request.after)}
        expression += f" AND place {'<' if request.descending else '>'} :after"
    return {
        "IndexName": LISTING if request.tag is None else LISTING_OF_TAG,
        "KeyConditionExpression": expression,
        "ExpressionAttributeValues": values,
        "ScanIndexForward": not request.descending,
    }


def _is_current(record: Record, listed: str, request: PageRequest) -> bool:
    """Return whether `record` still has the sort key `listed`, and therefore belongs on the page.

    The record at the position `request.after` does not belong on the page, although a query by tag returns
    it.
    """
    position = record.position
    current = sort_key(position) if request.tag is None else tag_sort_key(record.tag, position)
    return current == listed and position != request.after
