"""Records by address, and by pages of one partition: always the newest.

Look-ups that come together go together. A page is read in two steps: its keys from an index, which holds
little else, then the records; one that has left its place in between is passed over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ..batcher import Batcher
from ..damage import Damaged, checked
from ..errors import StorageBusy
from ..page import MAX_PAGE_BYTES, Page
from ..record import Address, Micros, PageRequest, Record
from .items import (
    MOST_INLINE,
    Item,
    Key,
    address_of,
    key_of,
    number,
    part_keys,
    place,
    record_key,
    record_of,
    records_of,
    tagged_place,
)
from .schema import LISTING, LISTING_OF_TAG
from .table import MOST_GOT, RECORDS, Parameters, Table, pause

GROUPS_AT_ONCE = 8
"""Look-ups under way before the next ones wait for company."""
MOST_LOOKS = 8
"""How often a body in parts may be replaced while it is read."""


_BODY = ("body", "body_id", "body_parts")


class Reader:
    """Belongs to one event loop."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._look_ups = Batcher(
            self._look_up, max_items=MOST_GOT, max_concurrent=GROUPS_AT_ONCE, weight=len, max_weight=MOST_GOT
        )

    async def get(self, addresses: Sequence[Address], now: Micros) -> list[Record | None]:
        keys = [record_key(address) for address in addresses]
        records = await self.records(keys, now)
        return checked(records.get(key) for key in keys)

    async def page(self, request: PageRequest, partition: str, now: Micros) -> list[Record]:
        question = {**_page(request, partition), "Limit": request.limit, "ConsistentRead": True}
        name = "place" if request.tag is None else "tagged_place"
        page = Page(request.limit)
        start: Item | None = None
        while not page.is_full:
            begin = {} if start is None else {"ExclusiveStartKey": start}
            items, start = await self._table.query({**question, **begin})
            places = {key_of(item): item[name]["S"] for item in items}
            await self.fill(page, places, lambda record, at: _is_at(record, at, request), now)
            if start is None:
                break
        return page.records

    async def fill(
        self, page: Page, places: Mapping[Key, str], is_there: Callable[[Record, str], bool], now: Micros
    ) -> None:
        """Add the records of these keys to a page, as far as they are in their places, until it is full.

        A hundred are read at first, then as many as should fit; bodies in parts only as they are needed.
        """
        left = list(places)
        size = MOST_GOT
        while left and not page.is_full:
            some, left = left[:size], left[size:]
            items = await self._items(some)
            for portion in _portions(some, items):
                records = await self.records(portion, now, items)
                for key in portion:
                    record = records.get(key)
                    if not page.is_full and (not isinstance(record, Record) or is_there(record, places[key])):
                        page.add(record)
                if page.is_full:
                    return
            fitting = (MAX_PAGE_BYTES - page.bytes) * len(page.records) // max(1, page.bytes)
            size = max(MOST_GOT, fitting)

    async def records(
        self, keys: Iterable[Key], now: Micros, items: Mapping[Key, Item] | None = None
    ) -> dict[Key, Record | Damaged]:
        """The newest of these; what is not there, or has expired, is absent. `items` were just read.

        Of what has expired no body is asked for: it may be gone, in part, before its record.
        """
        left = list(dict.fromkeys(keys))
        found: dict[Key, Record | Damaged] = {}
        for tries in range(MOST_LOOKS):
            read = await self._items(left) if items is None or tries else items
            items = {key: read[key] for key in left if key in read and _is_live(read[key], now)}
            bodies = await self._bodies(items)
            found.update((key, record_of(items[key], body)) for key, body in bodies.items())
            left = [key for key in items if key not in bodies]
            found |= await self._damaged(items, left)
            left = [key for key in left if key not in found]
            if not left:
                return found
            await pause(tries)
        name = self._table.location.name
        raise StorageBusy(f"{name}: the body of {left[0]} was replaced each time that it was read")

    async def _damaged(self, items: Mapping[Key, Item], lacking: Sequence[Key]) -> dict[Key, Damaged]:
        """Return those of these records, whose bodies were not found, that are damaged.

        A transactional read sees a record together with its parts. If it shows another body, the body was
        only replaced in the meantime.
        """
        damaged: dict[Key, Damaged] = {}
        for key in lacking:
            parts = _parts_of(items[key])
            found = await self._table.get_settled([key, *parts])
            now = found.get(key, {})
            is_same = key in found and all(now.get(name) == items[key].get(name) for name in _BODY)
            if is_same and not (parts and _is_whole(found, parts)):
                damaged[key] = Damaged(address_of(key), "its body is missing, or a part of it")
        return damaged

    async def close(self) -> None:
        await self._look_ups.close()

    async def _items(self, keys: Sequence[Key]) -> dict[Key, Item]:
        groups = [keys[start : start + MOST_GOT] for start in range(0, len(keys), MOST_GOT)]
        if len(groups) == 1:
            return await self._look_ups.submit(groups[0])
        answers = await asyncio.gather(*[self._look_ups.submit(group) for group in groups])
        return {key: item for answer in answers for key, item in answer.items()}

    async def _look_up(self, questions: Sequence[Sequence[Key]]) -> list[dict[Key, Item]]:
        if len(questions) == 1:
            return [await self._table.get(questions[0], RECORDS)]
        found = await self._table.get({key for keys in questions for key in keys}, RECORDS)
        return [{key: found[key] for key in keys if key in found} for keys in questions]

    async def _bodies(self, items: Mapping[Key, Item]) -> dict[Key, str]:
        """The body of each; without those whose parts are not all there, as they are just being replaced."""
        bodies = {key: item["body"]["S"] for key, item in items.items() if "S" in item.get("body", {})}
        apart = {key: _parts_of(item) for key, item in items.items() if key not in bodies}
        request = [part for keys in apart.values() for part in keys]
        parts: dict[Key, Item] = {}
        for start in range(0, len(request), MOST_GOT):
            parts |= await self._table.get(request[start : start + MOST_GOT])
        for key, keys in apart.items():
            if keys and _is_whole(parts, keys):
                bodies[key] = "".join(parts[part]["part"]["S"] for part in keys)
        return bodies


def _portions(keys: Iterable[Key], items: Mapping[Key, Item]) -> Iterator[list[Key]]:
    """Yield these keys in portions, whose bodies have about the bytes of a page together."""
    portion: list[Key] = []
    size = 0
    for key in keys:
        item = items.get(key, {})
        portion.append(key)
        size += len(item.get("body", {}).get("S", "")) + MOST_INLINE * len(_parts_of(item))
        if size >= MAX_PAGE_BYTES:
            yield portion
            portion, size = [], 0
    yield portion


def _parts_of(item: Item) -> list[Key]:
    """Return the keys of the parts of a body, none if the item does not tell them."""
    try:
        return part_keys(item["body_id"]["S"], int(item["body_parts"]["N"]))
    except (KeyError, ValueError):
        return []


def _is_whole(found: Mapping[Key, Item], parts: Sequence[Key]) -> bool:
    return all("S" in found.get(part, {}).get("part", {}) for part in parts)


def _is_live(item: Item, now: Micros) -> bool:
    expires_at = number(item, "expires_at")
    return expires_at is None or now < expires_at


def _page(request: PageRequest, partition: str) -> Parameters:
    values = {":pk": {"S": records_of(request.space, partition)}}
    expression = "pk = :pk"
    if request.tag is not None:  # a tag's places lie between its name and the name with a greater separator
        first, last = f"{request.tag}\0", f"{request.tag}\1"
        if request.after is not None and request.descending:
            last = tagged_place(request.tag, request.after)
        elif request.after is not None:
            first = tagged_place(request.tag, request.after)
        values |= {":first": {"S": first}, ":last": {"S": last}}
        expression += " AND tagged_place BETWEEN :first AND :last"
    elif request.after is not None:
        values[":after"] = {"S": place(request.after)}
        expression += f" AND place {'<' if request.descending else '>'} :after"
    return {
        "IndexName": LISTING if request.tag is None else LISTING_OF_TAG,
        "KeyConditionExpression": expression,
        "ExpressionAttributeValues": values,
        "ScanIndexForward": not request.descending,
    }


def _is_at(record: Record, at: str, request: PageRequest) -> bool:
    """Whether a record stands where the index had it, and not at the place after which it was asked."""
    position = record.position
    stands = place(position) if request.tag is None else tagged_place(record.tag, position)
    return stands == at and position != request.after
