"""A process that does everything to a storage at once, and prints what must be stored at the end."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Awaitable, Callable

from perdure.storage import (
    Address,
    Delete,
    Guard,
    Insert,
    InsertIfAbsent,
    Record,
    Space,
    Storage,
    open_storage,
)
from perdure.storage.kit.sample_records import NOW, PARTITION, SPACE, commit_changes, make_record

OWN = Space("own")
"""The space of records that only the task that made them changes, so that it knows what must be there."""
TASKS = 4
STEPS = 40
TAGS = ("red", "green", "")


class Hammer:
    """One task. Each of its steps is one call of the storage, of any kind."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.storage = storage
        self.name = name
        self.chance = random.Random(name)
        self.own: dict[str, Record] = {}
        self.made = 0
        self.steps: tuple[Callable[[], Awaitable[object]], ...] = (
            *(self.insert, self.insert, self.insert_several, self.replace, self.delete),
            *(self.keep_shared, self.replace_shared, self.delete_shared, self.guarded),
            *(self.pass_away, self.purge, self.read_pages, self.read_due, self.read_counts),
        )

    async def run(self) -> None:
        for _ in range(STEPS):
            await self.chance.choice(self.steps)()

    def new(self) -> Record:
        self.made += 1
        tag = self.chance.choice(TAGS)
        return make_record(
            f"{self.name}-{self.made}", space=OWN, order=self.made, tag=tag, lane="l", wake_at=NOW
        )

    # What only this task changes: none of it may be refused

    async def insert(self) -> None:
        await self.insert_several(1)

    async def insert_several(self, count: int = 3) -> None:
        records = [self.new() for _ in range(count)]
        await commit_changes(self.storage, *[Insert(record=record) for record in records])
        self.own.update({record.key: record for record in records})

    async def replace(self) -> None:
        if self.own:
            change = self.pick().replace_with(body=str(self.made), tag=self.chance.choice(TAGS))
            await commit_changes(self.storage, change)
            self.own[change.after.key] = change.after

    async def delete(self) -> None:
        if self.own:
            record = self.pick()
            await commit_changes(self.storage, Delete(before=record), Insert(record=(new := self.new())))
            del self.own[record.key]
            self.own[new.key] = new

    def pick(self) -> Record:
        return self.own[self.chance.choice(sorted(self.own))]

    # What all tasks change: refusals are to be expected

    def shared(self) -> Record:
        return make_record(f"shared-{self.chance.randrange(5)}", tag=self.chance.choice(TAGS))

    async def keep_shared(self) -> None:
        await self.storage.commit([InsertIfAbsent(record=self.shared())], now=NOW)

    async def replace_shared(self) -> None:
        found = await self.storage.get(self.shared().address, now=NOW)
        if found is not None:
            change = found.replace_with(body=self.name, tag=self.chance.choice(TAGS))
            await self.storage.commit([change], now=NOW)

    async def delete_shared(self) -> None:
        found = await self.storage.get(self.shared().address, now=NOW)
        if found is not None:
            await self.storage.commit([Delete(before=found)], now=NOW)

    async def guarded(self) -> None:
        guard = Guard(space=SPACE, tags=frozenset({"red"}), max_count=3)
        await self.storage.commit([InsertIfAbsent(record=self.shared())], guard=guard, now=NOW)

    async def pass_away(self) -> None:
        self.made += 1
        record = make_record(f"{self.name}-{self.made}", tag="red", expires_at=NOW)
        await commit_changes(self.storage, Insert(record=record))

    async def purge(self) -> None:
        await self.storage.purge(until=NOW, limit=3)

    # Reading

    async def read_pages(self) -> None:
        mine = [Address(OWN, PARTITION, key) for key in sorted(self.own)]
        if mine:
            assert await self.storage.get_many(mine, now=NOW) == [self.own[each.key] for each in mine]
        await self.storage.page(OWN, limit=20, now=NOW, descending=True)

    async def read_due(self) -> None:
        await self.storage.due("l", until=NOW, limit=20, now=NOW)

    async def read_counts(self) -> None:
        assert all(number > 0 for number in (await self.storage.counts(SPACE, now=NOW)).values())


async def main(url: str, name: str) -> None:
    async with await open_storage(url) as storage:
        tasks = [Hammer(storage, f"{name}{n}") for n in range(TASKS)]
        await asyncio.gather(*[task.run() for task in tasks])
    print(json.dumps({key: record.version for task in tasks for key, record in task.own.items()}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
