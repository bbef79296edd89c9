"""A process that commits, replaces, deletes and purges in partitions that others write to as well."""

from __future__ import annotations

import asyncio
import random
import sys

from perdure.storage import Change, Delete, Insert, InsertIfAbsent, Record, Storage, open_storage
from perdure.storage.kit.sample_records import NOW, make_record

PARTITIONS = ["p0", "p1", "p2"]
ROUNDS = 40


async def stress(storage: Storage, seed: int) -> None:
    chance = random.Random(seed)
    for n in range(ROUNDS):
        partition = chance.choice(PARTITIONS)
        keys = chance.sample("abcdefghijkl", 3)
        found = await storage.get_many(
            [make_record(key, partition=partition).address for key in keys], now=NOW
        )
        changes = [_change(chance, partition, key, old) for key, old in zip(keys, found, strict=True)]
        await storage.commit(changes, now=NOW)
        if n % 10 == 9:
            await storage.purge(until=NOW, limit=chance.choice([1, 5, 100]))


def _change(chance: random.Random, partition: str, key: str, old: Record | None) -> Change:
    tag, expires_at = chance.choice("xyz"), chance.choice([None, NOW, NOW + 5])
    if old is None:
        new = make_record(key, partition=partition, tag=tag, expires_at=expires_at)
        return chance.choice([Insert, InsertIfAbsent])(record=new)
    return (
        Delete(before=old)
        if chance.random() < 0.3
        else old.replace_with(body="2", tag=tag, expires_at=expires_at)
    )


async def main(url: str, seed: int) -> None:
    async with await open_storage(url) as storage:
        await asyncio.gather(*[stress(storage, seed * 10 + n) for n in range(4)])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
